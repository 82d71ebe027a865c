"""Counts by producer group: from running totals, and from the index of pending ones. Nothing counts ended ones."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.rows import make_row_id
from bridge.sql.tables import group_counts, transactions

_G = group_counts.c


def count_pending(conn: Connection) -> int:
    """Transactions of all groups that are PREPARED, as applied."""
    pending = _G.prepared - _G.committed - _G.rolled_back - _G.parked
    return int(conn.execute(sa.select(sa.func.coalesce(sa.func.sum(pending), 0))).scalar_one())


def find_full_groups(conn: Connection, most: int) -> frozenset[str]:
    """Groups that have so many PREPARED transactions, or more."""
    pending = _G.prepared - _G.committed - _G.rolled_back - _G.parked
    return frozenset(conn.execute(sa.select(_G.producer_group).where(pending >= most)).scalars())


_T = transactions.c


def read_without_body(conn: Connection, begins: Mapping[int, int], most: int) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Transactions that are not over, older than where the journal `begins` in their queue, and without a copy: how
    many, and the ids of at most so many. Queues without any are left out. Ended rows are purged before their bodies
    are, so that few rows are looked at unless something is wrong.
    """
    found = {}
    for queue_id, begin in begins.items():
        is_lost = (
            _T.id < make_row_id(0, begin), _T.queue_id == queue_id, _T.live == 1, _T.parked_offset.is_(None),
        )  # fmt: skip
        ids = conn.execute(sa.select(_T.transaction_id).where(*is_lost).order_by(_T.id).limit(most + 1)).scalars().all()
        if ids:
            count = len(ids)
            if count > most:
                count = int(conn.execute(sa.select(sa.func.count()).where(*is_lost)).scalar_one())
            found[queue_id] = count, tuple(ids[:most])
    return found


_COUNTED_GROUP = group_counts.c.producer_group

Histogram = Sequence[tuple[int | None, int]]

# Upper bounds of the ages of pending transactions; the last bucket has none and is shown under the last bound.
AGE_BOUNDS_S = (1, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400)


@dataclass(frozen=True, slots=True)
class GroupStats:
    """C: prepared = committed + rolled_back + parked + pending; `blocked` and `abandoned` are parts of committed.

    `age_histogram`: (seconds, pending transactions at most that old and older than the bound before);
    those older than the last bound are in a last pair whose bound is None.
    """

    prepared: int = 0
    committed: int = 0
    blocked: int = 0
    rolled_back: int = 0
    parked: int = 0
    oldest_pending_ms: int | None = None
    age_histogram: Histogram = ()
    abandoned: int = 0

    @property
    def pending(self) -> int:
        return self.prepared - self.committed - self.rolled_back - self.parked


@dataclass(frozen=True, slots=True)
class ProjectionStats:
    """Of all groups together, and of each. `oldest_pending_ms`: append time of the oldest pending half message."""

    total: GroupStats
    groups: Mapping[str, GroupStats] = field(default_factory=dict)


def read_stats(conn: Connection, now_ms: int, ages: Mapping[str, Histogram] | None = None) -> ProjectionStats:
    """Counts as applied. `ages`: of pending transactions, as they were counted last; else they are counted now."""
    groups = _read_groups(conn, count_ages(conn, now_ms) if ages is None else ages)
    return ProjectionStats(_add_up(groups.values()), groups)


def restrict_stats(stats: ProjectionStats, is_visible: Callable[[str], bool]) -> ProjectionStats:
    """The same of these groups alone."""
    groups = {name: counted for name, counted in stats.groups.items() if is_visible(name)}
    return ProjectionStats(_add_up(groups.values()), groups)


def read_group_stats(conn: Connection, group: str, now_ms: int) -> GroupStats:
    """Counts of one group; zeros if it never prepared anything."""
    return _read_groups(conn, count_ages(conn, now_ms, group), group).get(group, GroupStats(age_histogram=_EMPTY))


def _read_groups(conn: Connection, ages: Mapping[str, Histogram], group: str | None = None) -> dict[str, GroupStats]:
    oldest = sa.select(sa.func.min(_T.appended_ms)).where(
        sa.text("state = 'PREPARED'"), _T.producer_group == _COUNTED_GROUP
    )
    query = sa.select(group_counts, oldest.scalar_subquery().label("oldest_ms")).order_by(_COUNTED_GROUP)
    if group is not None:
        query = query.where(group_counts.c.producer_group == group)
    return {
        row.producer_group: GroupStats(
            row.prepared, row.committed, row.blocked, row.rolled_back, row.parked, row.oldest_ms,
            ages.get(row.producer_group, _EMPTY), row.abandoned,
        )
        for row in conn.execute(query)
    }  # fmt: skip


_EMPTY = tuple((bound, 0) for bound in (*AGE_BOUNDS_S, None))


def count_ages(conn: Connection, now_ms: int, group: str | None = None) -> dict[str, Histogram]:
    """Ages at `now_ms` of each group's pending transactions: one pass over their index."""
    bucket = sa.case(
        *[(_T.appended_ms >= now_ms - bound * 1000, place) for place, bound in enumerate(AGE_BOUNDS_S)],
        else_=len(AGE_BOUNDS_S),
    )
    query = (
        sa.select(_T.producer_group, bucket.label("bucket"), sa.func.count())
        .where(sa.text("state = 'PREPARED'"))
        .group_by(_T.producer_group, sa.text("bucket"))
    )
    if group is not None:
        query = query.where(_T.producer_group == group)
    counts: dict[str, list[int]] = {}
    for name, place, count in conn.execute(query):
        counts.setdefault(name, [0] * len(_EMPTY))[place] = count
    bounds = (*AGE_BOUNDS_S, None)
    return {name: tuple(zip(bounds, numbers, strict=True)) for name, numbers in counts.items()}


def _add_up(groups: Collection[GroupStats]) -> GroupStats:
    oldest = [stats.oldest_pending_ms for stats in groups if stats.oldest_pending_ms is not None]
    histograms = [[count for _, count in stats.age_histogram] for stats in groups]
    bounds = [bound for bound, _ in _EMPTY]
    return GroupStats(
        sum(stats.prepared for stats in groups),
        sum(stats.committed for stats in groups),
        sum(stats.blocked for stats in groups),
        sum(stats.rolled_back for stats in groups),
        sum(stats.parked for stats in groups),
        min(oldest, default=None),
        tuple((bound, sum(column)) for bound, column in zip(bounds, zip(*histograms, strict=True), strict=True))
        if histograms
        else _EMPTY,
        sum(stats.abandoned for stats in groups),
    )
