"""What can go wrong. Each leaf says whether the call was applied, and whether calling again helps.

`OutcomeUnknown` is no refusal: what was asked for may have happened. Repeating the same call, with the same
idempotency key, gives the outcome.

Only a database's own refusal proves it. All else, such as a lost connection, proves nothing: the commit may have
arrived before the connection broke.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Outcome(StrEnum):
    """Whether what was asked for has happened. `PARTLY`: locally, but its messages are not published."""

    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"
    PARTLY = "partly"


@dataclass(frozen=True, slots=True)
class Problem:
    """The bridge's own words about a refusal. Source: RFC 9457.

    `errors`: where in the request and what, as (JSON pointer or parameter, text). `state`: the transaction's, if known.
    """

    code: str
    status: int
    title: str = ""
    detail: str = ""
    request_id: str = ""
    outcome: Outcome | None = None
    transaction_id: str | None = None
    state: str | None = None
    errors: Sequence[tuple[str, str]] = ()
    retry_after_s: float | None = None

    def __str__(self) -> str:
        places = ", ".join(where or "/" for where, _ in self.errors)
        said = self.detail or self.title or "no detail"
        return f"{self.code} ({self.status}): {said}" + (f" at {places}" if places else "")


class OutboxError(Exception):
    """Any failure of this package. `retry_helps`: whether the same call can succeed later, as it is."""

    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    retry_helps: ClassVar[bool] = False


class OutboxConfigError(OutboxError, ValueError):
    """A setting outside its bounds."""


class InvalidMessage(OutboxError, ValueError):
    """A message, an id or an option that the bridge would refuse; nothing was sent."""


class Misuse(OutboxError, RuntimeError):
    """Used in a way that cannot work, such as outside its block or in another event loop."""


class Closed(OutboxError, RuntimeError):
    """Used after `close`."""


class Unavailable(OutboxError):
    """Not reachable, or overloaded, until the deadline; certainly not applied."""

    retry_helps = True

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why, retry_after_s)
        self.why = why
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.why


class OutcomeUnknown(OutboxError):
    """Sent, and no answer that can be believed came before the deadline."""

    outcome = Outcome.UNKNOWN
    retry_helps = True

    def __init__(self, why: str, transaction_id: str | None = None) -> None:
        super().__init__(why, transaction_id)
        self.why = why
        self.transaction_id = transaction_id

    def __str__(self) -> str:
        return self.why


class LocalCommitUnknown(OutcomeUnknown):
    """The database did not say whether the local transaction was committed; the back-check will find out.

    Running the block again could do its work twice: look first what the database holds.
    """

    retry_helps = False


class NotPrepared(OutboxError):
    """No answer said that the half message is stored and open, so the local transaction was not committed.

    Without it the messages are never published: the whole block may be run again.
    """

    retry_helps = True


class AlreadyEnded(OutboxError):
    """The idempotency key names a transaction that has ended, so the local transaction was not committed (again).

    `state`: COMMITTED, an earlier run has done the work; ROLLED_BACK, it came to nothing, and so would each other under
    this key; PARKED, an operator decides.
    """

    def __init__(self, transaction_id: str, state: str) -> None:
        super().__init__(transaction_id, state)
        self.transaction_id = transaction_id
        self.state = state

    def __str__(self) -> str:
        remedy = ": that run came to nothing, begin another under another key" if self.state == "ROLLED_BACK" else ""
        return f"transaction {self.transaction_id} is {self.state} already{remedy}"


class Contradicted(OutboxError):
    """The local transaction is committed, but its messages will not be published: the bridge has recorded otherwise.

    Only an operator, a wrong answer to a check, or a log that lost its messages can bring this about.
    """

    outcome = Outcome.PARTLY

    def __init__(self, transaction_id: str, state: str | None, why: str) -> None:
        super().__init__(transaction_id, state, why)
        self.transaction_id = transaction_id
        self.state = state
        self.why = why

    def __str__(self) -> str:
        return f"transaction {self.transaction_id} is committed locally but {self.state or 'lost'}: {self.why}"


class Refused(OutboxError):
    """The bridge understood the call and will not do it. `problem` holds its words."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return str(self.problem)

    @property
    def code(self) -> str:
        """The stable code of the problem."""
        return self.problem.code


class RequestRefused(Refused):
    """Malformed, too large, or naming a topic, partition or time that cannot be: correct the call."""


