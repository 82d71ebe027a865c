"""Writes of the projection: a chunk of a queue, and the queue's position, in one SQL transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.fault_points import FaultPoint, reach
from bridge.sql.bulk import add_rows, insert_rows, make_upsert, select_many, update_rows
from bridge.sql.entries import HalfEntry, OpEntry, RawEntry
from bridge.sql.fold import COUNTS, EventRow, Fold, KeyRow, TimesOf
from bridge.sql.positions import AppliedPosition, move_position
from bridge.sql.projected_row import (
    ALL_COLUMNS,
    HALF_COLUMNS,
    LOADED_COLUMNS,
    STATE_COLUMNS,
    ProjectedRow,
    all_values,
    half_values,
    load_row,
    state_values,
)
from bridge.sql.tables import check_results, group_counts, timeline_events, transaction_keys, transactions


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
