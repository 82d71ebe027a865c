"""Lists and counts of transactions. Every combination of filters is led by an index; nothing counts ended ones."""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.transaction import TransactionState, TransactionView
from bridge.sql.bulk import add_rows, allow_long_statements, chunks
from bridge.sql.rows import PageKey, decode_cursor, encode_cursor, make_row_id, make_search_key, make_view, select_views
from bridge.sql.tables import group_counts, pending_ages, projection_positions, transaction_keys, transactions

# --- pages of transactions, newest born first. Every combination of filters is led by an index ---

_T = transactions.c
_K = transaction_keys.c
_FIRST = PageKey(2**63 - 1, 2**63 - 1)
_CURSOR = "1"  # its version
_FEW_GROUPS = 16  # an index scan for each; of more, all rows are looked at


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """What a page shall hold; empty and None: not filtered. `born_after_ms` excludes, `born_before_ms` too.

    `id_prefix`: how ids begin; `idempotency_key`: whole; neither together with a topic or a key. `is_visible`: whether
    transactions of a group may be seen at all.
    """

    states: Collection[TransactionState] = ()
    group: str | None = None
    topic: str | None = None
    key: bytes | None = None
    born_after_ms: int | None = None
    born_before_ms: int | None = None
    blocked: bool | None = None
    abandoned: bool | None = None
    is_visible: Callable[[str], bool] | None = None
    id_prefix: str | None = None
    idempotency_key: str | None = None


def search_transactions(
    conn: Connection, wanted: SearchFilter, limit: int, cursor: str | None = None
) -> tuple[list[TransactionView], str | None]:
    """A page, and the cursor of the next one if there is one. Raises MalformedCursor.

    The cursor is a place in the order, not a snapshot: rows that move in before it do not shift pages.
    """
    after = _FIRST if cursor is None else PageKey(*decode_cursor(_CURSOR, 2, cursor))
    groups = _find_groups(conn, wanted)
    if wanted.id_prefix is not None or wanted.idempotency_key is not None:
        places = _places_by_name(conn, wanted, groups, after, limit + 1)
    elif wanted.topic is None and wanted.key is None:
        places = _places_by_state(conn, wanted, groups, after, limit + 1)
    else:
        places = _places_by_message(conn, wanted, groups, after, limit + 1)
    views = _read_views(conn, places[:limit])
    return views, encode_cursor(_CURSOR, *places[limit - 1]) if len(places) > limit else None


_LOOKED_AT = 200  # newest messages of a topic, for its last publication


class TopicActivity(NamedTuple):
    """A topic of transactions. `last`: the newest that was published, of the newest there are."""

    topic: str
    last: TransactionView | None


def read_topics(conn: Connection, after: str, limit: int) -> list[TopicActivity]:
    """Topics in the order of their names, those after `after`; a few looks into an index for each."""
    found: list[TopicActivity] = []
    while len(found) < limit:
        query = sa.select(_K.topic).where(_K.topic > after).order_by(_K.topic).limit(1)
        following = conn.execute(query).scalar()
        if following is None:
            break
        after = following
        found.append(TopicActivity(after, find_last_published(conn, after)))
    return found


def find_last_published(conn: Connection, topic: str) -> TransactionView | None:
    """The newest born transaction with messages of a topic that was published; None if that is long ago, or never."""
    newest = sa.select(_K.id).where(_K.topic == topic).order_by(_K.born_ms.desc(), _K.id.desc()).limit(_LOOKED_AT)
    ids = list(dict.fromkeys(conn.execute(newest).scalars()))
    is_published = (_T.live == 0, _T.state == TransactionState.COMMITTED.value, _T.abandoned_ms.is_(None))
    query = select_views().where(_T.id.in_(ids), *is_published).order_by(_T.born_ms.desc(), _T.id.desc()).limit(1)
    row = conn.execute(query).first()
    return None if row is None else make_view(row)


def _find_groups(conn: Connection, wanted: SearchFilter) -> list[str] | None:
    """The groups that are meant, of those there ever were; None: all of them."""
    if wanted.is_visible is None:
        return None if wanted.group is None else [wanted.group]
    if wanted.group is not None:
        return [wanted.group] if wanted.is_visible(wanted.group) else []
    names = conn.execute(sa.select(group_counts.c.producer_group).order_by(group_counts.c.producer_group)).scalars()
    return [name for name in names if wanted.is_visible(name)]


