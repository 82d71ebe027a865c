"""The transactions of one queue by due time: a heap for each producer group, and where each of them is registered.
Pure."""

from collections.abc import Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec import Struct

from bridge.core.transaction import Transaction
from checker.new_transactions import NewTransactions

_SPARE = 1_024


class QueueTime(NamedTuple):
    """How a queue stands: Kafka's time, until when it has been read to its end, and the monotonic time."""

    now_ms: int
    read_through_ms: int
    monotonic_ms: int


class PopResult(Enum):
    """Why the head of a lane is no entry to be looked at."""

    NOTHING = "nothing due"
    UNREAD = "due, but its queue must be read further first"
    PASSED = "stale, or put off by the monotonic clock"


class HeapItem(Struct, gc=False, eq=False):
    """A PREPARED transaction. `is_waiting`: its due time is in the heap; `answered`: number of the check whose
    answer is in the journal and not yet reported; `not_before_ms`: by the monotonic clock. `since_ms`: by it too, when
    its life was seen to begin, None if it was read back; `life_end_ms`: Kafka's time before which that is not over;
    `had_round`: in which era of its group it was asked about last, counted from 1."""

    transaction: Transaction
    answered: int = 0
    due_ms: int = 0
    not_before_ms: int = 0
    since_ms: int | None = None
    life_end_ms: int = 0
    is_waiting: bool = False
    had_round: int = 0
    found_no_endpoint: bool = False


class _GroupHeap:
    """One group's due times. `live`: items that are not stale; `front_ms`: where the lane is registered."""

    __slots__ = ("front_ms", "heap", "live")

    def __init__(self) -> None:
        self.heap: list[tuple[int, str]] = []
        self.live = 0
        self.front_ms: int | None = None


class QueueSchedule:
    """The transactions of one queue. Lanes at rest are registered with their earliest due time in `_fronts`.

    `taken`: how the queue stood when it was taken over; ages of what was read back are believed as they were then.
    """

    def __init__(self, queue_id: int, taken: QueueTime | None, max_objects: int) -> None:
        self.queue_id = queue_id
        self.taken = taken
        self.new = NewTransactions(max_objects)
        self.entries: dict[str, HeapItem] = {}
        self._lanes: dict[str, _GroupHeap] = {}
        self._fronts: list[tuple[int, str]] = []
        self._outgrown: dict[str, None] = {}  # groups whose lane holds more stale items than others

    def schedule(self, entry: HeapItem, due_ms: int) -> None:
        """Puts an entry into its group's lane, or moves it there."""
        group = entry.transaction.group
        lane = self._lanes.get(group)
        if lane is None:
            lane = self._lanes[group] = _GroupHeap()
        if not entry.is_waiting:
            lane.live += 1
            entry.is_waiting = True
        elif entry.due_ms == due_ms:
            return
        entry.due_ms = due_ms
        heappush(lane.heap, (due_ms, entry.transaction.transaction_id))
        self._register(group, lane, due_ms)
        self._note_size(group, lane)

    def remove(self, transaction_id: str) -> None:
        """Forgets a transaction; its due time is dropped when it comes."""
        entry = self.entries.pop(transaction_id, None)
        if entry is not None and entry.is_waiting:
            group = entry.transaction.group
            lane = self._lanes[group]
            lane.live -= 1
            self._note_size(group, lane)

    def compact_one(self) -> bool:
        """Drops what is stale from one lane that holds too much of it; False if there is none."""
        if not self._outgrown:
            return False
        lane = self._lanes.get(self._outgrown.popitem()[0])
        if lane is not None:
            lane.heap = [item for item in lane.heap if self._is_current(item)]
            heapify(lane.heap)
        return True

    def wake(self, now_ms: int) -> list[str]:
        """Groups at rest that have something due, earliest first; they are registered no more."""
        woken = []
        while self._fronts and self._fronts[0][0] <= now_ms:
            front_ms, group = heappop(self._fronts)
            lane = self._lanes.get(group)
            if lane is not None and lane.front_ms == front_ms:
                lane.front_ms = None
                woken.append(group)
        return woken

    def rest(self, group: str) -> None:
        """Registers the group's lane again."""
        lane = self._lanes.get(group)
        if lane is not None and lane.heap:
            self._register(group, lane, lane.heap[0][0])
        elif lane is not None:
            del self._lanes[group]

    def next_front_ms(self) -> int | None:
        """The earliest due time of lanes at rest, or when the next of the new ones have to be looked at."""
        front_ms, new_ms = self._fronts[0][0] if self._fronts else None, self.new.first_ms
        return new_ms if front_ms is None else front_ms if new_ms is None else min(front_ms, new_ms)

    def head_ms(self, group: str) -> int | None:
        """The group's earliest due time, perhaps a stale one."""
        lane = self._lanes.get(group)
        return lane.heap[0][0] if lane is not None and lane.heap else None

    def pop(self, group: str, moment: QueueTime, max_lag_ms: int) -> HeapItem | PopResult:
        """Takes the group's next due entry out of its lane."""
        lane = self._lanes[group]
        if not lane.heap or lane.heap[0][0] > moment.now_ms:
            return PopResult.NOTHING
        due_ms, transaction_id = lane.heap[0]
        if not self._is_current(lane.heap[0]):
            heappop(lane.heap)
            return PopResult.PASSED
        is_lagging = moment.now_ms - moment.read_through_ms > max_lag_ms
        if is_lagging or due_ms > moment.read_through_ms:
            return PopResult.UNREAD
        heappop(lane.heap)
        lane.live -= 1
        entry = self.entries[transaction_id]
        entry.is_waiting = False
        rest_ms = entry.not_before_ms - moment.monotonic_ms
        if rest_ms <= 0:
            return entry
        self.schedule(entry, moment.now_ms + rest_ms)
        return PopResult.PASSED

    def count_due(self, now_ms: int, most: int) -> int:
        """How many are due and not taken, up to about `most`."""
        count = 0
        for lane in self._lanes.values():
            count += _count_heap(lane.heap, now_ms, most - count)
        return count

    def _register(self, group: str, lane: _GroupHeap, due_ms: int) -> None:
        if lane.front_ms is None or due_ms < lane.front_ms:
            lane.front_ms = due_ms
            heappush(self._fronts, (due_ms, group))

    def _note_size(self, group: str, lane: _GroupHeap) -> None:
        if len(lane.heap) > 2 * lane.live + _SPARE:
            self._outgrown[group] = None

    def _is_current(self, item: tuple[int, str]) -> bool:
        entry = self.entries.get(item[1])
        return entry is not None and entry.is_waiting and entry.due_ms == item[0]


def _count_heap(heap: Sequence[tuple[int, str]], now_ms: int, most: int) -> int:
    """Items of a heap not after `now_ms`, found through its branches."""
    count, branches = 0, [0]
    while branches and count < most:
        index = branches.pop()
        if index < len(heap) and heap[index][0] <= now_ms:
            count += 1
            branches += (2 * index + 1, 2 * index + 2)
    return count
