"""Where an owner stands: how far back a successor must read, and whether the log is the one that it speaks of."""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from msgspec import Struct

from bridge.core.errors import HaltKind, QueueHalted
from bridge.core.op_message import LogStart, LogTopics, Position
from bridge.core.pending_table import UNMARKED, PendingTable
from bridge.core.transaction import Transaction

# --- a queue of numbers and ids that may be very long: only its last entries are objects, the others are packed ---

_ENTRY = struct.Struct("<qq28s")
_CHUNK_BYTES = 1_024 * _ENTRY.size


Chunks = deque[bytearray]
"""Entries in packed form."""


def put_packed(chunks: Chunks, offset: int, stored_ms: int, raw_id: bytes) -> None:
    """Adds an entry at the end."""
    if not chunks or len(chunks[-1]) >= _CHUNK_BYTES:
        chunks.append(bytearray())
    chunks[-1] += _ENTRY.pack(offset, stored_ms, raw_id)


class QueueEntry(Struct, frozen=True, gc=False):
    """An offset, an append time, an id."""

    offset: int
    stored_ms: int
    transaction_id: str


class LongQueue:
    """First in, first out. `holds`: whether an entry still counts; what does not is dropped sooner or later."""

    def __init__(self, holds: Callable[[QueueEntry], bool], most: int, chunks: Chunks | None = None) -> None:
        """`chunks`: with which it begins."""
        self._holds = holds
        self._most = most
        self._last: deque[QueueEntry] = deque()
        self._chunks: Chunks = deque() if chunks is None else chunks
        self._start = 0  # of the first entry of the first chunk
        self.append = self._last.append

    def first(self) -> QueueEntry | None:
        """The first that counts."""
        while self._chunks:
            chunk = self._chunks[0]
            entry = _unpack(chunk, self._start)
            if self._holds(entry):
                return entry
            self._start += _ENTRY.size
            if self._start == len(chunk):
                self._chunks.popleft()
                self._start = 0
        last, holds = self._last, self._holds
        while last and not holds(last[0]):
            last.popleft()
        return last[0] if last else None

    def __iter__(self) -> Iterator[QueueEntry]:
        start = self._start
        for chunk in self._chunks:
            for at in range(start, len(chunk), _ENTRY.size):
                yield _unpack(chunk, at)
            start = 0
        yield from self._last

    def pack(self) -> None:
        """Packs what are too many objects, but for those that do not count any more."""
        if len(self._last) <= 2 * self._most:
            return
        while len(self._last) > self._most:
            entry = self._last.popleft()
            if self._holds(entry):
                put_packed(self._chunks, entry.offset, entry.stored_ms, entry.transaction_id.encode())


def _unpack(chunk: bytearray, at: int) -> QueueEntry:
    offset, stored_ms, raw_id = _ENTRY.unpack_from(chunk, at)
    return QueueEntry(offset, stored_ms, raw_id.decode())


# --- how far back a successor must read: L in the journal, O in the op topic. Queues with lazy deletion, no scans ---


# An op message written shortly before its transaction was old says nothing of a copy, nor does one whose copy was
# refused: it is looked at again long before the journal drops what it keeps for twice `op_ms`.
_CARRIES = 4


@dataclass(frozen=True, slots=True)
class LowWatermarkConfig:
    """When a transaction that would hold L or O back is carried forward, and how long an ended one is remembered.

    `op_ms`: at this age its body is copied; its op message is written again in each quarter of that.
    `max_objects`: with so many live ones more, the oldest of them become rows.
    """

    remember_ended_ms: int = 120_000
    journal_records: int = 100_000
    journal_ms: int = 300_000
    op_messages: int = 100_000
    op_ms: int = 7 * 86_400_000
    max_objects: int = 2_048


