"""Transactions whose first check is still to come, without an order among them. Pure."""

from collections.abc import Iterator
from heapq import heappop, heappush

from bridge.core.transaction import Transaction

_SLOT_BITS = 8  # a slot is 256 ms long
_SPARE = 1_024


class NewTransactions:
    """Transactions that were prepared lately, by the slot of their first due time: most end before it comes.

    Of such a one nothing has to be put in order, and nothing searched for when it ends.
    """

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._slots: dict[int, tuple[list[str], list[int | None]]] = {}  # ids, and when each was read
        self._order: list[int] = []  # heap of slots
        self._placed = 0

    @property
    def first_ms(self) -> int | None:
        """When the first slot begins."""
        return self._order[0] << _SLOT_BITS if self._order else None

    def add(self, transaction: Transaction, read_ms: int | None) -> None:
        """Takes one of which nothing is known yet. `read_ms` None: read back, not read live."""
        transaction_id, slot = transaction.transaction_id, transaction.next_due_ms >> _SLOT_BITS
        self.transactions[transaction_id] = transaction
        placed = self._slots.get(slot)
        if placed is None:
            placed = self._slots[slot] = [], []
            heappush(self._order, slot)
        placed[0].append(transaction_id)
        placed[1].append(read_ms)
        self._placed += 1

    def pop(self, transaction_id: str) -> tuple[Transaction, int | None] | None:
        """Takes one out before its time, with the moment it was read."""
        transaction = self.transactions.pop(transaction_id, None)
        if transaction is None:
            return None
        ids, reads = self._slots[transaction.next_due_ms >> _SLOT_BITS]
        return transaction, reads[ids.index(transaction_id)]

    def pop_due(self, now_ms: int) -> Iterator[tuple[Transaction, int | None]]:
        """Takes out those that have not ended when their slot begins."""
        while self._order and self._order[0] << _SLOT_BITS <= now_ms:
            ids, reads = self._slots.pop(heappop(self._order))
            self._placed -= len(ids)
            for transaction_id, read_ms in zip(ids, reads, strict=True):
                transaction = self.transactions.pop(transaction_id, None)
                if transaction is not None:
                    yield transaction, read_ms

    def compact(self) -> None:
        """Forgets the ids of those that have ended, and slots without others, once they are the most."""
        if self._placed <= 2 * len(self.transactions) + _SPARE:
            return
        before, self._slots = self._slots, {}
        for slot, (ids, reads) in before.items():
            left = [(i, read_ms) for i, read_ms in zip(ids, reads, strict=True) if i in self.transactions]
            if left:
                self._slots[slot] = [i for i, _ in left], [read_ms for _, read_ms in left]
        self._order = sorted(self._slots)
        self._placed = len(self.transactions)
