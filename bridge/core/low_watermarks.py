"""How far back a successor must read: L in the journal, O in the op topic. Queues with lazy deletion, no scans."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from bridge.core.long_queue import Chunks, LongQueue, QueueEntry
from bridge.core.pending_table import UNMARKED, PendingTable
from bridge.core.transaction import Transaction


@dataclass(frozen=True, slots=True)
class LowWatermarkConfig:
    """When a transaction that would hold L or O back is carried forward, and how long an ended one is remembered.

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
        for entry in self._unmarked:
            is_far = s - entry.offset > config.journal_records or journal_ms - entry.stored_ms > config.journal_ms
            if len(chosen) >= most or not is_far:
                break
            if self._holds_journal(entry):
                chosen.append(entry.transaction_id)
        room = max(config.op_messages, 4 * (len(self._live) + self._rows.count))
        for mark in self._marked:
            is_far = op_start - mark.offset > room or journal_ms - mark.stored_ms > config.op_ms
            if len(chosen) >= most or not is_far:
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
        half, _, transaction_id = entry
        t = self._live.get(transaction_id)
        if t is not None:
            return t.half == half and transaction_id not in self._bounds
        return self._rows.count > 0 and self._rows.find(transaction_id) == (half, UNMARKED)

    def _holds_op(self, mark: QueueEntry) -> bool:
        bound, _, transaction_id = mark
        known = self._bounds.get(transaction_id)
        if known is None and self._rows.count:
            found = self._rows.find(transaction_id)
            known = None if found is None else found[1]
        return known == bound