class NotPermitted(Refused):
    """No valid credential, or one without the grant."""


class NotFound(Refused):
    """No such transaction, group or path."""


class KeyReused(Refused):
    """The idempotency key stands for other content."""


class Conflict(Refused):
    """Against the recorded facts: another group's transaction, one in use, or no longer stored."""


class AlreadyResolved(Conflict):
    """The transaction was resolved otherwise; `problem.state` stands for ever."""


class GivenUp(Conflict):
    """The log that held the transaction was lost, and an operator gave it up: whether it was published is not known.

    Your own database decides: what it has committed and the topic does not hold is to be published anew.
    """

    outcome = Outcome.UNKNOWN


class NotPullMode(Conflict):
    """The bridge sends the group's checks to its endpoints: put the group with `check.mode` `pull` to fetch them."""


class CheckEndpointRefused(Refused):
    """The URL may not be called back."""


class LocalTransactionBarred(OutboxError):
    """The id already has a transaction record: this local transaction must not commit, and has not.

    Either a back-check came first and was answered ROLLBACK, or an earlier try under the same idempotency key
    has committed. Roll the local transaction back and end nothing: the record that is there will answer.
    """


class SignatureRefused(OutboxError):
    """A call that no known secret has signed just now. The message names no secret and no signature."""


class CallRefused(OutboxError):
    """A check call that has not the agreed shape."""


class DatabaseUnavailable(OutboxError):
    """The outbox's database cannot be used now."""

    retry_helps = True


class TableMissing(OutboxError):
    """The database has no such table. `remedy`: what makes it."""

    def __init__(self, table: str, database: str, remedy: str = "") -> None:
        super().__init__(table, database, remedy)
        self.table = table
        self.database = database
        self.remedy = remedy

    def __str__(self) -> str:
        return f"the database has no table {self.table}" + (f": {self.remedy}" if self.remedy else "")


class HandOverUnavailable(OutboxError):
    """The bridge could not be asked, or said nothing of any row: hand all of them over again later."""

    outcome = Outcome.UNKNOWN
    retry_helps = True

    def __init__(self, message: str, retry_after_ms: int = 0, *, is_sent: bool = True) -> None:
        """`is_sent` False: the bridge has certainly not seen the rows."""
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.is_sent = is_sent


_BY_CODE: dict[str, type[Refused]] = {
    "idempotency-key-reused": KeyReused,
    "already-resolved": AlreadyResolved,
    "given-up": GivenUp,
    "not-pull-mode": NotPullMode,
    "callback-url-forbidden": CheckEndpointRefused,
    "callback-unverified": CheckEndpointRefused,
}
_BY_STATUS: dict[int, type[Refused]] = {401: NotPermitted, 403: NotPermitted, 404: NotFound, 409: Conflict}


def refusal_of(problem: Problem) -> Refused:
    """The leaf for a problem."""
    leaf = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, RequestRefused)
    return leaf(problem)


_REFUSING_CLASSES, _COMPLETION_UNKNOWN = ("23", "40", "P0"), "40003"
_REFUSALS = frozenset({"IntegrityError", "PendingRollbackError"})
_DEADLOCK_ARGS = (1213,)  # MariaDB's number for 40001, which its drivers leave out; what Galera says to a commit
_READ_ONLY, _READ_ONLY_ARGS = "25006", ((1290,), (1836,))  # PostgreSQL's SQLSTATE; numbers of MariaDB and MySQL
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
    if any(cause.args[:1] == _DEADLOCK_ARGS for cause in causes):
        return True
    return any(kind.__name__ in _REFUSALS for cause in causes for kind in type(cause).__mro__)


def is_read_only(error: BaseException) -> bool:
    """Whether its server takes no writes, as one that another has taken over from: connections may outlive that."""
    return any(_sqlstate(cause) == _READ_ONLY or cause.args[:1] in _READ_ONLY_ARGS for cause in _causes(error))


def _is_refusal(state: str) -> bool:
    """Source: SQL standard, classes 23 (constraint violated) and 40 (rolled back); PostgreSQL, P0 (PL/pgSQL, such as a
    RAISE in a constraint trigger that is deferred to the commit)."""
    return state.startswith(_REFUSING_CLASSES) and state != _COMPLETION_UNKNOWN


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
