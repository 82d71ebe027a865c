"""A journal and an op topic as plain lists, driven through QueueState and QueueBatch: no store, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, OpMessage, Position, decode_position, encode_op
from bridge.core.position import LowWatermarkConfig
from bridge.core.queue_state import QueueState, RecoveredOps, RecoveredState
from bridge.core.record import EndRecord, HalfMessage, Record
from bridge.core.record_codec import decode_record, encode_half
from bridge.core.topics import InternalTopics
from bridge.core.transaction import Transaction
from bridge.core.transition import Effect, LogPosition
from bridge.settler.batch import BatchTarget, Destination, QueueBatch
from bridge.store.message_store import BatchKind, LoadedHalf

TOPICS = InternalTopics(queues=1)
TARGET = BatchTarget(TOPICS, 0, "test")


@dataclass(slots=True)
class QueueLog:
    """One queue: `journal` holds (place, record, held or None), `op` (offset, key, value) with gaps for markers."""

    config: LowWatermarkConfig
    journal: list[tuple[LogPosition, Record, LoadedHalf | None]] = field(default_factory=list)
    op: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    published: list[tuple[str, int]] = field(default_factory=list)  # transaction id, message number
    abandoned: set[str] = field(default_factory=set)
    op_end: int = 0
    op_ms: dict[int, int] = field(default_factory=dict)  # append times of op messages
    position: Position = field(default_factory=lambda: Position(0, 0, 0, ""))
    now_ms: int = 1_000_000

    def append(self, record: Record, messages: Sequence[Message] = ()) -> LogPosition:
        """Appends to the journal; time moves on by a millisecond."""
        self.now_ms += 1
        place = LogPosition(len(self.journal), self.now_ms)
        held = None
        if isinstance(record, HalfMessage):
            raw = encode_half(record, messages, TOPICS.half, 0)
            stored = StoredMessage(place.offset, raw.key, raw.value, raw.headers, place.stored_ms)
            assert decode_record(stored) == record
            held = LoadedHalf.decode(record, stored)
        self.journal.append((place, record, held))
        return place

    def restore(self) -> QueueState:
        """What a successor makes of the log now."""
        position = self.position
        ops = RecoveredOps()
        for offset, key, value in self.op:
            if offset >= position.o and key not in {POSITION_KEY, ANSWERS_KEY}:
                ops.add(offset, key, value, self.op_ms[offset])
        floors = [
            offset
            for offset, key, value in self.op
            if key == POSITION_KEY and offset >= position.o and decode_position(value).s <= position.l
        ]
        restored = RecoveredState(
            position,
            ops,
            floors[-1] + 1 if floors else position.o,
            self.op_end,
            self.journal[position.s - 1][0].stored_ms if position.s else 0,
        )
        state = QueueState.restore(restored, {"g": CheckTimes()}.__getitem__, self.config)
        for place, record, held in self.journal[position.l : position.s]:
            if isinstance(record, HalfMessage) and held is not None:
                state.restore_half(place, record, held.ordering_hash)
        return state

    def decide(
        self, state: QueueState, count: int, refuse: set[str], parks: Sequence[str] = (), *, is_aborted: bool = False
    ) -> list[Effect]:
        """Decides up to `count` records and commits what follows. `refuse`: commits that are blocked.

        `is_aborted`: after a first Kafka transaction, in which every commit was to be published, was aborted.
        """
        effects: list[Effect] = []
        state.recall([record.transaction_id for _, record, _ in self.journal[state.s : state.s + count]])
        state.recall(parks)
        for place, record, held in self.journal[state.s : state.s + count]:
            ordering_hash = held.ordering_hash if held else 0
            obstacle = "REFUSED" if record.transaction_id in refuse and not is_aborted else None
            effects += state.apply(place, record, ordering_hash, obstacle)
        if self.journal[state.s : state.s + count]:
            last = self.journal[min(state.s + count, len(self.journal)) - 1][0]
            state.advance(last.offset + 1, last.stored_ms)
        if is_aborted:
            effects = state.defer(effects, lambda _: "REFUSED")
        return self.commit(
            state, [*state.carry_forward(100), *effects, *[e for i in parks for e in state.park(i, "TEST")]]
        )

    def commit(self, state: QueueState, effects: Sequence[Effect]) -> list[Effect]:
        """Writes effects and position as one Kafka transaction."""
        held = {h.half.transaction_id: h for _, _, h in self.journal if h is not None}
        batch = QueueBatch(effects, BatchKind.SETTLE)
        made = batch.build(state, held, lambda _: Destination(1, 0, self.now_ms), TARGET)
        receipts = [Receipt(m.topic, 0, n) for n, m in enumerate(made.messages)]
        for message in made.finish(receipts):
            assert message.key is not None
            assert message.value is not None
            self.op.append((self.op_end, message.key, message.value))
            self.op_ms[self.op_end] = self.now_ms
            self.op_end += 1
        self.op_end += 1  # the commit marker
        self.position = decode_position(self.op[-1][2])
        self.abandoned |= {t.transaction_id for t in batch.ops.values() if t.abandoned}
        for t in batch.publishes.values():
            self.published += [(t.transaction_id, n) for n in range(len(held[t.transaction_id].messages))]
        state.keep_time(state.journal_ms)
        state.confirm(batch.written, self.op[-1][0])
        return list(effects)


def ops_of(*written: tuple[int, Transaction]) -> RecoveredOps:
    """What a take-over reads of these op messages by offset."""
    ops = RecoveredOps()
    for offset, t in written:
        ops.add(offset, t.transaction_id.encode(), encode_op(OpMessage(t)), 103)
    return ops


def essence(t: Transaction) -> tuple[object, ...]:
    """What a successor must know of a live transaction."""
    return (
        t.transaction_id, t.group, t.half, t.appended_ms, t.ordering_hash, t.state, t.since_ms, t.check_times, t.base,
        t.max_checks, t.max_life_s, t.end if t.blocked else None, t.blocked, t.reason, t.parked,
    )  # fmt: skip


def essences(state: QueueState) -> set[tuple[object, ...]]:
    """The same of all live ones."""
    return {essence(t) for t in [*state.rows, *state.live.values()]}


def ends_of(log: QueueLog) -> list[EndRecord]:
    """All ends in the journal."""
    return [record for _, record, _ in log.journal if isinstance(record, EndRecord)]
