"""Bodies of pending transactions: in memory up to a byte budget, beyond it re-read by offset in batches."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from bridge.clock import Clock
from bridge.core.message import Header, Message, StoredMessage
from bridge.core.properties import PROPERTIES_HEADER
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_record
from bridge.core.topics import InternalTopics, TopicDescription, find_obstacle
from bridge.core.transaction import Transaction
from bridge.settler.batch import Destination, real_queue
from bridge.store.message_store import HalfPlace, LoadedHalf, MessageStore, TopicAdmin, read_halves

# --- bodies that wait for long, as few bytes more than their values: in chunks by journal offset ---

_CHUNK_COUNT = 256
_MAX_BYTES = 16_384  # of a value: what weighs more gains nothing
_ID = b"\x00"  # stands for the transaction's id; no property has this byte
_END = b"\x02"  # of a property

# append time, key, value, how many properties, those that differ from the chunk's, other headers
_Packed = tuple[int, bytes | None, bytes | None, int, list[tuple[int, bytes]], list[Header]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


class _Chunk:
    """Messages with ascending offsets. `properties` of the first: of the others only what differs is kept."""

    __slots__ = ("ends", "is_live", "live", "offsets", "packed", "properties")

    def __init__(self, properties: list[bytes]) -> None:
        self.properties = properties
        self.offsets = array("q")
        self.ends = array("I")
        self.is_live = bytearray()
        self.packed = bytearray()
        self.live = 0

    def add(self, offset: int, packed: bytes) -> None:
        self.offsets.append(offset)
        self.packed += packed
        self.ends.append(len(self.packed))
        self.is_live.append(1)
        self.live += 1

    def find(self, offset: int) -> int | None:
        """Its number."""
        number = bisect_left(self.offsets, offset)
        is_there = number < len(self.offsets) and self.offsets[number] == offset and self.is_live[number]
        return number if is_there else None

    def get(self, number: int) -> bytes:
        return bytes(self.packed[self.ends[number - 1] if number else 0 : self.ends[number]])

    def shrink(self) -> "_Chunk":
        """The same without what is not live."""
        chunk = _Chunk(self.properties)
        for number, offset in enumerate(self.offsets):
            if self.is_live[number]:
                chunk.add(offset, self.get(number))
        return chunk


class PackedBodies:
    """Stored half messages by their offset. Only one that lies behind all others is taken."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []  # an offset for each chunk: those in it are not below
        self._last = -1

    def put(self, transaction_id: str, stored: StoredMessage) -> int:
        """Bytes that it takes; 0: it was not taken."""
        # the bridge's own header, which comes last
        properties = stored.headers[-1][1] if stored.headers and stored.headers[-1][0] == PROPERTIES_HEADER else None
        is_small = len(stored.value or b"") <= _MAX_BYTES
        if properties is None or _ID in properties or not is_small or stored.queue_offset <= self._last:
            return 0
        parts = properties.replace(transaction_id.encode(), _ID).split(_END)
        if not self._chunks or len(self._chunks[-1].offsets) >= _CHUNK_COUNT:
            self._chunks.append(_Chunk(parts))
            self._firsts.append(stored.queue_offset)
        known = self._chunks[-1].properties
        is_alike = len(known) == len(parts)
        changed = [(n, part) for n, part in enumerate(parts) if not is_alike or part != known[n]]
        packed = _encode((stored.stored_ms, stored.key, stored.value, len(parts), changed, stored.headers[:-1]))
        self._last = stored.queue_offset
        self._chunks[-1].add(self._last, packed)
        return len(packed)

    def get(self, transaction_id: str, offset: int) -> StoredMessage | None:
        """As it was; it stays."""
        place = bisect_right(self._firsts, offset) - 1
        number = self._chunks[place].find(offset) if place >= 0 else None
        if number is None:
            return None
        chunk = self._chunks[place]
        stored_ms, key, value, count, changed, others = _decode(chunk.get(number))
        parts = chunk.properties.copy() if count == len(chunk.properties) else [b""] * count
        for n, part in changed:
            parts[n] = part
        properties = _END.join(parts).replace(_ID, transaction_id.encode())
        return StoredMessage(offset, key, value, [*others, (PROPERTIES_HEADER, properties)], stored_ms)

    def drop(self, offset: int) -> int:
        """Bytes that it took; 0 if it is not there."""
        place = bisect_right(self._firsts, offset) - 1
        number = self._chunks[place].find(offset) if place >= 0 else None
        if number is None:
            return 0
        chunk = self._chunks[place]
        size = len(chunk.get(number))
        chunk.is_live[number] = 0
        chunk.live -= 1
        if not chunk.live:
            del self._chunks[place], self._firsts[place]
        elif 2 * chunk.live < len(chunk.offsets):
            self._chunks[place] = chunk.shrink()
        return size


