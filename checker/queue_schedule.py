"""The transactions of one queue by due time: a heap for each producer group, and where each of them is registered.

Pure.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from bridge.core.pending_table import DueRow, PendingTable, hash_id
from bridge.core.transaction import Transaction

# --- transactions whose first check is still to come, without an order among them ---

_SLOT_BITS = 8  # a slot is 256 ms long
_SPARE = 1_024
_LOOK_STEP = 5_000
_BROUGHT = -2  # the bound of one that was read back and has been brought back; of one read live: less


class NewTransactions:
    """Transactions that were prepared lately, by the slot of their first due time: most end before it comes.

    Of such a one nothing has to be put in order, and nothing searched for when it ends. With more than `most` they
    become packed rows, which keep the time they were read as their bound. Rows that were read back are the owner's, and
    get their slots bit by bit.
    """

    def __init__(self, most: int) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._rows = PendingTable()
        self._slots: dict[int, tuple[list[str], list[int | None]]] = {}  # ids, and when each was read
        self._packed: dict[int, array[int]] = {}  # slot -> hashes of the ids of rows
        self._order: list[int] = []  # heap of slots
        self._unplaced: Iterator[DueRow] | None = None
        self._is_ahead: Callable[[DueRow], bool] = lambda _: False
        self._bring_back: Callable[[Transaction], Transaction] = lambda t: t
        self._placed = 0  # ids in slots
        self._most = self._next_pack = most

    def __len__(self) -> int:
        return len(self.transactions) + self._rows.count

    def __contains__(self, transaction_id: str) -> bool:
        return transaction_id in self.transactions or (self._rows.count > 0 and transaction_id in self._rows)

    @property
    def first_ms(self) -> int | None:
        """When the first slot begins; at once if there are rows without one."""
        if self._unplaced is not None:
            return 0
        return self._order[0] << _SLOT_BITS if self._order else None

    def add(self, transaction: Transaction, read_ms: int | None) -> None:
        """Takes one of which nothing is known yet. `read_ms` None: read back, not read live."""
        transaction_id, slot = transaction.transaction_id, transaction.next_due_ms >> _SLOT_BITS
        self.transactions[transaction_id] = transaction
        placed = self._slots.get(slot)
        if placed is None:
            placed = self._slots[slot] = [], []
            if slot not in self._packed:
                heappush(self._order, slot)
        placed[0].append(transaction_id)
        placed[1].append(read_ms)
        self._placed += 1

    def adopt(
        self, rows: PendingTable, is_ahead: Callable[[DueRow], bool], bring_back: Callable[[Transaction], Transaction]
    ) -> None:
        """Begins with a copy of these, which were read back. Those that are ahead are due when `bring_back` says."""
        self._rows, self._is_ahead, self._bring_back = rows.copy(), is_ahead, bring_back
        self._unplaced = rows.copy().due_rows() if rows.count else None  # as they are now, whatever goes meanwhile

    def drop_packed(self, transaction_id: str) -> bool:
        """Forgets one that has ended and is in a row; False if it is not."""
        return self._rows.count > 0 and self._rows.pop(transaction_id) is not None

    def pop(self, transaction_id: str) -> tuple[Transaction, int | None] | None:
        """Takes one out before its time, with the moment it was read."""
        transaction = self.transactions.pop(transaction_id, None)
        if transaction is None:
            return self._unpack(transaction_id)
        ids, reads = self._slots[transaction.next_due_ms >> _SLOT_BITS]
        return transaction, reads[ids.index(transaction_id)]

    def pop_due(self, now_ms: int, most: int) -> list[tuple[Transaction, int | None]]:
        """Takes out those that have not ended when their slot begins; of rows so many at once, about."""
        self._place()
        due: list[tuple[Transaction, int | None]] = []
        while self._order and self._order[0] << _SLOT_BITS <= now_ms and len(due) < most:
            slot = self._order[0]
            packed = self._packed.get(slot, array("I"))
            part = packed[: most - len(due)]
            del packed[: len(part)]
            self._placed -= len(part)
            for hashed in part:
                found = self._rows.pop_hashed(hashed, *_span_of(slot))
                due += [self._read(t, bound) for t, bound in found]
            if not packed:
                due += self._pop_objects(heappop(self._order))
        return due

    def _place(self) -> None:
        """Gives slots to the next rows that were read back."""
        if self._unplaced is None:
            return
        rows = list(islice(self._unplaced, _LOOK_STEP))
        for row in rows:
            if self._is_ahead(row):
                if (found := self._unpack(row.raw_id.decode())) is not None:
                    self.add(*found)
                continue
            slot = row.next_due_ms >> _SLOT_BITS
            packed = self._packed.get(slot)
            if packed is None:
                packed = self._packed[slot] = array("I")
                if slot not in self._slots:
                    heappush(self._order, slot)
            packed.append(hash_id(row.raw_id))
            self._placed += 1
        if len(rows) < _LOOK_STEP:
            self._unplaced = None

    def _pop_objects(self, slot: int) -> Iterator[tuple[Transaction, int | None]]:
        self._packed.pop(slot, None)
        ids, reads = self._slots.pop(slot, ([], []))
        self._placed -= len(ids)
        for transaction_id, read_ms in zip(ids, reads, strict=True):
            transaction = self.transactions.pop(transaction_id, None)
            if transaction is not None:
                yield transaction, read_ms

    def compact(self) -> None:
        """Packs objects that are too many; forgets the ids of those that have ended, and slots without others, once
        they are the most."""
        if len(self.transactions) > self._next_pack:
            self._pack()
        if self._placed > 2 * len(self) + _SPARE:
            self._forget_ended()

    def _pack(self) -> None:
        """Makes rows of all that a row can hold."""
        before, self._slots = self._slots, {}
        for slot, (ids, reads) in before.items():
            packed = array("I")
            for transaction_id, read_ms in zip(ids, reads, strict=True):
                transaction = self.transactions.get(transaction_id)
                if transaction is None:
                    self._placed -= 1
                elif self._rows.add(transaction, _BROUGHT if read_ms is None else _BROUGHT - 1 - read_ms):
                    del self.transactions[transaction_id]
                    packed.append(hash_id(transaction_id.encode()))
                else:
                    left = self._slots.setdefault(slot, ([], []))
                    left[0].append(transaction_id)
                    left[1].append(read_ms)
            if packed:
                self._packed.setdefault(slot, array("I")).extend(packed)
        self._next_pack = self._most + 2 * len(self.transactions)

    def _forget_ended(self) -> None:
        before, self._slots = self._slots, {}
        for slot, (ids, reads) in before.items():
            left = [(i, read_ms) for i, read_ms in zip(ids, reads, strict=True) if i in self.transactions]
            if left:
                self._slots[slot] = [i for i, _ in left], [read_ms for _, read_ms in left]
        rows = self._rows
        for slot, packed in list(self._packed.items()):
            self._packed[slot] = array("I", [i for i in packed if rows.has_hashed(i, *_span_of(slot))])
            if not self._packed[slot]:
                del self._packed[slot]
        self._order = sorted({*self._slots, *self._packed})
        self._placed = sum([len(ids) for ids, _ in self._slots.values()]) + sum(map(len, self._packed.values()))

    def _unpack(self, transaction_id: str) -> tuple[Transaction, int | None] | None:
        found = self._rows.pop(transaction_id) if self._rows.count else None
        return None if found is None else self._read(*found)

    def _read(self, transaction: Transaction, bound: int) -> tuple[Transaction, int | None]:
        """One from a row, with the moment it was read."""
        if bound > _BROUGHT:
            return self._bring_back(transaction), None
        return transaction, None if bound == _BROUGHT else _BROUGHT - 1 - bound


def _span_of(slot: int) -> tuple[int, int]:
    """First and last millisecond."""
    return slot << _SLOT_BITS, ((slot + 1) << _SLOT_BITS) - 1


# --- all transactions of one queue by due time ---


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
