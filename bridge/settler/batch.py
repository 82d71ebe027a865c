"""From effects to one AtomicBatch: real records, parked copies, op messages, answers, position. Pure."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Header, Message, Receipt, StoredMessage
from bridge.core.op_message import (
    ANSWERS_KEY,
    NO_ANSWERS,
    POSITION_KEY,
    Answer,
    LogTopics,
    OpMessage,
    encode_answers,
    encode_op,
    encode_position,
)
from bridge.core.properties import PROPERTIES_HEADER
from bridge.core.queue_state import QueueState, WrittenOp
from bridge.core.record import EndRecord, HalfMessage, Record, Resolution, is_void
from bridge.core.record_codec import decode_record, encode_parked, encode_published
from bridge.core.topics import PARKED_QUEUE, InternalTopics, choose_real_queue
from bridge.core.transaction import Transaction
from bridge.core.transition import Effect, LogPosition, Park, Publish, Reply, Rewrite, Schedule, WriteOp
from bridge.store.message_store import AtomicBatch, BatchKind, LoadedHalf

_COMMIT = Resolution.COMMIT
ReadRecord = tuple[LogPosition, Record, int]  # with the hash of the ordering key, plain because it is quicker to make
Live = Mapping[str, Transaction]


class Halted(NamedTuple):
    """A record that only a newer settler can decide."""

    offset: int
    error: UnknownRecordVersion


class Portion(NamedTuple):
    """Records in order, the bodies that came with them, and the offset up to which they decide the journal."""

    records: list[ReadRecord]
    bodies: dict[str, LoadedHalf]
    last_ms: int
    next_offset: int
    halted: Halted | None = None


class Commit(Struct, frozen=True, gc=False):
    """The first record of a portion that may publish the transaction: its place there, and its offset."""

    transaction_id: str
    at: int
    offset: int


def is_awaited(message: StoredMessage) -> bool:
    """Whether a caller waits to hear what is decided of it, as far as can be seen without reading it."""
    return any(name == PROPERTIES_HEADER and b"\x02REQUEST\x01" in (value or b"") for name, value in message.headers)


def decode_portion(
    messages: Iterable[StoredMessage], next_offset: int, quarantine: Callable[[int, MalformedRecord], None]
) -> Portion:
    """The records in order, up to the first of an unknown version; unparsable ones are left out."""
    records: list[ReadRecord] = []
    bodies: dict[str, LoadedHalf] = {}
    last_ms = 0
    for message in messages:
        try:
            record = decode_record(message)
            ordering_hash = 0
            if type(record) is HalfMessage:
                loaded = LoadedHalf.decode(record, message)
                ordering_hash = loaded.ordering_hash
                earlier = bodies.get(record.transaction_id)
                if earlier is None or is_void(earlier.half, earlier.stored.stored_ms):  # a repeat may differ: its trace
                    bodies[record.transaction_id] = loaded
            records.append((LogPosition(message.queue_offset, message.stored_ms), record, ordering_hash))
        except MalformedRecord as error:
            quarantine(message.queue_offset, error)
        except UnknownRecordVersion as error:
            offset = message.queue_offset
            placed = UnknownRecordVersion(f"journal offset {offset}: {error.what}")
            return Portion(records, bodies, last_ms, offset, Halted(offset, placed))
        last_ms = message.stored_ms
    return Portion(records, bodies, last_ms, next_offset)


def find_commits(portion: Portion, live: Live) -> list[Commit]:
    """What may be published, in the order of the records."""
    commits: dict[str, Commit] = {}
    came_with = portion.bodies
    for index, (place, record, _) in enumerate(portion.records):
        if type(record) is EndRecord:
            if record.resolution is not _COMMIT:
                continue
            transaction_id = record.transaction_id
            t = live.get(transaction_id)
            if t.is_final if t is not None else transaction_id not in came_with:
                continue
        elif type(record) is HalfMessage and record.is_published:
            transaction_id = record.transaction_id
        else:
            continue
        if transaction_id not in commits:
            commits[transaction_id] = Commit(transaction_id, index, place.offset)
    return list(commits.values())


def choose_fitting(
    commits: Sequence[Commit], bodies: Mapping[str, LoadedHalf], unread: Container[str], max_bytes: int
) -> int:
    """How many of the first commits have bodies that weigh at most `max_bytes`; one at least, if it was read.

    `bodies`: all that is known; `unread`: ids whose bodies must be read first.
    """
    size = 0
    for count, commit in enumerate(commits):
        loaded = bodies.get(commit.transaction_id)
        size += 0 if loaded is None else loaded.size
        if commit.transaction_id in unread or (count and size > max_bytes):
            return count
    return len(commits)


def cut(portion: Portion, count: int) -> tuple[Portion, Portion]:
    """The first `count` records, and the rest; neither is empty.

    The first part ends right behind its last record: a position tells the append time of what lies before it.
    """
    first, rest = portion.records[:count], portion.records[count:]
    last = first[-1][0]
    return (
        Portion(first, _only(portion.bodies, first), last.stored_ms, last.offset + 1),
        portion._replace(records=rest, bodies=_only(portion.bodies, rest)),
    )


def _only(bodies: Mapping[str, LoadedHalf], records: Sequence[ReadRecord]) -> dict[str, LoadedHalf]:
    ids = {record.transaction_id for _, record, _ in records}
    return {i: held for i, held in bodies.items() if i in ids}


class Destination(NamedTuple):
    """What a real topic asks of a record. Commits before `oldest_ms` are stamped with the present, `now_ms`, as are
    those after `newest_ms`, when a broker's clock was ahead."""

    queues: int
    oldest_ms: int
    now_ms: int
    newest_ms: int = 2**63 - 1


