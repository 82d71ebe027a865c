"""Writes of the projection: chunks and positions in one SQL transaction, purging, rebuilding.

Op messages of one Kafka transaction end with its position: they are applied when the journal has been read
up to that S. Where compaction has left more before a position than can wait in memory, op messages go
first, then the journal, and S moves last: each row is true at every moment, only `s` says what is complete.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.core.transaction import TransactionState
from bridge.fault_points import FaultPoint, reach
from bridge.sql.bulk import add_rows, insert_rows, make_upsert, select_many, update_rows
from bridge.sql.fold import (
    COUNTS,
    EventRow,
    Fold,
    HalfEntry,
    JournalEntry,
    KeyRow,
    OpEntry,
    PositionEntry,
    RawEntry,
    TimesOf,
    read_journal_entry,
    read_op_entry,
)
from bridge.sql.rows import (
    ALL_COLUMNS,
    HALF_COLUMNS,
    LOADED_COLUMNS,
    STATE_COLUMNS,
    AppliedPosition,
    ProjectedRow,
    all_values,
    decode_messages,
    half_values,
    load_row,
    move_position,
    state_values,
)
from bridge.sql.search import chunks
from bridge.sql.tables import (
    check_results,
    group_counts,
    projection_positions,
    projection_previous,
    pull_checks,
    timeline_events,
    transaction_keys,
    transactions,
    unanswered_rounds,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries of one queue that belong together, and the positions before and after them."""

    queue_id: int
    before: AppliedPosition
    after: AppliedPosition
    halves: Sequence[HalfEntry] = ()
    ops: Sequence[OpEntry] = ()
    others: Sequence[RawEntry] = ()

    def transaction_ids(self) -> set[str]:
        """Every transaction the chunk speaks of."""
        return {
            *[entry.half.transaction_id for entry in self.halves],
            *[entry.op.transaction.transaction_id for entry in self.ops],
            *[entry.transaction_id for entry in self.others],
        }


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What became of a chunk. `quarantined`: journal offsets of records that cannot be parsed, with the reason."""

    prepared: int
    moved: int
    quarantined: Sequence[tuple[int, str]] = ()


def apply_chunk(conn: Connection, chunk: Chunk, times_of: TimesOf) -> ChunkResult | None:
    """Applies the chunk and moves the position; None, and nothing is changed, if another projector moved it."""
    if not move_position(conn, chunk.queue_id, chunk.before, chunk.after):
        return None
    fold = Fold(chunk.queue_id, _load(conn, chunk.transaction_ids()), times_of)
    fold.apply(chunk.halves, chunk.ops, chunk.others)
    new = [row for row in fold.moved.values() if row.is_new]
    _write_rows(conn, fold, new)
    insert_rows(conn, transaction_keys, KeyRow._fields, fold.keys)
    insert_rows(conn, timeline_events, EventRow._fields, fold.events)
    _write_counts(conn, fold)
    _write_answers(conn, fold)
    reach(FaultPoint.PROJECT_WRITTEN)
    return ChunkResult(len(new), len(fold.moved), fold.quarantined)


def _load(conn: Connection, transaction_ids: Iterable[str]) -> dict[str, ProjectedRow]:
    rows = [load_row(values) for values in select_many(conn, transactions, LOADED_COLUMNS, sorted(transaction_ids))]
    return {row.transaction_id: row for row in rows}


def _write_rows(conn: Connection, fold: Fold, new: Sequence[ProjectedRow]) -> None:
    insert_rows(conn, transactions, ALL_COLUMNS, [all_values(row) for row in new])
    old = [state_values(row) for row in fold.moved.values() if not row.is_new]
    update_rows(conn, transactions, STATE_COLUMNS, old)
    enriched = [half_values(row) for row in fold.enriched.values() if not row.is_new]
    update_rows(conn, transactions, HALF_COLUMNS, enriched)


def _write_counts(conn: Connection, fold: Fold) -> None:
    """In order of names, so that two queues' SQL transactions never wait for each other in a circle."""
    rows = [(group, *counts) for group, counts in sorted(fold.counts.items()) if any(counts)]
    add_rows(conn, group_counts, ("producer_group", *COUNTS), rows)


def _write_answers(conn: Connection, fold: Fold) -> None:
    rows = [
        {
            "producer_group": group,
            "endpoint": endpoint,
            "answered": answered.rounds,
            "last_answered_ms": answered.last_ms,
            "last_latency_ms": answered.latency_ms,
        }
        for (group, endpoint), answered in sorted(fold.answered.items())
    ]
    if rows:
        upsert = make_upsert(conn, check_results)
        new, old = upsert.excluded, check_results.c
        is_later = new.last_answered_ms >= sa.func.coalesce(old.last_answered_ms, 0)  # queues come in any order
        values = {
            "answered": old.answered + new.answered,
            "last_answered_ms": sa.case((is_later, new.last_answered_ms), else_=old.last_answered_ms),
            "last_latency_ms": sa.case((is_later, new.last_latency_ms), else_=old.last_latency_ms),
        }
        conn.execute(upsert.on_conflict_do_update(index_elements=["producer_group", "endpoint"], set_=values), rows)


