"""How far back a successor must read: L in the journal, O in the op topic. Queues with lazy deletion, no scans."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from bridge.core.transaction import Transaction


@dataclass(frozen=True, slots=True)
class LowWatermarkConfig:
    """When a transaction that would hold L or O back is carried forward, and how long an ended one is remembered."""

    remember_ended_ms: int = 120_000
    journal_records: int = 100_000
    journal_ms: int = 300_000
    op_messages: int = 100_000
    op_ms: int = 7 * 86_400_000


class _Marked(NamedTuple):
    bound: int
    marked_ms: int
    transaction_id: str


class LowWatermarks:
    """L and O of one queue.

    `live` is the owner's table of transactions that are not final, or blocked. An op message's offset
    enters as a lower bound: the first op offset of the Kafka transaction that wrote it. `monotonic_ms`: the owner's
    clock; what has ended is remembered until it agrees with journal time, which jumps when brokers' clocks are set.
    """

    def __init__(self, live: Mapping[str, Transaction], config: LowWatermarkConfig) -> None:
        self._live = live
        self._config = config
        self._unmarked: deque[tuple[int, int, str]] = deque()  # half, appended, id: no op message yet
        self._bounds: dict[str, int] = {}  # live ones with an op message -> its bound
        self._marked: deque[_Marked] = deque()
        self._uncopied: list[tuple[int, str]] = []  # heap of blocked ones without a parked copy: appended, id
        self._noted_blocked: set[str] = set()  # ids that are, or were, in that heap
        self._ended: deque[tuple[int, int, str, int]] = deque()  # ended_ms, bound, id, known since (monotonic)
        self.monotonic_ms = 0
        self._moves: deque[tuple[int, int]] = deque()  # S after a Kafka transaction, its first op offset

    def add_half(self, t: Transaction) -> None:
        """A live transaction without an op message: it holds L."""
        self._unmarked.append((t.half, t.appended_ms, t.transaction_id))

    def mark(self, transaction_id: str, bound: int, journal_ms: int) -> None:
        """A live transaction got an op message: it holds O instead."""
        self._bounds[transaction_id] = bound
        self._marked.append(_Marked(bound, journal_ms, transaction_id))
        t = self._live.get(transaction_id)
        if t is not None and t.blocked and t.parked is None and transaction_id not in self._noted_blocked:
            self._noted_blocked.add(transaction_id)
            heappush(self._uncopied, (t.appended_ms, transaction_id))

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
        unmarked = self._unmarked
        while unmarked and not self._holds_journal(unmarked[0]):
            unmarked.popleft()
        return min(unmarked[0][0], s) if unmarked else s

    def first_op_offset(self, l: int, op_start: int, journal_ms: int) -> int:  # noqa: E741
        """O for a position written by the Kafka transaction that begins at `op_start` and has L = `l`."""
        first = op_start
        while self._moves and self._moves[0][0] <= l:
            self._moves.popleft()
        if self._moves:
            first = min(first, self._moves[0][1])
        self._drop_stale_marks()
        if self._marked:
            first = min(first, self._marked[0].bound)
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
        for half, appended_ms, transaction_id in self._unmarked:
            if len(chosen) >= most or not (
                s - half > config.journal_records or journal_ms - appended_ms > config.journal_ms
            ):
                break
            if self._holds_journal((half, appended_ms, transaction_id)):
                chosen.append(transaction_id)
        room = max(config.op_messages, 4 * len(self._live))
        for mark in self._marked:
            is_far = op_start - mark.bound > room or journal_ms - mark.marked_ms > config.op_ms
            if len(chosen) >= most or not is_far:
                break
            if mark.transaction_id in self._live and self._bounds.get(mark.transaction_id) == mark.bound:
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

    def _holds_journal(self, entry: tuple[int, int, str]) -> bool:
        t = self._live.get(entry[2])
        return t is not None and t.half == entry[0] and entry[2] not in self._bounds

    def _drop_stale_marks(self) -> None:
        marked, bounds = self._marked, self._bounds
        while marked and bounds.get(marked[0].transaction_id) != marked[0].bound:
            marked.popleft()
