"""Transactions that have been PREPARED for long, 76 bytes each: rows of fixed size instead of objects. Pure."""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

from bridge.core.op_message import PendingOp
from bridge.core.transaction import PREPARED, TRANSACTION_ID_LENGTH, Transaction

UNMARKED = -1
"""The bound of one without an op message."""

# id, half, appended_ms, ordering_hash, bound, at - half, next_due_ms - appended_ms, check_times, number of its kind,
# offset of its copy in the parked topic
_ROW = struct.Struct("<28sqqQqiiHHi")
_PLACES = struct.Struct("<28sq16xq16x")  # id, half, bound
_DUE_TIMES = struct.Struct("<28s8xq20xiHH4x")  # id, appended_ms, next_due_ms - appended_ms, check_times, number
_TAGS = tuple(bytes([number]) for number in range(256))
_SIZE = _ROW.size + 1
_FULL = 64  # rows of a bucket, on average
_NOTHING = (None,) * 4
_NOT_COPIED = -1


_Kind = tuple[str, int | None, int | None]
"""Group, max_checks, max_life_s: few differ."""


hash_id = crc32


class DueRow(NamedTuple):
    """What a row says of the next check."""

    raw_id: bytes
    group: str
    appended_ms: int
    next_due_ms: int
    check_times: int


