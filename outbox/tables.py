"""The tables of this package, in the user's own database and MetaData: names and schema are the user's choice."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from enum import Enum
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool
from sqlalchemy.schema import conv

from outbox.client.errors import Misuse, OutboxConfigError, is_read_only
from outbox.client.message import INBOX_ID_LENGTH

RECORD_TABLE: Final = "outbox_transaction"
OUTBOX_TABLE: Final = "outbox_message"
LEASE_TABLE: Final = "outbox_lease"
INBOX_TABLE: Final = "outbox_inbox"

# states of a transaction record
WRITTEN: Final = "written"  # the local transaction wrote it: it stands if and only if that one has committed
BARRED: Final = "barred"  # a back-check found nothing and was answered ROLLBACK
CLEANED: Final = "cleaned"  # the one row under CLEANED_ID: what is older may have been deleted
CLEANED_ID: Final = "!cleaned"  # no transaction id has such a sign

# MySQL's MyISAM has no transactions: a record in it would answer COMMIT for what was rolled back
_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


def make_record_table(metadata: sa.MetaData, name: str = RECORD_TABLE, schema: str | None = None) -> sa.Table:
    """Transaction records: transaction_id (key), producer_group, state, at_ms (the database's clock)."""
    return sa.Table(
        name,
        metadata,
        sa.Column("transaction_id", _ascii(64), primary_key=True),
        sa.Column("producer_group", _ascii(120), nullable=False),
        sa.Column("state", _ascii(8), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Index(_final(f"ix_{name}_at_ms"), "at_ms"),
        schema=schema,
        **_OPTIONS,
    )


def make_outbox_table(metadata: sa.MetaData, name: str = OUTBOX_TABLE, schema: str | None = None) -> sa.Table:
    """Outbox rows. `id` gives the order, `message_id` the idempotency key: numbers may come again, it never does."""
    return sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("message_id", _ascii(36), nullable=False),
        sa.Column("topic", _ascii(249), nullable=False),
        sa.Column("key", _blob()),
        sa.Column("value", _blob()),
        sa.Column("headers", _long_text(), nullable=False),
        sa.Column("partition", sa.Integer),
        sa.Column("timestamp_ms", sa.BigInteger),
        sa.Column("ordering_key", _unicode(200)),
        sa.Column("order_hash", _ascii(32)),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("message_id", name=_final(f"uq_{name}_message_id")),
        sa.Index(_final(f"ix_{name}_order"), "order_hash", "id"),
        schema=schema,
        sqlite_autoincrement=True,
        **_OPTIONS,
    )


def make_lease_table(metadata: sa.MetaData, name: str = LEASE_TABLE, schema: str | None = None) -> sa.Table:
    """What relays know of rows of any outbox table: who publishes one now, what was refused and why."""
    return sa.Table(
        name,
        metadata,
        sa.Column("source", _ascii(64), primary_key=True),
        sa.Column("row_id", _ascii(64), primary_key=True),
        sa.Column("state", _ascii(9), nullable=False),
        sa.Column("token", _ascii(36)),
        sa.Column("free_ms", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("reason", _unicode(500)),
        sa.Index(_final(f"ix_{name}_token"), "token"),
        schema=schema,
        **_OPTIONS,
    )


def make_inbox_table(metadata: sa.MetaData, name: str = INBOX_TABLE, schema: str | None = None) -> sa.Table:
    """Messages whose effect is in the database, by consumer; `at_ms` is the database's clock."""
    return sa.Table(
        name,
        metadata,
        sa.Column("consumer", _ascii(120), primary_key=True),
        sa.Column("message_id", _ascii(INBOX_ID_LENGTH), primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Index(_final(f"ix_{name}_at_ms"), "consumer", "at_ms"),
        schema=schema,
        **_OPTIONS,
    )


def make_tables(metadata: sa.MetaData, schema: str | None = None) -> Iterable[sa.Table]:
    """All of them under their own names."""
    makers = (make_record_table, make_outbox_table, make_lease_table, make_inbox_table)
    return [make(metadata, schema=schema) for make in makers]


_KEPT: WeakKeyDictionary[sa.Pool, set[str]] = WeakKeyDictionary()  # tables that were looked at, by database
_ENGINE: Final = sa.text(
    "SELECT e.engine FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine"
    " WHERE t.table_schema = COALESCE(:schema, DATABASE()) AND t.table_name = :name AND e.transactions <> 'YES'"
)
_IS_UNLOGGED: Final = sa.text("SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass(:name)")

# a row for each column of an index that stops a second row; one of nulls if a table has none; no row for a view
_UNIQUE_ON_MARIADB: Final = sa.text(
    "SELECT i.index_name, i.column_name FROM information_schema.tables t LEFT JOIN information_schema.statistics i"
    " ON i.table_schema = t.table_schema AND i.table_name = t.table_name AND i.non_unique = 0"
    " WHERE t.table_schema = COALESCE(:schema, DATABASE()) AND t.table_name = :name AND t.table_type = 'BASE TABLE'"
)
_UNIQUE: Final = {
    "postgresql": sa.text(
        "SELECT i.indexrelid, a.attname FROM pg_class t LEFT JOIN pg_index i ON i.indrelid = t.oid AND i.indisunique"
        " AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL"
        " LEFT JOIN pg_attribute a ON a.attrelid = i.indexrelid AND a.attnum <= i.indnkeyatts"
        " WHERE t.oid = to_regclass(:name) AND t.relkind IN ('r', 'p')"
    ),
    "mysql": _UNIQUE_ON_MARIADB,
    "mariadb": _UNIQUE_ON_MARIADB,
    "sqlite": sa.text(
        'SELECT l.name, i.name FROM sqlite_master t LEFT JOIN pragma_index_list(t.name) l ON l."unique"'
        " AND NOT l.partial LEFT JOIN pragma_index_info(l.name) i WHERE t.type = 'table' AND t.name = :name"
    ),
}

_FOLDED: Final = sa.text(
    "SELECT column_name FROM information_schema.columns WHERE table_schema = COALESCE(:schema, DATABASE())"
    " AND table_name = :name AND column_name = :column AND RIGHT(collation_name, 4) <> '_bin'"
)


def refuse_unkept(
    conn: sa.Connection,
    table: sa.Table,
    key: Collection[str] = (),
    exact_column: str | None = None,
    *,
    is_anew: bool = False,
) -> None:
    """Raises OutboxConfigError where a roll back would leave the table's rows, or a crash take them alone; or where
    nothing stops a second row of the same `key`, or upper and lower case are the same in `exact_column`.

    Whatever it was made as: servers change engines without a word, administrators do so for speed, or divide tables.
    `is_anew`: also one that was looked at before. While PostgreSQL's is restored it has no key, and no rows, yet.
    """
    is_sqlite = conn.dialect.name == "sqlite"  # there each connection has its own setting
    kept = conn.info.setdefault("outbox_kept", set()) if is_sqlite else _KEPT.setdefault(conn.engine.pool, set())
    if is_anew or table.fullname not in kept:
        flaw = _find_flaw(conn, table) or _find_repetition(conn, table, key) or _find_folding(conn, table, exact_column)
        if flaw is not None:
            raise OutboxConfigError(flaw)
        kept.add(table.fullname)


def _find_flaw(conn: sa.Connection, table: sa.Table) -> str | None:
    name = conn.dialect.identifier_preparer.format_table(table)
    match conn.dialect.name:
        case "sqlite":
            mode = conn.exec_driver_sql("PRAGMA journal_mode").scalar_one()
            is_file = any(file for _, place, file in conn.exec_driver_sql("PRAGMA database_list") if place == "main")
            if mode == "off" or (mode == "memory" and is_file):
                return f"with journal_mode {mode} SQLite takes nothing back after a crash: `PRAGMA journal_mode=WAL`"
        case "mysql" | "mariadb":
            engine = conn.scalar(_ENGINE, {"schema": table.schema, "name": table.name})
            if engine is not None:
                return f"{name} is of {engine}, which has no transactions: `ALTER TABLE {name} ENGINE=InnoDB`"
        case "postgresql":
            if conn.scalar(_IS_UNLOGGED, {"name": name}):
                return f"{name} is unlogged, and a crash would empty it: `ALTER TABLE {name} SET LOGGED`"
    return None


def _find_repetition(conn: sa.Connection, table: sa.Table, key: Collection[str]) -> str | None:
    """All rests on the key: a copy of a table may lack it, and one in partitions may have more columns in it."""
    if not key or (table.schema is not None and conn.dialect.name == "sqlite"):
        return None
    name, columns = conn.dialect.identifier_preparer.format_table(table), ", ".join(key)
    known = {"schema": table.schema, "name": name if conn.dialect.name == "postgresql" else table.name}
    query = _UNIQUE.get(conn.dialect.name)  # an Inspector would switch the connection's error events off
    indexes: dict[object, set[str]] = {}
    for index, column in conn.execute(query, known) if query is not None else ():
        indexes.setdefault(index, set()).add(column)
    if not indexes or any(found <= set(key) for found in indexes.values()):
        return None
    return f"{name} takes two rows of one {columns}: give it PRIMARY KEY ({columns}), with no other column in it"


def _find_folding(conn: sa.Connection, table: sa.Table, column: str | None) -> str | None:
    """MariaDB gives all columns of a table its usual collation when it is converted to another character set."""
    known = {"schema": table.schema, "name": table.name, "column": column}
    if column is None or conn.dialect.name not in {"mysql", "mariadb"} or conn.scalar(_FOLDED, known) is None:
        return None
    name, kind = conn.dialect.identifier_preparer.format_table(table), table.c[column].type.compile(conn.dialect)
    return f"{name}.{column} takes upper for lower case: `ALTER TABLE {name} MODIFY {column} {kind} NOT NULL`"


def _final(name: str) -> str:
    """The same in a migration by hand and in a MetaData that has a naming convention: Alembic compares names."""
    return conv(name)


def _ascii(length: int) -> sa.String:
    """Compared byte by byte: MariaDB's usual collations take upper case for lower case."""
    own = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(own, "mysql", "mariadb")


def _unicode(length: int) -> sa.String:
    """Any text, whatever the database's character set is."""
    own = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.Unicode(length).with_variant(own, "mysql", "mariadb")


def _long_text() -> sa.Text:
    """MariaDB's plain TEXT would end at 64 KiB."""
    return sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")


def _blob() -> sa.LargeBinary:
    """MariaDB's plain BLOB would end at 64 KiB."""
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


# --- what a statement does to the transaction that it is in ---


class StatementEffect(Enum):
    """Of what a session's own methods do not show."""

    COMMIT = 1
    COMMIT_BEFORE = 2  # it begins another one, which commits the one that has been begun
    ROLL_BACK = 3
    WRITE = 4
    SAVEPOINT = 5
    ROLL_BACK_TO = 6  # a savepoint


_BEFORE: Final = r"(?is)(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_COMMITS: Final = re.compile(_BEFORE + r"(?:COMMIT|END|PREPARE\s+TRANSACTION)\b")
# Source: MariaDB, "SQL statements that cause an implicit commit"
_COMMITS_ON_MARIADB: Final = re.compile(
    _BEFORE + r"(?:(?:ALTER|FLUSH|GRANT|INSTALL|LOCK|RENAME|RESET|REVOKE|TRUNCATE|UNINSTALL|UNLOCK)\b"
    r"|(?:CREATE|DROP)\s+(?!(?:OR\s+REPLACE\s+)?TEMPORARY\b)|(?:ANALYZE|CHECK|OPTIMIZE|REPAIR)\s+(?:\w+\s+)?TABLES?\b"
    r"|SET\s+PASSWORD\b|SET\b.*?\bAUTOCOMMIT\s*:?=(?!\s*(?:0|OFF\b|FALSE\b)))"
)
_BEGINS: Final = re.compile(_BEFORE + r"(?:START\s+TRANSACTION|BEGIN(?!\s+NOT\b))\b")
_ROLLS_BACK: Final = re.compile(_BEFORE + r"(?:ABORT|ROLLBACK)\b(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)")
_WRITES: Final = re.compile(
    _BEFORE + r"(?:(?:CALL|COPY|DELETE|INSERT|LOAD|MERGE|REPLACE|UPDATE)\b"
    r"|WITH\b.*?\b(?:(?:INSERT|REPLACE)\s+(?:OR\s+\w+\s+)?INTO|DELETE\s+FROM|(?<!FOR )(?<!KEY )UPDATE)\s)"
)
_SAVEPOINT: Final = re.compile(
    _BEFORE + r"(?:SAVEPOINT|(ROLLBACK)(?:\s+WORK|\s+TRANSACTION)?\s+TO(?:\s+SAVEPOINT)?)\s+([^\s;]+)"
)
_DEFINES: Final = re.compile(_BEFORE + r"(?:ALTER|CREATE|DROP)\b")


def find_effect(statement: str, dialect: str) -> StatementEffect | None:
    """By its first words: what a procedure or a function does is in none of them."""
    if _WRITES.match(statement) or (dialect == "sqlite" and _DEFINES.match(statement)):
        return StatementEffect.WRITE
    is_mariadb = dialect in {"mysql", "mariadb"}
    if is_mariadb and _BEGINS.match(statement):
        return StatementEffect.COMMIT_BEFORE
    if _COMMITS.match(statement) or (is_mariadb and _COMMITS_ON_MARIADB.match(statement)):
        return StatementEffect.COMMIT
    if _ROLLS_BACK.match(statement):
        return StatementEffect.ROLL_BACK
    savepoint = _SAVEPOINT.match(statement)
    if savepoint is None:
        return None
    return StatementEffect.ROLL_BACK_TO if savepoint[1] else StatementEffect.SAVEPOINT


def name_savepoint(statement: str) -> str:
    """That which a statement of the two last kinds begins, or goes back to."""
    savepoint = _SAVEPOINT.match(statement)
    return savepoint[2].strip('"`[]').lower() if savepoint else ""


def begin_on_sqlite(conn: sa.Connection) -> None:
    """Python's sqlite3 begins at the first INSERT, UPDATE or DELETE by its first word: what writes after a WITH, and a
    savepoint before that, would be a transaction of its own, which its end commits."""
    driver: Any = conn.connection.driver_connection
    if conn.dialect.name == "sqlite" and driver.isolation_level is not None and not driver.in_transaction:
        with closing(conn.connection.cursor()) as cursor:
            cursor.execute(f"BEGIN {driver.isolation_level}")


def is_ended(conn: sa.Connection) -> bool:
    """Whether a transaction with rows in it is over, or refuses all that comes, at its driver: cursors of the driver's
    own, as for COPY, tell SQLAlchemy neither of their errors nor of what they end. False where drivers do not say.
    """
    if conn.invalidated or not conn.in_transaction():
        return False
    driver: Any = conn.connection.driver_connection
    match conn.dialect.name, conn.dialect.driver:
        case "postgresql", "psycopg" | "psycopg2":
            return driver.info.transaction_status in _ENDED
        case "postgresql", "asyncpg":
            return not driver.is_in_transaction()
        case "sqlite", _:
            return not driver.in_transaction
    return False


@contextmanager
def leaving_read_only(conn: sa.Connection) -> Iterator[None]:
    """Gives a connection up whose server takes no writes: the next one may lead to the server that has taken over."""
    try:
        yield
    except DBAPIError as error:
        if is_read_only(error):
            conn.invalidate()
        raise


_ENDED: Final = {0, 3}  # libpq's PQTRANS_IDLE and PQTRANS_INERROR

# --- connections that a process was forked with: on its parent's, each may get what the other asked for ---

_PROCESS: Final = "outbox.process"
_INHERITED: list[object] = []  # kept: some drivers take leave of the server, which ends the session of the parent
_ENTRIES: WeakSet[ConnectionPoolEntry] = WeakSet()


@event.listens_for(QueuePool, "connect")
def _note_process(_: object, entry: ConnectionPoolEntry) -> None:
    entry.info[_PROCESS] = os.getpid()
    _ENTRIES.add(entry)


def _empty_pools() -> None:
    """After a fork, before a `pool_pre_ping` asks on the parent's connection and waits for what another has read."""
    for entry in list(_ENTRIES):
        if not entry.in_use:
            _INHERITED.append(entry.dbapi_connection)
            entry.dbapi_connection = None  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_empty_pools)


@event.listens_for(QueuePool, "checkout")
def _replace_inherited(connection: object, entry: ConnectionPoolEntry, proxy: PoolProxiedConnection) -> None:
    """The same where a server forks in C, as uWSGI does. Source: SQLAlchemy, "Using Connection Pools with
    Multiprocessing"."""
    if _is_inherited(entry.info):
        _INHERITED.append(connection)
        entry.dbapi_connection = proxy.dbapi_connection = None  # type: ignore[misc]
        raise DisconnectionError("made by the process that this one was forked from")


def refuse_inherited(conn: sa.Connection) -> sa.Connection:
    """The same. Raises Misuse for one that was in use at the fork."""
    if _is_inherited(conn.info):
        raise Misuse(
            "the session was begun in the process that this one was forked from: close sessions before a fork, and call"
            " `engine.dispose(close=False)` in the child"
        )
    return conn


def _is_inherited(info: Mapping[str, Any]) -> bool:
    """`info`: a connection's; none says who made it where it is older than this module, or of another pool."""
    return _PROCESS in info and bool(info[_PROCESS] != os.getpid())