class LowWatermarks:
    """L and O of one queue.

    `live` and `rows` are the owner's tables of transactions that are not final, or blocked. An op message's offset
    enters as a lower bound: the first op offset of the Kafka transaction that wrote it. `monotonic_ms`: the owner's
    clock; what has ended is remembered until it agrees with journal time, which jumps when brokers' clocks are set.
    """

    def __init__(
        self,
        live: Mapping[str, Transaction],
        rows: PendingTable,
        config: LowWatermarkConfig,
        marks: Chunks | None = None,
    ) -> None:
        """`marks`: of live ones that had an op message when the queue was taken over; `restore` follows for objects."""
        self._live = live
        self._rows = rows
        self._config = config
        self._unmarked = LongQueue(self._holds_journal, config.max_objects)  # by half: no op message yet
        self._bounds: dict[str, int] = {}  # live ones with an op message -> its bound; rows have their own
        self._marked = LongQueue(self._holds_op, config.max_objects, marks)  # by bound, with the time of the mark
        self._uncopied: list[tuple[int, str]] = []  # heap of blocked ones without a parked copy: appended, id
        self._noted_blocked: set[str] = set()  # ids that are, or were, in that heap
        self._ended: deque[tuple[int, int, str, int]] = deque()  # ended_ms, bound, id, known since (monotonic)
        self.monotonic_ms = 0
        self.op_begin = 0  # of the op topic now: what is below was deleted, and what still counts is written again
        self._moves: deque[tuple[int, int]] = deque()  # S after a Kafka transaction, its first op offset

    def add_half(self, t: Transaction) -> None:
        """A live transaction without an op message: it holds L."""
        self._unmarked.append(QueueEntry(t.half, t.appended_ms, t.transaction_id))

    def mark(self, transaction_id: str, bound: int, journal_ms: int) -> None:
        """A live transaction got an op message: it holds O instead."""
        self._marked.append(QueueEntry(bound, journal_ms, transaction_id))
        self.restore(transaction_id, bound)

    def restore(self, transaction_id: str, bound: int) -> None:
        """The same of one whose mark is there."""
        self._bounds[transaction_id] = bound
        t = self._live.get(transaction_id)
        if t is not None and t.blocked and t.parked is None and transaction_id not in self._noted_blocked:
            self._noted_blocked.add(transaction_id)
            heappush(self._uncopied, (t.appended_ms, transaction_id))

    def bound_of(self, transaction_id: str) -> int:
        """The bound of an object, for the row it becomes."""
        return self._bounds.get(transaction_id, UNMARKED)

    def drop_bound(self, transaction_id: str) -> None:
        """It has become a row, which has its bound."""
        self._bounds.pop(transaction_id, None)

    def put_bound(self, transaction_id: str, bound: int) -> None:
        """A row has become an object again."""
        if bound != UNMARKED:
            self._bounds[transaction_id] = bound

    def pack(self) -> None:
        """Packs what has waited for long."""
        self._unmarked.pack()
        self._marked.pack()

    def end(self, transaction_id: str, bound: int, ended_ms: int) -> None:
        """A transaction ended and is published or needs no publishing: it holds O for a while."""
        if transaction_id in self._bounds:
            del self._bounds[transaction_id]
            self._noted_blocked.discard(transaction_id)
        self._ended.append((ended_ms, bound, transaction_id, self.monotonic_ms))

    def move(self, s: int, op_start: int) -> None:
        """A Kafka transaction that begins at op offset `op_start` moved S to `s`."""
        if not self._moves or s > self._moves[-1][0]:
            self._moves.append((s, op_start))

    def first_journal_offset(self, s: int) -> int:
        """L: the oldest half message that is live without an op message, else `s`."""
        first = self._unmarked.first()
        return s if first is None else min(first.offset, s)

    def first_op_offset(self, l: int, op_start: int, journal_ms: int) -> int:  # noqa: E741
        """O for a position written by the Kafka transaction that begins at `op_start` and has L = `l`."""
        first = op_start
        while self._moves and self._moves[0][0] <= l:
            self._moves.popleft()
        if self._moves:
            first = min(first, self._moves[0][1])
        marked = self._marked.first()
        if marked is not None:
            first = min(first, marked.offset)
        horizon, known_ms = self._horizons(journal_ms)
        for ended_ms, bound, _, since_ms in self._ended:
            if ended_ms >= horizon or since_ms > known_ms:
                return min(first, bound)
        return first

    def forget_ended(self, journal_ms: int) -> Iterator[str]:
        """Ids that ended longer ago than repeats can matter, at `journal_ms`; each is returned once."""
        horizon, known_ms = self._horizons(journal_ms)
        while self._ended and self._ended[0][0] < horizon and self._ended[0][3] <= known_ms:
            yield self._ended.popleft()[2]

    def _horizons(self, journal_ms: int) -> tuple[int, int]:
        """What ended before the first, and has been known since the second, is not remembered."""
        remember_ms = self._config.remember_ended_ms
        return journal_ms - remember_ms, self.monotonic_ms - remember_ms

    def choose_to_carry(self, s: int, op_start: int, journal_ms: int, most: int) -> list[str]:
        """At most `most` live ones that have held L or O back for long, or whose body the journal drops soon."""
        config = self._config
        chosen: list[str] = []
        is_cut = bool(self._moves) and self._moves[0][1] < self.op_begin
        for entry in self._unmarked:
            is_far = s - entry.offset > config.journal_records or journal_ms - entry.stored_ms > config.journal_ms
            if len(chosen) >= most or not (is_far or is_cut):
                break
            if self._holds_journal(entry):
                chosen.append(entry.transaction_id)
        room = max(config.op_messages, 4 * (len(self._live) + self._rows.count))
        for mark in self._marked:
            is_far = op_start - mark.offset > room or journal_ms - mark.stored_ms > config.op_ms // _CARRIES
            if len(chosen) >= most or not (is_far or mark.offset < self.op_begin):
                break
            if self._holds_op(mark) and (mark.transaction_id in self._live or mark.transaction_id not in self._bounds):
                chosen.append(mark.transaction_id)
        chosen += self._take_uncopied(journal_ms - config.op_ms, most - len(chosen))
        return list(dict.fromkeys(chosen))

    def _take_uncopied(self, appended_ms: int, most: int) -> Iterator[str]:
        """Blocked ones appended by then, each once: their op messages may be young, written again with each try."""
        while most > 0 and self._uncopied and self._uncopied[0][0] <= appended_ms:
            transaction_id = heappop(self._uncopied)[1]
            t = self._live.get(transaction_id)
            if t is not None and t.blocked and t.parked is None:
                most -= 1
                yield transaction_id

    def _holds_journal(self, entry: QueueEntry) -> bool:
        half, transaction_id = entry.offset, entry.transaction_id
        t = self._live.get(transaction_id)
        if t is not None:
            return t.half == half and transaction_id not in self._bounds
        return self._rows.count > 0 and self._rows.find(transaction_id) == (half, UNMARKED)

    def _holds_op(self, mark: QueueEntry) -> bool:
        bound, transaction_id = mark.offset, mark.transaction_id
        known = self._bounds.get(transaction_id)
        if known is None and self._rows.count:
            found = self._rows.find(transaction_id)
            known = None if found is None else found[1]
        return known == bound


