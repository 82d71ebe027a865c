"""The last op message of each transaction, as a take-over reads them: what is only pending becomes rows at once."""

from collections import deque
from collections.abc import Iterator

from msgspec import Struct

from bridge.core.errors import MalformedRecord
from bridge.core.long_queue import Chunks, put_packed
from bridge.core.op_message import decode_op, decode_pending
from bridge.core.pending_table import PendingTable
from bridge.core.transaction import Transaction, is_raw_id


class RecoveredOp(Struct, frozen=True, gc=False):
    """An op message with its offset, decoded; `value`: as written, of what has ended."""

    offset: int
    transaction: Transaction
    value: bytes


class RecoveredOps:
    """Filled in the order of offsets, which rows have as bounds. `marks`: offset and append time of each live one."""

    def __init__(self, many: int = 500_000) -> None:
        """`many`: so many come before rows that are there are put together with them anew."""
        self.marks: Chunks = deque()
        self._rows = PendingTable()
        self._many = many
        self._coming: list[bytes] = []  # rows, and ids of others, which replace them
        self._others: dict[str, RecoveredOp] = {}

    def add(self, offset: int, raw_id: bytes, value: bytes, stored_ms: int) -> None:
        """A later one of the same id replaces it. Raises MalformedRecord, UnknownRecordVersion."""
        if not is_raw_id(raw_id):
            raise MalformedRecord("the key is no transaction id")
        row = self._make_row(offset, raw_id, value)
        if row is None:
            transaction_id = raw_id.decode()
            t = decode_op(transaction_id, value).transaction
            self._others.pop(transaction_id, None)  # the new one comes last
            self._others[transaction_id] = RecoveredOp(offset, t, b"" if t.is_live else value)
            if not t.is_live:
                self._coming.append(raw_id)
                return
            row = raw_id
        elif self._others:
            self._others.pop(raw_id.decode(), None)
        put_packed(self.marks, offset, stored_ms, raw_id)
        self._coming.append(row)
        if len(self._coming) > self._many + 2 * self._rows.count:
            self._put()

    @property
    def rows(self) -> PendingTable:
        """What is only pending."""
        self._put()
        return self._rows

    def others(self) -> Iterator[RecoveredOp]:
        """What is not in rows, by offset."""
        yield from self._others.values()

    def _make_row(self, offset: int, raw_id: bytes, value: bytes) -> bytes | None:
        t = decode_pending(value)
        if t is None:
            return None
        try:
            ordering_hash = int(t.okey, 16)
        except ValueError:
            return None
        return self._rows.make_row(raw_id, t, ordering_hash, (t.group, t.max_checks, t.max_life), offset)

    def _put(self) -> None:
        if self._coming:
            self._rows.put_all(self._coming)
            self._coming.clear()
