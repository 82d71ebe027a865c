"""Bodies of pending transactions: in memory up to a byte budget, beyond it re-read by offset in batches."""

from collections.abc import Collection, Iterable

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_parked, decode_record
from bridge.core.topics import PARKED_QUEUE, InternalTopics
from bridge.core.transaction import Transaction
from bridge.settler.batch import Held
from bridge.store.message_store import MessageStore

_OVERHEAD_BYTES = 600  # tuples, header list and property strings around a small body


class Bodies:
    """The bodies of one queue's transactions."""

    def __init__(self, store: MessageStore, topics: InternalTopics, queue_id: int, max_bytes: int) -> None:
        self._store = store
        self._half_queue = MessageQueue(topics.half, queue_id)
        self._parked_queue = MessageQueue(topics.parked, PARKED_QUEUE)
        self._max_bytes = max_bytes
        self._held: dict[str, tuple[HalfMessage, StoredMessage, int]] = {}  # with the size counted for it
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the bodies in memory take, about."""
        return self._held_bytes

    def keep(self, half: HalfMessage, stored: StoredMessage) -> None:
        """Keeps a body if the budget allows it."""
        size = _size_of(stored)
        if self._held_bytes + size <= self._max_bytes and half.transaction_id not in self._held:
            self._held[half.transaction_id] = (half, stored, size)
            self._held_bytes += size

    def drop(self, transaction_ids: Iterable[str]) -> None:
        """Forgets bodies that nobody needs any more."""
        for transaction_id in transaction_ids:
            held = self._held.pop(transaction_id, None)
            if held is not None:
                self._held_bytes -= held[2]

    def is_held(self, transaction_id: str) -> bool:
        """Whether the body is in memory."""
        return transaction_id in self._held

    async def load(self, transactions: Collection[Transaction]) -> dict[str, Held]:
        """Bodies by transaction id; what neither journal nor parked topic has is left out. Raises StoreError."""
        found: dict[str, Held] = {}
        missing: list[Transaction] = []
        for t in transactions:
            held = self._held.get(t.transaction_id)
            if held is None:
                missing.append(t)
            else:
                found[t.transaction_id] = Held.decode(held[0], held[1])
        if missing:
            found |= await self._read(self._half_queue, {t.half: t.transaction_id for t in missing})
            parked = {t.parked: t.transaction_id for t in missing if t.parked is not None}
            wanted = {offset: i for offset, i in parked.items() if i not in found}
            if wanted:
                found |= await self._read(self._parked_queue, wanted)
        return found

    async def _read(self, queue: MessageQueue, wanted: dict[int, str]) -> dict[str, Held]:
        stored = await self._store.get_each(queue, wanted.keys())
        found: dict[str, Held] = {}
        for offset, message in stored.items():
            held = _decode(message, is_parked=queue == self._parked_queue)
            if held is not None and held.half.transaction_id == wanted[offset]:
                found[held.half.transaction_id] = held
        return found


def _decode(stored: StoredMessage, *, is_parked: bool) -> Held | None:
    try:
        record = decode_parked(stored) if is_parked else decode_record(stored)
        return Held.decode(record, stored) if isinstance(record, HalfMessage) else None
    except (MalformedRecord, UnknownRecordVersion):
        return None


def _size_of(stored: StoredMessage) -> int:
    size = _OVERHEAD_BYTES + len(stored.key or b"") + len(stored.value or b"")
    return size + sum([len(name) + len(value or b"") for name, value in stored.headers])
