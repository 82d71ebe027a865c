"""What the relays' statements say of a row: its id as leases have it, and whether it is leased, waiting or parked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from outbox.queries import DatabaseNow
from outbox.sources import OutboxSource

WAITING: Final = "waiting"
PARKED: Final = "parked"


class AsRowId(FunctionElement[str]):
    """A key column as text, of the kind that `row_id` is, so that its index can be used."""

    type = sa.String()
    inherit_cache = True
    name = "as_row_id"


@compiles(AsRowId)
def _plain_row_id(element: AsRowId, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - the compiler's own
    return f"CAST({compiler.process(element.clauses, **options)} AS VARCHAR(64))"


@compiles(AsRowId, "mysql")
@compiles(AsRowId, "mariadb")
def _mariadb_row_id(element: AsRowId, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - as above
    return f"(CAST({compiler.process(element.clauses, **options)} AS CHAR(64) CHARACTER SET ascii) COLLATE ascii_bin)"


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


def is_among(dialect: sa.Dialect, column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Whether it is one of these. On PostgreSQL they are one parameter: hundreds are slow to bind and to plan."""
    if dialect.name != "postgresql":
        return column.in_(values)
    return column == sa.any_(sa.literal(list(values), sa.ARRAY(column.type)))


def is_busy(tables: Tables, row_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the row is leased, waits for its next try, or is parked."""
    leases = tables.leases
    is_held = sa.or_(leases.c.state != WAITING, leases.c.free_ms > DatabaseNow())
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
