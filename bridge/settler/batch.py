"""From effects to one AtomicBatch: real records, parked copies, op messages, answers, position. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from bridge.core.message import Header, Message, Receipt
from bridge.core.op_message import (
    ANSWERS_KEY,
    POSITION_KEY,
    Answer,
    LogTopics,
    OpMessage,
    encode_answers,
    encode_op,
    encode_position,
)
from bridge.core.queue_state import QueueState, WrittenOp
from bridge.core.record_codec import encode_parked, encode_published
from bridge.core.topics import PARKED_QUEUE, InternalTopics, choose_real_queue
from bridge.core.transaction import Transaction
from bridge.core.transition import Effect, Park, Publish, Reply, Schedule, WriteOp
from bridge.store.halves import LoadedHalf
from bridge.store.message_store import AtomicBatch, BatchKind


class RealTopics(NamedTuple):
    """What the real topics ask of a record: their number of queues, and the time they take for a commit of then."""

    queues_of: Callable[[str], int]
    stamp_of: Callable[[str, int], int]


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
            if isinstance(effect, Schedule):  # most of them; nothing to write
                continue
            if isinstance(effect, Publish):
                self._add(effect.transaction, self.publishes)
            elif isinstance(effect, WriteOp):
                self._add(effect.transaction, None)
            elif isinstance(effect, Park):
                self._add(effect.transaction, self.parks)
            elif isinstance(effect, Reply):
                self._replies.append(effect)
            else:
                self._rewrites.add(effect.transaction_id)

    @property
    def is_empty(self) -> bool:
        """Whether nothing but the position would be written."""
        return not (self.ops or self._rewrites or self._replies)

    def build(
        self, state: QueueState, bodies: Mapping[str, LoadedHalf], real: RealTopics, target: BatchTarget
    ) -> AtomicBatch:
        """The batch that makes the effects a fact and moves the position to the state's."""
        messages: list[Message] = []
        counts: list[int] = []
        for t in self.publishes.values():
            prepared = bodies[t.transaction_id].messages
            counts.append(len(prepared))
            messages += [_real_message(message, t, real, target) for message in prepared]
        messages += [_parked_copy(bodies[t.transaction_id], t, target) for t in self.parks.values()]
        position = encode_position(state.next_position(self.ops.values(), target.owner, target.log))

        def finish(receipts: Sequence[Receipt]) -> list[Message]:
            self.written = self._write_ops(counts, receipts)
            values = [(w.transaction.transaction_id, w.value) for w in self.written]
            values += [(i, state.ended[i]) for i in self._rewrites if i in state.ended]
            closing = [(ANSWERS_KEY, value) for value in self._encode_answers(state)] if self._replies else []
            closing += [(transaction_id.encode(), value) for transaction_id, value in values]
            closing.append((POSITION_KEY, position))
            topic, queue_id = target.topics.op, target.queue_id
            none: list[Header] = []
            return [Message(topic, key, value, none, queue_id) for key, value in closing]

        return AtomicBatch(messages, finish, kind=self.kind)

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
            written.append(WrittenOp(t, encode_op(OpMessage(t, receipts[start : start + count]))))
            start += count
        for t, receipt in zip(self.parks.values(), receipts[start:], strict=True):
            kept = replace(t, parked=receipt.queue_offset)
            written.append(WrittenOp(kept, encode_op(OpMessage(kept))))
        if len(written) < len(self.ops):
            others = [t for i, t in self.ops.items() if i not in self.publishes and i not in self.parks]
            written += [WrittenOp(t, encode_op(OpMessage(t))) for t in others]
        return written

    def _encode_answers(self, state: QueueState) -> list[bytes]:
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


def _real_message(message: Message, t: Transaction, real: RealTopics, target: BatchTarget) -> Message:
    queue_id = real_queue(message, t.transaction_id, real.queues_of(message.topic))
    timestamp_ms = message.timestamp_ms or real.stamp_of(message.topic, t.ended_ms or t.appended_ms)
    return encode_published(message, t.transaction_id, queue_id, timestamp_ms, target.has_id_header)


def _parked_copy(held: LoadedHalf, t: Transaction, target: BatchTarget) -> Message:
    return encode_parked(held.stored, t.check_times, t.why or "", target.topics.parked, PARKED_QUEUE)
