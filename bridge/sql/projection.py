"""Writes of the projection: chunks and positions in one SQL transaction, purging, rebuilding."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from bridge.core.check_rules import CheckTimes, first_check_ms
from bridge.core.transaction import TransactionState
from bridge.fault_points import FaultPoint, reach
from bridge.sql.bulk import add_rows, allow_long_statements, chunks, insert_rows, make_upsert, select_many, update_rows
from bridge.sql.chunking import Chunk, CommitEntry, HalfEntry
from bridge.sql.fold import COUNTS, EventRow, Fold, KeyRow, PendingSince, TimesOf
from bridge.sql.rows import (
    ALL_COLUMNS,
    HALF_COLUMNS,
    LOADED_COLUMNS,
    PREPARED,
    STATE_COLUMNS,
    ProjectedRow,
    all_values,
    decode_messages,
    encode_message,
    half_values,
    load_row,
    make_row_id,
    make_search_key,
    move_position,
    read_position,
    state_values,
)
from bridge.sql.search import add_pending
from bridge.sql.tables import (
    check_results,
    group_counts,
    pending_ages,
    projection_positions,
    projection_previous,
    pull_checks,
    timeline_events,
    transaction_keys,
    transactions,
    unanswered_rounds,
)

# --- the stories that nearly all transactions of a chunk have, told without looking at what SQL holds of them ---
# They are: prepared, and committed by its producer in the same chunk; prepared, and nothing else yet; committed after
# it was prepared in an earlier chunk of this process. All others are rare: `Fold` tells them. A half message that is no
# repeat is taken to be new. Where it is known all the same a unique index refuses it, and the whole chunk is folded.

_COMMITTED = TransactionState.COMMITTED.value
_NEW_COLUMNS = (
    "id", "transaction_id", "producer_group", "queue_id", "appended_ms", "born_ms", "first_check_ms", "messages",
    "queue_offset", "at_offset", "since_ms",
)  # fmt: skip
_NEW: dict[str, str | int | None] = {"has_half": 1, "blocked": 0, "check_times": 0, "base": 0}
_ENDED: dict[str, str | int | None] = {"state": _COMMITTED, "live": 0, "resolved_by": "producer"}
_END_COLUMNS = ("ended_ms", "published_ms", "receipts")


class RowShape(NamedTuple):
    """Columns whose values are in the rows, and those that are alike in all of them. All others are null."""

    columns: tuple[str, ...]
    constants: Mapping[str, str | int | None]


PREPARED_ROWS = RowShape((*_NEW_COLUMNS, "next_due_ms"), {**_NEW, "state": PREPARED, "live": 1})
COMMITTED_ROWS = RowShape((*_NEW_COLUMNS, *_END_COLUMNS), {**_NEW, **_ENDED})
ENDED_ROWS = RowShape(("at_offset", *_END_COLUMNS), {**_ENDED, "next_due_ms": None})  # then the id


class PendingRow(NamedTuple):
    """A row that this process wrote, and that nothing has happened to since."""

    offset: int
    appended_ms: int
    group: str


class PendingRows(dict[str, PendingRow]):
    """The newest of them by id. Bounded: what is forgotten here is looked up."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit

    def note(self, chunk: Chunk, pending: Mapping[str, PendingRow]) -> None:
        """Takes over what a committed chunk did: the rows that it wrote are known, others that it changed no more."""
        if self:
            for entry in chain(chunk.ops, chunk.others):
                self.pop(entry.transaction_id, None)
        self.update(pending)
        for transaction_id in list(islice(self, max(0, len(self) - self._limit))):
            del self[transaction_id]


@dataclass(slots=True)
class GroupTotals:
    """What is to be added to a group's counts, and when its transactions are checked."""

    times: CheckTimes
    prepared: int = 0
    committed: int = 0


