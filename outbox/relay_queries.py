"""All SQL of relays: rows claimed by lease, marked, released. Nothing here waits for other relays.

Keys are visited in a ring: each claim goes on where the last one stopped, so every key has its turn.
"""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from outbox.hand_over import OutboxRow, is_of_another
from outbox.sources import AsRowId, OutboxSource, as_read, count_bytes, is_among
from outbox.transaction_record import DatabaseNow, durable_now, make_insert_missing

WAITING: Final = "waiting"
PARKED: Final = "parked"
LONGEST_LEASE_MS: Final = 7_200_000
_DOUBT_MS: Final = 6 * 86_400_000  # the bridge knows a key for 7 days at least; a day for clocks that are apart
_DOUBTFUL: Final = (
    "a relay of another producer group, or one of days ago, had it in hand and may have published it: look for it in"
    " its topic, then discard it if it is there, else retry it"
)


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The rows, and the leases on them. `parked_holds`: whether a parked row holds back those after it.

    Each is equal to itself alone, so that statements can be kept by it.
    """

    source: OutboxSource
    leases: sa.Table
    parked_holds: bool = True


def of_source(tables: Tables) -> sa.ColumnElement[bool]:
    """The leases on rows of this table."""
    return tables.leases.c.source == tables.source.name


def is_due(leases: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a lease or a wait is over. One that ends later than there can be any began while the database's clock was
    ahead, and would last until that time."""
    left_ms = leases.c.free_ms - DatabaseNow()
    return sa.not_(left_ms.between(1, LONGEST_LEASE_MS))


