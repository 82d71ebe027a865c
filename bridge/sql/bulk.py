"""Many rows in one statement, straight to the driver: SQLAlchemy's work for each row would cost more than the row."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

Rows = Sequence[tuple[Any, ...]]


def insert_rows(conn: Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
    """Inserts rows whose values are in the order of `columns`."""
    if rows:
        mark = _mark(conn)
        conn.exec_driver_sql(_insert(table.name, tuple(columns), mark), list(rows))


def update_rows(conn: Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
    """Updates by `id`, which is the last value of each row."""
    if rows:
        mark = _mark(conn)
        conn.exec_driver_sql(_update(table.name, tuple(columns), mark), list(rows))


def add_rows(conn: Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
    """Adds numbers to the rows with the same keys, the first of `columns`; makes those that are not there yet."""
    if rows:
        mark = _mark(conn)
        conn.exec_driver_sql(_add(table.name, tuple(columns), mark), list(rows))


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


def _mark(conn: Connection) -> str:
    return "?" if conn.dialect.name == "sqlite" else "%s"


def _names(columns: Sequence[str]) -> str:
    return ", ".join([f'"{name}"' for name in columns])


@lru_cache
def _insert(table: str, columns: tuple[str, ...], mark: str) -> str:
    return f"INSERT INTO {table} ({_names(columns)}) VALUES ({', '.join([mark] * len(columns))})"  # noqa: S608


@lru_cache
def _add(table: str, columns: tuple[str, ...], mark: str) -> str:
    sums = ", ".join([f'"{name}" = {table}."{name}" + excluded."{name}"' for name in columns[1:]])
    return f'{_insert(table, columns, mark)} ON CONFLICT ("{columns[0]}") DO UPDATE SET {sums}'


@lru_cache
def _update(table: str, columns: tuple[str, ...], mark: str) -> str:
    sets = ", ".join([f'"{name}" = {mark}' for name in columns])
    return f"UPDATE {table} SET {sets} WHERE id = {mark}"  # noqa: S608
