"""Bodies of pending transactions: in memory up to a byte budget, beyond it re-read by offset in batches."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bridge.core.message import StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.core.record import HalfMessage
from bridge.core.topics import InternalTopics
from bridge.core.transaction import Transaction
from bridge.store.halves import HalfPlace, LoadedHalf, read_halves
from bridge.store.message_store import MessageStore

_FIRST_GUESS_BYTES = 2_048


class Loaded(NamedTuple):
    """Bodies by transaction id of the first `asked` transactions; what neither log has is left out."""

    found: dict[str, LoadedHalf]
    asked: int


class Bodies:
    """The bodies of one queue's transactions. `max_bytes`: kept in memory; `max_load_bytes`: given out at once."""

    def __init__(
        self, store: MessageStore, topics: InternalTopics, queue_id: int, max_bytes: int, max_load_bytes: int
    ) -> None:
        self._store = store
        self._topics = topics
        self._queue_id = queue_id
        self._max_bytes = max_bytes
        self._max_load_bytes = max_load_bytes
        self._guess_bytes = _FIRST_GUESS_BYTES  # of a body that is not in memory
        self._held: dict[str, tuple[HalfMessage, StoredMessage, int]] = {}  # with the size counted for it
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the bodies in memory take, about."""
        return self._held_bytes

    def keep(self, half: HalfMessage, stored: StoredMessage) -> None:
        """Keeps a body if the budget allows it."""
        size = count_stored_bytes(stored)
        if self._held_bytes + size <= self._max_bytes and half.transaction_id not in self._held:
            self._held[half.transaction_id] = (half, stored, size)
            self._held_bytes += size

    def drop(self, transaction_ids: Iterable[str]) -> None:
        """Forgets bodies that are not needed any more."""
        for transaction_id in transaction_ids:
            held = self._held.pop(transaction_id, None)
            if held is not None:
                self._held_bytes -= held[2]

    def is_held(self, transaction_id: str) -> bool:
        """Whether the body is in memory."""
        return transaction_id in self._held

    async def load(self, transactions: Sequence[Transaction], max_bytes: int | None = None) -> Loaded:
        """The bodies of as many, from the first on, as may be given out at once, or as asked for; of one at least.

        The size of bodies that have to be read is not known: a try that finds more than it may is repeated with
        fewer. Raises StoreError.
        """
        most = self._max_load_bytes if max_bytes is None else min(max_bytes, self._max_load_bytes)
        count = self._choose_count(transactions, most)
        while True:
            found = await self._try(transactions[:count], most if count > 1 else None)
            if found is not None:
                return Loaded(found, count)
            count = max(1, min(count // 2, most // self._guess_bytes))

    def _choose_count(self, transactions: Sequence[Transaction], most: int) -> int:
        size = 0
        for count, t in enumerate(transactions):
            held = self._held.get(t.transaction_id)
            size += self._guess_bytes if held is None else held[2]
            if count and size > most:
                return count
        return len(transactions)

    async def _try(self, transactions: Sequence[Transaction], max_bytes: int | None) -> dict[str, LoadedHalf] | None:
        """None if they weigh more, and then nothing of them is kept."""
        kept = [held for t in transactions if (held := self._held.get(t.transaction_id)) is not None]
        found = {half.transaction_id: LoadedHalf.decode(half, stored) for half, stored, _ in kept}
        if len(kept) == len(transactions):
            return found
        missing = [t for t in transactions if t.transaction_id not in self._held]
        places = [HalfPlace(t.transaction_id, self._queue_id, t.half, t.parked) for t in missing]
        room = None if max_bytes is None else max(1, max_bytes - sum([size for _, _, size in kept]))
        read = await read_halves(self._store, self._topics, places, room)
        self._guess_bytes = read.mean_bytes or self._guess_bytes
        return None if read.found is None else read.found | found
