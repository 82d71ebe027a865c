"""Many rows in one statement, straight to the driver: SQLAlchemy's work for each row would cost more than the row."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from secrets import randbelow
from types import MappingProxyType
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

Rows = Sequence[tuple[Any, ...]]
Constants = Mapping[str, str | int | None]

_PORTION = 1_000  # so many rows that no statement takes long, and the time-out of one is that of a few
_LONGEST_STEP = 1 << 30  # there is room for ten billion of them
_SQLITE_VALUES = 999  # of a statement, the least that any SQLite takes: 200 rows of five columns, 71 of fourteen


def insert_rows(
    conn: Connection, table: sa.Table, columns: Sequence[str], rows: Rows, constants: Constants = MappingProxyType({})
) -> None:
    """Inserts rows whose values are in the order of `columns`; `constants` are the same in all of them."""
    if not rows:
        return
    if conn.dialect.name == "sqlite":
        # as many rows in one statement as it may have values; what is left over one by one
        statement = partial(_insert, table.name, tuple(columns), "?", tuple(constants.items()))
        count = _SQLITE_VALUES // len(rows[0])
        whole = len(rows) - len(rows) % count
        for start in range(0, whole, count):
            conn.exec_driver_sql(statement(count), tuple(chain.from_iterable(rows[start : start + count])))
        if whole < len(rows):
            conn.exec_driver_sql(statement(1), rows[whole:])
    else:
        for portion in chunks(rows, _PORTION):
            _copy(conn, table, (*columns, *constants), portion, tuple(constants.values()))


def _copy(conn: Connection, table: sa.Table, columns: Sequence[str], rows: Rows, more: tuple[Any, ...]) -> None:
    """COPY costs a third of INSERT. Its errors are shown as SQLAlchemy's, as if it had run it."""
    statement = f"COPY {table.name} ({_names(columns)}) FROM STDIN"
    driver: Any = conn.connection.driver_connection
    dbapi: Any = conn.dialect.dbapi
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row + more)
    except dbapi.Error as error:
        if error.diag.message_primary:  # what comes with it shows the row
            error.args = (error.diag.message_primary,)
        raise DBAPIError.instance(
            statement, None, error, dbapi.Error, True, connection_invalidated=driver.closed, dialect=conn.dialect
        ) from error


def update_rows(
    conn: Connection, table: sa.Table, columns: Sequence[str], rows: Rows, constants: Constants = MappingProxyType({})
) -> int:
    """Updates by `id`, which is the last value of each row; how many there were."""
    if not rows:
        return 0
    if conn.dialect.name == "sqlite":
        return conn.exec_driver_sql(_update(table.name, tuple(columns), tuple(constants.items())), rows).rowcount
    return sum([_update_together(conn, table, columns, portion, constants) for portion in chunks(rows, _PORTION)])


def _update_together(
    conn: Connection, table: sa.Table, columns: Sequence[str], rows: Rows, constants: Constants
) -> int:
    """One statement for all rows: PostgreSQL plans and answers each one."""
    names = (*columns, "id")
    types = ", ".join([f'"{name}" {table.c[name].type.compile(conn.dialect)}' for name in names])
    sets = [f'"{name}" = v."{name}"' for name in columns]
    sets += [f'"{name}" = {_literal(value)}' for name, value in constants.items()]
    statement = (
        f"UPDATE {table.name} AS t SET {', '.join(sets)} FROM json_to_recordset(%s::json) AS v({types}) "  # noqa: S608
        "WHERE t.id = v.id"
    )
    document = msgspec.json.encode([dict(zip(names, row, strict=True)) for row in rows]).decode()
    return conn.exec_driver_sql(statement, (document,)).rowcount


def add_rows(conn: Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
    """Adds numbers to the rows with the same primary key, which comes first in `columns`; makes those there are not."""
    if rows:
        mark = "?" if conn.dialect.name == "sqlite" else "%s"
        keys = len(table.primary_key.columns)
        conn.exec_driver_sql(_add(table.name, tuple(columns[:keys]), tuple(columns[keys:]), mark), list(rows))


def select_many(
    conn: Connection, table: sa.Table, columns: Sequence[str], transaction_ids: Sequence[str]
) -> Sequence[Any]:
    """Rows with these transaction ids, however many there are, in one statement."""
    if not transaction_ids:
        return ()
    select = f"SELECT {_names(columns)} FROM {table.name} WHERE transaction_id"  # noqa: S608
    if conn.dialect.name == "sqlite":
        query = f"{select} IN (SELECT value FROM json_each(?))"  # noqa: S608
        return conn.exec_driver_sql(query, (json.dumps(transaction_ids),)).all()
    return conn.exec_driver_sql(f"{select} = ANY(%s)", (transaction_ids,)).all()


def make_upsert(conn: Connection, table: sa.Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT that can say ON CONFLICT, in the dialect of the connection."""
    return sqlite.insert(table) if conn.dialect.name == "sqlite" else postgresql.insert(table)


def move_version(conn: Connection, table: sa.Table) -> None:
    """Lets all processes read anew what they keep in memory: they compare this number.

    It goes on by a step that nobody can foresee: a database that has lost its last writes, as after a fail-over, would
    give the next number a second time, for something else.
    """
    step = 1 + randbelow(_LONGEST_STEP)
    upsert = make_upsert(conn, table).values(id=1, version=step)
    conn.execute(upsert.on_conflict_do_update(index_elements=["id"], set_={"version": table.c.version + step}))


def allow_long_statements(conn: Connection) -> None:
    """Millions of rows at once take longer than any statement of a service may."""
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql("SET LOCAL statement_timeout = 0")


def chunks(values: Collection[Any], size: int) -> Iterator[list[Any]]:
    """Lists of at most `size`, so that no statement gets too many parameters."""
    listed = list(values)
    return (listed[start : start + size] for start in range(0, len(listed), size))


def _names(columns: Sequence[str]) -> str:
    return ", ".join([f'"{name}"' for name in columns])


def _literal(value: str | int | None) -> str:
    """Words and numbers of the bridge's own."""
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


@lru_cache
def _insert(
    table: str, columns: tuple[str, ...], mark: str, constants: tuple[tuple[str, Any], ...] = (), count: int = 1
) -> str:
    names = _names([*columns, *[name for name, _ in constants]])
    values = ", ".join([*[mark] * len(columns), *[_literal(value) for _, value in constants]])
    # many rows OR FAIL: SQLite would keep each page as it was before, though all is rolled back anyway
    insert = "INSERT" if count == 1 else "INSERT OR FAIL"
    return f"{insert} INTO {table} ({names}) VALUES {', '.join([f'({values})'] * count)}"


@lru_cache
def _add(table: str, keys: tuple[str, ...], numbers: tuple[str, ...], mark: str) -> str:
    sums = ", ".join([f'"{name}" = {table}."{name}" + excluded."{name}"' for name in numbers])
    return f"{_insert(table, (*keys, *numbers), mark)} ON CONFLICT ({_names(keys)}) DO UPDATE SET {sums}"


@lru_cache
def _update(table: str, columns: tuple[str, ...], constants: tuple[tuple[str, Any], ...]) -> str:
    sets = [f'"{name}" = ?' for name in columns] + [f'"{name}" = {_literal(value)}' for name, value in constants]
    return f"UPDATE {table} SET {', '.join(sets)} WHERE id = ?"  # noqa: S608
