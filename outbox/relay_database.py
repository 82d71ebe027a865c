"""The database of an outbox, opened by its URL, and the source that a word or a file names."""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, NoSuchTableError, SQLAlchemyError

from outbox.client.errors import DatabaseUnavailable, OutboxConfigError, TableMissing
from outbox.hand_over import HandOver
from outbox.relay import Relay, RelayConfig, first_line, refuse_charset
from outbox.sources import ColumnMap, MappedSource, OutboxSource, OwnSource, debezium_source
from outbox.tables import LEASE_TABLE, OUTBOX_TABLE, make_lease_table, make_outbox_table, refuse_unkept

OWN: Final = "own"
DEBEZIUM: Final = "debezium"
_DEBEZIUM_TABLE: Final = "outboxevent"
_CONNECT_S: Final = 5
_CONNECT_NAMES: Final = {"postgresql": "connect_timeout", "mysql": "connect_timeout", "mariadb": "connect_timeout"}
_PYMYSQL: Final = "`pip install pymysql`, and say mariadb+pymysql://"
_DRIVERS: Final = {
    "postgresql": "`pip install 'outbox-bridge[postgres]'`, and say postgresql+psycopg://",
    "postgres": "SQLAlchemy calls it postgresql+psycopg://",
    "mysql": _PYMYSQL,
    "mariadb": _PYMYSQL,
}


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Which table is read. `kind`: own, debezium, or the path of a TOML file, which names all of it itself.

    `sequence`: for debezium, the column that orders the rows. `archive`: where published rows go, if they are kept.
    """

    kind: str = OWN
    table: str | None = None
    schema: str | None = None
    sequence: str | None = None
    lease_table: str = LEASE_TABLE
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class MappedFile:
    """What such a file holds: a table, its schema, an archive with the same columns, the columns' names."""

    table: str
    columns: ColumnMap
    schema: str | None = None
    archive: str | None = None
    name: str | None = None


class OutboxDatabase:
    """A database by its URL; not connected before it is used."""

    def __init__(self, url: str) -> None:
        """Raises OutboxConfigError."""
        self._engine = _make_engine(url)

    def open_relay(self, spec: SourceSpec, hand_over: HandOver, config: RelayConfig) -> Relay:
        """Looks for the tables. Raises OutboxConfigError, TableMissing, DatabaseUnavailable."""
        mapped = None if spec.kind in {OWN, DEBEZIUM} else read_mapped_file(Path(spec.kind))
        schema = spec.schema if mapped is None else mapped.schema
        with told_errors(), self._engine.connect() as conn:
            refuse_charset(conn)
            source = _named_source(conn, spec) if mapped is None else _mapped_source(conn, mapped)
            _check_keys(conn, source)
            leases = make_lease_table(sa.MetaData(), spec.lease_table, schema)
            _check_table(conn, leases)
        return Relay(self._engine, hand_over, source, leases, config)

    def close(self) -> None:
        """Gives up its connections."""
        self._engine.dispose()


def read_mapped_file(path: Path) -> MappedFile:
    """A file that describes a table. Raises OutboxConfigError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OutboxConfigError(f"{path}: {error.strerror}; a source is own, debezium, or a TOML file") from error
    except ValueError as error:
        raise OutboxConfigError(f"{path}: {error}") from error
    columns = document.pop("columns", {})
    _refuse_unknown(path, document, MappedFile)
    if not isinstance(columns, dict):
        raise OutboxConfigError(f"{path}: columns is a table")
    _refuse_unknown(path, columns, ColumnMap)
    texts = [*document.values(), *(text for name, text in columns.items() if name != "headers")]
    if "table" not in document or not all(isinstance(text, str) for text in texts):
        raise OutboxConfigError(f"{path}: it needs `table`, and every name is a string")
    around = columns.get("topic_format", "{}").replace("{}", "", 1)
    if around == columns.get("topic_format") or "{" in around or "}" in around:
        raise OutboxConfigError(f"{path}: topic_format has one {{}}, where the topic's column goes")
    return MappedFile(columns=ColumnMap(**columns), **document)


@contextmanager
def told_errors() -> Iterator[None]:
    """Errors of the database as ours. Raises DatabaseUnavailable."""
    try:
        yield
    except DBAPIError as error:
        raise DatabaseUnavailable(first_line(error.orig or error)) from error
    except SQLAlchemyError as error:
        raise DatabaseUnavailable(first_line(error)) from error


def _make_engine(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
        timeout = _CONNECT_NAMES.get(parsed.get_backend_name())
        arguments: dict[str, Any] = {} if timeout is None else {timeout: _CONNECT_S}
        if parsed.get_dialect().driver == "psycopg":  # it reads bytes where the database's own is SQL_ASCII
            arguments["client_encoding"] = "utf8"
        engine = sa.create_engine(parsed, pool_pre_ping=True, connect_args=arguments)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        remedy = _DRIVERS.get(url.partition("://")[0].partition("+")[0], "install one that SQLAlchemy knows")
        raise OutboxConfigError(f"no driver for this database URL: {error}; {remedy}") from error
    except ArgumentError as error:
        raise OutboxConfigError("the database URL is driver://user:password@host/name, as SQLAlchemy has it") from error
    if engine.dialect.is_async:
        raise OutboxConfigError(f"{engine.dialect.driver} is a driver of asyncio: name another, such as psycopg")
    if engine.dialect.driver == "psycopg":
        sa.event.listen(engine, "connect", _prepare_nothing_behind_poolers)
    return engine


def _prepare_nothing_behind_poolers(driver: Any, _: object) -> None:  # noqa: ANN401 - psycopg's own connection
    """A statement that one session has prepared is in no other, and behind a pooler each transaction may have another.
    Such a connection has a key of the pooler's own."""
    [pid] = driver.execute("SELECT pg_backend_pid()").fetchone()
    driver.rollback()
    if pid != driver.info.backend_pid:
        driver.prepare_threshold = None


