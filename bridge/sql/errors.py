"""Errors of the SQL side.

SqlUnavailable (a BridgeError)   the database cannot do it now; nothing was applied unless `is_outcome_unknown`
MalformedCursor (a ValueError)   a page cursor that this bridge did not make
"""

from bridge.core.errors import BridgeError


class SqlUnavailable(BridgeError):
    """The database is not reachable, overloaded, read-only, or not migrated.

    `retry_helps`: False where an operator is needed first. `is_outcome_unknown`: the connection broke
    in COMMIT, so the work may have been applied; in every other case nothing was.
    """

    def __init__(self, reason: str, *, retry_helps: bool = True, is_outcome_unknown: bool = False) -> None:
        super().__init__(reason)
        self.retry_helps = retry_helps
        self.is_outcome_unknown = is_outcome_unknown


class MalformedCursor(ValueError):
    """A cursor of a page that cannot be read."""
