"""What a store answers: RocketMQ's put and get results, with unknown as an outcome of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from bridge.core.message import Message, Receipt, StoredMessage


class PutStatus(Enum):
    """PUT_OK: on all in-sync replicas. REFUSED: certainly not written. OUTCOME_UNKNOWN: may be, now or later."""

    PUT_OK = "PUT_OK"
    REFUSED = "REFUSED"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"


class Refusal(Enum):
    """Why a message was certainly not written."""

    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    NOT_AUTHORISED = "NOT_AUTHORISED"
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    HALTED = "HALTED"  # the queue, or the log, waits for an operator; `detail` says why
    STORE_BUSY = "STORE_BUSY"  # queue full, not enough replicas before the append, shutting down
    OTHER = "OTHER"


class PutResult(Struct, frozen=True, gc=False):
    """Outcome of one put. Offset and append time are -1 unless PUT_OK (the offset of a retried put may be -1 too)."""

    status: PutStatus
    queue_offset: int = -1
    stored_ms: int = -1
    refusal: Refusal | None = None
    detail: str = ""


class GetStatus(Enum):
    """RocketMQ's PullStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"  # only markers, aborted or compacted records: go on at next_begin_offset
    NO_NEW_MSG = "NO_NEW_MSG"  # at the end
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # below min or above max: next_begin_offset is the nearest legal one


class GetResult(NamedTuple):
    """Outcome of a get. Go on at `next_begin_offset`, never at the last offset + 1: offsets have gaps."""

    status: GetStatus
    messages: Sequence[StoredMessage]
    next_begin_offset: int
    min_offset: int
    max_offset: int


class QueueOffsets(NamedTuple):
    """`minimum`: first offset kept; `stable`: end for committed readers (LSO); `maximum`: next to be assigned."""

    minimum: int
    stable: int
    maximum: int


class GroupGeneration(NamedTuple):
    """A group member at one generation, opaque to callers: ties consume offsets to a Kafka transaction."""

    group: str
    token: object


class ConsumeOffset(NamedTuple):
    """The next offset a group wants of a queue."""

    topic: str
    queue_id: int
    queue_offset: int


class BatchKind(Enum):
    """What an owner writes a batch for. The store makes no difference; crash points do."""

    SETTLE = "settle"
    BLOCK = "block"
    RETRY = "retry"
    PARK = "park"
    PUT_BACK = "put back"
    POSITION = "position"
    TAKE_OVER = "take over"


@dataclass(frozen=True, slots=True)
class AtomicBatch:
    """All of it or nothing, in one Kafka transaction.

    `messages` are put first, in order; when all their offsets are known `finish` gets one Receipt for
    each and gives the records that close the batch (op messages, then the position as the last one).
    `finish` is pure. Every message names its queue.
    """

    messages: Sequence[Message]
    finish: Callable[[Sequence[Receipt]], Sequence[Message]]
    consume_offsets: tuple[GroupGeneration, Sequence[ConsumeOffset]] | None = None
    kind: BatchKind = BatchKind.SETTLE


class BatchResult(NamedTuple):
    """A committed batch: where its messages lie, and offset (None if unknown) and append time of its last record."""

    receipts: Sequence[Receipt]
    last_offset: int | None
    last_stored_ms: int
