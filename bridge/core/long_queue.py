"""A queue of numbers and ids that may be very long: only its last entries are objects, the others are packed. Pure."""

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

_ENTRY = struct.Struct("<qq28s")
_CHUNK_BYTES = 1_024 * _ENTRY.size


Chunks = deque[bytearray]
"""Entries in packed form."""


def put_packed(chunks: Chunks, offset: int, stored_ms: int, raw_id: bytes) -> None:
    """Adds an entry at the end."""
    if not chunks or len(chunks[-1]) >= _CHUNK_BYTES:
        chunks.append(bytearray())
    chunks[-1] += _ENTRY.pack(offset, stored_ms, raw_id)


class QueueEntry(NamedTuple):
    """An offset, an append time, an id."""

    offset: int
    stored_ms: int
    transaction_id: str


class LongQueue:
    """First in, first out. `holds`: whether an entry still counts; what does not is dropped sooner or later."""

    def __init__(self, holds: Callable[[QueueEntry], bool], most: int, chunks: Chunks | None = None) -> None:
        """`chunks`: with which it begins."""
        self._holds = holds
        self._most = most
        self._last: deque[QueueEntry] = deque()
        self._chunks: Chunks = deque() if chunks is None else chunks
        self._start = 0  # of the first entry of the first chunk
        self.append = self._last.append

    def first(self) -> QueueEntry | None:
        """The first that counts."""
        while self._chunks:
            chunk = self._chunks[0]
            entry = _unpack(chunk, self._start)
            if self._holds(entry):
                return entry
            self._start += _ENTRY.size
            if self._start == len(chunk):
                self._chunks.popleft()
                self._start = 0
        last, holds = self._last, self._holds
        while last and not holds(last[0]):
            last.popleft()
        return last[0] if last else None

    def __iter__(self) -> Iterator[QueueEntry]:
        start = self._start
        for chunk in self._chunks:
            for at in range(start, len(chunk), _ENTRY.size):
                yield _unpack(chunk, at)
            start = 0
        yield from self._last

    def pack(self) -> None:
        """Packs what are too many objects, but for those that do not count any more."""
        if len(self._last) <= 2 * self._most:
            return
        while len(self._last) > self._most:
            entry = self._last.popleft()
            if self._holds(entry):
                put_packed(self._chunks, entry.offset, entry.stored_ms, entry.transaction_id.encode())


def _unpack(chunk: bytearray, at: int) -> QueueEntry:
    offset, stored_ms, raw_id = _ENTRY.unpack_from(chunk, at)
    return QueueEntry(offset, stored_ms, raw_id.decode())