# --- whether a queue's log is the one its position speaks of, with everything that was decided still in it ---

MIGRATE_OWNER = "migrate"  # shown as the owner in positions that an operator's act wrote


class Span(NamedTuple):
    """First offset a queue still has, and the next it will assign."""

    minimum: int
    maximum: int


class Witness(NamedTuple):
    """Somebody who has seen `s` committed in the log of these topics, with this start if that is known, and all op
    offsets below `op_next`."""

    s: int
    half: str
    op: str
    start: LogStart | None = None
    op_next: int = 0


class LogFacts(NamedTuple):
    """The cluster's description of one queue. `last_ms`: append time of the record at S-1, None if it is gone."""

    topics: LogTopics
    journal: Span
    op: Span
    last_ms: int | None
    witnesses: Sequence[Witness] = ()


def check_position(position: Position | None, facts: LogFacts) -> Position:
    """The position, if the log holds everything it speaks of. Raises QueueHalted with the kind.

    What concerns the op topic is judged first: where it is not what was left, nothing it says counts.
    """
    if position is None:
        raise QueueHalted("the op topic holds no position", HaltKind.NO_POSITION)
    _check_op(position, facts)
    _check_journal(position, facts)
    known = position.topics
    if known is not None and known.parked != facts.topics.parked:
        raise _other("parked topic", known.parked, facts.topics.parked, HaltKind.OTHER_PARKED)
    return position


