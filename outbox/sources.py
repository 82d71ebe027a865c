"""Which table a relay reads, and how a row of it becomes a message. Other tables than ours are described by columns."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from outbox.client.errors import OutboxConfigError
from outbox.enqueue import decode_headers
from outbox.hand_over import OutboxRow

DEBEZIUM_TOPIC: Final = "outbox.event.{}"


class OutboxSource(Protocol):
    """A table of rows that wait to be published. Rows are deleted, or moved to `archive`, once they are."""

    @property
    def name(self) -> str:
        """In leases and idempotency keys: it must not change while rows wait."""
        ...

    @property
    def table(self) -> sa.Table: ...

    @property
    def archive(self) -> sa.Table | None:
        """A table with the same columns."""
        ...

    @property
    def key_column(self) -> sa.Column[Any]:
        """Names a row for ever: it is never used again, for it is the idempotency key."""
        ...

    @property
    def sequence_column(self) -> sa.Column[Any]:
        """Rows are published in its order."""
        ...

    @property
    def group_column(self) -> sa.Column[Any] | None:
        """Rows that have the same are published one after the other; None: no order is kept."""
        ...

    def read(self, columns: Mapping[str, Any], row_id: str, attempts: int) -> OutboxRow:
        """Columns by name -> the row. Raises ValueError, KeyError or TypeError at what is no message."""
        ...


@dataclass(frozen=True, slots=True)
class OwnSource:
    """A table made by `make_outbox_table`."""

    table: sa.Table
    archive: sa.Table | None = None
    name: str = "outbox"

    def __post_init__(self) -> None:
        if self.archive is not None:
            _check_columns(self.archive, self.table.c.keys())

    @property
    def key_column(self) -> sa.Column[Any]:
        return self.table.c.message_id

    @property
    def sequence_column(self) -> sa.Column[Any]:
        return self.table.c.id

    @property
    def group_column(self) -> sa.Column[Any]:
        return self.table.c.order_hash

    def read(self, columns: Mapping[str, Any], row_id: str, attempts: int) -> OutboxRow:
        return OutboxRow(
            row=columns["message_id"],
            row_id=row_id,
            idempotency_key=row_id,
            topic=columns["topic"],
            key=columns["key"],
            value=columns["value"],
            headers=decode_headers(columns["headers"]),
            partition=columns["partition"],
            timestamp_ms=columns["timestamp_ms"],
            ordering_key=columns["ordering_key"],
            attempts=attempts,
        )


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Names of columns. `sequence` orders the rows; `headers`: column by header name; `topic_format` has one `{}`."""

    key: str = "id"
    sequence: str = "id"
    topic: str = "topic"
    topic_format: str = "{}"
    message_key: str | None = "key"
    value: str = "payload"
    headers: Mapping[str, str] | None = None
    timestamp_ms: str | None = None


@dataclass(frozen=True, slots=True)
class MappedSource:
    """A table of somebody else, described by its columns. Order is kept among rows with one message key."""

    table: sa.Table
    columns: ColumnMap
    name: str
    archive: sa.Table | None = None

    def __post_init__(self) -> None:
        names = self.columns
        optional = [name for name in (names.message_key, names.timestamp_ms) if name is not None]
        named = [names.key, names.sequence, names.topic, names.value, *optional, *(names.headers or {}).values()]
        _check_columns(self.table, named)
        if self.archive is not None:
            _check_columns(self.archive, self.table.c.keys())

    @property
    def key_column(self) -> sa.Column[Any]:
        return self.table.c[self.columns.key]

    @property
    def sequence_column(self) -> sa.Column[Any]:
        return self.table.c[self.columns.sequence]

    @property
    def group_column(self) -> sa.Column[Any] | None:
        return None if self.columns.message_key is None else self.table.c[self.columns.message_key]

    def read(self, columns: Mapping[str, Any], row_id: str, attempts: int) -> OutboxRow:
        names = self.columns
        headers = names.headers or {}
        if columns[names.topic] is None:
            raise ValueError("it names no topic")
        return OutboxRow(
            row=columns[names.key],
            row_id=row_id,
            idempotency_key=f"{self.name}:{row_id}",
            topic=names.topic_format.format(columns[names.topic]),
            key=None if names.message_key is None else to_bytes(columns[names.message_key]),
            value=to_bytes(columns[names.value]),
            headers=tuple((header, to_bytes(columns[column])) for header, column in headers.items()),
            timestamp_ms=None if names.timestamp_ms is None else columns[names.timestamp_ms],
            attempts=attempts,
        )


def debezium_source(
    table: sa.Table, sequence: str, *, topic_format: str = DEBEZIUM_TOPIC, archive: sa.Table | None = None
) -> MappedSource:
    """Debezium's outbox table (id, aggregatetype, aggregateid, type, payload), published as its EventRouter does.

    Topic `outbox.event.<aggregatetype>`, key aggregateid, value payload, header `id`. `sequence`: a column that
    orders the rows, which Debezium takes from the database's log and its table need not have: an identity column or
    a time of insertion. Source: Debezium, "Outbox Event Router".
    """
    columns = ColumnMap(
        sequence=sequence,
        topic="aggregatetype",
        topic_format=topic_format,
        message_key="aggregateid",
        headers={"id": "id"},
    )
    return MappedSource(table, columns, table.name, archive)


