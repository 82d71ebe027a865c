"""All SQL of transaction records, per dialect where databases differ. Synchronous: async shells run it in `run_sync`.

No statement here waits for another transaction's row lock longer than it is told: a check must be answered at
once, also while the local transaction it asks about is running.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from outbox.errors import OutboxConfigError
from outbox.tables import BARRED, CLEANED, CLEANED_ID, WRITTEN

_LOCKED_OUT_STATES: Final = frozenset({"55P03", "40P01", "40001"})  # lock not available, deadlock, serialisation
_LOCKED_OUT_NUMBERS: Final = frozenset({1205, 1213, 1020})  # the same in MariaDB and MySQL
_SQLITE_BUSY: Final = frozenset({5, 6})  # SQLITE_BUSY, SQLITE_LOCKED, whatever the extended part says


class DatabaseNow(FunctionElement[int]):
    """The database's clock, in milliseconds since 1970 UTC; the one clock that all who use a table share."""

    type = sa.BigInteger()
    inherit_cache = True
    name = "database_now"


@compiles(DatabaseNow, "postgresql")
def _postgres_now(_: DatabaseNow, __: SQLCompiler, **___: object) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(DatabaseNow, "sqlite")
def _sqlite_now(_: DatabaseNow, __: SQLCompiler, **___: object) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@compiles(DatabaseNow, "mysql")
@compiles(DatabaseNow, "mariadb")
def _mariadb_now(_: DatabaseNow, __: SQLCompiler, **___: object) -> str:
    # UNIX_TIMESTAMP(NOW(3)) goes through the session's time zone and is an hour wrong when summer time ends
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


def insert_record(conn: Connection, table: sa.Table, transaction_id: str, producer_group: str) -> None:
    """Writes the record in the transaction of `conn`. Raises IntegrityError if the id has one.

    Waits while another transaction has the id and has not ended.
    """
    statement = _insertion(table, is_postgres=conn.dialect.name == "postgresql")
    conn.execute(statement, {"transaction_id": transaction_id, "producer_group": producer_group})


def read_states(conn: Connection, table: sa.Table, transaction_ids: Collection[str]) -> tuple[Mapping[str, str], int]:
    """State by transaction id, and the time up to which records may have been deleted; of one moment."""
    query = sa.select(table.c.transaction_id, table.c.state, table.c.at_ms).where(
        table.c.transaction_id.in_([*transaction_ids, CLEANED_ID])
    )
    rows = conn.execute(query).all()
    horizon_ms = next((row.at_ms for row in rows if row.state == CLEANED), 0)
    return {row.transaction_id: row.state for row in rows if row.state != CLEANED}, horizon_ms


def insert_bars(conn: Connection, table: sa.Table, transaction_ids: Sequence[str], producer_group: str) -> None:
    """Bars those that have no record. Raises an error that `is_locked_out` if one may have, uncommitted."""
    rows = _state_rows(transaction_ids, producer_group, BARRED)
    conn.execute(make_insert_missing(conn, table).values(rows))


def clean_records(conn: Connection, table: sa.Table, older_than_ms: int, margin_ms: int, max_rows: int) -> int:
    """Deletes at most `max_rows` records written so long ago; how many. Says beforehand, in the same transaction,
    up to which time a missing record proves nothing any more.
    """
    horizon = DatabaseNow() - sa.literal(older_than_ms - margin_ms, sa.BigInteger)
    mark = {"transaction_id": CLEANED_ID, "producer_group": "", "state": CLEANED, "at_ms": 0}
    conn.execute(make_insert_missing(conn, table).values(mark))
    is_mark = table.c.transaction_id == CLEANED_ID
    conn.execute(sa.update(table).where(is_mark, table.c.at_ms < horizon).values(at_ms=horizon))
    old = table.c.at_ms < DatabaseNow() - sa.literal(older_than_ms, sa.BigInteger)
    query = sa.select(table.c.transaction_id).where(old, sa.not_(is_mark)).limit(max_rows)
    found = conn.scalars(query).all()  # MariaDB takes no LIMIT in a subquery
    if found:
        conn.execute(sa.delete(table).where(table.c.transaction_id.in_(found)))
    return len(found)


def make_insert_missing(conn: Connection, table: sa.Table) -> sa.Insert:
    """An INSERT that steps over rows whose key is taken, in the dialect of the connection."""
    match conn.dialect.name:
        case "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        case "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing()
        case "mysql" | "mariadb":
            return sa.insert(table).prefix_with("IGNORE")
        case other:
            raise OutboxConfigError(f"{other} is no database this package knows")


