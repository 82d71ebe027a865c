"""SQL that goes from ordering key to ordering key by their index, so that rows held back cost nothing.

Keys are visited in a ring: each claim goes on where the last one stopped, so every key has its turn.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from outbox.lease_terms import AsRowId, Tables, is_busy, is_parked, order_of
from outbox.sources import OutboxSource

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