def find_fault(position: Position | None, facts: LogFacts) -> HaltKind | None:
    """What `check_position` would raise."""
    try:
        check_position(position, facts)
    except QueueHalted as halted:
        return halted.kind
    return None


def check_topics(known: LogTopics, now: LogTopics) -> None:
    """Raises QueueHalted where a topic is another one than it was."""
    if known.op != now.op:
        raise _other("op topic", known.op, now.op, HaltKind.OTHER_OP)
    if known.half != now.half:
        raise _other("journal", known.half, now.half, HaltKind.OTHER_JOURNAL)
    if known.parked != now.parked:
        raise _other("parked topic", known.parked, now.parked, HaltKind.OTHER_PARKED)


def _check_op(position: Position, facts: LogFacts) -> None:
    known, op = position.topics, facts.op
    if known is not None and known.op != facts.topics.op:
        raise _other("op topic", known.op, facts.topics.op, HaltKind.OTHER_OP)
    if not op.minimum <= position.o <= op.maximum:
        detail = f"position needs op offset {position.o}, the topic holds {op.minimum}..{op.maximum}"
        raise QueueHalted(detail, HaltKind.OP_LOST)
    if position.owner == MIGRATE_OWNER:  # an act a moment ago: witnesses speak of what was before
        return
    witnesses = [w for w in facts.witnesses if _speaks_of_this(w, position, facts)]
    written, seen = max((w.op_next for w in witnesses), default=0), max((w.s for w in witnesses), default=0)
    if op.maximum < written:
        raise QueueHalted(f"the op topic held offsets below {written}, and ends at {op.maximum}", HaltKind.OP_LOST)
    if position.s < seen:
        detail = f"journal offsets below {seen} were decided, the last position left in the op topic says {position.s}"
        raise QueueHalted(detail, HaltKind.OP_LOST)


def _check_journal(position: Position, facts: LogFacts) -> None:
    known, journal = position.topics, facts.journal
    if known is not None and known.half != facts.topics.half:
        raise _other("journal", known.half, facts.topics.half, HaltKind.OTHER_JOURNAL)
    needs = f"position needs journal {position.l}..{position.s}"
    if position.s > journal.maximum or position.l > position.s:
        detail = f"{needs}, which ends at {journal.maximum}"
        raise QueueHalted(detail, HaltKind.JOURNAL_LOST)
    if None not in (position.s_ms, facts.last_ms) and position.s_ms != facts.last_ms:
        detail = f"another record lies before journal offset {position.s} than the one that was decided"
        raise QueueHalted(detail, HaltKind.JOURNAL_LOST)
    if position.l < journal.minimum:
        raise QueueHalted(f"{needs}, which begins at {journal.minimum}", HaltKind.JOURNAL_GAP)


def _speaks_of_this(witness: Witness, position: Position, facts: LogFacts) -> bool:
    is_same_log = witness.half == facts.topics.half and witness.op == facts.topics.op
    return is_same_log and witness.start in {None, position.start}


def _other(what: str, known: str, now: str, kind: HaltKind) -> QueueHalted:
    return QueueHalted(f"the {what} is another one: its id was {known}, now it is {now}", kind)
