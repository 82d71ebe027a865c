"""All SQL of relays: rows claimed by lease, marked, released. Nothing here waits for other relays."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from outbox.hand_over import OutboxRow
from outbox.key_walk import can_walk, find_heads
from outbox.lease_terms import PARKED, WAITING, AsRowId, Tables, is_among, is_busy, is_parked, of_source, order_of
from outbox.queries import DatabaseNow, make_insert_missing

_ROW_ID: Final = "outbox_row_id"
_ATTEMPTS: Final = "outbox_attempts"
_FROM_ROW_ID: Final[Sequence[tuple[type[sa.types.TypeEngine[Any]], Callable[[str], object]]]] = (
    (sa.String, str),
    (sa.Integer, int),
    (sa.Uuid, uuid.UUID),
)


class Unread(NamedTuple):
    """A row that is no message."""

    row_id: str
    reason: str


class Place(NamedTuple):
    """Where claims go on: behind this ordering key; whether rows without one have the first choice."""

    after_group: Any = None
    is_for_groupless: bool = False


class Mark(NamedTuple):
    """What to note of a row that was not published."""

    row_id: str
    state: str
    delay_ms: int
    reason: str


class Claimed(NamedTuple):
    """Rows leased, in order; those that are no messages apart. `place`: where the next claim goes on."""

    rows: Sequence[OutboxRow]
    unread: Sequence[Unread]
    place: Place


def claim_rows(conn: Connection, tables: Tables, token: str, lease_ms: int, max_rows: int, place: Place) -> Claimed:
    """Leases the first row of each ordering key, and rows without one.

    Only the first: a row is published when all before it are gone, so neither a failure nor a relay that wakes
    long after its lease can change the order of a key. Who holds the rows is settled by the key of the leases:
    what a relay sees unleased may have been leased, and even let go, since its statement began.
    """
    if conn.dialect.name == "sqlite":  # has no row locks: a write that changes nothing takes its one lock
        conn.execute(sa.update(tables.leases).where(sa.false()).values(attempts=0))
    found, onward = _find(conn, tables, max_rows, place)
    if not found:
        return Claimed((), (), onward)
    _lease(conn, tables, found, token, lease_ms)
    held = _held(conn, tables, token)
    rows, unread = [], []
    for columns in found:
        row_id = columns[_ROW_ID]
        if row_id in held:
            try:
                rows.append(tables.source.read(columns, row_id, columns[_ATTEMPTS] or 0))
            except (ValueError, KeyError, TypeError) as error:
                unread.append(Unread(row_id, f"no message: {error}"))
    return Claimed(rows, unread, onward)


def delete_published(conn: Connection, tables: Tables, rows: Sequence[OutboxRow]) -> None:
    """Takes published rows away, into the archive if there is one. Needs no lease: published is a fact."""
    source = tables.source
    is_published = is_among(conn.dialect, source.key_column, [row.row for row in rows])
    if source.archive is not None:
        taken = sa.select(source.table).where(is_published)
        conn.execute(sa.insert(source.archive).from_select([column.name for column in source.table.c], taken))
    conn.execute(sa.delete(source.table).where(is_published))
    _delete_leases(conn, tables, [row.row_id for row in rows])


def note_failures(conn: Connection, tables: Tables, token: str, marks: Sequence[Mark]) -> int:
    """Lets rows go until they are tried again, or parks them; how many: none that another relay has leased since."""
    leases = tables.leases
    statement = (
        sa.update(leases)
        .where(of_source(tables), leases.c.row_id == sa.bindparam("row"), leases.c.token == token)
        .values(
            state=sa.bindparam("new_state"),
            token=None,
            free_ms=DatabaseNow() + sa.bindparam("delay", type_=sa.BigInteger),
            attempts=leases.c.attempts + 1,
            reason=sa.bindparam("why"),
        )
    )
    noted = 0
    for mark in marks:
        values = {"row": mark.row_id, "new_state": mark.state, "delay": mark.delay_ms, "why": mark.reason[:500]}
        noted += conn.execute(statement, values).rowcount
    return noted


def release_claim(conn: Connection, tables: Tables, token: str) -> None:
    """Gives back what is still leased under the token, as if it had not been claimed."""
    held = sa.and_(of_source(tables), tables.leases.c.token == token)
    conn.execute(sa.update(tables.leases).where(held).values(token=None, free_ms=0))


def read_parked(conn: Connection, tables: Tables, max_rows: int) -> Sequence[tuple[str, str]]:
    """Parked rows and the reasons."""
    leases = tables.leases
    query = sa.select(leases.c.row_id, leases.c.reason).where(of_source(tables), leases.c.state == PARKED)
    return [(row_id, reason) for row_id, reason in conn.execute(query.order_by(leases.c.row_id).limit(max_rows))]


def release_parked(conn: Connection, tables: Tables, row_ids: Sequence[str]) -> int:
    """Parked rows are tried again at once; how many there were."""
    leases = tables.leases
    which = sa.and_(of_source(tables), leases.c.row_id.in_(row_ids), leases.c.state == PARKED)
    return conn.execute(sa.update(leases).where(which).values(state=WAITING, free_ms=0, attempts=0)).rowcount


def discard_parked(conn: Connection, tables: Tables, row_ids: Sequence[str]) -> int:
    """Deletes parked rows unpublished, so that those they held back go on; how many."""
    leases, source = tables.leases, tables.source
    parked = sa.select(leases.c.row_id).where(of_source(tables), leases.c.row_id.in_(row_ids), leases.c.state == PARKED)
    found = conn.scalars(parked.with_for_update()).all()
    if found:
        conn.execute(sa.delete(source.table).where(AsRowId(source.key_column).in_(found)))
        _delete_leases(conn, tables, found)
    return len(found)


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
        is_unused = sa.or_(leases.c.state != WAITING, leases.c.free_ms <= DatabaseNow())
        conn.execute(
            sa.delete(leases).where(of_source(tables), is_among(conn.dialect, leases.c.row_id, gone), is_unused)
        )
    return Cleaned(len(gone), seen[-1] if len(seen) == max_leases else None)


def _existing(conn: Connection, tables: Tables, row_ids: Sequence[str]) -> set[str]:
    """Which of them are ids of rows. By the key's own type if that is known, so that its index can be used."""
    column = tables.source.key_column
    convert = next((made for kind, made in _FROM_ROW_ID if isinstance(column.type, kind)), None)
    wanted = AsRowId(column) if convert is None else column
    keys = list(row_ids) if convert is None else [convert(row_id) for row_id in row_ids]
    return set(conn.scalars(sa.select(AsRowId(column)).where(is_among(conn.dialect, wanted, keys))))


