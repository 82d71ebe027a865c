"""Entries that wait, and which of them may be applied together.

Op messages of one Kafka transaction end with its position: they are applied when the journal has been read
up to that S. Where compaction has left more before a position than can wait in memory, op messages go
first, then the journal, and S moves last: each row is true at every moment, only `s` says what is complete.
"""

import re
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Struct

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, OpMessage, decode_op, decode_position
from bridge.core.properties import PROPERTIES_HEADER, count_stored_bytes
from bridge.core.record import HalfMessage, is_void
from bridge.core.record_codec import decode_body, decode_record
from bridge.core.transaction import MessageSummary, is_raw_id
from bridge.sql.rows import AppliedPosition

# --- records of the half topic and the op topic -> what the projection keeps of them ---
# The usual ends are read by slices, the usual op messages by one small decoder, all else by the codecs of
# `bridge/core`. Both ways give the same rows.

_END_HEAD = b"KIND\x01E\x02UNIQ_KEY\x01"
_END_TAIL = b"\x02V\x011\x02"
_REMARK = b"\x02REMARK\x01"
_COMMIT_TAIL = _END_TAIL + b"RES\x018\x02SRC\x01P\x02"
_PLAIN = (None, None, None, None)


class HalfEntry(Struct, frozen=True, gc=False):
    """A half message that counts, without its body."""

    offset: int
    stored_ms: int
    transaction_id: str
    half: HalfMessage
    messages: Sequence[MessageSummary]
    is_plain: bool = False  # one message, nothing that few transactions have


class RawEntry(Struct, frozen=True, gc=False):
    """An end record or an act, decoded only if a timeline needs it: most ends come with the op message."""

    offset: int
    transaction_id: str
    stored: StoredMessage

    @property
    def has_remark(self) -> bool:
        """Whether it says more than the op message of the end that it is."""
        return _REMARK in (self.stored.headers[-1][1] or b"")


class CommitEntry(Struct, frozen=True, gc=False):
    """What most op messages say: committed by its producer, never checked, published. `receipts`: as in SQL."""

    offset: int
    stored_ms: int
    transaction_id: str
    half: int
    appended_ms: int
    at: int
    ended_ms: int
    receipts: str
    value: bytes


class OpEntry(Struct, frozen=True, gc=False):
    """A state as the op topic holds it."""

    offset: int
    stored_ms: int
    op: OpMessage

    @property
    def transaction_id(self) -> str:
        return self.op.transaction.transaction_id


class PositionEntry(Struct, frozen=True, gc=False):
    """The last record of a Kafka transaction of the settler."""

    offset: int
    s: int


JournalEntry = HalfEntry | RawEntry
StateEntry = CommitEntry | OpEntry
Decided = Mapping[int, CommitEntry]
"""Op messages that were read before the journal, by the offsets that they name: mostly their ends say no more."""


def read_journal_entry(stored: StoredMessage, decided: Decided = MappingProxyType({})) -> JournalEntry | None:
    """None for a void half message, and for an end that is `decided`. Raises MalformedRecord, UnknownRecordVersion."""
    headers = stored.headers
    raw = headers[-1][1] if headers and headers[-1][0] == PROPERTIES_HEADER else None
    if raw is not None and raw.startswith(_END_HEAD):
        raw_id, commit = raw[16:44], decided.get(stored.queue_offset)
        if (
            commit is not None
            and raw_id == commit.transaction_id.encode()
            and raw.startswith(_COMMIT_TAIL, 44)
            and stored.stored_ms == commit.ended_ms
            and _REMARK not in raw
        ):
            return None  # by this the fold knows the end that decided, of which no timeline tells
        if raw.startswith(_END_TAIL, 44) and is_raw_id(raw_id):
            return RawEntry(stored.queue_offset, raw_id.decode(), stored)
    record = decode_record(stored)
    if not isinstance(record, HalfMessage):
        return RawEntry(stored.queue_offset, record.transaction_id, stored)
    if is_void(record, stored.stored_ms):
        return None
    offset, stored_ms, transaction_id = stored.queue_offset, stored.stored_ms, record.transaction_id
    if record.message_count > 1:
        summaries = [
            MessageSummary(m.topic, m.key, None if m.value is None else len(m.value), m.queue_id, m.timestamp_ms)
            for m in decode_body(record, stored)
        ]
        return HalfEntry(offset, stored_ms, transaction_id, record, summaries)
    few_have = (record.idempotency_key, record.ordering_key, record.max_checks, record.max_life_s)
    return HalfEntry(offset, stored_ms, transaction_id, record, (_summarise(record, stored),), few_have == _PLAIN)


