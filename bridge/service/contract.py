"""What the service is asked and what it answers, refusals included: expected outcomes are values. Bounds of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from msgspec import Struct

from bridge.core.grants import Rights, Verb
from bridge.core.message import Message
from bridge.core.record import Resolution, Source
from bridge.core.transaction import TransactionState, TransactionView, show_time

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one process, and of what all processes together leave pending."""

    max_messages: int = 100  # of one transaction
    max_message_bytes: int = MIB  # key, value and headers
    max_record_bytes: int = 8 * MIB + 64 * 1024  # of a journal record; the journal's max.message.bytes
    max_pending: int = 2_000_000
    max_pending_of_group: int | None = None
    max_parked_of_group: int | None = None
    max_in_flight: int = 100_000  # records being appended
    max_text_chars: int = 1_000  # reasons, actors, keys that travel in properties
    projection_wait_ms: int = 2_000
    retry_after_s: int = 1


class RefusalCode(StrEnum):
    """Why a call was refused; the value is the last part of the problem type's URI."""

    INVALID_REQUEST = "invalid-request"
    ILLEGAL_TOPIC = "illegal-topic"
    RESERVED_TOPIC = "reserved-topic"
    UNKNOWN_TOPIC = "unknown-topic"
    UNKNOWN_PARTITION = "unknown-partition"
    INVALID_TIMESTAMP = "invalid-timestamp"
    MESSAGE_TOO_LARGE = "message-too-large"
    FORBIDDEN = "forbidden"
    IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused"
    UNKNOWN_TRANSACTION = "unknown-transaction"
    UNKNOWN_PRODUCER_GROUP = "unknown-producer-group"
    PRODUCER_GROUP_MISMATCH = "producer-group-mismatch"
    PRODUCER_GROUP_IN_USE = "producer-group-in-use"
    NOT_PULL_MODE = "not-pull-mode"
    TOO_MANY_ENDPOINTS = "too-many-endpoints"
    ALREADY_RESOLVED = "already-resolved"
    BODY_EXPIRED = "body-expired"
    GIVEN_UP = "given-up"
    NOT_PARKED = "not-parked"
    NOT_BLOCKED = "not-blocked"
    TOO_EARLY = "too-early"
    TOO_MANY_KEYS = "too-many-keys"
    NOT_FOUND = "not-found"
    CALLBACK_URL_FORBIDDEN = "callback-url-forbidden"
    CALLBACK_UNVERIFIED = "callback-unverified"
    PROJECTION_BEHIND = "projection-behind"
    RATE_LIMITED = "rate-limited"
    UNAVAILABLE = "unavailable"
    OUTCOME_UNKNOWN = "outcome-unknown"


class Outcome(StrEnum):
    """Whether a refused call changed anything."""

    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal. `transaction_id` is set whenever it is known, so that the caller can ask again."""

    code: RefusalCode
    detail: str
    outcome: Outcome | None = Outcome.NOT_APPLIED
    transaction_id: str | None = None
    state: TransactionState | None = None
    errors: Sequence[tuple[str, str]] = ()
    retry_after_s: int | None = None


class PrepareCall(Struct, frozen=True, gc=False):
    """A prepare, or with `is_published` a publish without a local transaction. Bodies are bytes already."""

    group: str
    messages: Sequence[Message]
    ordering_key: str | None = None
    idempotency_key: str | None = None
    immunity_s: int | None = None
    max_checks: int | None = None
    max_lifetime_s: int | None = None
    is_published: bool = False


class Prepared(Struct, frozen=True, gc=False):
    """A stored half message; `state` is another than PREPARED only for a repeat."""

    transaction_id: str
    group: str
    state: TransactionState
    born_ms: int
    first_check_ms: int
    queue_id: int
    queue_offset: int


class EndCall(Struct, frozen=True, gc=False):
    """An end transaction. `group` None: not compared. `check_number`: the answer to that check. `remark`: see
    EndRecord."""

    transaction_id: str
    resolution: Resolution
    group: str | None = None
    source: Source = Source.PRODUCER
    check_number: int = 0
    actor: str | None = None
    reason: str | None = None
    remark: str | None = None


class Accepted(Struct, frozen=True, gc=False):
    """An end that is durable but not waited for (`Prefer: respond-async`)."""

    transaction_id: str
    resolution: Resolution


class Wait(Enum):
    """Whether an end waits until it is settled."""

    SETTLED = "settled"
    DURABLE = "durable"


# --- refusals of what is asked, and of states ---

FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})


def refuse_unheard(transaction_id: str | None = None) -> Refused:
    """The settlers' decision would not arrive."""
    return refuse_unavailable("answers of the settlers cannot be heard now", transaction_id)


def refuse_unknown(transaction_id: str) -> Refused:
    """The outcome is unknown, and may still change: the same call again, or a look, gives the truth."""
    detail = "not known in time; repeat the call, or look the transaction up"
    return Refused(RefusalCode.OUTCOME_UNKNOWN, detail, Outcome.UNKNOWN, transaction_id)


def refuse_given_up(view: TransactionView) -> Refused:
    """No log says what became of it, and none will. The answer is neither "not applied" nor "unknown": a repeat of
    the call gets the same, and an earlier call may have been published."""
    given_up_at = show_time(view.given_up_ms or 0)
    detail = (
        f"the log that held this transaction was lost, and an operator gave it up at {given_up_at}; "
        f"it was last seen {view.state.value}, and this call has changed nothing"
    )
    return Refused(RefusalCode.GIVEN_UP, detail, None, view.transaction_id, view.state)


def refuse_unavailable(detail: str, transaction_id: str | None = None) -> Refused:
    """Nothing happened; the same call may succeed soon."""
    return Refused(RefusalCode.UNAVAILABLE, detail, transaction_id=transaction_id, retry_after_s=1)


def refuse_missing(transaction_id: str, lost_ms: int | None = None) -> Refused:
    """There is no such transaction. `lost_ms`: when a log was given up that may have held it, unknown to all others."""
    if lost_ms is not None:
        detail = (
            f"nobody knows this transaction; the log that may have held it was lost, and an operator gave it up at "
            f"{show_time(lost_ms)}; this call has changed nothing"
        )
        return Refused(RefusalCode.GIVEN_UP, detail, None, transaction_id)
    return Refused(RefusalCode.UNKNOWN_TRANSACTION, "no such transaction", transaction_id=transaction_id)


def refuse_group(group: str) -> Refused:
    """Nobody created the group."""
    detail = f"producer group {group} does not exist: `outbox-bridge group put` makes it"
    return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, detail)


# --- what callers may do: the rules for every call, whichever way it came ---


def refuse_view(rights: Rights, verb: Verb, view: TransactionView) -> Refused | None:
    """Why this may not be done to a transaction that was found; who may not even read it learns nothing of it."""
    if rights.may(verb, view.group):
        return None
    if verb is Verb.READ or not rights.may(Verb.READ, view.group):
        return refuse_missing(view.transaction_id)
    return refuse_right(verb, f"for producer group {view.group}")


def refuse_for_group(rights: Rights, verb: Verb, group: str) -> Refused | None:
    """Why this may not be done to a producer group; to somebody with no right to it, it does not exist."""
    if rights.may(verb, group):
        return None
    is_known = any(rights.may(other, group) for other in Verb)
    return refuse_right(verb, f"for producer group {group}") if is_known else refuse_group(group)


def refuse_right(verb: Verb, what: str) -> Refused:
    """The caller is known, and was not granted this."""
    return Refused(RefusalCode.FORBIDDEN, f"this caller was not granted `{verb.value}` {what}")