def _are_groups(groups: Sequence[str] | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if groups is None else (_T.producer_group.in_(groups),)


def _places_by_state(
    conn: Connection, wanted: SearchFilter, groups: Sequence[str] | None, after: PageKey, most: int
) -> list[PageKey]:
    """One index scan for each kind of row and each of a few groups, merged. What was abandoned has its own index."""
    parts = []
    of_groups = [groups] if groups is None or len(groups) > _FEW_GROUPS else [[group] for group in groups]
    for (live, state), together in product(_kinds(wanted), of_groups):
        is_kind = () if wanted.abandoned else (_T.live == live, _T.state == state)
        query = sa.select(_T.born_ms, _T.id).where(*is_kind, *_is_abandoned(wanted), *_are_groups(together))
        query = _page(query, _T.born_ms, _T.id, wanted, after).limit(most)
        parts.append([PageKey(*row) for row in conn.execute(query)])
    return list(heapq.merge(*parts, reverse=True))[:most]


def _places_by_name(
    conn: Connection, wanted: SearchFilter, groups: Sequence[str] | None, after: PageKey, most: int
) -> list[PageKey]:
    """A range of the index of ids, whose signs are 0-9 and a-v, so all that begin alike sort below a w; or places in
    that of idempotency keys, one for each group."""
    is_alike: list[sa.ColumnElement[bool]] = []
    if (prefix := wanted.id_prefix) is not None:
        is_alike += [_T.transaction_id >= prefix, _T.transaction_id < f"{prefix}w"]
    if (key := wanted.idempotency_key) is not None:
        groups = list(conn.execute(sa.select(group_counts.c.producer_group)).scalars()) if groups is None else groups
        is_alike += [_T.idempotency_key == key]
    is_kind = sa.tuple_(_T.live, _T.state).in_(_kinds(wanted))
    query = sa.select(_T.born_ms, _T.id).where(*is_alike, is_kind, *_is_abandoned(wanted), *_are_groups(groups))
    query = _page(query, _T.born_ms, _T.id, wanted, after).limit(most)
    return [PageKey(*row) for row in conn.execute(query)]


def _places_by_message(
    conn: Connection, wanted: SearchFilter, groups: Sequence[str] | None, after: PageKey, most: int
) -> list[PageKey]:
    query = sa.select(_K.born_ms, _K.id)
    if wanted.topic is not None:
        query = query.where(_K.topic == wanted.topic)
    if wanted.key is not None:
        query = query.where(_K.message_key == make_search_key(wanted.key))
    kinds = _kinds(wanted)
    if groups is not None or wanted.abandoned is not None or len(kinds) < len(_KINDS):
        query = query.join(transactions, _T.id == _K.id).where(sa.tuple_(_T.live, _T.state).in_(kinds))
        query = query.where(*_is_abandoned(wanted), *_are_groups(groups))
    query = _page(query.group_by(_K.born_ms, _K.id), _K.born_ms, _K.id, wanted, after).limit(most)
    return [PageKey(*row) for row in conn.execute(query)]


# (live, state) of every row there can be.
_KINDS = (
    (1, TransactionState.PREPARED.value),
    (1, TransactionState.PARKED.value),
    (1, TransactionState.COMMITTED.value),
    (0, TransactionState.COMMITTED.value),
    (0, TransactionState.ROLLED_BACK.value),
)
_BLOCKED = (1, TransactionState.COMMITTED.value)
_SETTLED = (0, TransactionState.COMMITTED.value)


def _kinds(wanted: SearchFilter) -> list[tuple[int, str]]:
    states = {TransactionState(state).value for state in wanted.states}
    return [
        kind
        for kind in _KINDS
        if (not states or kind[1] in states)
        and (wanted.blocked is None or wanted.blocked == (kind == _BLOCKED))
        and (not wanted.abandoned or kind == _SETTLED)
    ]


def _is_abandoned(wanted: SearchFilter) -> tuple[sa.ColumnElement[bool], ...]:
    if wanted.abandoned is None:
        return ()
    return (_T.abandoned_ms.is_not(None) if wanted.abandoned else _T.abandoned_ms.is_(None),)


def _page(
    query: sa.Select[Any], born_ms: sa.Column[int], row_id: sa.Column[int], wanted: SearchFilter, after: PageKey
) -> sa.Select[Any]:
    query = query.where(sa.tuple_(born_ms, row_id) < sa.tuple_(*after))
    if wanted.born_after_ms is not None:
        query = query.where(born_ms > wanted.born_after_ms)
    if wanted.born_before_ms is not None:
        query = query.where(born_ms < wanted.born_before_ms)
    return query.order_by(born_ms.desc(), row_id.desc())


def _read_views(conn: Connection, places: Collection[PageKey]) -> list[TransactionView]:
    found: dict[int, TransactionView] = {}
    for chunk in chunks([place.row_id for place in places], 500):
        for row in conn.execute(select_views().where(_T.id.in_(chunk))):
            found[row.id] = make_view(row)
    return [found[place.row_id] for place in places]


# --- counts by producer group: from running totals, and from the index of pending ones. Nothing counts ended ones ---

_G = group_counts.c
_PENDING = _G.prepared - _G.committed - _G.rolled_back - _G.parked


def count_pending(conn: Connection) -> int:
    """Transactions of all groups that are PREPARED, as applied."""
    return int(conn.execute(sa.select(sa.func.coalesce(sa.func.sum(_PENDING), 0))).scalar_one())


def find_full_groups(conn: Connection, most_pending: int, most_parked: int) -> dict[str, bool]:
    """Groups that have so many PREPARED transactions, or so many PARKED ones; whether it is those."""
    has_parked = _G.parked >= most_parked
    query = sa.select(_G.producer_group, has_parked).where(sa.or_(most_pending <= _PENDING, has_parked))
    found = conn.execute(query)
    return {group: bool(is_parked) for group, is_parked in found}


def read_without_body(
    conn: Connection, begins: Mapping[int, int], copies_begin: int, most: int
) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Transactions that are not over, older than where the journal `begins` in their queue, and without a copy that is
    still there: how many, and the ids of at most so many. Queues without any are left out. Ended rows are purged before
    their bodies are, so that few rows are looked at unless something is wrong.
    """
    found = {}
    for queue_id, begin in begins.items():
        is_lost = (
            _T.id < make_row_id(0, begin), _T.queue_id == queue_id, _T.live == 1,
            sa.func.coalesce(_T.parked_offset, -1) < copies_begin,
        )  # fmt: skip
        ids = conn.execute(sa.select(_T.transaction_id).where(*is_lost).order_by(_T.id).limit(most + 1)).scalars().all()
        if ids:
            count = len(ids)
            if count > most:
                count = int(conn.execute(sa.select(sa.func.count()).where(*is_lost)).scalar_one())
            found[queue_id] = count, tuple(ids[:most])
    return found


_IS_PENDING = sa.text("state = 'PREPARED'")
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


def read_stats(conn: Connection, now_ms: int) -> ProjectionStats:
    """Counts as applied."""
    groups = _read_groups(conn, now_ms)
    return ProjectionStats(_add_up(groups.values()), groups)


def restrict_stats(stats: ProjectionStats, is_visible: Callable[[str], bool]) -> ProjectionStats:
    """The same of these groups alone."""
    groups = {name: counted for name, counted in stats.groups.items() if is_visible(name)}
    return ProjectionStats(_add_up(groups.values()), groups)


def read_group_stats(conn: Connection, group: str, now_ms: int) -> GroupStats:
    """Counts of one group; zeros if it never prepared anything."""
    return _read_groups(conn, now_ms, group).get(group, GroupStats(age_histogram=_EMPTY))


def _read_groups(conn: Connection, now_ms: int, group: str | None = None) -> dict[str, GroupStats]:
    ages = count_ages(conn, now_ms, group)
    oldest = sa.select(sa.func.min(_T.appended_ms)).where(_IS_PENDING, _T.producer_group == _COUNTED_GROUP)
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


# --- ages of pending transactions: running totals of when their half messages were appended, in seconds, minutes and
# hours. Any stretch of time is some whole hours, with some minutes and seconds at both ends: however many are pending,
# their ages are the sums of some hundred rows ---

_A = pending_ages.c
_SPANS_S = (1, 60, 3_600)
_CELL = ("span_s", "begin_s", "producer_group")
_FAR_S = 3_600 << 30  # farther than any time, in both directions


def add_pending(conn: Connection, deltas: Mapping[tuple[str, int], int]) -> None:
    """Adds to how many are pending, by group and the second in which their half message was appended."""
    cells = Counter[tuple[int, int, str]]()
    for (group, second), count in deltas.items():
        if count:
            for span in _SPANS_S:
                cells[span, second - second % span, group] += count
    # in one order, so that two queues' SQL transactions never wait for each other in a circle
    rows = [(*cell, count) for cell, count in sorted(cells.items()) if count]
    add_rows(conn, pending_ages, (*_CELL, "pending"), rows)
    if fewer := [dict(zip(_CELL, row[:3], strict=True)) for row in rows if row[3] < 0]:
        is_cell = sa.and_(*[_A[name] == sa.bindparam(name) for name in _CELL])
        conn.execute(sa.delete(pending_ages).where(is_cell, _A.pending == 0), fewer)


def recount_pending(conn: Connection) -> None:
    """Makes the totals anew from the transactions: a projector that knew nothing of them may have been at work, and
    may be about to commit what it has written last."""
    allow_long_statements(conn)
    if conn.dialect.name == "postgresql":  # every projector's SQL transaction begins with a position: none goes on
        conn.exec_driver_sql(f"LOCK TABLE {projection_positions.name} IN SHARE ROW EXCLUSIVE MODE")
    make_ages_anew(conn)


def make_ages_anew(conn: Connection) -> None:
    """The same, where all who are at work know of the totals, and long statements are allowed."""
    if conn.dialect.name == "postgresql":  # whoever has changed transactions has added them, or adds them afterwards
        conn.exec_driver_sql(f"LOCK TABLE {pending_ages.name} IN SHARE ROW EXCLUSIVE MODE")
    conn.execute(sa.delete(pending_ages))
    second = _T.appended_ms // 1000
    rows = sa.select(sa.literal(1), second, _T.producer_group, sa.func.count()).where(_IS_PENDING)
    conn.execute(sa.insert(pending_ages).from_select([*_CELL, "pending"], rows.group_by(second, _T.producer_group)))
    for shorter, span in pairwise(_SPANS_S):
        begin = _A.begin_s - _A.begin_s % span
        rows = sa.select(sa.literal(span), begin, _A.producer_group, sa.func.sum(_A.pending)).where(
            _A.span_s == shorter
        )
        conn.execute(sa.insert(pending_ages).from_select([*_CELL, "pending"], rows.group_by(begin, _A.producer_group)))


def count_ages(conn: Connection, now_ms: int, group: str | None = None) -> dict[str, Histogram]:
    """Ages at `now_ms` of each group's pending transactions, in whole seconds."""
    columns = (sa.column(name, sa.BigInteger()) for name in ("place", "span_s", "from_s", "to_s"))
    stretches = sa.values(*columns, name="stretches").data(list(_divide(now_ms // 1000))).cte()
    s = stretches.c
    is_within = sa.and_(_A.span_s == s.span_s, _A.begin_s >= s.from_s, _A.begin_s < s.to_s)
    query = sa.select(_A.producer_group, s.place, sa.func.sum(_A.pending)).join_from(stretches, pending_ages, is_within)
    query = query.group_by(_A.producer_group, s.place)
    if group is not None:
        query = query.where(_A.producer_group == group)
    counts: dict[str, list[int]] = {}
    for name, place, count in conn.execute(query):
        counts.setdefault(name, [0] * len(_EMPTY))[place] = int(count)
    bounds = (*AGE_BOUNDS_S, None)
    return {name: tuple(zip(bounds, numbers, strict=True)) for name, numbers in counts.items()}


def _divide(now_s: int) -> Iterator[tuple[int, int, int, int]]:
    """Place in the histogram, span, begin and end: the rows that together hold who is of an age."""
    end_s = _FAR_S
    for place, bound in enumerate((*AGE_BOUNDS_S, None)):
        begin_s = -_FAR_S if bound is None else now_s - bound
        yield from [(place, *stretch) for stretch in cover(begin_s, end_s)]
        end_s = begin_s


def cover(begin_s: int, end_s: int) -> Iterator[tuple[int, int, int]]:
    """Span, begin and end of what makes up a stretch of time: the longest spans in the middle, shorter ones around."""
    for span, longer in pairwise(_SPANS_S):
        first, last = -(-begin_s // longer) * longer, end_s // longer * longer
        if first >= last:
            yield span, begin_s, end_s
            return
        yield from [(span, *part) for part in ((begin_s, first), (last, end_s)) if part[0] < part[1]]
        begin_s, end_s = first, last
    yield _SPANS_S[-1], begin_s, end_s
