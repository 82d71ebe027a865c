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

    def __init__(self, expected: int = 0) -> None:
        """`expected`: about so many are to come."""
        self.rows = PendingTable(expected)
        self.marks: Chunks = deque()
        self._others: dict[str, RecoveredOp] = {}

    def add(self, offset: int, raw_id: bytes, value: bytes, stored_ms: int) -> None:
        """A later one of the same id replaces it. Raises MalformedRecord, UnknownRecordVersion."""
        if not is_raw_id(raw_id):
            raise MalformedRecord("the key is no transaction id")
        if self._add_row(offset, raw_id, value):
            put_packed(self.marks, offset, stored_ms, raw_id)
            return
        transaction_id = raw_id.decode()
        t = decode_op(transaction_id, value).transaction
        self.rows.drop(raw_id)
        self._others.pop(transaction_id, None)  # the new one comes last
        self._others[transaction_id] = RecoveredOp(offset, t, b"" if t.is_live else value)
        if t.is_live:
            put_packed(self.marks, offset, stored_ms, raw_id)

    def others(self) -> Iterator[RecoveredOp]:
        """What is not in rows, by offset."""
        yield from self._others.values()

    def _add_row(self, offset: int, raw_id: bytes, value: bytes) -> bool:
        t = decode_pending(value)
        if t is None:
            return False
        try:
            ordering_hash = int(t.okey, 16)
        except ValueError:
            return False
        self.rows.drop(raw_id)
        is_added = self.rows.put(raw_id, t, ordering_hash, (t.group, t.max_checks, t.max_life), offset)
        if is_added and self._others:
            self._others.pop(raw_id.decode(), None)
        return is_added
