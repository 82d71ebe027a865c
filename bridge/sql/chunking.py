"""Entries that wait, and which of them may be applied together.

Op messages of one Kafka transaction end with its position: they are applied when the journal has been read
up to that S. Where compaction has left more before a position than can wait in memory, op messages go
first, then the journal, and S moves last: each row is true at every moment, only `s` says what is complete.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.sql.entries import (
    CommitEntry,
    Decided,
    HalfEntry,
    JournalEntry,
    PositionEntry,
    RawEntry,
    StateEntry,
    read_journal_entry,
    read_op_entry,
)
from bridge.sql.rows import AppliedPosition

MAX_WAITING_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries of one queue that belong together, and the positions before and after them."""

    queue_id: int
    before: AppliedPosition
    after: AppliedPosition
    halves: Sequence[HalfEntry] = ()
    others: Sequence[RawEntry] = ()
    ops: Sequence[StateEntry] = ()

    def transaction_ids(self) -> set[str]:
        """Every transaction the chunk speaks of."""
        return {entry.transaction_id for entries in (self.halves, self.ops, self.others) for entry in entries}

    def only(self, ids: Collection[str]) -> "Chunk":
        """What it says of these transactions."""
        if not ids:
            return replace(self, halves=(), ops=(), others=())
        return replace(
            self,
            halves=[entry for entry in self.halves if entry.transaction_id in ids],
            ops=[entry for entry in self.ops if entry.transaction_id in ids],
            others=[entry for entry in self.others if entry.transaction_id in ids],
        )


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A record that cannot be parsed: it is stepped over."""

    offset: int
    reason: str


class _Buffer:
    """What was read of one topic. `halted`: an unknown version; nothing is read beyond `next_offset` then."""

    name = "journal"

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.halted: str | None = None

    def add(self, messages: Iterable[StoredMessage], next_offset: int) -> list[Quarantined]:
        """Takes what was read up to `next_offset`."""
        quarantined = []
        take = self._take
        for message in messages:
            try:
                take(message)
            except MalformedRecord as error:
                quarantined.append(Quarantined(message.queue_offset, str(error)))
            except UnknownRecordVersion as error:
                self.halted = f"{self.name} offset {message.queue_offset}: {error}"
                self.next_offset = message.queue_offset
                return quarantined
        self.next_offset = next_offset
        return quarantined

    @abstractmethod
    def _take(self, message: StoredMessage) -> None:
        """Reads a record and keeps what it says. Raises MalformedRecord and UnknownRecordVersion."""


class JournalBuffer(_Buffer):
    """Journal entries that wait for the position that covers them, but for ends that are `decided`."""

    def __init__(
        self,
        next_offset: int,
        max_entries: int,
        max_bytes: int = MAX_WAITING_BYTES,
        decided: Decided = MappingProxyType({}),
    ) -> None:
        super().__init__(next_offset)
        self._entries: deque[tuple[JournalEntry, int]] = deque()  # with what it takes, about
        self._bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._decided = decided

    @property
    def is_full(self) -> bool:
        """Whether no more may wait."""
        return len(self._entries) >= self._max_entries or self._bytes >= self._max_bytes

    def take_below(self, offset: int) -> tuple[list[HalfEntry], list[RawEntry]]:
        """The half messages below `offset` and the other entries, both in order; they are forgotten here."""
        halves: list[HalfEntry] = []
        others: list[RawEntry] = []
        entries = self._entries
        while entries and entries[0][0].offset < offset:
            entry, size = entries.popleft()
            self._bytes -= size
            if isinstance(entry, HalfEntry):
                halves.append(entry)
            else:
                others.append(entry)
        return halves, others

    def _take(self, message: StoredMessage) -> None:
        entry = read_journal_entry(message, self._decided)
        if entry is not None:
            size = _count_bytes(entry, message)
            self._entries.append((entry, size))
            self._bytes += size


_OBJECTS_BYTES = 600  # of an entry, its texts and its record without the bytes of these


def _count_bytes(entry: JournalEntry, message: StoredMessage) -> int:
    """Of a half message with one message everything but its value is kept; of other ones about everything may be."""
    if isinstance(entry, RawEntry):
        headers = message.headers
        if len(headers) > 1 or message.value is not None:
            return count_stored_bytes(message)
        return _OBJECTS_BYTES + len(message.key or b"") + len(headers[0][1] or b"")
    if entry.is_plain:
        return _OBJECTS_BYTES + len(message.key or b"")
    return count_stored_bytes(message) - (len(message.value or b"") if entry.half.message_count == 1 else 0)


@dataclass(slots=True)
class OpGroup:
    """What one Kafka transaction wrote, or what compaction left before a position."""

    ops: list[StateEntry]
    position_offset: int
    s: int


class OpBuffer(_Buffer):
    """Op messages by the position that closes them. `decided`: those whose ends may not have been read yet."""

    name = "op"

    def __init__(self, next_offset: int, max_ops: int, max_bytes: int = MAX_WAITING_BYTES) -> None:
        super().__init__(next_offset)
        self.groups: deque[OpGroup] = deque()
        self.decided: dict[int, CommitEntry] = {}
        self._open: list[StateEntry] = []
        self._open_bytes = 0
        self._max_ops = max_ops
        self._max_bytes = max_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether more op messages wait for a position than may."""
        return len(self._open) >= self._max_ops or self._open_bytes >= self._max_bytes

    def take_open(self) -> list[StateEntry]:
        """The op messages that have no position yet; they are forgotten here."""
        taken, self._open, self._open_bytes = self._open, [], 0
        return taken

    def _take(self, message: StoredMessage) -> None:
        entry = read_op_entry(message)
        if isinstance(entry, PositionEntry):
            self.groups.append(OpGroup(self.take_open(), entry.offset, entry.s))
        elif entry is not None:
            self._open.append(entry)
            self._open_bytes += _OBJECTS_BYTES + len(message.value or b"")
            if isinstance(entry, CommitEntry):
                self.decided[entry.at] = entry


def next_chunk(queue_id: int, before: AppliedPosition, journal: JournalBuffer, ops: OpBuffer) -> Chunk | None:
    """The largest chunk that may be applied now; None if more must be read first."""
    ready = []
    while ops.groups and ops.groups[0].s <= journal.next_offset:
        ready.append(ops.groups.popleft())
    if ready:
        last = ready[-1]
        s = max(before.s, last.s)
        after = AppliedPosition(s, max(before.journal_next, s), last.position_offset + 1)
        if not ops.groups:
            ops.decided.clear()  # their ends have been read, if they are there still
        return Chunk(queue_id, before, after, *journal.take_below(s), [op for g in ready for op in g.ops])
    if ops.groups and journal.is_full:
        return _next_part(queue_id, before, journal, ops.groups[0])
    if ops.is_overfull and not ops.groups:
        ops.decided.clear()
        return Chunk(queue_id, before, before._replace(op_next=ops.next_offset), ops=ops.take_open())
    return None


def _next_part(queue_id: int, before: AppliedPosition, journal: JournalBuffer, group: OpGroup) -> Chunk:
    """A part of a group that is too large: its op messages, then the journal below its S bit by bit."""
    if group.ops:
        taken, group.ops = group.ops, []
        return Chunk(queue_id, before, before._replace(op_next=group.position_offset), ops=taken)
    after = before._replace(journal_next=journal.next_offset)
    return Chunk(queue_id, before, after, *journal.take_below(journal.next_offset))