def _named_source(conn: sa.Connection, spec: SourceSpec) -> OutboxSource:
    if spec.kind == OWN:
        table = make_outbox_table(sa.MetaData(), spec.table or OUTBOX_TABLE, spec.schema)
        _check_table(conn, table)
        return OwnSource(table, _archive(conn, spec))
    if spec.sequence is None:
        raise OutboxConfigError("debezium needs --sequence, the column that orders the rows")
    table = _reflect(conn, spec.table or _DEBEZIUM_TABLE, spec.schema)
    if spec.sequence not in table.c:
        raise OutboxConfigError(
            f"{table.name} has no column {spec.sequence}: --sequence names one that orders the rows"
        )
    return debezium_source(table, spec.sequence, archive=_archive(conn, spec))


def _archive(conn: sa.Connection, spec: SourceSpec) -> sa.Table | None:
    return None if spec.archive is None else _reflect(conn, spec.archive, spec.schema)


def _mapped_source(conn: sa.Connection, mapped: MappedFile) -> MappedSource:
    table = _reflect(conn, mapped.table, mapped.schema)
    archive = None if mapped.archive is None else _reflect(conn, mapped.archive, mapped.schema)
    return MappedSource(table, mapped.columns, mapped.name or mapped.table, archive)


def _reflect(conn: sa.Connection, name: str, schema: str | None) -> sa.Table:
    try:
        table = sa.Table(name, sa.MetaData(), schema=schema, autoload_with=conn)
    except NoSuchTableError as error:
        raise TableMissing(name, conn.dialect.name) from error
    refuse_unkept(conn, table)
    return table


def _check_keys(conn: sa.Connection, source: OutboxSource) -> None:
    """SQLite gives a deleted row's number to the next one. Source: SQLite, "SQLite Autoincrement"."""
    table, key = source.table, source.key_column
    is_number = list(table.primary_key.columns) == [key] and isinstance(key.type, sa.Integer)
    if conn.dialect.name != "sqlite" or table.schema is not None or not is_number:
        return
    made_by = conn.scalar(sa.text("SELECT sql FROM sqlite_master WHERE name = :name"), {"name": table.name})
    if made_by is not None and "AUTOINCREMENT" not in made_by.upper():
        raise OutboxConfigError(
            f"SQLite uses values of {table.name}.{key.name} again once their rows are published and deleted, and the"
            f" bridge takes the second row for the first: declare it AUTOINCREMENT, or name another column as `key`"
        )


def _check_table(conn: sa.Connection, table: sa.Table) -> None:
    """One of ours, by its columns: another name may have been given for it."""
    inspector = sa.inspect(conn)
    if not inspector.has_table(table.name, schema=table.schema):
        raise TableMissing(table.name, conn.dialect.name)
    there = {column["name"] for column in inspector.get_columns(table.name, schema=table.schema)}
    missing = [name for name in table.c.keys() if name not in there]  # noqa: SIM118 - of a collection of columns
    if missing:
        remedy = f"compare it with what `python -m outbox.ddl {conn.dialect.name}` writes"
        raise OutboxConfigError(f"{table.name} has no column {', '.join(missing)}: {remedy}")
    refuse_unkept(conn, table)


def _refuse_unknown(path: Path, members: Mapping[str, Any], kind: type) -> None:
    unknown = sorted(members.keys() - {field.name for field in fields(kind)})
    if unknown:
        raise OutboxConfigError(f"{path}: unknown setting {', '.join(unknown)}")