@contextmanager
def relay_transaction(conn: Connection) -> Iterator[None]:
    """A transaction in which each statement sees what was committed before it."""
    if conn.dialect.name != "sqlite":
        conn = conn.execution_options(isolation_level="READ COMMITTED")
    with conn.begin():
        yield


def _find(conn: Connection, tables: Tables, max_rows: int, place: Place) -> tuple[list[dict[str, Any]], Place]:
    """Rows that may be leased, in order. Rows with an ordering key, and those without, choose first by turns."""
    group = tables.source.group_column
    if group is None:
        return _read_free(conn, tables, sa.true(), max_rows), place
    if not can_walk(tables.source):  # an outbox without that index: all rows before the last one taken are read
        return _read_free(conn, tables, sa.or_(group.is_(None), sa.not_(_has_earlier(tables))), max_rows), place
    found = _read_free(conn, tables, group.is_(None), max_rows) if place.is_for_groupless else []
    after = place.after_group
    if len(found) < max_rows:
        heads = find_heads(conn, tables, after, max_rows - len(found))
        after = heads.place
        if heads.keys:
            is_head = is_among(conn.dialect, tables.source.key_column, heads.keys)
            found += _read_free(conn, tables, is_head, len(heads.keys))
    if not place.is_for_groupless and len(found) < max_rows:
        found += _read_free(conn, tables, group.is_(None), max_rows - len(found))
    found.sort(key=itemgetter(tables.source.sequence_column.name))
    return found, Place(after, not place.is_for_groupless)


def _read_free(
    conn: Connection, tables: Tables, condition: sa.ColumnElement[bool], max_rows: int
) -> list[dict[str, Any]]:
    """Rows that nobody has leased, parked or put off, locked until the end of the transaction."""
    source, leases = tables.source, tables.leases
    row_id = AsRowId(source.key_column)
    attempts = sa.select(leases.c.attempts).where(of_source(tables), leases.c.row_id == row_id).scalar_subquery()
    query = (
        sa.select(*map(_as_read, source.table.c), row_id.label(_ROW_ID), attempts.label(_ATTEMPTS))
        .where(condition, sa.not_(is_busy(tables, row_id)))
        .order_by(*order_of(source, source.table))
        .limit(max_rows)
        .with_for_update(skip_locked=True, of=source.table if conn.dialect.name == "postgresql" else None)
    )
    return [dict(columns) for columns in conn.execute(query).mappings()]


def _as_read(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """JSON as its text: read and written again, digits and the order of members would change."""
    return sa.cast(column, sa.Text).label(column.name) if isinstance(column.type, sa.JSON) else column


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


def _lease(conn: Connection, tables: Tables, found: Sequence[Mapping[str, Any]], token: str, lease_ms: int) -> None:
    leases = tables.leases
    free_ms = DatabaseNow() + sa.literal(lease_ms, sa.BigInteger)
    known = [columns[_ROW_ID] for columns in found if columns[_ATTEMPTS] is not None]
    if known:
        is_free = sa.and_(leases.c.state == WAITING, leases.c.free_ms <= DatabaseNow())
        is_known = is_among(conn.dialect, leases.c.row_id, known)
        which = sa.and_(of_source(tables), is_known, is_free)
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


def _held(conn: Connection, tables: Tables, token: str) -> set[str]:
    query = sa.select(tables.leases.c.row_id).where(of_source(tables), tables.leases.c.token == token)
    return set(conn.scalars(query))


def _delete_leases(conn: Connection, tables: Tables, row_ids: Sequence[str]) -> None:
    is_of_rows = is_among(conn.dialect, tables.leases.c.row_id, row_ids)
    conn.execute(sa.delete(tables.leases).where(of_source(tables), is_of_rows))