_T = transactions.c
_Ended = sa.Row[int, str, int, str | None]


def purge(conn: Connection, before_ms: int, limit: int) -> int:
    """Forgets at most `limit` transactions whose story ended before `before_ms`, oldest first; how many it forgot.

    A commit's story ends when it is published or abandoned, which after a block is long after its end. The
    running totals stay: they count what ever was.
    """
    found: list[_Ended] = []
    for state in (TransactionState.COMMITTED, TransactionState.ROLLED_BACK):
        query = (
            sa.select(_T.id, _T.transaction_id, _T.born_ms, _T.messages)
            .where(_T.live == 0, _T.state == state.value, _T.ended_ms < before_ms)
            .where(sa.func.coalesce(_T.published_ms, _T.abandoned_ms, _T.ended_ms) < before_ms)
            .order_by(_T.born_ms, _T.id)
            .limit(limit - len(found))
        )
        found += conn.execute(query).all()
    for chunk in chunks(found, 500):
        _forget(conn, chunk)
    return len(found)


def _forget(conn: Connection, rows: list[_Ended]) -> None:
    row_ids = [row.id for row in rows]
    keys = [(m.topic, row.born_ms, row.id) for row in rows for m in decode_messages(row.messages)]
    same = sa.tuple_(transaction_keys.c.topic, transaction_keys.c.born_ms, transaction_keys.c.id)
    for chunk in chunks(set(keys), 300):
        conn.execute(sa.delete(transaction_keys).where(same.in_(chunk)))
    conn.execute(sa.delete(timeline_events).where(timeline_events.c.id.in_(row_ids)))
    ids = [row.transaction_id for row in rows]
    conn.execute(sa.delete(unanswered_rounds).where(unanswered_rounds.c.transaction_id.in_(ids)))
    conn.execute(sa.delete(pull_checks).where(pull_checks.c.transaction_id.in_(ids)))  # an owner died with it
    conn.execute(sa.delete(transactions).where(_T.id.in_(row_ids)))


_PREVIOUS = projection_previous.c


class Orphan(NamedTuple):
    """A transaction that only the database knew."""

    transaction_id: str
    group: str
    state: TransactionState


def clear_projection(conn: Connection) -> None:
    """Empties everything that comes from Kafka and remembers which transactions there were.

    Positions go too: a projector at work fails its compare-and-set and begins anew. Groups, audit and
    unanswered rounds stay. Readers keep their view until this is committed (so no TRUNCATE, which PostgreSQL
    shows to views that are older).
    """
    allow_long_statements(conn)
    if conn.dialect.name == "postgresql":  # no projector begins a queue meanwhile
        conn.exec_driver_sql(f"LOCK TABLE {projection_positions.name} IN SHARE ROW EXCLUSIVE MODE")
    conn.execute(sa.delete(projection_positions))
    known = sa.select(_T.transaction_id, _T.producer_group, _T.state)
    known = known.where(~sa.exists().where(_PREVIOUS.transaction_id == _T.transaction_id))
    conn.execute(sa.insert(projection_previous).from_select(["transaction_id", "producer_group", "state"], known))
    for table in (transactions, transaction_keys, timeline_events, group_counts):
        conn.execute(sa.delete(table))
    conn.execute(sa.update(check_results).values(answered=0, last_answered_ms=None, last_latency_ms=None))


def read_orphans(conn: Connection, limit: int) -> tuple[int, list[Orphan]]:
    """How many transactions Kafka does not know any more, and the first of them."""
    is_unknown = ~sa.exists().where(_T.transaction_id == _PREVIOUS.transaction_id)
    count = conn.execute(sa.select(sa.func.count()).select_from(projection_previous).where(is_unknown)).scalar_one()
    query = sa.select(projection_previous).where(is_unknown).order_by(_PREVIOUS.transaction_id).limit(limit)
    orphans = [Orphan(i, group, TransactionState(state)) for i, group, state in conn.execute(query)]
    return count, orphans


def forget_previous(conn: Connection) -> None:
    """The rebuild is over."""
    conn.execute(sa.delete(projection_previous))


def allow_long_statements(conn: Connection) -> None:
    """Millions of rows at once take longer than any statement of a service may."""
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql("SET LOCAL statement_timeout = 0")


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