class PendingTable:
    """Rows by transaction id, in buckets that are searched as bytes: first a byte of each row's hash, then the rows.

    Linear hashing: with a row too many the next bucket is split, so that none ever waits for a great move. Which bucket
    a row is in depends on its id alone, so the order is the same in each process.
    """

    def __init__(self) -> None:
        self.count = 0
        self._buckets = [b""]
        self._mask = 1
        self._kinds: list[_Kind] = []
        self._numbers: dict[_Kind, int] = {}

    def add(self, t: Transaction, bound: int) -> bool:
        """Takes one that is not there yet; False if there is more to be said of it than a row can hold."""
        is_usual = (
            t.state is PREPARED
            and t.since_ms == t.appended_ms
            and (t.by, t.end, t.ended_ms, t.reason) == _NOTHING
            and not (t.base or t.blocked or t.requests or t.abandoned)
        )
        raw_id = t.transaction_id.encode()
        if not is_usual or len(raw_id) != TRANSACTION_ID_LENGTH:
            return False
        row = self.make_row(raw_id, t, t.ordering_hash, (t.group, t.max_checks, t.max_life_s), bound)
        if row is None:
            return False
        self._put(raw_id, row)
        return True

    def _put(self, raw_id: bytes, row: bytes) -> None:
        hashed = hash_id(raw_id)
        place = self._place_of(hashed)
        bucket = self._buckets[place]
        count = len(bucket) // _SIZE
        self._buckets[place] = b"".join((bucket[:count], _TAGS[hashed >> 24], bucket[count:], row))
        self.count += 1
        if self.count > _FULL * len(self._buckets):
            self._split()

    def make_row(
        self, raw_id: bytes, t: Transaction | PendingOp, ordering_hash: int, kind: _Kind, bound: int
    ) -> bytes | None:
        """Of one of which there is nothing else to be said; None if a number is too large for it."""
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        try:
            return _ROW.pack(
                raw_id, t.half, t.appended_ms, ordering_hash, bound, t.at - t.half, t.next_due_ms - t.appended_ms,
                t.check_times, number, _NOT_COPIED if t.parked is None else t.parked,
            )  # fmt: skip
        except struct.error:
            return None

    def put_all(self, rows: Iterable[bytes]) -> None:
        """Takes what `make_row` made, in this order. The last of an id counts; the id alone takes it out."""
        everything = [*self._rows(), *rows]
        bits = (len(everything) // _FULL).bit_length()
        parts: list[list[bytes]] = [[] for _ in range(1 << bits)]
        last = len(parts) - 1
        for row in everything:
            parts[hash_id(row[:TRANSACTION_ID_LENGTH]) & last].append(row)
        self._buckets, self._mask, self.count = [], 2 * last + 1, 0
        for part in parts:
            kept = {row[:TRANSACTION_ID_LENGTH]: row for row in part}
            live = [row for row in kept.values() if len(row) == _ROW.size]
            tags = [_TAGS[hash_id(row[:TRANSACTION_ID_LENGTH]) >> 24] for row in live]
            self._buckets.append(b"".join(tags + live))
            self.count += len(live)
        while 4 * self.count < _FULL * (len(self._buckets) - 1):
            self._join()

    def _rows(self) -> Iterator[bytes]:
        for bucket in self._buckets:
            for at in range(len(bucket) // _SIZE, len(bucket), _ROW.size):
                yield bucket[at : at + _ROW.size]

    def copy(self) -> "PendingTable":
        """The same rows; both have one and the same bucket until either changes it."""
        copied = PendingTable()
        copied.count, copied._mask = self.count, self._mask
        copied._kinds, copied._numbers = self._kinds.copy(), self._numbers.copy()
        copied._buckets = self._buckets.copy()
        return copied

    def due_rows(self) -> Iterator[DueRow]:
        """When each is due; nothing may change meanwhile."""
        kinds = self._kinds
        for bucket in self._buckets:
            for raw_id, appended_ms, delay_ms, check_times, number in _DUE_TIMES.iter_unpack(
                bucket[len(bucket) // _SIZE :]
            ):
                yield DueRow(raw_id, kinds[number][0], appended_ms, appended_ms + delay_ms, check_times)

    def pop(self, transaction_id: str) -> tuple[Transaction, int] | None:
        """Takes one out, with its bound."""
        place, at = self._seek(transaction_id.encode())
        if at < 0:
            return None
        found = self._make(self._buckets[place], at)
        self._remove(place, at)
        return found

    def pop_hashed(self, hashed: int, first_ms: int, last_ms: int) -> list[tuple[Transaction, int]]:
        """Takes out all with this hash, and perhaps others, that are due between these times."""
        found = list(self._with_hash(hashed, first_ms, last_ms))
        for transaction, _ in found:
            self.drop(transaction.transaction_id.encode())
        return found

    def has_hashed(self, hashed: int, first_ms: int, last_ms: int) -> bool:
        """Whether there is such a one."""
        return any(self._with_hash(hashed, first_ms, last_ms))

    def drop(self, raw_id: bytes) -> bool:
        """Takes it out if it is there."""
        place, at = self._seek(raw_id)
        if at >= 0:
            self._remove(place, at)
        return at >= 0

    def __contains__(self, transaction_id: str) -> bool:
        return self._seek(transaction_id.encode())[1] >= 0

    def find(self, transaction_id: str) -> tuple[int, int] | None:
        """Offset of its half message, and its bound."""
        place, at = self._seek(transaction_id.encode())
        if at < 0:
            return None
        _, half, bound = _PLACES.unpack_from(self._buckets[place], at)
        return half, bound

    def get(self, transaction_id: str) -> Transaction | None:
        """One as an object, made for the caller; the row stays."""
        place, at = self._seek(transaction_id.encode())
        return None if at < 0 else self._make(self._buckets[place], at)[0]

    def __iter__(self) -> Iterator[Transaction]:
        """All of them, as objects made one by one."""
        for bucket in self._buckets:
            for at in range(len(bucket) // _SIZE, len(bucket), _ROW.size):
                yield self._make(bucket, at)[0]

    def _make(self, rows: bytes, at: int) -> tuple[Transaction, int]:
        raw_id, half, appended_ms, ordering_hash, bound, changed_after, delay_ms, check_times, number, parked = (
            _ROW.unpack_from(rows, at)
        )
        group, max_checks, max_life_s = self._kinds[number]
        transaction = Transaction(
            raw_id.decode(),
            group,
            half,
            appended_ms,
            ordering_hash,
            PREPARED,
            half + changed_after if changed_after else half,
            appended_ms,
            appended_ms + delay_ms,
            check_times,
            0,
            max_checks,
            max_life_s,
            parked=None if parked == _NOT_COPIED else parked,
        )
        return transaction, bound

    def _seek(self, raw_id: bytes) -> tuple[int, int]:
        """In which bucket it would be, and where it begins there, or less than 0."""
        hashed = hash_id(raw_id)
        place = self._place_of(hashed)
        bucket = self._buckets[place]
        count = len(bucket) // _SIZE
        row = bucket.find(hashed >> 24, 0, count)
        while row >= 0:
            at = count + row * _ROW.size
            if bucket.startswith(raw_id, at):
                return place, at
            row = bucket.find(hashed >> 24, row + 1, count)
        return place, row

    def _with_hash(self, hashed: int, first_ms: int, last_ms: int) -> Iterator[tuple[Transaction, int]]:
        bucket = self._buckets[self._place_of(hashed)]
        count = len(bucket) // _SIZE
        for row in range(count):
            if bucket[row] == hashed >> 24:
                made = self._make(bucket, count + row * _ROW.size)
                if first_ms <= made[0].next_due_ms <= last_ms:
                    yield made

    def _remove(self, place: int, at: int) -> None:
        bucket = self._buckets[place]
        row = (at - len(bucket) // _SIZE) // _ROW.size
        self._buckets[place] = b"".join((bucket[:row], bucket[row + 1 : at], bucket[at + _ROW.size :]))
        self.count -= 1
        if 4 * self.count < _FULL * (len(self._buckets) - 1):
            self._join()
        if not self.count:
            self._kinds, self._numbers = [], {}

    def _place_of(self, hashed: int) -> int:
        number = hashed & self._mask
        return number if number < len(self._buckets) else number & self._mask >> 1

    def _split(self) -> None:
        """Adds a bucket, for half of the rows of another."""
        mask, number = self._mask, len(self._buckets)
        parent = number & mask >> 1
        rows = self._buckets[parent]
        self._buckets.append(b"")
        parts: dict[bool, tuple[list[bytes], list[bytes]]] = {False: ([], []), True: ([], [])}
        for at in range(len(rows) // _SIZE, len(rows), _ROW.size):
            row = rows[at : at + _ROW.size]
            hashed = hash_id(row[:TRANSACTION_ID_LENGTH])
            tags, kept = parts[hashed & mask == number]
            tags.append(_TAGS[hashed >> 24])
            kept.append(row)
        for is_moved, (tags, kept) in parts.items():
            self._buckets[number if is_moved else parent] = b"".join(tags + kept)
        if len(self._buckets) > mask:
            self._mask = 2 * mask + 1

    def _join(self) -> None:
        """Takes the last bucket back into the one it came from."""
        if len(self._buckets) == (self._mask + 1) >> 1:
            self._mask >>= 1
        rows = self._buckets.pop()
        place = len(self._buckets) & self._mask >> 1
        bucket = self._buckets[place]
        moved, kept = len(rows) // _SIZE, len(bucket) // _SIZE
        self._buckets[place] = b"".join((bucket[:kept], rows[:moved], bucket[kept:], rows[moved:]))
