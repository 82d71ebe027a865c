"""What the owner of a queue knows: its live transactions, those that ended lately, and its position."""

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from bridge.core import transition
from bridge.core.check_rules import CheckTimes
from bridge.core.errors import HaltKind, MalformedRecord, QueueHalted
from bridge.core.op_message import (
    AnswerCode,
    LogStart,
    LogTopics,
    OpMessage,
    Position,
    decode_op,
    decode_pending,
    encode_op,
)
from bridge.core.pending_table import PendingTable
from bridge.core.position import Chunks, LowWatermarkConfig, LowWatermarks, put_packed
from bridge.core.record import ActRecord, EndRecord, HalfMessage, Record, Resolution, is_void
from bridge.core.topics import choose_placing_key, hash_ordering_key
from bridge.core.transaction import ORDER, PREPARED, Transaction, is_raw_id
from bridge.core.transition import Effect, LogPosition, Park, Publish, Reply, Rewrite, Schedule, WriteOp

# --- the last op message of each transaction ---


class RecoveredOp(Struct, frozen=True, gc=False):
    """An op message with its offset, decoded; `value`: as written, of what has ended."""

    offset: int
    transaction: Transaction
    value: bytes


class RecoveredOps:
    """Filled in the order of offsets, which rows have as bounds. `marks`: offset and append time of each live one."""

    def __init__(self, many: int = 500_000) -> None:
        """`many`: so many come before rows that are there are put together with them anew."""
        self.marks: Chunks = deque()
        self._rows = PendingTable()
        self._many = many
        self._coming: list[bytes] = []  # rows, and ids of others, which replace them
        self._others: dict[str, RecoveredOp] = {}

    def add(self, offset: int, raw_id: bytes, value: bytes, stored_ms: int) -> None:
        """A later one of the same id replaces it. Raises MalformedRecord, UnknownRecordVersion."""
        if not is_raw_id(raw_id):
            raise MalformedRecord("the key is no transaction id")
        row = self._make_row(offset, raw_id, value)
        if row is None:
            transaction_id = raw_id.decode()
            t = decode_op(transaction_id, value).transaction
            self._others.pop(transaction_id, None)  # the new one comes last
            self._others[transaction_id] = RecoveredOp(offset, t, b"" if t.is_live else value)
            if not t.is_live:
                self._coming.append(raw_id)
                return
            row = raw_id
        elif self._others:
            self._others.pop(raw_id.decode(), None)
        put_packed(self.marks, offset, stored_ms, raw_id)
        self._coming.append(row)
        if len(self._coming) > self._many + 2 * self._rows.count:
            self._put()

    @property
    def rows(self) -> PendingTable:
        """What is only pending."""
        self._put()
        return self._rows

    def others(self) -> Iterator[RecoveredOp]:
        """What is not in rows, by offset."""
        yield from self._others.values()

    def _make_row(self, offset: int, raw_id: bytes, value: bytes) -> bytes | None:
        t = decode_pending(value)
        if t is None:
            return None
        try:
            ordering_hash = int(t.okey, 16)
        except ValueError:
            return None
        return self._rows.make_row(raw_id, t, ordering_hash, (t.group, t.max_checks, t.max_life), offset)

    def _put(self) -> None:
        if self._coming:
            self._rows.put_all(self._coming)
            self._coming.clear()


# --- what the owner of a queue knows ---

TimesOf = Callable[[str], CheckTimes]
"""Check times of a producer group by its name."""

_OF_TRANSACTIONS = (Schedule, Publish, WriteOp, Park)
_UNKNOWN = Resolution.UNKNOWN
_ANY_TIMES = CheckTimes()  # where they do not matter


class RecoveredState(NamedTuple):
    """What a take-over read before the journal.

    `op_floor`: the op offset after the last position with s <= l, else the O read. `op_end`: the op
    queue's end noted after fencing. `journal_ms`: append time of the record before S, 0 if there is none.
    """

    position: Position
    ops: RecoveredOps
    op_floor: int
    op_end: int
    journal_ms: int


class WrittenOp(Struct, frozen=True, gc=False):
    """A transaction's op message as one Kafka transaction wrote it."""

    transaction: Transaction
    value: bytes


def effective_ordering_hash(half: HalfMessage, first_key: bytes | None) -> int:
    """Hash of the effective ordering key of a half message whose first message has this key: the one recorded."""
    if half.ordering_hash is not None:
        return half.ordering_hash
    return hash_ordering_key(choose_placing_key(half.ordering_key, first_key, half.transaction_id.encode()))


