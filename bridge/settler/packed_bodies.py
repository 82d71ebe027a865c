"""Bodies that wait for long, as few bytes more than their values: in chunks by journal offset. Pure."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

from bridge.core.message import Header, StoredMessage
from bridge.core.properties import PROPERTIES_HEADER

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
        properties = _find_properties(stored.headers)
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


def _find_properties(headers: Sequence[Header]) -> bytes | None:
    """The bridge's own header, which comes last."""
    return headers[-1][1] if headers and headers[-1][0] == PROPERTIES_HEADER else None