# --- bodies of pending transactions ---

UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
NOT_AUTHORISED = "NOT_AUTHORISED"  # we may not even describe it
LEADERLESS = "LEADERLESS"

_CLOSE_MS = 60_000  # to the limit of a topic: brokers' clocks differ, and a batch takes its time


class KnownTopics:
    """Descriptions of destination topics, asked anew when older than `max_age_ms`."""

    def __init__(self, admin: TopicAdmin, clock: Clock, max_age_ms: int = 5_000) -> None:
        self._admin = admin
        self._clock = clock
        self._max_age_ms = max_age_ms
        self._known: dict[str, tuple[TopicDescription | None, int]] = {}

    async def refresh(self, topics: Collection[str], *, is_forced: bool = False) -> None:
        """Sees to it that each topic's description is fresh. Raises StoreError."""
        now = self._clock.monotonic_ms()
        stale = [
            topic
            for topic in sorted(topics)
            if is_forced or topic not in self._known or now - self._known[topic][1] > self._max_age_ms
        ]
        if stale:
            described = await self._admin.describe_topics(stale, with_denied=True)
            self._known |= {topic: (described.get(topic), now) for topic in stale}

    def doubt(self, topics: Iterable[str]) -> None:
        """Something failed that touched these: what is known of them is too old for the next batch."""
        for topic in topics:
            if topic in self._known:
                self._known[topic] = (self._known[topic][0], -self._max_age_ms - 1)

    def roomy_bytes(self, topic: str) -> int:
        """Up to this size a message goes to the topic if it asks for neither queue nor time; 0: not known of any."""
        described = self._known[topic][0]
        if described is None or described.leaderless or not described.queues or described.is_key_required:
            return 0
        return described.max_message_bytes

    def max_message_bytes(self, topic: str) -> int | None:
        """What a request to the topic may have; None if that is not known."""
        described, _ = self._known.get(topic, (None, 0))
        return described.max_message_bytes if described and described.queues else None

    def find_destination(self, topic: str, now_ms: int) -> Destination:
        """What the topic asks of its records. A record for which no timestamp was asked has that of its commit, or the
        present one where the topic does not take it, any more or yet. Times are Kafka's."""
        described, _ = self._known.get(topic, (None, 0))
        if described is None:
            return Destination(1, 0, now_ms)
        if described.is_log_append_time:
            return Destination(max(described.queues, 1), 0, now_ms)
        before_ms, after_ms = described.timestamp_before_max_ms, described.timestamp_after_max_ms
        oldest_ms = now_ms - before_ms + min(_CLOSE_MS, before_ms // 2) + 1
        newest_ms = now_ms + after_ms - min(_CLOSE_MS, after_ms // 2)
        return Destination(max(described.queues, 1), oldest_ms, now_ms, newest_ms)

    def find_reason(
        self, transaction_id: str, messages: Sequence[Message], now_ms: int, *, has_id_header: bool
    ) -> str | None:
        """Why these messages cannot be published now; None if nothing speaks against it. `now_ms`: Kafka's time."""
        for message in messages:
            described = self._known[message.topic][0]
            if described is None:
                return UNKNOWN_TOPIC
            if not described.queues:
                return NOT_AUTHORISED
            if obstacle := find_obstacle(message, described, now_ms, has_id_header=has_id_header):
                return obstacle.value
            if described.leaderless and real_queue(message, transaction_id, described.queues) in described.leaderless:
                return LEADERLESS
        return None


_FIRST_GUESS_BYTES = 2_048

LoadedHalves = Mapping[str, LoadedHalf]
"""Half messages with their bodies by transaction id."""


class Loaded(NamedTuple):
    """Bodies by transaction id of the first `asked` transactions; what neither log has is left out."""

    found: dict[str, LoadedHalf]
    asked: int


class Bodies:
    """The bodies of one queue's transactions. `max_bytes`: kept in memory; `max_load_bytes`: given out at once;
    `max_objects`: with so many objects more, the oldest of them are packed."""

    def __init__(
        self,
        store: MessageStore,
        topics: InternalTopics,
        queue_id: int,
        max_bytes: int,
        max_load_bytes: int,
        max_objects: int = 2_048,
    ) -> None:
        self._store = store
        self._topics = topics
        self._queue_id = queue_id
        self._max_bytes = max_bytes
        self._max_load_bytes = max_load_bytes
        self._guess_bytes = _FIRST_GUESS_BYTES  # of a body that is not in memory
        self._held: dict[str, LoadedHalf] = {}  # several messages are framed as they came: once, not twice
        self._packed = PackedBodies()  # what has been held for longer
        self._max_objects = max_objects
        self._next_pack = 2 * max_objects
        self.held_bytes = 0  # what the bodies in memory take, about

    def keep(self, loaded: LoadedHalf) -> None:
        """Keeps a body that is not known yet if the budget allows it."""
        transaction_id, size = loaded.half.transaction_id, loaded.size
        if self.held_bytes + size <= self._max_bytes and transaction_id not in self._held:
            self._held[transaction_id] = loaded if loaded.framed is None else replace(loaded, framed=None)
            self.held_bytes += size
            if len(self._held) > self._next_pack:
                self._pack()

    def drop(self, transactions: Iterable[Transaction]) -> None:
        """Forgets bodies that are not needed any more."""
        for t in transactions:
            held = self._held.pop(t.transaction_id, None)
            self.held_bytes -= self._packed.drop(t.half) if held is None else held.size

    def _pack(self) -> None:
        """The oldest ones; large ones stay what they are."""
        for transaction_id, held in list(islice(self._held.items(), len(self._held) - self._max_objects)):
            size = self._packed.put(transaction_id, held.stored)
            if size:
                del self._held[transaction_id]
                self.held_bytes += size - held.size
        self._next_pack = max(2 * self._max_objects, len(self._held) + len(self._held) // 4)

    def _get(self, t: Transaction) -> LoadedHalf | None:
        held = self._held.get(t.transaction_id)
        if held is None and (stored := self._packed.get(t.transaction_id, t.half)) is not None:
            record = decode_record(stored)
            assert isinstance(record, HalfMessage)
            loaded = LoadedHalf.decode(record, stored)
            return loaded if loaded.framed is None else replace(loaded, framed=None)
        return held

    async def load(self, transactions: Sequence[Transaction], max_bytes: int | None = None) -> Loaded:
        """The bodies of as many, from the first on, as may be given out at once, or as asked for; of one at least.

        The size of bodies that have to be read is not known: a try that finds more than it may is repeated with
        fewer. Raises StoreError.
        """
        most = self._max_load_bytes if max_bytes is None else min(max_bytes, self._max_load_bytes)
        simple = self._find_simple(transactions, most)
        if simple is not None:
            return Loaded(simple, len(transactions))
        held = {t.transaction_id: known for t in transactions if (known := self._get(t)) is not None}
        count = self._choose_count(held, transactions, most)
        while True:
            found = await self._try(held, transactions[:count], most if count > 1 else None)
            if found is not None:
                return Loaded(found, count)
            count = max(1, min(count // 2, most // self._guess_bytes))

    def _find_simple(self, transactions: Sequence[Transaction], most: int) -> dict[str, LoadedHalf] | None:
        """All of them, if all are objects in memory, are single messages and weigh no more."""
        found: dict[str, LoadedHalf] = {}
        size = 0
        for t in transactions:
            held = self._held.get(t.transaction_id)
            if held is None or held.half.message_count > 1:
                return None
            found[t.transaction_id] = held
            size += held.size
        return found if size <= most else None

    def _choose_count(self, held: LoadedHalves, transactions: Sequence[Transaction], most: int) -> int:
        size = 0
        for count, t in enumerate(transactions):
            known = held.get(t.transaction_id)
            size += self._guess_bytes if known is None else known.size
            if count and size > most:
                return count
        return len(transactions)

    async def _try(
        self, held: LoadedHalves, transactions: Sequence[Transaction], max_bytes: int | None
    ) -> dict[str, LoadedHalf] | None:
        """None if they weigh more, and then nothing of them is kept."""
        kept = [known for t in transactions if (known := held.get(t.transaction_id)) is not None]
        found = {
            h.half.transaction_id: LoadedHalf.decode(h.half, h.stored) if h.half.message_count > 1 else h for h in kept
        }
        if len(kept) == len(transactions):
            return found
        missing = [t for t in transactions if t.transaction_id not in held]
        places = [HalfPlace(t.transaction_id, self._queue_id, t.half, t.parked) for t in missing]
        room = None if max_bytes is None else max(1, max_bytes - sum([h.size for h in kept]))
        read = await read_halves(self._store, self._topics, places, room)
        self._guess_bytes = read.mean_bytes or self._guess_bytes
        return None if read.found is None else read.found | found
