"""What the service is asked and what it answers: expected outcomes are values. Bounds of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from msgspec import Struct

from bridge.core.message import Message
from bridge.core.record import Resolution, Source
from bridge.core.transaction import TransactionState

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


@dataclass(frozen=True, slots=True)
class Accepted:
    """An end that is durable but not waited for (`Prefer: respond-async`)."""

    transaction_id: str
    resolution: Resolution


class Wait(Enum):
    """Whether an end waits until it is settled."""

    SETTLED = "settled"
    DURABLE = "durable"