class UsualStories:
    """Rows in the order of their shapes' columns, and what goes with them.

    `totals`: by group. `pending`: the rows of `prepared`. `pending_since`: how many more are pending since when.
    `rest`: the other stories, whole. Without `pending` no story is usual.
    """

    def __init__(self, chunk: Chunk, pending: PendingRows | None, times_of: TimesOf) -> None:
        self.prepared: list[tuple[Any, ...]] = []
        self.committed: list[tuple[Any, ...]] = []
        self.ended: list[tuple[Any, ...]] = []
        self.keys: list[tuple[Any, ...]] = []
        self.totals: dict[str, GroupTotals] = {}
        self.pending: dict[str, PendingRow] = {}
        self.pending_since = Counter[PendingSince]()
        self._queue_id = chunk.queue_id
        self._times_of = times_of
        self.rest = chunk if pending is None else self._tell(chunk, pending)

    def _tell(self, chunk: Chunk, pending: PendingRows) -> Chunk:
        halves, commits, rare = _sort(chunk)
        for transaction_id, half in halves.items():
            commit = commits.pop(transaction_id, None)
            is_other = commit is not None and commit.half != half.offset
            if is_other or transaction_id in rare or transaction_id in pending:
                rare.add(transaction_id)
            else:
                self._add_new(half, commit)
        for transaction_id, commit in commits.items():
            row = pending.get(transaction_id)
            is_known = row is not None and (row.offset, row.appended_ms) == (commit.half, commit.appended_ms)
            if row is None or not is_known or transaction_id in rare:
                rare.add(transaction_id)
            else:
                self._add_end(row, commit)
        return chunk.only(rare)

    def _add_new(self, entry: HalfEntry, commit: CommitEntry | None) -> None:
        half, offset, stored_ms, message = entry.half, entry.offset, entry.stored_ms, entry.messages[0]
        transaction_id, group, born_ms, queue_id = entry.transaction_id, half.group, half.born_ms, self._queue_id
        totals = self._totals_of(group)
        first_ms = first_check_ms(half, stored_ms, totals.times)
        row_id, messages = make_row_id(queue_id, offset), f"[{encode_message(message)}]"
        self.keys.append((message.topic, born_ms, row_id, 0, make_search_key(message.key)))
        totals.prepared += 1
        if commit is None:
            self.prepared.append(
                (row_id, transaction_id, group, queue_id, stored_ms, born_ms, first_ms, messages, offset, offset,
                 stored_ms, first_ms)
            )  # fmt: skip
            self.pending[transaction_id] = PendingRow(offset, stored_ms, group)
            self.pending_since[group, stored_ms // 1000] += 1
        else:
            self.committed.append(
                (row_id, transaction_id, group, queue_id, stored_ms, born_ms, first_ms, messages, offset, commit.at,
                 commit.appended_ms, commit.ended_ms, commit.stored_ms, commit.receipts)
            )  # fmt: skip
            totals.committed += 1

    def _add_end(self, row: PendingRow, commit: CommitEntry) -> None:
        row_id = make_row_id(self._queue_id, row.offset)
        self.ended.append((commit.at, commit.ended_ms, commit.stored_ms, commit.receipts, row_id))
        self._totals_of(row.group).committed += 1
        self.pending_since[row.group, row.appended_ms // 1000] -= 1

    def _totals_of(self, group: str) -> GroupTotals:
        totals = self.totals.get(group)
        if totals is None:
            totals = self.totals[group] = GroupTotals(self._times_of(group))
        return totals


def _sort(chunk: Chunk) -> tuple[dict[str, HalfEntry], dict[str, CommitEntry], set[str]]:
    """Half messages and commits by id, and the ids that have more than one, or anything else to be told."""
    halves: dict[str, HalfEntry] = {}
    commits: dict[str, CommitEntry] = {}
    rare: set[str] = set()
    for half in chunk.halves:
        transaction_id = half.transaction_id
        if transaction_id in halves or not half.is_plain:
            rare.add(transaction_id)
        halves[transaction_id] = half
    for op in chunk.ops:
        transaction_id = op.transaction_id
        if not isinstance(op, CommitEntry) or transaction_id in commits:
            rare.add(transaction_id)
        else:
            commits[transaction_id] = op
    for other in chunk.others:
        commit = commits.get(other.transaction_id)
        if commit is None or commit.at != other.offset or other.has_remark:
            rare.add(other.transaction_id)
    return halves, commits, rare


# --- writes of the projection ---


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What became of a chunk. `quarantined`: journal offsets of records that cannot be parsed, with the reason.

    `pending`: rows of transactions to which nothing but a prepare has happened.
    """

    prepared: int
    moved: int
    quarantined: Sequence[tuple[int, str]] = ()
    pending: Mapping[str, PendingRow] = field(default_factory=dict)


class NotAsKnown(Exception):
    """A row that looked new is known, as a rule because a half message was repeated, or one that is known is gone."""


def apply_chunk(
    conn: Connection, chunk: Chunk, times_of: TimesOf, pending: PendingRows | None = None
) -> ChunkResult | None:
    """Applies the chunk and moves the position; None, and nothing is changed, if another projector moved it.

    `pending`: rows that this process knows to be as it wrote them; without them every transaction is looked up.
    Raises NotAsKnown where they are not: the SQL transaction is of no more use, and the chunk goes without them.
    """
    if not move_position(conn, chunk.queue_id, chunk.before, chunk.after):
        return None
    try:
        return _apply(conn, chunk, UsualStories(chunk, pending, times_of), times_of)
    except IntegrityError as error:
        raise error if pending is None else NotAsKnown from error


def _apply(conn: Connection, chunk: Chunk, usual: UsualStories, times_of: TimesOf) -> ChunkResult:
    rest = usual.rest
    fold = Fold(chunk.queue_id, _load(conn, rest.transaction_ids()), times_of)
    fold.apply(rest.halves, rest.ops, rest.others)
    new = [row for row in fold.moved.values() if row.is_new]
    for shape, rows in ((PREPARED_ROWS, usual.prepared), (COMMITTED_ROWS, usual.committed)):
        insert_rows(conn, transactions, shape.columns, rows, shape.constants)
    if update_rows(conn, transactions, ENDED_ROWS.columns, usual.ended, ENDED_ROWS.constants) != len(usual.ended):
        raise NotAsKnown
    _write_rows(conn, fold, new)
    insert_rows(conn, transaction_keys, KeyRow._fields, [*usual.keys, *fold.keys])
    insert_rows(conn, timeline_events, EventRow._fields, fold.events)
    _write_counts(conn, fold, usual)
    _write_answers(conn, fold)
    reach(FaultPoint.PROJECT_WRITTEN)
    prepared = len(usual.prepared) + len(usual.committed)
    moved = prepared + len(usual.ended) + len(fold.moved)
    return ChunkResult(prepared + len(new), moved, fold.quarantined, usual.pending)


def _load(conn: Connection, transaction_ids: Iterable[str]) -> dict[str, ProjectedRow]:
    rows = [load_row(values) for values in select_many(conn, transactions, LOADED_COLUMNS, sorted(transaction_ids))]
    return {row.transaction_id: row for row in rows}


def _write_rows(conn: Connection, fold: Fold, new: Sequence[ProjectedRow]) -> None:
    insert_rows(conn, transactions, ALL_COLUMNS, [all_values(row) for row in new])
    old = [state_values(row) for row in fold.moved.values() if not row.is_new]
    update_rows(conn, transactions, STATE_COLUMNS, old)
    enriched = [half_values(row) for row in fold.enriched.values() if not row.is_new]
    update_rows(conn, transactions, HALF_COLUMNS, enriched)


def _write_counts(conn: Connection, fold: Fold, usual: UsualStories) -> None:
    """In order of names, so that two queues' SQL transactions never wait for each other in a circle."""
    for group, totals in usual.totals.items():
        counts = fold.counts.setdefault(group, [0] * len(COUNTS))
        counts[0] += totals.prepared
        counts[1] += totals.committed
    rows = [(group, *counts) for group, counts in sorted(fold.counts.items()) if any(counts)]
    add_rows(conn, group_counts, ("producer_group", *COUNTS), rows)
    usual.pending_since.update(fold.pending)
    add_pending(conn, usual.pending_since)


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


def purge(conn: Connection, queue_id: int, s: int, before_ms: int, limit: int) -> int:
    """Forgets at most `limit` of a queue's transactions whose story ended before `before_ms`, oldest end first; how
    many it forgot. Nothing where the projection is not at `s` any more: who asks has slept while it was emptied.

    A commit's story ends when it is published or abandoned, which after a block is long after its end. The
    running totals stay: they count what ever was.
    """
    keep_positions(conn)
    known = read_position(conn, queue_id)
    if known is None or known[0].s < s:
        return 0
    query = (
        sa.select(_T.id, _T.transaction_id, _T.born_ms, _T.messages)
        .where(sa.text("live = 0"), _T.queue_id == queue_id, _T.ended_ms < before_ms)
        .where(sa.func.coalesce(_T.published_ms, _T.abandoned_ms, _T.ended_ms) < before_ms)
        .order_by(_T.ended_ms)
        .limit(limit)
    )
    found: Sequence[_Ended] = conn.execute(query).all()
    for chunk in chunks(found, 500):
        _forget(conn, chunk)
    return len(found)


def _forget(conn: Connection, rows: Sequence[_Ended]) -> None:
    row_ids = [row.id for row in rows]
    keys = [(m.topic, row.born_ms, row.id) for row in rows for m in decode_messages(row.messages)]
    same = sa.tuple_(transaction_keys.c.topic, transaction_keys.c.born_ms, transaction_keys.c.id)
    for chunk in chunks(set(keys), 300):
        conn.execute(sa.delete(transaction_keys).where(same.in_(chunk)))
    conn.execute(sa.delete(timeline_events).where(timeline_events.c.id.in_(row_ids)))
    ids = [row.transaction_id for row in rows]
    conn.execute(sa.delete(unanswered_rounds).where(unanswered_rounds.c.transaction_id.in_(ids)))
    conn.execute(sa.delete(pull_checks).where(pull_checks.c.transaction_id.in_(ids)))  # an owner died with it
    conn.execute(sa.delete(projection_previous).where(_PREVIOUS.transaction_id.in_(ids)))  # Kafka knows it: no orphan
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
    for table in (transactions, transaction_keys, timeline_events, group_counts, pending_ages):
        conn.execute(sa.delete(table))
    conn.execute(sa.update(check_results).values(answered=0, last_answered_ms=None, last_latency_ms=None))


def keep_positions(conn: Connection) -> None:
    """Nobody empties the projection until the SQL transaction ends; projectors go on."""
    conn.execute(sa.select(projection_positions.c.queue_id).with_for_update(read=True, key_share=True))


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