FindDestination = Callable[[str], Destination]


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """Where an owner writes. `owner` is shown in positions; `has_id_header`: real records carry the id.

    `log`: the topics it has found at its take-over.
    """

    topics: InternalTopics
    queue_id: int
    owner: str
    has_id_header: bool = True
    log: LogTopics | None = None


class QueueBatch:
    """What one Kafka transaction of a queue writes: of several effects on one transaction only the last."""

    def __init__(self, effects: Iterable[Effect], kind: BatchKind) -> None:
        self.kind = kind
        self.publishes: dict[str, Transaction] = {}
        self.parks: dict[str, Transaction] = {}
        self.ops: dict[str, Transaction] = {}
        self.written: Sequence[WrittenOp] = ()
        """Its op messages, once the offsets of its other records are known."""
        self._rewrites: set[str] = set()
        self._replies: list[Reply] = []
        for effect in effects:
            if type(effect) is Schedule:  # half of them; nothing to write
                continue
            if type(effect) is Publish:
                self._add(effect.transaction, self.publishes)
            elif type(effect) is WriteOp:
                self._add(effect.transaction, None)
            elif type(effect) is Park:
                self._add(effect.transaction, self.parks)
            elif type(effect) is Reply:
                self._replies.append(effect)
            elif type(effect) is Rewrite:
                self._rewrites.add(effect.transaction_id)

    @property
    def is_empty(self) -> bool:
        """Whether nothing but the position would be written."""
        return not (self.ops or self._rewrites or self._replies)

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits to hear of any of it."""
        return bool(self._replies) or any(t.requests for t in self.ops.values())

    def build(
        self, state: QueueState, bodies: Mapping[str, LoadedHalf], find: FindDestination, target: BatchTarget
    ) -> AtomicBatch:
        """The batch that makes the effects a fact and moves the position to the state's."""
        messages: list[Message] = []
        counts: list[int] = []
        destinations: dict[str, Destination] = {}
        has_id = target.has_id_header
        for t in self.publishes.values():
            transaction_id = t.transaction_id
            decided_ms = t.ended_ms or t.appended_ms
            prepared = bodies[transaction_id].messages
            counts.append(len(prepared))
            for message in prepared:
                to = destinations.get(message.topic)
                if to is None:
                    to = destinations[message.topic] = find(message.topic)
                queue_id = real_queue(message, transaction_id, to.queues)
                timestamp_ms = message.timestamp_ms or (
                    decided_ms if to.oldest_ms <= decided_ms <= to.newest_ms else to.now_ms
                )
                messages.append(encode_published(message, transaction_id, queue_id, timestamp_ms, has_id))
        messages += [parked_copy(bodies[t.transaction_id], t, target) for t in self.parks.values()]
        position = encode_position(state.next_position(self.ops.values(), target.owner, target.log))

        def finish(receipts: Sequence[Receipt]) -> list[Message]:
            self.written = self._write_ops(counts, receipts)
            ended = state.ended
            closing = [Message(topic, ANSWERS_KEY, v, none, queue_id) for v in self._encode_answers(state)]
            closing += [
                Message(topic, w.transaction.transaction_id.encode(), w.value, none, queue_id) for w in self.written
            ]
            closing += [Message(topic, i.encode(), ended[i], none, queue_id) for i in self._rewrites if i in ended]
            closing.append(Message(topic, POSITION_KEY, position, none, queue_id))
            return closing

        topic, queue_id = target.topics.op, target.queue_id
        none: list[Header] = []
        opening = Message(topic, ANSWERS_KEY, NO_ANSWERS, none, queue_id) if messages else None
        # a broker that was frozen may have told an old end of the op topic, behind which others have decided more
        last_at_most = state.op_start if self.kind is BatchKind.TAKE_OVER else None
        return AtomicBatch(messages, finish, self.kind, opening, last_at_most)

    def _add(self, t: Transaction, to: dict[str, Transaction] | None) -> None:
        transaction_id = t.transaction_id
        earlier = self.ops.get(transaction_id)
        if earlier is not None:
            if earlier.requests:
                t = replace(t, requests=tuple(dict.fromkeys(earlier.requests + t.requests)))
            self.publishes.pop(transaction_id, None)
            self.parks.pop(transaction_id, None)
        self.ops[transaction_id] = t
        if to is not None:
            to[transaction_id] = t

    def _write_ops(self, counts: Iterable[int], receipts: Sequence[Receipt]) -> list[WrittenOp]:
        """Of what is published, with its receipts; of what is parked, with its copy's offset; of all others."""
        written: list[WrittenOp] = []
        start = 0
        for t, count in zip(self.publishes.values(), counts, strict=True):
            end = start + count
            written.append(WrittenOp(t, encode_op(OpMessage(t, receipts[start:end]))))
            start = end
        for t, receipt in zip(self.parks.values(), receipts[start:], strict=True):
            kept = replace(t, parked=receipt.queue_offset)
            written.append(WrittenOp(kept, encode_op(OpMessage(kept))))
        if len(written) < len(self.ops):
            others = [t for i, t in self.ops.items() if i not in self.publishes and i not in self.parks]
            written += [WrittenOp(t, encode_op(OpMessage(t))) for t in others]
        return written

    def _encode_answers(self, state: QueueState) -> list[bytes]:
        if not self._replies:
            return []
        fresh = {w.transaction.transaction_id: w.value for w in self.written}
        answers: list[tuple[Answer, bytes | None]] = []
        for reply in self._replies:
            value = fresh.get(reply.transaction_id) or state.get_op_value(reply.transaction_id)
            answers.append((Answer(reply.request, reply.transaction_id, reply.code, None), value))
        return encode_answers(answers)


def real_queue(message: Message, transaction_id: str, queues: int) -> int:
    """The queue asked for, else the one Java clients would choose."""
    if message.queue_id >= 0:
        return message.queue_id
    return choose_real_queue(message.key, transaction_id, queues)


def parked_copy(held: LoadedHalf, t: Transaction, target: BatchTarget) -> Message:
    """Its half message as it is put into the parked topic."""
    return encode_parked(held.stored, t.check_times, t.reason or "", target.topics.parked, PARKED_QUEUE)
