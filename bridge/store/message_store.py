"""Ports of the store layer, RocketMQ's view of a log, the results that they give, and half messages read by offset."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from msgspec import Struct

from bridge.core.errors import BatchAborted, MalformedRecord, UnknownRecordVersion
from bridge.core.message import BY_KEY, Message, MessageQueue, Receipt, StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.core.queue_state import effective_ordering_hash
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_body, decode_parked, decode_record
from bridge.core.topics import PARKED_QUEUE, InternalTopics, TopicDescription


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


class BatchKind(Enum):
    """What an owner writes a batch for. The store makes no difference; crash points do."""

    SETTLE = "settle"
    BLOCK = "block"
    RETRY = "retry"
    PARK = "park"
    CARRY_FORWARD = "carry forward"
    POSITION = "position"
    TAKE_OVER = "take over"


@dataclass(frozen=True, slots=True)
class AtomicBatch:
    """All of it or nothing, in one Kafka transaction.

    `messages` are put first, in order; when all their offsets are known `finish` gets one Receipt for
    each and gives the records that close the batch (op messages, then the position as the last one).
    `finish` is pure. Every message names its queue. `opening` goes with the messages, so that its queue joins the
    Kafka transaction in the same request as theirs. `last_at_most`: the highest offset the last record may get, or all
    of it is aborted.
    """

    messages: Sequence[Message]
    finish: Callable[[Sequence[Receipt]], Sequence[Message]]
    kind: BatchKind = BatchKind.SETTLE
    opening: Message | None = None
    last_at_most: int | None = None

    def check_last(self, offset: int | None) -> None:
        """Before the commit. Raises BatchAborted."""
        if self.last_at_most is not None and (offset is None or offset > self.last_at_most):
            raise BatchAborted(f"the last record is at {offset}, and should be at {self.last_at_most}")


class BatchResult(NamedTuple):
    """A committed batch: the places of its messages, and offset and append time of its last record (None and -1 if
    unknown)."""

    receipts: Sequence[Receipt]
    last_offset: int | None
    last_stored_ms: int


class Consumed(NamedTuple):
    """What a group committed of a queue, -1 if nothing, and the text beside it."""

    offset: int
    note: str = ""


class MessageStore(Protocol):
    """Plain puts and look-ups. Reads see committed messages only."""

    async def put(self, queue: MessageQueue, message: Message) -> PutResult:
        """Appends one message (its own topic and queue_id are ignored). Never raises for a broker's answer."""
        ...

    def put_many(self, messages: Sequence[Message]) -> Awaitable[list[PutResult]]:
        """Appends each message to the queue it names; one result each, same order. Not atomic.

        What is awaited may be a future: a caller that is cancelled cancels no more than its own look at the results.
        """
        ...

    def put_then(self, messages: Sequence[Message], give: Callable[[list[PutResult]], None]) -> None:
        """The same; the results are given to a callback, perhaps at once, and not at all where the loop ends before."""
        ...

    async def get(self, queue: MessageQueue, offset: int, max_count: int) -> GetResult:
        """Up to `max_count` committed messages from `offset` on, without waiting for new ones. Raises StoreError."""
        ...

    async def get_each(
        self, queue: MessageQueue, offsets: Collection[int], max_bytes: int | None = None
    ) -> dict[int, StoredMessage]:
        """The messages at exactly these offsets, read in batches; what the log no longer has is left out.

        Read in ascending order, up to the first with which they weigh `max_bytes` (`count_stored_bytes`): only
        then may messages at higher offsets be missing that are there.
        """
        ...

    async def get_offsets(self, queue: MessageQueue) -> QueueOffsets:
        """Minimum, last stable and maximum offset as the log knows them now. Raises StoreError."""
        ...

    async def get_offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First offset whose timestamp is not before `timestamp_ms`; the maximum if there is none."""
        ...

    async def get_consume_offsets(self, group: str, queues: Sequence[MessageQueue]) -> Mapping[MessageQueue, Consumed]:
        """What the group committed, and what was noted beside; an offset of -1 if nothing. Raises StoreError."""
        ...

    async def put_consume_offset(self, group: str, queue: MessageQueue, offset: int, note: str = "") -> None:
        """Commits plainly; also backwards. `note`: a text that is kept with it. Raises StoreError."""
        ...


class QueueReader(Protocol):
    """Follows one queue from an offset, in order, committed messages only. One caller at a time."""

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        """Waits at most `max_wait_ms` for the first message, then takes what is there.

        NO_NEW_MSG when none came. `next_begin_offset` moves over markers too, and a reader that has passed some may
        come back at once. Raises StoreError, and QueueHalted when the position is outside what the log holds.
        """
        ...

    async def close(self) -> None:
        """Gives everything back."""
        ...


class BatchWriter(Protocol):
    """The two transactional producers of one queue, in strict turns. Dies with its first error but a clean abort."""

    async def fence(self) -> None:
        """Ends or fences whatever an earlier owner left: init of -0, then of -1. Raises StoreError."""
        ...

    async def put_all(self, batch: AtomicBatch) -> BatchResult:
        """All of the batch or nothing; returns when it is known committed.

        Raises BatchAborted (nothing is visible, the writer goes on), StoreFenced and
        BatchOutcomeUnknown (take the queue over anew, with a new writer). The first batch after
        `fence` uses -0; the other producer begins only when the batch before is known committed.
        """
        ...

    async def close(self) -> None:
        """Lets the producers go without ending anything; safe after any error."""
        ...


class GroupChange(NamedTuple):
    """What a rebalance did: queues gained, queues to be let go (revoked), queues already lost to others."""

    gained: frozenset[int]
    revoked: frozenset[int]
    lost: frozenset[int]


class GroupMember(Protocol):
    """Membership of a consumer group that shares the queues of one topic among its members."""

    async def next_change(self) -> GroupChange:
        """Waits for the next rebalance that concerns this member. Raises StoreError when membership ended."""
        ...

    def release(self, queue_ids: Collection[int]) -> None:
        """Says that revoked queues have been let go; the rebalance waits for it, within a bound."""
        ...

    def is_owned(self, queue_id: int) -> bool:
        """Whether the queue is assigned to this member as far as it knows."""
        ...

    async def close(self) -> None:
        """Leaves the group; the queues go to others at once."""
        ...


class OwnerStore(Protocol):
    """Opens what an owner of queues needs."""

    def open_reader(self, queue: MessageQueue, offset: int) -> QueueReader:
        """A reader that begins at `offset`."""
        ...

    def open_writer(self, transactional_ids: tuple[str, str]) -> BatchWriter:
        """The writer of the queue to which these two transactional ids belong."""
        ...

    def join_group(self, group: str, topic: str) -> GroupMember:
        """Joins the group for the topic's queues."""
        ...


