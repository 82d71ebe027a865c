"""Whether a commit that raised has certainly not happened. Pure.

Only a database's own refusal proves it. All else, such as a lost connection, proves nothing: the commit may have
arrived before the connection broke.
"""

from collections.abc import Iterator

from outbox.errors import Misuse

_CONSTRAINT, _ROLLED_BACK, _COMPLETION_UNKNOWN = "23", "40", "40003"
_REFUSALS = frozenset({"IntegrityError", "PendingRollbackError"})
_MAX_CAUSES = 10


def is_surely_not_committed(error: BaseException) -> bool:
    """Whether the database refused. `error`: what `commit` raised, by SQLAlchemy or by a driver (PEP 249)."""
    if isinstance(error, Misuse):  # refused by a block around this one
        return True
    causes = list(_causes(error))
    if any(getattr(cause, "connection_invalidated", False) for cause in causes):
        return False
    states = [state for cause in causes if (state := _sqlstate(cause)) is not None]
    if states:
        return all(_is_refusal(state) for state in states)
    return any(kind.__name__ in _REFUSALS for cause in causes for kind in type(cause).__mro__)


def _is_refusal(state: str) -> bool:
    """Source: SQL standard, classes 23 (constraint violated) and 40 (rolled back)."""
    return state.startswith((_CONSTRAINT, _ROLLED_BACK)) and state != _COMPLETION_UNKNOWN


def _sqlstate(error: BaseException) -> str | None:
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str) and len(state) == len(_COMPLETION_UNKNOWN):
            return state
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if current is None:
            return
        yield current
        original = getattr(current, "orig", None)
        current = original if isinstance(original, BaseException) else current.__cause__
