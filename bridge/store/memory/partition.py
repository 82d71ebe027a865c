"""One queue of the in-memory log: settings, offsets, control records, last stable offset, epochs and sequences."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.properties import BATCH_HEADER_BYTES, measure_record
from bridge.store.memory.link import Code, LogError, Waiters
from bridge.store.message_store import QueueOffsets

_FOR_EVER = str(2**63 - 1)
DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": _FOR_EVER,
    "flush.ms": _FOR_EVER,
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": _FOR_EVER,
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": _FOR_EVER,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
_POLICIES = {"delete", "compact"}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Which records a topic takes."""

    max_message_bytes: int
    is_log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    is_key_required: bool


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What a topic forgets, and when."""

    is_compacted: bool
    is_deleted: bool
    retention_ms: int
    retention_bytes: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    segment_ms: int
    segment_bytes: int


def complete_config(config: Mapping[str, str]) -> dict[str, str]:
    """All settings of a topic. Raises LogError for a name or policy that Kafka does not know."""
    merged = {**DEFAULTS, **config}
    policies = set(merged["cleanup.policy"].replace(" ", "").split(","))
    if len(merged) != len(DEFAULTS) or not policies <= _POLICIES:
        raise LogError(Code.INVALID_CONFIG)
    return merged


def make_acceptance(config: Mapping[str, str]) -> Acceptance:
    """The rules for records, of a complete config."""
    return Acceptance(
        max_message_bytes=int(config["max.message.bytes"]),
        is_log_append_time=config["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=int(config["message.timestamp.before.max.ms"]),
        timestamp_after_max_ms=int(config["message.timestamp.after.max.ms"]),
        is_key_required="compact" in config["cleanup.policy"],
    )


def make_cleaning(config: Mapping[str, str]) -> Cleaning:
    """The rules for forgetting, of a complete config. A compacted topic's segments also end with the largest lag."""
    is_compacted = "compact" in config["cleanup.policy"]
    segment_ms = int(config["segment.ms"])
    return Cleaning(
        is_compacted=is_compacted,
        is_deleted="delete" in config["cleanup.policy"],
        retention_ms=int(config["retention.ms"]),
        retention_bytes=int(config["retention.bytes"]),
        delete_retention_ms=int(config["delete.retention.ms"]),
        min_compaction_lag_ms=int(config["min.compaction.lag.ms"]),
        segment_ms=min(segment_ms, int(config["max.compaction.lag.ms"])) if is_compacted else segment_ms,
        segment_bytes=int(config["segment.bytes"]),
    )


PLAIN = -1  # the producer id of records outside of Kafka transactions
_MARKER_BYTES = 17
_REMEMBERED_BATCHES = 5


class Record(NamedTuple):
    """A record in the log; a control record is a commit or abort marker."""

    stored: StoredMessage
    producer_id: int
    is_control: bool
    size: int


class Stamp(NamedTuple):
    """The producer of a Kafka transaction, and the sequence number of its first record."""

    producer_id: int
    epoch: int
    sequence: int


class Appended(NamedTuple):
    """A record's place; the offset is -1 for a repeat that the log remembers no more."""

    queue_offset: int
    stored_ms: int


@dataclass(slots=True)
class Segment:
    """A file of the log: the unit of retention, and what compaction spares while it is written to."""

    base_offset: int
    created_ms: int
    size: int = 0
    newest_ms: int = 0


