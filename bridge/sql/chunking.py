"""What has been read of one queue and not been applied, and the next chunk that may be. Pure.

Op messages of one Kafka transaction end with its position: they are applied when the journal has been read
up to that S. Where compaction has left more before a position than can wait in memory, op messages go
first, then the journal, and S moves last: each row is true at every moment, only `s` says what is complete.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.sql.fold import HalfEntry, JournalEntry, OpEntry, PositionEntry, read_journal_entry, read_op_entry
from bridge.sql.projection import Chunk
from bridge.sql.rows import AppliedPosition

MAX_WAITING_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A record that cannot be parsed: it is stepped over."""

    offset: int
    reason: str


class JournalBuffer:
    """Journal entries that wait for the position that covers them."""

    def __init__(self, next_offset: int, max_entries: int, max_bytes: int = MAX_WAITING_BYTES) -> None:
        self.next_offset = next_offset
        self.halted: str | None = None  # an unknown version: nothing is read beyond `next_offset`
        self._entries: deque[tuple[JournalEntry, int]] = deque()  # with what it takes, about
        self._bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes

    @property
    def is_full(self) -> bool:
        """Whether no more may wait."""
        return len(self._entries) >= self._max_entries or self._bytes >= self._max_bytes

    def add(self, messages: Iterable[StoredMessage], next_offset: int) -> list[Quarantined]:
        """Takes what was read up to `next_offset`."""
        quarantined = []
        for message in messages:
            try:
                entry = read_journal_entry(message)
            except MalformedRecord as error:
                quarantined.append(Quarantined(message.queue_offset, str(error)))
            except UnknownRecordVersion as error:
                self.halted = f"journal offset {message.queue_offset}: {error}"
                self.next_offset = message.queue_offset
                return quarantined
            else:
                if entry is not None:
                    size = _count_bytes(entry, message)
                    self._entries.append((entry, size))
                    self._bytes += size
        self.next_offset = next_offset
        return quarantined

    def take_below(self, offset: int) -> list[JournalEntry]:
        """The entries below `offset`, in order; they are forgotten here."""
        taken = []
        while self._entries and self._entries[0][0].offset < offset:
            entry, size = self._entries.popleft()
            self._bytes -= size
            taken.append(entry)
        return taken


def _count_bytes(entry: JournalEntry, message: StoredMessage) -> int:
    """Of a half message with one message everything but its value is kept; of other ones about everything may be."""
    is_single = isinstance(entry, HalfEntry) and entry.half.message_count == 1
    return count_stored_bytes(message) - (len(message.value or b"") if is_single else 0)


@dataclass(slots=True)
class OpGroup:
    """What one Kafka transaction wrote, or what compaction left before a position."""

    ops: list[OpEntry]
    position_offset: int
    s: int


class OpBuffer:
    """Op messages by the position that closes them."""

    def __init__(self, next_offset: int, max_ops: int, max_bytes: int = MAX_WAITING_BYTES) -> None:
        self.next_offset = next_offset
        self.halted: str | None = None
        self.groups: deque[OpGroup] = deque()
        self._open: list[OpEntry] = []
        self._open_bytes = 0
        self._max_ops = max_ops
        self._max_bytes = max_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether more op messages wait for a position than may."""
        return len(self._open) >= self._max_ops or self._open_bytes >= self._max_bytes

    def add(self, messages: Iterable[StoredMessage], next_offset: int) -> list[Quarantined]:
        """Takes what was read up to `next_offset`."""
        quarantined = []
        for message in messages:
            try:
                entry = read_op_entry(message)
            except MalformedRecord as error:
                quarantined.append(Quarantined(message.queue_offset, str(error)))
            except UnknownRecordVersion as error:
                self.halted = f"op offset {message.queue_offset}: {error}"
                self.next_offset = message.queue_offset
                return quarantined
            else:
                self._open_bytes += count_stored_bytes(message)
                self._take(entry)
        self.next_offset = next_offset
        return quarantined

    def take_open(self) -> list[OpEntry]:
        """The op messages that have no position yet; they are forgotten here."""
        taken, self._open, self._open_bytes = self._open, [], 0
        return taken

    def _take(self, entry: OpEntry | PositionEntry | None) -> None:
        if isinstance(entry, OpEntry):
            self._open.append(entry)
        elif entry is not None:
            self.groups.append(OpGroup(self.take_open(), entry.offset, entry.s))


def next_chunk(queue_id: int, before: AppliedPosition, journal: JournalBuffer, ops: OpBuffer) -> Chunk | None:
    """The largest chunk that may be applied now; None if more must be read first."""
    ready = []
    while ops.groups and ops.groups[0].s <= journal.next_offset:
        ready.append(ops.groups.popleft())
    if ready:
        last = ready[-1]
        s = max(before.s, last.s)
        after = AppliedPosition(s, max(before.journal_next, s), last.position_offset + 1)
        return _make_chunk(queue_id, before, after, journal.take_below(s), [op for g in ready for op in g.ops])
    if ops.groups and journal.is_full:
        return _next_part(queue_id, before, journal, ops.groups[0])
    if ops.is_overfull:
        return _make_chunk(queue_id, before, before._replace(op_next=ops.next_offset), [], ops.take_open())
    return None


def _next_part(queue_id: int, before: AppliedPosition, journal: JournalBuffer, group: OpGroup) -> Chunk:
    """A part of a group that is too large: its op messages, then the journal below its S bit by bit."""
    if group.ops:
        taken, group.ops = group.ops, []
        return _make_chunk(queue_id, before, before._replace(op_next=group.position_offset), [], taken)
    entries = journal.take_below(journal.next_offset)
    return _make_chunk(queue_id, before, before._replace(journal_next=journal.next_offset), entries, [])


def _make_chunk(
    queue_id: int, before: AppliedPosition, after: AppliedPosition, entries: list[JournalEntry], ops: list[OpEntry]
) -> Chunk:
    halves = [entry for entry in entries if isinstance(entry, HalfEntry)]
    others = [entry for entry in entries if not isinstance(entry, HalfEntry)]
    return Chunk(queue_id, before, after, halves, ops, others)