def _summarise(half: HalfMessage, stored: StoredMessage) -> MessageSummary:
    size = None if stored.value is None else len(stored.value)
    return MessageSummary(half.real_topic, stored.key, size, half.real_queue_id, half.timestamp_ms)


def read_op_entry(stored: StoredMessage) -> StateEntry | PositionEntry | None:
    """None for answers that are no state. Raises MalformedRecord and UnknownRecordVersion."""
    key, value = stored.key, stored.value
    if key is not None and value is not None and value.startswith(_COMMITTED) and is_raw_id(key):
        commit = _read_usual_commit(stored, key.decode(), value)
        if commit is not None:
            return commit
    if key == ANSWERS_KEY:
        return None
    if key is None or value is None:
        raise MalformedRecord("op message without key or value")
    if key == POSITION_KEY:
        return PositionEntry(stored.queue_offset, decode_position(value).s)
    if not is_raw_id(key):
        raise MalformedRecord("op message whose key is no transaction id")
    return OpEntry(stored.queue_offset, stored.stored_ms, decode_op(key.decode(), value))


class _Commit(Struct, gc=False, forbid_unknown_fields=True):
    """An op message with no other members than these."""

    v: Literal[1]
    state: Literal["COMMITTED"]
    group: str
    at: int
    half: int
    appended_ms: int
    by: Literal["producer"]
    ended_ms: int
    check_times: Literal[0]
    receipts: msgspec.Raw
    requests: tuple[str, ...] = ()


_COMMITTED = b'{"v":1,"state":"COMMITTED",'
_commit_decoder = msgspec.json.Decoder(_Commit)
_RECEIPT = r'\["[A-Za-z0-9._-]+",(?:0|[1-9][0-9]{0,8}),(?:0|[1-9][0-9]{0,17})\]'
_match_receipts = re.compile(rf"\[{_RECEIPT}(?:,{_RECEIPT})*\]").fullmatch


def _read_usual_commit(stored: StoredMessage, transaction_id: str, value: bytes) -> CommitEntry | None:
    """None for anything that is not written as the settler writes it: the general decoder says what it is."""
    try:
        commit = _commit_decoder.decode(value)
        receipts = bytes(commit.receipts).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if _match_receipts(receipts) is None:
        return None
    return CommitEntry(
        stored.queue_offset,
        stored.stored_ms,
        transaction_id,
        commit.half,
        commit.appended_ms,
        commit.at,
        commit.ended_ms,
        receipts,
        value,
    )


def widen(entry: StateEntry) -> OpEntry:
    """The same with everything that the op message says."""
    if isinstance(entry, OpEntry):
        return entry
    return OpEntry(entry.offset, entry.stored_ms, decode_op(entry.transaction_id, entry.value))


# --- entries that wait, and which of them may be applied together ---

MAX_WAITING_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries of one queue that belong together, and the positions before and after them.

    `is_closed`: by a position, so that nothing is to come of half messages that its op messages speak of.
    """

    queue_id: int
    before: AppliedPosition
    after: AppliedPosition
    halves: Sequence[HalfEntry] = ()
    others: Sequence[RawEntry] = ()
    ops: Sequence[StateEntry] = ()
    is_closed: bool = False

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
        decided = [op for group in ready for op in group.ops]
        return Chunk(queue_id, before, after, *journal.take_below(s), decided, is_closed=True)
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