def is_busy(tables: Tables, row_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the row is leased, waits for its next try, or is parked."""
    leases = tables.leases
    is_held = sa.or_(leases.c.state != WAITING, sa.not_(is_due(leases)))
    return sa.exists().where(of_source(tables), leases.c.row_id == row_id, is_held)


def is_parked(tables: Tables, row_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the bridge has refused the row."""
    leases = tables.leases
    return sa.exists().where(of_source(tables), leases.c.row_id == row_id, leases.c.state == PARKED)


def order_of(source: OutboxSource, table: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    """The order of rows. Their keys decide only where the sequence may repeat itself: they are in no index with it."""
    sequence = source.sequence_column
    is_unique = sequence.unique or list(source.table.primary_key.columns) == [sequence]
    columns = [sequence] if is_unique else [sequence, source.key_column]
    return [table.c[column.name] for column in columns]


_MAX_STEPS: Final = 8_000  # keys in one statement


class Heads(NamedTuple):
    """Keys of rows that are the first of their ordering key and free. `place`: the ordering key to go on after."""

    keys: Sequence[Any]
    place: Any = None


def can_walk(source: OutboxSource) -> bool:
    """Whether an index leads from each ordering key to its first row."""
    if source.group_column is None:
        return False
    wanted = [source.group_column.name, source.sequence_column.name]
    return any([column.name for column in index.columns][:2] == wanted for index in source.table.indexes)


def find_heads(conn: Connection, tables: Tables, place: object, max_rows: int) -> Heads:
    """At most so many, from behind `place` (None: from the beginning of the ring) to its end.

    If there is none, once more from the beginning. Keys whose first row is leased, waiting or parked are stepped over,
    ever more of them in one statement.
    """
    is_last_lap, max_steps = place is None, max_rows
    while True:
        visit = _make_visit(tables, conn.dialect.name, is_from_start=place is None)
        visited = conn.execute(visit, {"place": place, "max_steps": max_steps}).all()
        free = [(group, key) for group, key, is_taken in visited if key is not None and not is_taken][:max_rows]
        is_end = len(visited) < max_steps
        if len(free) == max_rows:
            return Heads([key for _, key in free], free[-1][0])
        if free:
            return Heads([key for _, key in free], None if is_end else visited[-1][0])
        if is_end and is_last_lap:
            return Heads([])
        is_last_lap = is_last_lap or is_end
        place = None if is_end else visited[-1][0]
        max_steps = min(2 * max_steps, _MAX_STEPS)


@lru_cache(maxsize=32)  # building it takes longer than its answer
def _make_visit(tables: Tables, dialect: str, *, is_from_start: bool) -> sa.Select[Any]:
    """Rows: ordering key, key of its first row, whether that one is leased, waiting or parked."""
    column = tables.source.group_column
    assert column is not None
    first = column.is_not(None) if is_from_start else column > sa.bindparam("place", type_=column.type)
    make_groups = _hop_groups if dialect in {"postgresql", "sqlite"} else _skip_groups
    groups = make_groups(tables.source.table, column, first).subquery("outbox_groups")
    group = groups.c.group_value
    heads = sa.select(group, _head_of(tables, group).label("head")).subquery("outbox_heads")
    taken = is_busy(tables, AsRowId(heads.c.head))
    return sa.select(heads.c.group_value, heads.c.head, taken).order_by(heads.c.group_value)


def _skip_groups(_: sa.Table, column: sa.Column[Any], first: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """MariaDB and MySQL hop over an index by themselves. Source: MariaDB, "Loose Index Scan"."""
    groups = sa.select(column.label("group_value")).where(first).group_by(column).order_by(column)
    return groups.limit(_max_steps())


def _hop_groups(table: sa.Table, column: sa.Column[Any], first: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """A look into the index for each. Source: PostgreSQL wiki, "Loose indexscan"."""
    start = sa.select(column).where(first).order_by(column).limit(1).scalar_subquery()
    walk = sa.select(start.label("group_value"), sa.literal(1).label("step")).cte("outbox_walk", recursive=True)
    onward = table.alias("onward").c[column.name]
    following = (
        sa.select(onward).where(onward > walk.c.group_value).order_by(onward).limit(1).correlate(walk).scalar_subquery()
    )
    is_going = sa.and_(walk.c.group_value.is_not(None), walk.c.step < _max_steps())
    walk = walk.union_all(sa.select(following, walk.c.step + 1).where(is_going))
    return sa.select(walk.c.group_value).where(walk.c.group_value.is_not(None))


def _max_steps() -> sa.BindParameter[int]:
    return sa.bindparam("max_steps", type_=sa.Integer)


def _head_of(tables: Tables, group: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    """The key of the row that is next in line."""
    source = tables.source
    rows = source.table.alias("line")
    columns = [source.group_column, source.key_column]
    its_group, key = [rows.c[column.name] for column in columns if column is not None]
    query = sa.select(key).where(its_group == group)
    if not tables.parked_holds:
        query = query.where(sa.not_(is_parked(tables, AsRowId(key))))
    return query.order_by(*order_of(source, rows)).limit(1).correlate_except(rows).scalar_subquery()


_ROW_ID: Final = "outbox_row_id"
_ATTEMPTS: Final = "outbox_attempts"
_BYTES: Final = "outbox_bytes"
MAX_CLAIM_BYTES: Final = 16 * 1024 * 1024  # a relay holds some of its claims in memory, and some times over
_FROM_ROW_ID: Final[Sequence[tuple[type[sa.types.TypeEngine[Any]], Callable[[str], object]]]] = (
    (sa.String, str),
    (sa.Integer, int),
    (sa.Uuid, uuid.UUID),
)


class ReadPosition(NamedTuple):
    """Where claims go on: behind this ordering key; whether rows without one have the first choice."""

    after_group: Any = None
    is_for_groupless: bool = False


class Mark(NamedTuple):
    """What to note of a row that was not published."""

    row_id: str
    state: str
    delay_ms: int
    reason: str
    is_unsure: bool = False  # it may have been published


# Where nobody has analysed a table, PostgreSQL takes rows without an ordering key for few: it would read and sort all
# of them in each claim, which may outlast its lease.
_IN_ORDER: Final = sa.select(sa.func.set_config("enable_bitmapscan", "off", True))


class Claimed(NamedTuple):
    """Rows leased, in order; those that are not to be handed over apart. `place`: where the next claim goes on.

    `unsure`: ids of those that may have been published by an earlier claim.
    """

    rows: Sequence[OutboxRow]
    unread: Sequence[Mark]
    place: ReadPosition
    unsure: frozenset[str] = frozenset()


def claim_rows(
    conn: Connection, tables: Tables, token: str, lease_ms: int, max_rows: int, place: ReadPosition
) -> Claimed:
    """Leases the first row of each ordering key, and rows without one.

    Only the first: a row is published when all before it are gone, so neither a failure nor a relay that wakes
    long after its lease can change the order of a key. The key of the leases settles who holds the rows:
    what a relay sees unleased may have been leased, and even let go, since its statement began.
    """
    if conn.dialect.name == "sqlite":  # has no row locks: a write that changes nothing takes its one lock
        conn.execute(sa.update(tables.leases).where(sa.false()).values(attempts=0))
    if conn.dialect.name == "postgresql":
        conn.execute(_IN_ORDER)
    found, onward = _find(conn, tables, max_rows, place)
    if not found:
        return Claimed((), (), onward)
    taken = _take(found)
    earlier = _lease(conn, tables, taken, token, lease_ms)
    held = _read_held(conn, tables, taken, token)
    rows, unread = [], []
    for row_id, attempts in [(columns[_ROW_ID], columns[_ATTEMPTS]) for columns in taken if columns[_ROW_ID] in held]:
        if row_id in earlier and (earlier[row_id].ago_ms > _DOUBT_MS or is_of_another(earlier[row_id].token, token)):
            unread.append(Mark(row_id, PARKED, 0, _DOUBTFUL))
            continue
        try:
            rows.append(tables.source.read(held[row_id], row_id, attempts or 0))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            unread.append(Mark(row_id, PARKED, 0, f"no message: {error}"))
    return Claimed(rows, unread, onward, frozenset(earlier))


def delete_published(conn: Connection, tables: Tables, rows: Sequence[OutboxRow]) -> set[str]:
    """Takes published rows away, into the archive if there is one. Needs no lease: published is a fact.

    Row ids of those that stayed.
    """
    source = tables.source
    is_published = is_among(conn.dialect, source.key_column, [row.row for row in rows])
    if source.archive is not None:
        # locked: a relay that was frozen may be at it too, and what it has moved is not moved once more
        taken = sa.select(source.table).where(is_published).with_for_update()
        conn.execute(sa.insert(source.archive).from_select([column.name for column in source.table.c], taken))
    stayed = _delete_rows(conn, source, is_published, len(rows))
    _delete_leases(conn, tables, [row.row_id for row in rows if row.row_id not in stayed])
    return stayed


def note_failures(conn: Connection, tables: Tables, token: str, marks: Sequence[Mark]) -> int:
    """Lets rows go until they are tried again, or parks them; how many: none that another relay has leased since."""
    leases = tables.leases
    statement = (
        sa.update(leases)
        .where(of_source(tables), leases.c.row_id == sa.bindparam("row"), leases.c.token == token)
        .values(
            state=sa.bindparam("new_state"),
            token=sa.bindparam("kept_token"),
            free_ms=DatabaseNow() + sa.bindparam("delay", type_=sa.BigInteger),
            attempts=leases.c.attempts + 1,
            reason=sa.bindparam("why"),
        )
    )
    noted = 0
    for mark in marks:
        values = {"row": mark.row_id, "new_state": mark.state, "delay": mark.delay_ms, "why": mark.reason[:500]}
        values["kept_token"] = token if mark.is_unsure else None
        noted += conn.execute(statement, values).rowcount
    return noted


def release_claim(conn: Connection, tables: Tables, token: str, unsure: Collection[str]) -> None:
    """Gives back what is still leased under the token, as if it had not been claimed. `unsure`: may be published."""
    leases = tables.leases
    held = sa.and_(of_source(tables), leases.c.token == token)
    conn.execute(sa.update(leases).where(held, leases.c.row_id.not_in(unsure)).values(token=None, free_ms=0))
    if unsure:
        conn.execute(sa.update(leases).where(held).values(free_ms=DatabaseNow()))


def read_parked(conn: Connection, tables: Tables, max_rows: int) -> Sequence[tuple[str, str]]:
    """Parked rows and the reasons."""
    leases = tables.leases
    query = sa.select(leases.c.row_id, leases.c.reason).where(of_source(tables), leases.c.state == PARKED)
    return [(row_id, reason) for row_id, reason in conn.execute(query.order_by(leases.c.row_id).limit(max_rows))]


def count_rows(conn: Connection, tables: Tables, max_rows: int) -> tuple[int, int]:
    """Rows to be published, `max_rows` at most, and parked ones."""
    leases = tables.leases
    is_parked = sa.select(sa.func.count()).select_from(leases).where(of_source(tables), leases.c.state == PARKED)
    parked = conn.scalar(is_parked) or 0
    some = sa.select(sa.literal(1)).select_from(tables.source.table).limit(max_rows + parked).subquery()
    return max(0, (conn.scalar(sa.select(sa.func.count()).select_from(some)) or 0) - parked), parked


def release_parked(conn: Connection, tables: Tables, row_ids: Sequence[str]) -> int:
    """Parked rows are tried again at once; how many there were."""
    leases = tables.leases
    which = sa.and_(of_source(tables), leases.c.row_id.in_(row_ids), leases.c.state == PARKED)
    return conn.execute(sa.update(leases).where(which).values(state=WAITING, free_ms=0, attempts=0)).rowcount


def discard_parked(conn: Connection, tables: Tables, row_ids: Sequence[str]) -> int:
    """Deletes parked rows unpublished, so that those they held back go on; how many."""
    leases, source = tables.leases, tables.source
    parked = sa.select(leases.c.row_id).where(of_source(tables), leases.c.row_id.in_(row_ids), leases.c.state == PARKED)
    found = set(conn.scalars(parked.with_for_update()))
    gone = found - _delete_rows(conn, source, AsRowId(source.key_column).in_(found), len(found))
    _delete_leases(conn, tables, list(gone))
    return len(gone)


class Cleaned(NamedTuple):
    """Leases deleted, and the row id to go on after; None: from the beginning."""

    leases: int
    after: str | None


def clean_leases(conn: Connection, tables: Tables, after: str | None, max_leases: int) -> Cleaned:
    """Looks at so many leases, in order, and deletes those whose rows somebody else has deleted.

    Leases are read before rows, so that a row which is missing then has been deleted, and no key comes again.
    """
    leases = tables.leases
    query = sa.select(leases.c.row_id).where(of_source(tables), leases.c.row_id > (after or ""))
    seen = conn.scalars(query.order_by(leases.c.row_id).limit(max_leases)).all()
    gone = sorted(set(seen) - _existing(conn, tables, seen)) if seen else []
    if gone:
        is_unused = sa.or_(leases.c.state != WAITING, is_due(leases))
        conn.execute(
            sa.delete(leases).where(of_source(tables), is_among(conn.dialect, leases.c.row_id, gone), is_unused)
        )
    return Cleaned(len(gone), seen[-1] if len(seen) == max_leases else None)


def _existing(conn: Connection, tables: Tables, row_ids: Sequence[str]) -> set[str]:
    """Which of them are ids of rows. By the key's own type if that is known, so that its index can be used."""
    column = tables.source.key_column
    convert = next((made for kind, made in _FROM_ROW_ID if isinstance(column.type, kind)), None)
    named = sa.select(AsRowId(column))
    found: set[str] = set()
    if convert is not None:
        keys = [convert(row_id) for row_id in row_ids]
        found |= set(conn.scalars(named.where(is_among(conn.dialect, column, keys))))
    left = sorted(set(row_ids) - found)  # of another type, or known by their digests
    if left and (convert is None or convert is str):
        found |= set(conn.scalars(named.where(is_among(conn.dialect, AsRowId(column), left))))
    return found


def _find(
    conn: Connection, tables: Tables, max_rows: int, place: ReadPosition
) -> tuple[list[dict[str, Any]], ReadPosition]:
    """Rows that may be leased, in order. Rows with an ordering key, and those without, choose first by turns."""
    group = tables.source.group_column
    if group is None:
        return _read_free(conn, tables, sa.true(), max_rows), place
    if not can_walk(tables.source):  # an outbox without that index: all rows before the last one taken are read
        return _read_free(conn, tables, sa.or_(group.is_(None), sa.not_(_has_earlier(tables))), max_rows), place
    first = [group] if conn.dialect.name == "postgresql" else []  # as its index has them; MariaDB would sort for it
    found = _read_free(conn, tables, group.is_(None), max_rows, *first) if place.is_for_groupless else []
    after = place.after_group
    if len(found) < max_rows:
        heads = find_heads(conn, tables, after, max_rows - len(found))
        after = heads.place
        if heads.keys:
            is_head = is_among(conn.dialect, tables.source.key_column, heads.keys)
            found += _read_free(conn, tables, is_head, len(heads.keys))
    if not place.is_for_groupless and len(found) < max_rows:
        found += _read_free(conn, tables, group.is_(None), max_rows - len(found), *first)
    name = tables.source.sequence_column.name
    found.sort(key=lambda columns: (columns[name] is not None, columns[name]))
    return found, ReadPosition(after, not place.is_for_groupless)


def _read_free(
    conn: Connection, tables: Tables, condition: sa.ColumnElement[bool], max_rows: int, *first: sa.Column[Any]
) -> list[dict[str, Any]]:
    """Rows that nobody has leased, parked or put off, locked until the end of the transaction; not what is in them.

    `first`: what they are ordered by before all else.
    """
    source, leases = tables.source, tables.leases
    row_id = AsRowId(source.key_column)
    attempts = sa.select(leases.c.attempts).where(of_source(tables), leases.c.row_id == row_id).scalar_subquery()
    columns = {column.name: column for column in (source.key_column, source.sequence_column)}
    size = count_bytes(source.table, conn.dialect.name)
    query = (
        sa.select(*columns.values(), row_id.label(_ROW_ID), attempts.label(_ATTEMPTS), size.label(_BYTES))
        .where(condition, sa.not_(is_busy(tables, row_id)))
        .order_by(*first, *order_of(source, source.table))
        .limit(max_rows)
        .with_for_update(skip_locked=True, of=source.table if conn.dialect.name == "postgresql" else None)
    )
    return _as_dicts(conn.execute(query))


def _as_dicts(found: sa.CursorResult[Any]) -> list[dict[str, Any]]:
    names = list(found.keys())
    return [dict(zip(names, row, strict=True)) for row in found]


def _take(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of them, so many as a claim has room for; one at least. The others have their turn later."""
    size = 0
    for count, columns in enumerate(found):
        size += columns[_BYTES]
        if count and size > MAX_CLAIM_BYTES:
            return found[:count]
    return found


def _has_earlier(tables: Tables) -> sa.ColumnElement[bool]:
    """Whether a row before this one, with its ordering key, is still to be published."""
    source = tables.source
    assert source.group_column is not None
    earlier = source.table.alias("earlier")
    group, sequence, key = [
        (column, earlier.c[column.name]) for column in (source.group_column, source.sequence_column, source.key_column)
    ]
    is_before = sa.or_(sequence[1] < sequence[0], sa.and_(sequence[1] == sequence[0], key[1] < key[0]))
    conditions = [group[1] == group[0], is_before]
    if not tables.parked_holds:
        conditions.append(sa.not_(is_parked(tables, AsRowId(key[1]))))
    return sa.exists().where(*conditions).correlate(source.table)


def _lease(
    conn: Connection, tables: Tables, found: Sequence[Mapping[str, Any]], token: str, lease_ms: int
) -> Mapping[str, sa.Row[Any]]:
    """By row id, of an earlier claim that may have published the row: its token, and how long ago it was over."""
    leases, earlier = tables.leases, {}
    # nothing is published that a crash takes back: PostgreSQL's log is written up to this commit, whose rows lie before
    free_ms = durable_now(is_postgres=conn.dialect.name == "postgresql") + sa.literal(lease_ms, sa.BigInteger)
    known = [columns[_ROW_ID] for columns in found if columns[_ATTEMPTS] is not None]
    if known:
        is_free = sa.and_(leases.c.state == WAITING, is_due(leases))
        is_known = is_among(conn.dialect, leases.c.row_id, known)
        which = sa.and_(of_source(tables), is_known, is_free)
        ago_ms = (DatabaseNow() - leases.c.free_ms).label("ago_ms")
        open_ones = sa.select(leases.c.row_id, leases.c.token, ago_ms).where(which, leases.c.token.is_not(None))
        earlier = {row.row_id: row for row in conn.execute(open_ones)}
        conn.execute(sa.update(leases).where(which).values(token=token, free_ms=free_ms))
    key_column = tables.source.key_column
    new = [columns[key_column.name] for columns in found if columns[_ATTEMPTS] is None]
    if new:
        values: dict[str, sa.ColumnElement[Any]] = {
            "source": sa.literal(tables.source.name),
            "row_id": AsRowId(key_column),
            "state": sa.literal(WAITING),
            "token": sa.literal(token),
            "free_ms": free_ms,
            "attempts": sa.literal(0),
        }
        # from the rows themselves: a list of values is compiled anew each time, which costs more than all else
        rows = sa.select(*values.values()).where(is_among(conn.dialect, key_column, new))
        conn.execute(make_insert_missing(conn, leases).from_select(list(values), rows))
    return earlier


def _read_held(
    conn: Connection, tables: Tables, taken: Sequence[Mapping[str, Any]], token: str
) -> Mapping[str, Mapping[str, Any]]:
    """What is in those that are leased under the token, by row id."""
    source, leases = tables.source, tables.leases
    row_id = AsRowId(source.key_column)
    is_taken = is_among(conn.dialect, source.key_column, [columns[source.key_column.name] for columns in taken])
    # no EXISTS: PostgreSQL begins with the leases then, and looks for each of them among all keys that were taken
    held_by = sa.select(leases.c.token).where(of_source(tables), leases.c.row_id == row_id).scalar_subquery()
    query = sa.select(*map(as_read, source.table.c), row_id.label(_ROW_ID)).where(is_taken, held_by == token)
    return {columns[_ROW_ID]: columns for columns in _as_dicts(conn.execute(query))}


def _delete_rows(conn: Connection, source: OutboxSource, which: sa.ColumnElement[bool], expected: int) -> set[str]:
    """Row ids of those that stay: a trigger, a rule or row level security may keep rows, without an error."""
    if conn.execute(sa.delete(source.table).where(which)).rowcount == expected:
        return set()
    return set(conn.scalars(sa.select(AsRowId(source.key_column)).where(which)))


def _delete_leases(conn: Connection, tables: Tables, row_ids: Sequence[str]) -> None:
    if not row_ids:
        return
    is_of_rows = is_among(conn.dialect, tables.leases.c.row_id, row_ids)
    conn.execute(sa.delete(tables.leases).where(of_source(tables), is_of_rows))
