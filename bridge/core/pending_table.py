"""Transactions that have been PREPARED for long, a hundred bytes each: rows of fixed size instead of objects. Pure."""

import struct
from collections.abc import Iterator
from zlib import crc32

from bridge.core.transaction import PREPARED, TRANSACTION_ID_LENGTH, Transaction

UNMARKED = -1
"""The bound of one without an op message."""

# id, half, appended_ms, at, ordering_hash, next_due_ms, bound, check_times, group, max_checks, max_life_s
_ROW = struct.Struct("<28sqqqQqqIIii")
_PLACES = struct.Struct("<28sq32xq16x")  # id, half, bound
_NOTHING = (None,) * 5
_FULL = 16  # rows of a bucket, on average


class PendingTable:
    """Rows by transaction id, in buckets that are searched as bytes.

    Linear hashing: with a row too many the next bucket is split, so that none ever waits for a great move. Which bucket
    a row is in depends on its id alone, so the order is the same in each process.
    """

    def __init__(self) -> None:
        self.count = 0
        self._buckets = [bytearray()]
        self._mask = 1
        self._groups: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, t: Transaction, bound: int) -> bool:
        """Takes one that is not there yet; False if there is more to be said of it than a row can hold."""
        raw_id = t.transaction_id.encode()
        is_usual = (
            t.state is PREPARED
            and t.since_ms == t.appended_ms
            and (t.by, t.end, t.ended_ms, t.reason, t.parked) == _NOTHING
            and not (t.base or t.blocked or t.requests or t.abandoned)
        )
        if not is_usual or len(raw_id) != TRANSACTION_ID_LENGTH:
            return False
        most, life = _or_none(t.max_checks), _or_none(t.max_life_s)
        number = self._number_of(t.group)
        try:
            row = _ROW.pack(
                raw_id, t.half, t.appended_ms, t.at, t.ordering_hash, t.next_due_ms, bound, t.check_times, number,
                most, life,
            )  # fmt: skip
        except struct.error:
            return False
        self._bucket_of(raw_id).extend(row)
        self.count += 1
        if self.count > _FULL * len(self._buckets):
            self._split()
        return True

    def pop(self, transaction_id: str) -> tuple[Transaction, int] | None:
        """Takes one out, with its bound."""
        raw_id = transaction_id.encode()
        bucket = self._bucket_of(raw_id)
        at = _find(bucket, raw_id)
        if at < 0:
            return None
        found = self._make(bucket, at)
        bucket[at : at + _ROW.size] = bucket[-_ROW.size :]
        del bucket[-_ROW.size :]
        self.count -= 1
        if 4 * self.count < _FULL * (len(self._buckets) - 1):
            self._join()
        if not self.count:
            self._groups, self._numbers = [], {}
        return found

    def __contains__(self, transaction_id: str) -> bool:
        return self.find(transaction_id) is not None

    def find(self, transaction_id: str) -> tuple[int, int] | None:
        """Offset of its half message, and its bound."""
        raw_id = transaction_id.encode()
        bucket = self._bucket_of(raw_id)
        at = _find(bucket, raw_id)
        if at < 0:
            return None
        _, half, bound = _PLACES.unpack_from(bucket, at)
        return half, bound

    def get(self, transaction_id: str) -> Transaction | None:
        """One as an object, made for the caller; the row stays."""
        raw_id = transaction_id.encode()
        bucket = self._bucket_of(raw_id)
        at = _find(bucket, raw_id)
        return None if at < 0 else self._make(bucket, at)[0]

    def __iter__(self) -> Iterator[Transaction]:
        """All of them, as objects made one by one."""
        for bucket in self._buckets:
            for at in range(0, len(bucket), _ROW.size):
                yield self._make(bucket, at)[0]

    def _make(self, rows: bytes | bytearray, at: int) -> tuple[Transaction, int]:
        raw_id, half, appended_ms, changed_at, ordering_hash, due_ms, bound, check_times, number, most, life = (
            _ROW.unpack_from(rows, at)
        )
        transaction = Transaction(
            raw_id.decode(),
            self._groups[number],
            half,
            appended_ms,
            ordering_hash,
            PREPARED,
            changed_at,
            appended_ms,
            due_ms,
            check_times,
            0,
            None if most < 0 else most,
            None if life < 0 else life,
        )
        return transaction, bound

    def _number_of(self, group: str) -> int:
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = len(self._groups)
            self._groups.append(group)
        return number

    def _bucket_of(self, raw_id: bytes) -> bytearray:
        number = crc32(raw_id) & self._mask
        return self._buckets[number if number < len(self._buckets) else number & self._mask >> 1]

    def _split(self) -> None:
        """Adds a bucket, for half of the rows of another."""
        buckets, mask = self._buckets, self._mask
        number = len(buckets)
        parent = number & mask >> 1
        kept, moved = bytearray(), bytearray()
        rows = buckets[parent]
        for at in range(0, len(rows), _ROW.size):
            row = rows[at : at + _ROW.size]
            (moved if crc32(row[:TRANSACTION_ID_LENGTH]) & mask == number else kept).extend(row)
        buckets[parent] = kept
        buckets.append(moved)
        if len(buckets) > mask:
            self._mask = 2 * mask + 1

    def _join(self) -> None:
        """Takes the last bucket back into the one it came from."""
        if len(self._buckets) == (self._mask + 1) >> 1:
            self._mask >>= 1
        rows = self._buckets.pop()
        self._buckets[len(self._buckets) & self._mask >> 1].extend(rows)


def _find(bucket: bytearray, raw_id: bytes) -> int:
    """Where its row begins; numbers may happen to look like an id."""
    at = bucket.find(raw_id)
    while at > 0 and at % _ROW.size:
        at = bucket.find(raw_id, at + 1)
    return at


def _or_none(limit: int | None) -> int:
    return -1 if limit is None else limit