class QueueState:
    """The state machine of one queue, without I/O. Dropped, and rebuilt from the log, after any doubt.

    Use: `recall` what a batch concerns, `apply` its records, then `park`, `unblock`, `carry_forward` as timers want;
    write it all in one Kafka transaction with `next_position`; when that is committed, `confirm`, when it was aborted,
    `defer`. `live`: objects, of whatever something happens to; what is only pending for long is in rows.
    """

    def __init__(self, times_of: TimesOf, config: LowWatermarkConfig, ops: RecoveredOps | None = None) -> None:
        """`ops`: with which it begins."""
        self.live: dict[str, Transaction] = {}
        self.rows = PendingTable() if ops is None else ops.rows
        self.ended: dict[str, bytes] = {}
        self.blocked_queues: dict[int, list[str]] = {}  # okey -> blocked ones in the order of their ends
        self.s = 0
        self.journal_ms = 0
        self.s_ms: int | None = None  # append time of the record at S-1
        self.op_start = 0
        self.op_needed = 0  # O of the last position
        self.log_start = LogStart()
        self.overruled: list[EndRecord] = []  # ends that say otherwise than what was recorded; whoever tells empties it
        self._settling: dict[str, Transaction] = {}
        self._times_of = times_of
        self._config = config
        self._horizon = LowWatermarks(self.live, self.rows, config, None if ops is None else ops.marks)
        self._next_rest = 2 * config.max_objects  # live ones at which to look for those that rest

    @classmethod
    def restore(
        cls, restored: RecoveredState, times_of: TimesOf, config: LowWatermarkConfig, monotonic_ms: int = 0
    ) -> "QueueState":
        """What an owner with this log would know, by its clock; `restore_half` follows for the journal from L to S."""
        state = cls(times_of, config, restored.ops)
        state.keep_time(monotonic_ms)
        state.s, state.op_start = restored.position.s, restored.op_end
        state.op_needed = restored.position.o
        state.journal_ms = restored.journal_ms
        state.s_ms = restored.position.s_ms
        state.log_start = restored.position.start
        state._horizon.move(restored.position.s, restored.op_floor)
        state._restore_ops(restored.ops.others())
        return state

    def restore_half(self, place: LogPosition, half: HalfMessage, ordering_hash: int) -> None:
        """One that was decided, if nothing else is known of it. Raises QueueHalted."""
        transaction_id = half.transaction_id
        if self.is_live(transaction_id) or transaction_id in self.ended or is_void(half, place.stored_ms):
            return
        if half.is_published:
            detail = f"journal offset {place.offset} was published, but the op topic does not know it"
            raise QueueHalted(detail, HaltKind.OP_LOST)
        transaction = transition.prepare(half, place, ordering_hash, self._times_of(half.group)).transaction
        self.live[transaction_id] = transaction
        self._horizon.add_half(transaction)
        self._rest()

    @property
    def live_count(self) -> int:
        """Transactions that are not final, or blocked."""
        return len(self.live) + self.rows.count

    def is_live(self, transaction_id: str) -> bool:
        """Whether it is one of those, as object or row."""
        return transaction_id in self.live or (self.rows.count > 0 and transaction_id in self.rows)

    def half_of(self, transaction_id: str) -> int | None:
        """Offset of the half message of a live one."""
        t = self.live.get(transaction_id)
        if t is not None:
            return t.half
        found = self.rows.find(transaction_id) if self.rows.count else None
        return None if found is None else found[0]

    def recall(self, transaction_ids: Iterable[str]) -> None:
        """Something is about to happen to these: those that rest become objects, until they rest again."""
        rows = self.rows
        if not rows.count:
            return
        for transaction_id in transaction_ids:
            found = rows.pop(transaction_id)
            if found is not None:
                self.live[transaction_id], bound = found
                self._horizon.put_bound(transaction_id, bound)

    def apply(
        self, place: LogPosition, record: Record, ordering_hash: int, obstacle: str | None = None
    ) -> Sequence[Effect]:
        """Decides one journal record. `ordering_hash` matters for half messages, `obstacle` for what is published.

        `obstacle`: why its messages cannot be published now. A commit behind a blocked one of its ordering key is
        blocked too (O).
        """
        if type(record) is EndRecord:
            return self._apply_end(place, record, obstacle)
        if type(record) is HalfMessage:
            return self._apply_half(place, record, ordering_hash, obstacle)
        assert isinstance(record, ActRecord)
        return self._apply_act(place, record)

    def advance(self, s: int, stored_ms: int) -> None:
        """All records below `s` are decided; the last of them was appended at `stored_ms`."""
        self.s = s
        self.s_ms = stored_ms or self.s_ms
        self.journal_ms = max(self.journal_ms, stored_ms)

    def keep_time(self, monotonic_ms: int) -> None:
        """The owner's own clock, which no broker can set forward."""
        self._horizon.monotonic_ms = monotonic_ms

    @property
    def is_cut(self) -> bool:
        """Whether the op topic begins behind what a successor must read."""
        return self.op_needed < self._horizon.op_begin

    def note_op_begin(self, offset: int) -> None:
        """The op topic begins there now: what is not over, and stands before it, is carried forward."""
        self._horizon.op_begin = offset

    def pass_time(self, read_through_ms: int) -> None:
        """All records still to come were appended after this: so journal time goes on in an idle queue too."""
        self.journal_ms = max(self.journal_ms, read_through_ms)

    def park(self, transaction_id: str, reason: str) -> Sequence[Effect]:
        """Parks a transaction that is still PREPARED."""
        t = self.live.get(transaction_id)
        if t is None or t.state is not PREPARED:
            return ()
        return self._follow(t, transition.park(t, reason, self.s - 1))

    def unblock(self, transaction_id: str) -> Sequence[Effect]:
        """Makes the first blocked one of its ordering key ready to be published."""
        t = self.live[transaction_id]
        return self._follow(t, transition.unblock(t, self.s - 1))

    def block_again(self, transaction_id: str, reason: str) -> Sequence[Effect]:
        """Gives a blocked transaction another reason, if it is another."""
        t = self.live[transaction_id]
        return () if t.reason == reason else self._follow(t, transition.block(t, reason))

    def carry_forward(self, most: int) -> list[Effect]:
        """Writes again what has held L or O back for long."""
        effects: list[Effect] = []
        chosen = self._horizon.choose_to_carry(self.s, self.op_start, self.journal_ms, most)
        self.recall(chosen)
        for transaction_id in chosen:
            t = self.live[transaction_id]
            is_old = self.journal_ms - t.appended_ms >= self._config.op_ms
            effects += self._follow(t, transition.carry_forward(t, is_old=is_old))
        return effects

    def defer(self, effects: Iterable[Effect], reason_of: Callable[[Transaction], str]) -> list[Effect]:
        """Blocks the commits among `effects`, whose Kafka transaction was aborted."""
        kept: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Publish):
                t = effect.transaction
                kept += self._follow(t, transition.block(t, reason_of(t)))
            else:
                kept.append(effect)
        return kept

    def next_position(self, written: Collection[Transaction], owner: str, topics: LogTopics | None = None) -> Position:
        """The position for the Kafka transaction that also writes op messages of `written`."""
        mark, end, op_start = self._horizon.mark, self._horizon.end, self.op_start
        for t in written:
            if t.is_live:
                mark(t.transaction_id, op_start, self.journal_ms)
            elif t.ended_ms is not None:
                end(t.transaction_id, op_start, t.ended_ms)
        self._horizon.move(self.s, self.op_start)
        first_journal = self._horizon.first_journal_offset(self.s)
        first_op = self._horizon.first_op_offset(first_journal, self.op_start, self.journal_ms)
        self.op_needed = first_op
        return Position(self.s, first_journal, first_op, owner, topics, self.s_ms, self.log_start)

    def confirm(self, sealed: Iterable[WrittenOp], last_op_offset: int | None) -> None:
        """The Kafka transaction is committed: remember the op messages of what ended, forget what is too old."""
        live, ended = self.live, self.ended
        for entry in sealed:
            transaction = entry.transaction
            if not transaction.is_live:
                ended[transaction.transaction_id] = entry.value
            elif transaction.transaction_id in live:
                live[transaction.transaction_id] = transaction
        self._settling.clear()
        for transaction_id in self._horizon.forget_ended(self.journal_ms):
            self.ended.pop(transaction_id, None)
        if last_op_offset is not None:
            self.op_start = last_op_offset + 1
        self._rest()

    def prepared(self) -> Iterator[Transaction]:
        """All PREPARED transactions but those in rows."""
        return (t for t in self.live.values() if t.state is PREPARED)

    def get_op_value(self, transaction_id: str) -> bytes | None:
        """The op message of a known transaction as it stands before this batch; None if it is not known."""
        value = self.ended.get(transaction_id)
        if value is None and (t := self.live.get(transaction_id)):
            return encode_op(OpMessage(t))
        return value

    def _apply_half(
        self, place: LogPosition, half: HalfMessage, ordering_hash: int, obstacle: str | None
    ) -> Sequence[Effect]:
        if is_void(half, place.stored_ms):
            return ()
        transaction_id = half.transaction_id
        if transaction_id in self.live or transaction_id in self._settling or transaction_id in self.ended:
            again: tuple[Effect, ...] = (Rewrite(transaction_id),) if transaction_id in self.ended else ()
            return again + self._answer(half.request, transaction_id, AnswerCode.ALREADY)
        obstacle = obstacle or (ORDER if ordering_hash in self.blocked_queues else None)
        made = transition.prepare(half, place, ordering_hash, self._times_of(half.group), obstacle)
        if half.is_published:
            return self._follow(None, made)
        self.live[transaction_id] = made.transaction
        self._horizon.add_half(made.transaction)
        return made.effects

    def _apply_end(self, place: LogPosition, record: EndRecord, obstacle: str | None) -> Sequence[Effect]:
        t = self._find(record.transaction_id)
        if t is None:
            return self._answer(record.request, record.transaction_id, AnswerCode.UNKNOWN_TRANSACTION)
        if t.is_final and transition.is_overruled(t, record):
            self.overruled.append(record)
        if obstacle is None and t.ordering_hash in self.blocked_queues:
            obstacle = ORDER
        times = self._times_of(t.group) if record.resolution is _UNKNOWN else _ANY_TIMES
        return self._follow(t, transition.end(t, record, place, times, obstacle))

    def _apply_act(self, place: LogPosition, record: ActRecord) -> Sequence[Effect]:
        t = self._find(record.transaction_id)
        if t is None:
            return self._answer(record.request, record.transaction_id, AnswerCode.UNKNOWN_TRANSACTION)
        return self._follow(t, transition.act(t, record, place))

    def _find(self, transaction_id: str) -> Transaction | None:
        t = self.live.get(transaction_id) or self._settling.get(transaction_id)
        if t is None and (value := self.ended.get(transaction_id)):
            return decode_op(transaction_id, value).transaction
        return t

    def _follow(self, before: Transaction | None, made: transition.Transition) -> tuple[Effect, ...]:
        """Keeps the transaction as it is now, and its place behind or before others of its ordering key."""
        t = made.transaction
        transaction_id, is_blocked = t.transaction_id, t.blocked
        if made.effects:
            if t.is_live:
                self.live[transaction_id] = t
            elif transaction_id not in self.ended:
                self.live.pop(transaction_id, None)
                self._settling[transaction_id] = t
        was_blocked = before is not None and before.blocked
        if is_blocked is not was_blocked:
            (self._add_blocked if is_blocked else self._remove_blocked)(t)
        return made.effects

    def _rest(self) -> None:
        """Makes rows of the oldest objects once there are many; what is blocked or parked stays what it is."""
        live, most = self.live, self._config.max_objects
        if len(live) < self._next_rest:
            return
        for t in list(islice(live.values(), len(live) - most)):
            if self.rows.add(t, self._horizon.bound_of(t.transaction_id)):
                del live[t.transaction_id]
                self._horizon.drop_bound(t.transaction_id)
        self._horizon.pack()
        self._next_rest = max(2 * most, len(live) + len(live) // 4)

    def _add_blocked(self, t: Transaction) -> None:
        waiting = self.blocked_queues.setdefault(t.ordering_hash, [])
        insort(waiting, t.transaction_id, key=lambda transaction_id: self.live[transaction_id].end or 0)

    def _remove_blocked(self, t: Transaction) -> None:
        waiting = self.blocked_queues[t.ordering_hash]
        waiting.remove(t.transaction_id)
        if not waiting:
            del self.blocked_queues[t.ordering_hash]

    @staticmethod
    def _answer(request: str | None, transaction_id: str, code: AnswerCode) -> tuple[Effect, ...]:
        return () if request is None else (Reply(request, transaction_id, code),)

    def _restore_ops(self, ops: Iterable[RecoveredOp]) -> None:
        for op in ops:
            t = op.transaction
            if t.is_live:
                self.live[t.transaction_id] = t
                self._horizon.restore(t.transaction_id, op.offset)
                if t.blocked:
                    self._add_blocked(t)
            else:
                self.ended[t.transaction_id] = op.value
                self._horizon.end(t.transaction_id, op.offset, t.ended_ms or 0)


def changed_by(effects: Iterable[Effect]) -> Mapping[str, Transaction]:
    """The transactions the effects concern, as the last of them leaves each."""
    return {
        effect.transaction.transaction_id: effect.transaction
        for effect in effects
        if isinstance(effect, _OF_TRANSACTIONS)
    }
