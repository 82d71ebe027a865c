"""The tables in a user's own migrations: for Alembic, or as plain SQL.

In a migration of yours (its number, its history; works with `--sql` too):

    def upgrade() -> None:
        create_record_table(op)
        create_outbox_tables(op)
        create_inbox_table(op)

    def downgrade() -> None:
        drop_inbox_table(op)
        drop_outbox_tables(op)
        drop_record_table(op)

With `--autogenerate`, add `make_record_table(Base.metadata)` and the others to the models' MetaData instead.
Without Alembic: `python -m outbox.ddl postgresql` (or mariadb, mysql, sqlite) writes the SQL.
"""

import sys
from collections.abc import Sequence
from typing import Final, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable, ExecutableDDLElement

from outbox.client.errors import OutboxConfigError
from outbox.tables import (
    INBOX_TABLE,
    LEASE_TABLE,
    OUTBOX_TABLE,
    RECORD_TABLE,
    make_inbox_table,
    make_lease_table,
    make_outbox_table,
    make_record_table,
    make_tables,
)

_DIALECTS: Final[dict[str, sa.Dialect]] = {
    "postgresql": postgresql.dialect(),  # type: ignore[no-untyped-call]
    "mariadb": MySQLDialect(is_mariadb=True),
    "mysql": mysql.dialect(),
    "sqlite": sqlite.dialect(),
}


class Operations(Protocol):
    """Alembic's `op`."""

    def execute(self, sqltext: ExecutableDDLElement) -> None:
        """Runs it, or writes it down in offline mode."""
        ...


def create_record_table(op: Operations, name: str = RECORD_TABLE, schema: str | None = None) -> None:
    """The transaction records."""
    _create(op, make_record_table(sa.MetaData(), name, schema))


def drop_record_table(op: Operations, name: str = RECORD_TABLE, schema: str | None = None) -> None:
    """Only when no transaction of this database can be asked about any more: a lost record reads as a rollback."""
    op.execute(DropTable(make_record_table(sa.MetaData(), name, schema)))


def create_outbox_tables(
    op: Operations, name: str = OUTBOX_TABLE, lease_name: str = LEASE_TABLE, schema: str | None = None
) -> None:
    """The outbox and the relays' leases."""
    _create(op, make_outbox_table(sa.MetaData(), name, schema))
    create_lease_table(op, lease_name, schema)


def create_lease_table(op: Operations, name: str = LEASE_TABLE, schema: str | None = None) -> None:
    """The relays' leases alone, for an outbox of somebody else's making."""
    _create(op, make_lease_table(sa.MetaData(), name, schema))


def drop_outbox_tables(
    op: Operations, name: str = OUTBOX_TABLE, lease_name: str = LEASE_TABLE, schema: str | None = None
) -> None:
    """With all rows that wait in them."""
    op.execute(DropTable(make_lease_table(sa.MetaData(), lease_name, schema)))
    op.execute(DropTable(make_outbox_table(sa.MetaData(), name, schema)))


def create_inbox_table(op: Operations, name: str = INBOX_TABLE, schema: str | None = None) -> None:
    """The messages that consumers have seen."""
    _create(op, make_inbox_table(sa.MetaData(), name, schema))


def drop_inbox_table(op: Operations, name: str = INBOX_TABLE, schema: str | None = None) -> None:
    """Whatever is delivered again after that is new."""
    op.execute(DropTable(make_inbox_table(sa.MetaData(), name, schema)))


def write_sql(database: str, schema: str | None = None) -> str:
    """All statements for a database, each ended by a semicolon. Raises OutboxConfigError at an unknown one."""
    dialect = _DIALECTS.get(database)
    if dialect is None:
        raise OutboxConfigError(f"{database} is none of {', '.join(_DIALECTS)}")
    elements = [element for table in make_tables(sa.MetaData(), schema) for element in _elements(table)]
    return "".join(f"{str(element.compile(dialect=dialect)).strip()};\n\n" for element in elements)


def _create(op: Operations, table: sa.Table) -> None:
    for element in _elements(table):
        op.execute(element)


def _elements(table: sa.Table) -> Sequence[ExecutableDDLElement]:
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    return [CreateTable(table), *(CreateIndex(index) for index in indexes)]


def main(arguments: Sequence[str]) -> int:
    """`python -m outbox.ddl DATABASE [SCHEMA]`."""
    try:
        sys.stdout.write(write_sql(*arguments[:2]))
    except (OutboxConfigError, TypeError) as error:
        why = error if arguments else "say which database"
        sys.stderr.write(f"usage: python -m outbox.ddl {'|'.join(_DIALECTS)} [SCHEMA]\n{why}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
