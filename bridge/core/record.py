"""What the journal holds: half messages, ends, operators' acts."""

from enum import Enum, IntEnum

from msgspec import Struct


class Resolution(IntEnum):
    """An answer to what became of a transaction; the numbers are RocketMQ's commitOrRollback."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class Source(Enum):
    """The source of a transaction's end."""

    PRODUCER = "P"
    CHECK = "C"
    OPERATOR = "O"


class Act(Enum):
    """What an operator asks of a transaction."""

    CHECK = "CHECK"
    RESUME = "RESUME"
    ABANDON = "ABANDON"


class HalfMessage(Struct, frozen=True, gc=False):
    """A half message without its body. For several messages `real_topic` is "" and the rest of the three unset.

    `is_published`: prepared and committed in one step. `seen_ms`: Kafka's time as the api knew it before
    it looked whether the key is known; 0 if it knew none. `ordering_hash`: hash of the effective ordering key; None
    where there is none, and in records of versions whose implicit keys spanned groups and topics.
    """

    transaction_id: str
    group: str
    message_count: int
    born_ms: int
    real_topic: str = ""
    real_queue_id: int = -1
    timestamp_ms: int | None = None
    ordering_key: str | None = None
    immunity_s: int | None = None
    max_checks: int | None = None
    max_life_s: int | None = None
    idempotency_key: str | None = None
    seen_ms: int = 0
    request: str | None = None
    is_published: bool = False
    ordering_hash: int | None = None


class EndRecord(Struct, frozen=True, gc=False):
    """A resolution. The check's fields are set for Source.CHECK, the operator's for Source.OPERATOR.

    `remark`: the producer's words about it, such as the text of an exception.
    """

    transaction_id: str
    resolution: Resolution
    source: Source
    born_ms: int
    group: str | None = None
    request: str | None = None
    check_number: int = 0
    endpoint: str | None = None
    status: int = 0
    latency_ms: int = 0
    actor: str | None = None
    reason: str | None = None
    remark: str | None = None


class ActRecord(Struct, frozen=True, gc=False):
    """An operator's act."""

    transaction_id: str
    act: Act
    actor: str
    reason: str
    born_ms: int
    request: str | None = None


Record = HalfMessage | EndRecord | ActRecord

SEEN_LIMIT_MS = 30_000
MAX_REMARK_CHARS = 512


def is_void(half: HalfMessage, stored_ms: int) -> bool:
    """Whether a keyed half message was appended too long after its look-up to count, for everybody."""
    return half.idempotency_key is not None and is_too_late(half.seen_ms, stored_ms)


def is_too_late(seen_ms: int, stored_ms: int) -> bool:
    """Whether between these times so much can have happened that a look-up says nothing any more."""
    return stored_ms - seen_ms > SEEN_LIMIT_MS