@dataclass(slots=True)
class ProducerState:
    """What a queue knows of one producer."""

    epoch: int
    next_sequence: int = 0
    recent: deque[tuple[int, list[Appended]]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))

    def find_repeat(self, stamp: Stamp, count: int) -> list[Appended] | None:
        """The answer to a repeated batch; None for a new one. Raises LogError when fenced or out of order."""
        if stamp.epoch < self.epoch:
            raise LogError(Code.INVALID_PRODUCER_EPOCH)
        expected = self.next_sequence if stamp.epoch == self.epoch else 0
        if stamp.sequence > expected:
            raise LogError(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        if stamp.sequence == expected:
            return None
        known = dict(self.recent)
        return known.get(stamp.sequence, [Appended(-1, -1)] * count)

    def remember(self, stamp: Stamp, appended: list[Appended]) -> None:
        """Notes a new batch."""
        if stamp.epoch > self.epoch:
            self.recent.clear()
        self.epoch = stamp.epoch
        self.next_sequence = stamp.sequence + len(appended)
        self.recent.append((stamp.sequence, appended))


class Partition:
    """The records of one queue. Every record, control records too, takes one offset; nothing is ever renumbered."""

    def __init__(self, queue: MessageQueue, acceptance: Acceptance, cleaning: Cleaning) -> None:
        self.queue = queue
        self.acceptance = acceptance
        self.cleaning = cleaning
        self.has_leader = True
        self.ahead_ms = 0
        """What the clock of its leader shows more than the others."""
        self.records: list[Record] = []
        self.segments: list[Segment] = []
        self.minimum = 0
        self.maximum = 0
        self.aborted: set[int] = set()
        self.tombstones_seen_ms: dict[int, int] = {}
        self.waiters = Waiters()
        self._open: dict[int, list[int]] = {}  # producer id -> offsets of its open Kafka transaction
        self._producers: dict[int, ProducerState] = {}

    @property
    def stable(self) -> int:
        """Last stable offset: where the oldest open Kafka transaction begins, or what is left of it."""
        oldest = min((offsets[0] for offsets in self._open.values()), default=self.maximum)
        return max(self.minimum, oldest)

    def get_offsets(self) -> QueueOffsets:
        """Raises LogError without a leader."""
        self.check_leader()
        return QueueOffsets(self.minimum, self.stable, self.maximum)

    def check_leader(self) -> None:
        if not self.has_leader:
            raise LogError(Code.LEADER_NOT_AVAILABLE, self.queue.topic)

    def append(self, messages: Sequence[Message], stamp: Stamp | None, now_ms: int) -> list[Appended]:
        """All messages, or those before the first refused one, which is sent by itself. Raises LogError."""
        self.check_leader()
        now_ms += self.ahead_ms
        known = None
        if stamp is not None:
            known = self._producers.setdefault(stamp.producer_id, ProducerState(stamp.epoch, stamp.sequence))
            repeat = known.find_repeat(stamp, len(messages))
            if repeat is not None:
                return repeat
        sizes, refused = self._check_each(messages, now_ms)
        producer_id = PLAIN if stamp is None else stamp.producer_id
        appended = [
            self._add(message, size, producer_id, now_ms) for message, size in zip(messages, sizes, strict=False)
        ]
        if stamp is not None and known is not None and appended:
            known.remember(stamp, appended)
            self._open.setdefault(stamp.producer_id, []).extend(one.queue_offset for one in appended)
        self.waiters.wake()
        if refused is not None:
            raise refused
        return appended

    def next_sequence(self, stamp: Stamp) -> int:
        """The sequence number that is expected next from the producer."""
        known = self._producers.get(stamp.producer_id)
        return known.next_sequence if known is not None and known.epoch == stamp.epoch else 0

    def end(self, producer_id: int, epoch: int, is_commit: bool, now_ms: int) -> None:
        """Writes the marker that ends a producer's Kafka transaction here. Raises LogError without a leader."""
        self.check_leader()
        now_ms += self.ahead_ms
        known = self._producers.setdefault(producer_id, ProducerState(epoch))
        if epoch > known.epoch:
            known.epoch, known.next_sequence = epoch, 0
            known.recent.clear()
        offsets = self._open.pop(producer_id, [])
        if not is_commit:
            self.aborted.update(offsets)
        stored = StoredMessage(self.maximum, None, None, (), now_ms)
        self._store(Record(stored, producer_id, True, BATCH_HEADER_BYTES + _MARKER_BYTES), now_ms)
        self.waiters.wake()

    def read(self, offset: int, max_count: int) -> tuple[list[StoredMessage], int]:
        """Committed messages from `offset` on, and where to go on: behind everything that was looked at."""
        stable = self.stable
        found: list[StoredMessage] = []
        index = self.find_index(offset)
        while index < len(self.records):
            record = self.records[index]
            if record.stored.queue_offset >= stable:
                break
            if self.is_visible(record):
                found.append(record.stored)
                if len(found) == max_count:
                    return found, record.stored.queue_offset + 1
            index += 1
        return found, max(offset, stable)

    def read_one(self, offset: int) -> StoredMessage | None:
        """The committed message at exactly this offset."""
        index = self.find_index(offset)
        if index == len(self.records) or offset >= self.stable:
            return None
        record = self.records[index]
        return record.stored if record.stored.queue_offset == offset and self.is_visible(record) else None

    def find_by_time(self, timestamp_ms: int) -> int:
        """The first record not older than this, as Kafka finds it; the maximum if there is none."""
        found = (r.stored.queue_offset for r in self.records if r.stored.stored_ms >= timestamp_ms)
        return next(found, self.maximum)

    def find_index(self, offset: int) -> int:
        """Index of the first record at `offset` or behind it."""
        return bisect_left(self.records, offset, key=_offset_of)

    def is_visible(self, record: Record) -> bool:
        """Neither control record nor aborted."""
        return not record.is_control and record.stored.queue_offset not in self.aborted

    def drop_below(self, offset: int) -> None:
        """The log begins at `offset` now; as retention and Kafka's DeleteRecords do it."""
        index = self.find_index(offset)
        for record in self.records[:index]:
            self.forget(record.stored.queue_offset)
        del self.records[:index]
        self.minimum = max(self.minimum, min(offset, self.maximum))
        while len(self.segments) > 1 and self.segments[1].base_offset <= self.minimum:
            del self.segments[0]
        self.waiters.wake()

    def forget(self, offset: int) -> None:
        """Drops what is kept beside a record that is being removed."""
        self.aborted.discard(offset)
        self.tombstones_seen_ms.pop(offset, None)

    def roll(self, now_ms: int) -> None:
        """Begins a new segment."""
        self.segments.append(Segment(self.maximum, now_ms))

    def _check_each(self, messages: Sequence[Message], now_ms: int) -> tuple[list[int], LogError | None]:
        """The sizes of those before the first that is refused, and why it is."""
        sizes: list[int] = []
        for message in messages:
            try:
                sizes.append(self._check(message, now_ms))
            except LogError as error:
                return sizes, error
        return sizes, None

    def _check(self, message: Message, now_ms: int) -> int:
        rules = self.acceptance
        if rules.is_key_required and message.key is None:
            raise LogError(Code.INVALID_RECORD, self.queue.topic)
        size = measure_record(message.key, message.value, message.headers)
        if size + BATCH_HEADER_BYTES > rules.max_message_bytes:
            raise LogError(Code.MESSAGE_TOO_LARGE, self.queue.topic)
        if not message.timestamp_ms or rules.is_log_append_time:
            return size
        asked = message.timestamp_ms
        if not now_ms - rules.timestamp_before_max_ms <= asked <= now_ms + rules.timestamp_after_max_ms:
            raise LogError(Code.INVALID_TIMESTAMP, self.queue.topic)
        return size

    def _add(self, message: Message, size: int, producer_id: int, now_ms: int) -> Appended:
        asked = message.timestamp_ms  # 0 is no time: the client library fills in its own
        stored_ms = now_ms if not asked or self.acceptance.is_log_append_time else asked
        stored = StoredMessage(self.maximum, message.key, message.value, tuple(message.headers), stored_ms)
        self._store(Record(stored, producer_id, False, size), now_ms)
        return Appended(stored.queue_offset, stored_ms)

    def _store(self, record: Record, now_ms: int) -> None:
        segment = self.segments[-1] if self.segments else None
        if segment is None or self._is_full(segment, record.size, now_ms):
            self.roll(now_ms)
            segment = self.segments[-1]
        segment.size += record.size
        segment.newest_ms = max(segment.newest_ms, record.stored.stored_ms)
        self.records.append(record)
        self.maximum += 1

    def _is_full(self, segment: Segment, size: int, now_ms: int) -> bool:
        if segment.size == 0:
            return False
        return (
            now_ms - segment.created_ms > self.cleaning.segment_ms
            or segment.size + size > self.cleaning.segment_bytes
        )  # fmt: skip


def _offset_of(record: Record) -> int:
    return record.stored.queue_offset