class TopicOutline(NamedTuple):
    """Which topic has a name, and how many queues it has."""

    topic_id: str
    queues: int


class ClusterDescription(NamedTuple):
    """The cluster's id and its brokers as `host:port`."""

    cluster_id: str
    brokers: Sequence[str]


class TopicAdmin(Protocol):
    """What the cluster says of its topics."""

    async def ping(self) -> None:
        """Returns when a broker has answered. Raises StoreTimeout, StoreUnavailable."""
        ...

    async def describe_cluster(self) -> ClusterDescription:
        """Dear where there are many topics. Raises StoreTimeout, StoreUnavailable."""
        ...

    async def describe_topics(
        self, names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        """A description of each name, None where there is no such topic. Asks the cluster now. Raises StoreError.

        A topic that an ACL forbids us to describe is an error, or `with_denied` an empty description without queues.
        """
        ...

    async def identify_topics(self, names: Collection[str]) -> dict[str, "TopicOutline | None"]:
        """Which topic each is now, None where there is no such topic. Cheap. Raises StoreError."""
        ...

    async def list_topics(self) -> list[str]:
        """Names of all topics but Kafka's own. Raises StoreError."""
        ...

    async def list_groups(self) -> list[str]:
        """Names of the consumer groups that this client may describe. Raises StoreError."""
        ...

    async def create_topic(self, name: str, queues: int, replication_factor: int, config: Mapping[str, str]) -> bool:
        """False if it is there already. Raises StoreError."""
        ...

    async def delete_topic(self, name: str) -> bool:
        """With all its messages. False if there is none. Raises StoreError."""
        ...


# --- half messages read again by offset, with what they carry: from the journal, else from the parked topic ---

_FEW_HEADERS = 32  # what is counted too much for objects in memory is more than they take in a record


class LoadedHalf(Struct, frozen=True, gc=False):
    """A half message as the journal, or the parked topic, holds it. `size`: what it takes in memory, about.

    `framed`: the prepared messages if there are several; a single one is the record itself. `plain_topic`: of a single
    one that asks for neither queue nor time and has few headers: its size is all that its topic has to take.
    """

    half: HalfMessage
    stored: StoredMessage
    size: int
    plain_topic: str | None = None
    framed: Sequence[Message] | None = None

    @classmethod
    def decode(cls, half: HalfMessage, stored: StoredMessage) -> "LoadedHalf":
        """Raises MalformedRecord."""
        size = count_stored_bytes(stored)
        if half.message_count > 1:
            return cls(half, stored, size, None, decode_body(half, stored))
        is_plain = half.real_queue_id == BY_KEY and half.timestamp_ms is None and len(stored.headers) <= _FEW_HEADERS
        return cls(half, stored, size, half.real_topic if is_plain else None)

    @property
    def messages(self) -> Sequence[Message]:
        """The prepared messages."""
        return decode_body(self.half, self.stored) if self.framed is None else self.framed

    @property
    def topics(self) -> frozenset[str]:
        """The set of their destinations."""
        if self.framed is None:
            return frozenset([self.half.real_topic])
        return frozenset([message.topic for message in self.framed])

    @property
    def ordering_hash(self) -> int:
        """Hash of the effective ordering key."""
        return effective_ordering_hash(self.half, self.framed[0].key if self.framed else self.stored.key)


class HalfPlace(NamedTuple):
    """Where a half message was appended: queue and offset of the journal, and of its copy in the parked topic."""

    transaction_id: str
    queue_id: int
    offset: int
    parked_offset: int | None


class HalvesRead(NamedTuple):
    """Half messages by transaction id; what no log has is left out. `mean_bytes`: of a record read, 0 without one.

    `found` None: they weigh more than was allowed.
    """

    found: dict[str, LoadedHalf] | None
    mean_bytes: int


async def read_halves(
    store: MessageStore, topics: InternalTopics, places: Sequence[HalfPlace], max_bytes: int | None = None
) -> HalvesRead:
    """All that is wanted of a queue at once. Raises StoreError."""
    reading = _Reading(store, max_bytes)
    for queue_id in {place.queue_id for place in places}:
        wanted = {place.offset: place.transaction_id for place in places if place.queue_id == queue_id}
        await reading.read(MessageQueue(topics.half, queue_id), wanted, is_parked=False)
    missing = [place for place in places if place.transaction_id not in reading.found]
    copies = {place.parked_offset: place.transaction_id for place in missing if place.parked_offset is not None}
    await reading.read(MessageQueue(topics.parked, PARKED_QUEUE), copies, is_parked=True)
    mean_bytes = reading.size // reading.count if reading.count else 0
    return HalvesRead(None if reading.is_over else reading.found, mean_bytes)


class _Reading:
    """Reads until there are too many bytes."""

    def __init__(self, store: MessageStore, max_bytes: int | None) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self.found: dict[str, LoadedHalf] = {}
        self.size = self.count = 0

    @property
    def is_over(self) -> bool:
        return self._max_bytes is not None and self.size >= self._max_bytes

    async def read(self, queue: MessageQueue, wanted: Mapping[int, str], *, is_parked: bool) -> None:
        """The messages that are half messages of the expected transactions."""
        if not wanted or self.is_over:
            return
        room = None if self._max_bytes is None else self._max_bytes - self.size
        stored = await self._store.get_each(queue, wanted.keys(), room)
        self.count += len(stored)
        for offset, message in stored.items():
            loaded = _decode(message, is_parked=is_parked)
            self.size += count_stored_bytes(message) if loaded is None else loaded.size
            if loaded is not None and loaded.half.transaction_id == wanted[offset]:
                self.found[wanted[offset]] = loaded


def _decode(stored: StoredMessage, *, is_parked: bool) -> LoadedHalf | None:
    try:
        record = decode_parked(stored) if is_parked else decode_record(stored)
        return LoadedHalf.decode(record, stored) if isinstance(record, HalfMessage) else None
    except (MalformedRecord, UnknownRecordVersion):
        return None
