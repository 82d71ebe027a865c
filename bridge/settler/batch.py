"""Effects -> one AtomicBatch: real records, parked copies, op messages, answers, position. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.message import Header, Message, Receipt, StoredMessage
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
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_body, encode_parked, encode_published
from bridge.core.topics import PARKED_QUEUE, InternalTopics, choose_real_queue
from bridge.core.transaction import Transaction
from bridge.core.transition import Effect, Park, Publish, Reply, Rewrite, Schedule, WriteOp
from bridge.store.message_store import AtomicBatch, BatchKind


class RealTopics(NamedTuple):
    """What the real topics ask of a record: their number of queues, and the time they take for a commit of then."""

    queues_of: Callable[[str], int]
    stamp_of: Callable[[str, int], int]


class LoadedHalf(Struct, frozen=True, gc=False):
    """A half message as the journal, or the parked topic, holds it, with the prepared messages."""

    half: HalfMessage
    stored: StoredMessage
    messages: Sequence[Message]

    @classmethod
    def decode(cls, half: HalfMessage, stored: StoredMessage) -> "LoadedHalf":
        """Raises MalformedRecord."""
        return cls(half, stored, decode_body(half, stored))


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


@dataclass(slots=True)
class Plan:
    """Effects of a batch, the last state of each transaction only."""

    publishes: dict[str, Transaction] = field(default_factory=dict)
    parks: dict[str, Transaction] = field(default_factory=dict)
    ops: dict[str, Transaction] = field(default_factory=dict)
    rewrites: set[str] = field(default_factory=set)
    replies: list[Reply] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing but the position would be written."""
        return not (self.publishes or self.parks or self.ops or self.rewrites or self.replies)

    def body_ids(self) -> set[str]:
        """Transactions whose messages are needed."""
        return self.publishes.keys() | self.parks.keys()


def make_plan(effects: Iterable[Effect]) -> Plan:
    """Collapses effects: of two op messages of one id in one Kafka transaction only the last is written."""
    plan = Plan()
    for effect in effects:
        if isinstance(effect, Schedule):  # most of them; nothing to write
            continue
        if isinstance(effect, Publish):
            _write_last(plan, effect.transaction, plan.publishes)
        elif isinstance(effect, WriteOp):
            _write_last(plan, effect.transaction, None)
        elif isinstance(effect, Park):
            _write_last(plan, effect.transaction, plan.parks)
        elif isinstance(effect, Reply):
            plan.replies.append(effect)
        elif isinstance(effect, Rewrite):
            plan.rewrites.add(effect.transaction_id)
    return plan


class SealedBatch(NamedTuple):
    """A batch and, once its `finish` was called, the op messages it holds."""

    batch: AtomicBatch
    sealed: list[WrittenOp]


def make_batch(
    plan: Plan,
    kind: BatchKind,
    state: QueueState,
    held: Mapping[str, LoadedHalf],
    real: RealTopics,
    target: BatchTarget,
) -> SealedBatch:
    """The batch that makes `plan` a fact and moves the position to the state's."""
    messages: list[Message] = []
    spans: list[tuple[Transaction, int]] = []
    for t in plan.publishes.values():
        bodies = held[t.transaction_id].messages
        spans.append((t, len(bodies)))
        messages += [_real_message(message, t, real, target) for message in bodies]
    parked_from = len(messages)
    messages += [_parked_copy(held[t.transaction_id], t, target) for t in plan.parks.values()]
    sealed: list[WrittenOp] = []
    position = encode_position(state.next_position(plan.ops.values(), target.owner, target.log))

    def finish(receipts: Sequence[Receipt]) -> list[Message]:
        sealed[:] = [*_seal_published(spans, receipts), *_seal_parked(plan, receipts[parked_from:]), *_seal_rest(plan)]
        values = [(s.transaction.transaction_id, s.value) for s in sealed]
        values += [(i, state.ended[i]) for i in plan.rewrites if i in state.ended]
        answers = _encode_replies(plan.replies, state, sealed)
        topic, queue_id = target.topics.op, target.queue_id
        none: list[Header] = []
        return [
            *[Message(topic, ANSWERS_KEY, value, none, queue_id) for value in answers],
            *[Message(topic, transaction_id.encode(), value, none, queue_id) for transaction_id, value in values],
            Message(topic, POSITION_KEY, position, none, queue_id),
        ]

    return SealedBatch(AtomicBatch(messages, finish, kind=kind), sealed)


def real_queue(message: Message, transaction_id: str, queues: int) -> int:
    """The queue asked for, else the one Java clients would choose."""
    if message.queue_id >= 0:
        return message.queue_id
    return choose_real_queue(message.key, transaction_id, queues)


def _write_last(plan: Plan, t: Transaction, into: dict[str, Transaction] | None) -> None:
    transaction_id = t.transaction_id
    earlier = plan.ops.get(transaction_id)
    if earlier is not None:
        if earlier.requests:
            t = replace(t, requests=tuple(dict.fromkeys(earlier.requests + t.requests)))
        plan.publishes.pop(transaction_id, None)
        plan.parks.pop(transaction_id, None)
    plan.ops[transaction_id] = t
    if into is not None:
        into[transaction_id] = t


def _real_message(message: Message, t: Transaction, real: RealTopics, target: BatchTarget) -> Message:
    queue_id = real_queue(message, t.transaction_id, real.queues_of(message.topic))
    timestamp_ms = message.timestamp_ms or real.stamp_of(message.topic, t.ended_ms or t.appended_ms)
    return encode_published(message, t.transaction_id, queue_id, timestamp_ms, target.has_id_header)


def _parked_copy(held: LoadedHalf, t: Transaction, target: BatchTarget) -> Message:
    return encode_parked(held.stored, t.check_times, t.why or "", target.topics.parked, PARKED_QUEUE)


def _seal_published(spans: Iterable[tuple[Transaction, int]], receipts: Sequence[Receipt]) -> Iterable[WrittenOp]:
    start = 0
    for t, count in spans:
        yield WrittenOp(t, encode_op(OpMessage(t, receipts[start : start + count])))
        start += count


def _seal_parked(plan: Plan, receipts: Sequence[Receipt]) -> Iterable[WrittenOp]:
    for t, receipt in zip(plan.parks.values(), receipts, strict=True):
        kept = replace(t, parked=receipt.queue_offset)
        yield WrittenOp(kept, encode_op(OpMessage(kept)))


def _seal_rest(plan: Plan) -> Iterable[WrittenOp]:
    for transaction_id, t in plan.ops.items():
        if transaction_id not in plan.publishes and transaction_id not in plan.parks:
            yield WrittenOp(t, encode_op(OpMessage(t)))


def _encode_replies(replies: Sequence[Reply], state: QueueState, sealed: Iterable[WrittenOp]) -> list[bytes]:
    if not replies:
        return []
    fresh = {s.transaction.transaction_id: s.value for s in sealed}
    answers: list[tuple[Answer, bytes | None]] = []
    for reply in replies:
        value = fresh.get(reply.transaction_id) or state.get_op_value(reply.transaction_id)
        answers.append((Answer(reply.request, reply.transaction_id, reply.code, None), value))
    return encode_answers(answers)