def _check_columns(table: sa.Table, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in table.c]
    if missing:
        there = ", ".join(table.c.keys())
        raise OutboxConfigError(f"{table.name} has no column {', '.join(missing)}; it has {there}")


def to_bytes(value: object) -> bytes | None:
    """A column's value as a message has it: bytes as they are, all else as its text.

    Raises TypeError at JSON that the driver has read, from a column that is not declared as JSON.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, dict | list):
        raise TypeError("the table must declare this column as JSON")
    return str(value).encode()


# --- rows as statements name, measure and read them ---


def is_among(dialect: sa.Dialect, column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Whether it is one of these. On PostgreSQL they are one parameter: hundreds are slow to bind and to plan."""
    if dialect.name != "postgresql" or isinstance(values[0], bytes):  # psycopg may write a list of bytes as others
        return column.in_(values)
    kind = sa.ARRAY(column.type)
    if not isinstance(values[0], str | int | uuid.UUID):
        return column == sa.any_(sa.literal(list(values), kind))
    # in a subquery it is read once, not for each row of a table that PostgreSQL takes for too small for its index
    listed = sa.select(sa.cast(sa.literal(_write_array(values), sa.Text), kind)).scalar_subquery()
    return column == sa.any_(sa.cast(listed, kind))


def _write_array(values: Sequence[Any]) -> str:
    """As PostgreSQL reads one: drivers take a while for each value of a list."""
    listed = [str(value) for value in values]
    joined = "".join(listed)
    if '"' in joined or "\\" in joined:
        listed = [text.replace("\\", r"\\").replace('"', r"\"") for text in listed]
    return '{"' + '","'.join(listed) + '"}'


def count_bytes(table: sa.Table, dialect: str) -> sa.ColumnElement[int]:
    """Of all that is in a row."""
    total: sa.ColumnElement[int] = sa.literal(0)
    for column in table.c:
        if dialect == "sqlite":
            length = sa.func.length(sa.cast(column, sa.LargeBinary))  # of a text it would count characters
        elif dialect == "postgresql" and not isinstance(column.type, sa.LargeBinary):
            length = sa.func.octet_length(sa.cast(column, sa.Text))
        else:
            length = sa.func.octet_length(column)
        total = total + sa.func.coalesce(length, 0)
    return total


def as_read(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """JSON as its text: read and written again, digits and the order of members would change."""
    return sa.cast(column, sa.Text).label(column.name) if isinstance(column.type, sa.JSON) else column


# --- a row's key as text, by which leases and the bridge know it ---


class AsRowId(FunctionElement[str]):
    """A key column as text, of the kind that `row_id` is, so that its index can be used.

    A key that does not fit into one is known by its digest: cut off, or with other signs in it, two would be one.
    """

    type = sa.String()
    inherit_cache = True
    name = "as_row_id"


_ROW_ID_LENGTH: Final = 64
_ANY_LENGTH: Final = (sa.LargeBinary, sa.BINARY, sa.VARBINARY, sa.types.NullType)


def _fits(kind: sa.types.TypeEngine[Any]) -> bool:
    """Whether no key of this type is longer than a row id."""
    if isinstance(kind, sa.String):
        return kind.length is not None and kind.length <= _ROW_ID_LENGTH
    return not isinstance(kind, _ANY_LENGTH)


@compiles(AsRowId)
def _plain_row_id(element: AsRowId, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - the compiler's own
    return f"CAST({compiler.process(element.clauses, **options)} AS VARCHAR(64))"


@compiles(AsRowId, "postgresql")
def _postgres_row_id(element: AsRowId, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - as above
    key, (column,) = compiler.process(element.clauses, **options), element.clauses
    short = f"CAST({key} AS VARCHAR(64))"
    if _fits(column.type):
        return short
    text = f"CAST({key} AS TEXT)"
    return f"(CASE WHEN length({text}) <= 64 THEN {short} ELSE encode(sha256(convert_to({text}, 'UTF8')), 'hex') END)"


@compiles(AsRowId, "mysql")
@compiles(AsRowId, "mariadb")
def _mariadb_row_id(element: AsRowId, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - as above
    key, (column,) = compiler.process(element.clauses, **options), element.clauses
    own = column.type.dialect_impl(compiler.dialect)
    short, digest = (f"CAST({text} AS CHAR(64) CHARACTER SET ascii)" for text in (key, f"SHA2({key}, 256)"))
    is_text = isinstance(column.type, sa.String)
    if not _fits(column.type) or (is_text and getattr(own, "charset", None) != "ascii"):
        short = f"CASE WHEN LENGTH({key}) <= 64 AND HEX({key}) REGEXP '^([0-7].)*$' THEN {short} ELSE {digest} END"
    return f"({short} COLLATE ascii_bin)"
