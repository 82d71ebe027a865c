"""Transactions whose first check is still to come, without an order among them. Pure."""

from array import array
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice

from bridge.core.pending_table import DueRow, PendingTable, hash_id
from bridge.core.transaction import Transaction

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

    def drop(self, transaction_id: str) -> bool:
        """Forgets one that has ended; False if it is not among them."""
        if self.transactions.pop(transaction_id, None) is not None:
            return True
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