@contextmanager
def short_transaction(conn: Connection, wait_ms: int, timeout_ms: int) -> Iterator[None]:
    """A transaction that waits for each lock `wait_ms` at most; each statement lasts `timeout_ms` at most."""
    with _session_limits(conn, wait_ms, timeout_ms), conn.begin():
        if conn.dialect.name == "postgresql":
            conn.execute(sa.select(*_postgres_limits(wait_ms, timeout_ms)))
        yield


def is_autocommitting(conn: Connection) -> bool:
    """Whether each statement commits for itself. SQLite's driver does so until its first write: not asked there."""
    raw = conn.connection.dbapi_connection
    return conn.dialect.name != "sqlite" and raw is not None and conn.dialect.detect_autocommit_setting(raw)


def is_locked_out(error: DBAPIError) -> bool:
    """Whether a statement gave way to another transaction: nothing of it was done, and nothing is known."""
    origin = error.orig
    if getattr(origin, "sqlstate", None) in _LOCKED_OUT_STATES:
        return True
    code = getattr(origin, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_BUSY
    number = origin.args[0] if origin is not None and origin.args else None
    return number in _LOCKED_OUT_NUMBERS


@lru_cache(maxsize=16)  # building it costs five times what executing it does, in every local transaction
def _insertion(table: sa.Table, *, is_postgres: bool) -> sa.Insert:
    """What a record says besides its key and group."""
    statement = sa.insert(table).values(state=WRITTEN, at_ms=DatabaseNow())
    # with synchronous_commit off, a check could see a local transaction that a crash then takes back
    return statement.returning(_durable_commit()) if is_postgres else statement


def _state_rows(transaction_ids: Sequence[str], producer_group: str, state: str) -> list[dict[str, Any]]:
    rest = {"producer_group": producer_group, "state": state, "at_ms": DatabaseNow()}
    return [{"transaction_id": transaction_id, **rest} for transaction_id in transaction_ids]


def _postgres_limits(wait_ms: int, timeout_ms: int) -> Sequence[sa.ColumnElement[str]]:
    """Settings that end with the transaction, so that nothing leaks through a pooler."""
    limits = {
        "lock_timeout": max(1, wait_ms),  # 0 would mean: for ever
        "statement_timeout": timeout_ms,
        "idle_in_transaction_session_timeout": timeout_ms,  # a frozen process would hold up the local transaction
    }
    return [*(sa.func.set_config(name, f"{value}ms", True) for name, value in limits.items()), _durable_commit()]


def _durable_commit() -> sa.ColumnElement[str]:
    """Switches synchronous_commit on where it is off, for this transaction; other settings of it stay."""
    current = sa.func.current_setting("synchronous_commit")
    return sa.case((current == "off", sa.func.set_config("synchronous_commit", "on", True)), else_=current)


@contextmanager
def _session_limits(conn: Connection, wait_ms: int, timeout_ms: int) -> Iterator[None]:
    """The same where settings belong to the session: they are put back, for the connection goes back to its pool."""
    match conn.dialect.name:
        case "sqlite":
            read, change = "PRAGMA busy_timeout", f"PRAGMA busy_timeout = {wait_ms}"
            restore = "PRAGMA busy_timeout = {}"
        case "mysql" | "mariadb":
            read = "SELECT @@SESSION.innodb_lock_wait_timeout"
            change = f"SET SESSION innodb_lock_wait_timeout = {wait_ms // 1000}"
            restore = "SET SESSION innodb_lock_wait_timeout = {}"
            if getattr(conn.dialect, "is_mariadb", False):  # MySQL has none, and waits a second at least
                read += ", @@SESSION.max_statement_time, @@SESSION.idle_write_transaction_timeout"
                change += f", max_statement_time = {timeout_ms / 1000}"
                change += f", idle_write_transaction_timeout = {-(-timeout_ms // 1000)}"  # as for PostgreSQL above
                restore += ", max_statement_time = {}, idle_write_transaction_timeout = {}"
        case _:
            yield
            return
    before = _run(conn, read)
    _run(conn, change)
    try:
        yield
    finally:
        if not conn.invalidated:
            _run(conn, restore.format(*before))


def _run(conn: Connection, command: str) -> Sequence[Any]:
    """Straight to the driver: SQLAlchemy would begin a transaction."""
    cursor = conn.connection.cursor()
    try:
        cursor.execute(command)
        row: Sequence[Any] | None = cursor.fetchone() if cursor.description else None
        return row or ()
    finally:
        cursor.close()
