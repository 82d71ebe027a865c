"""Half messages read again by offset, with what they carry: from the journal, else from the parked topic."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import BY_KEY, Message, MessageQueue, StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.core.queue_state import effective_ordering_hash
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_body, decode_parked, decode_record
from bridge.core.topics import PARKED_QUEUE, InternalTopics
from bridge.store.message_store import MessageStore

_FEW_HEADERS = 32  # what is counted too much for objects in memory is more than they take in a record


class LoadedHalf(Struct, frozen=True, gc=False):
    """A half message as the journal, or the parked topic, holds it. `size`: what it takes in memory, about.

    `framed`: the prepared messages if there are several; a single one is the record itself. `plain_topic`: of a single
    one that asks for neither queue nor time and has few headers: its size is all that its topic has to take.
    """

    half: HalfMessage
    stored: StoredMessage
    size: int
    plain_topic: str | None = None
    framed: Sequence[Message] | None = None

    @classmethod
    def decode(cls, half: HalfMessage, stored: StoredMessage) -> "LoadedHalf":
        """Raises MalformedRecord."""
        size = count_stored_bytes(stored)
        if half.message_count > 1:
            return cls(half, stored, size, None, decode_body(half, stored))
        is_plain = half.real_queue_id == BY_KEY and half.timestamp_ms is None and len(stored.headers) <= _FEW_HEADERS
        return cls(half, stored, size, half.real_topic if is_plain else None)

    @property
    def messages(self) -> Sequence[Message]:
        """The prepared messages."""
        return decode_body(self.half, self.stored) if self.framed is None else self.framed

    @property
    def topics(self) -> frozenset[str]:
        """The set of their destinations."""
        if self.framed is None:
            return frozenset([self.half.real_topic])
        return frozenset([message.topic for message in self.framed])

    @property
    def ordering_hash(self) -> int:
        """Hash of the effective ordering key."""
        return effective_ordering_hash(self.half, self.framed[0].key if self.framed else self.stored.key)


class HalfPlace(NamedTuple):
    """Where a half message was appended: queue and offset of the journal, and of its copy in the parked topic."""

    transaction_id: str
    queue_id: int
    offset: int
    parked_offset: int | None


class HalvesRead(NamedTuple):
    """Half messages by transaction id; what no log has is left out. `mean_bytes`: of a record read, 0 without one.

    `found` None: they weigh more than was allowed.
    """

    found: dict[str, LoadedHalf] | None
    mean_bytes: int


async def read_halves(
    store: MessageStore, topics: InternalTopics, places: Sequence[HalfPlace], max_bytes: int | None = None
) -> HalvesRead:
    """All that is wanted of a queue at once. Raises StoreError."""
    reading = _Reading(store, max_bytes)
    for queue_id in {place.queue_id for place in places}:
        wanted = {place.offset: place.transaction_id for place in places if place.queue_id == queue_id}
        await reading.read(MessageQueue(topics.half, queue_id), wanted, is_parked=False)
    missing = [place for place in places if place.transaction_id not in reading.found]
    copies = {place.parked_offset: place.transaction_id for place in missing if place.parked_offset is not None}
    await reading.read(MessageQueue(topics.parked, PARKED_QUEUE), copies, is_parked=True)
    mean_bytes = reading.size // reading.count if reading.count else 0
    return HalvesRead(None if reading.is_over else reading.found, mean_bytes)


class _Reading:
    """Reads until there are too many bytes."""

    def __init__(self, store: MessageStore, max_bytes: int | None) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self.found: dict[str, LoadedHalf] = {}
        self.size = self.count = 0

    @property
    def is_over(self) -> bool:
        return self._max_bytes is not None and self.size >= self._max_bytes

    async def read(self, queue: MessageQueue, wanted: Mapping[int, str], *, is_parked: bool) -> None:
        """The messages that are half messages of the expected transactions."""
        if not wanted or self.is_over:
            return
        room = None if self._max_bytes is None else self._max_bytes - self.size
        stored = await self._store.get_each(queue, wanted.keys(), room)
        self.count += len(stored)
        for offset, message in stored.items():
            loaded = _decode(message, is_parked=is_parked)
            self.size += count_stored_bytes(message) if loaded is None else loaded.size
            if loaded is not None and loaded.half.transaction_id == wanted[offset]:
                self.found[wanted[offset]] = loaded


def _decode(stored: StoredMessage, *, is_parked: bool) -> LoadedHalf | None:
    try:
        record = decode_parked(stored) if is_parked else decode_record(stored)
        return LoadedHalf.decode(record, stored) if isinstance(record, HalfMessage) else None
    except (MalformedRecord, UnknownRecordVersion):
        return None
