"""The tables of `outbox` in a user's own history of migrations."""

import subprocess
import sys

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations

from outbox.ddl import (
    create_inbox_table,
    create_outbox_tables,
    create_record_table,
    drop_inbox_table,
    drop_outbox_tables,
    drop_record_table,
)
from outbox.tables import make_tables
from tests.support.source_tree import ROOT
from tests.support.user_database import UserDatabase


def differences(conn: sa.Connection) -> list[object]:
    """What Alembic's autogenerate would change."""
    metadata = sa.MetaData()
    assert len(list(make_tables(metadata))) == 4
    return list(compare_metadata(MigrationContext.configure(conn), metadata))


def test_migration_makes_what_the_metadata_says(user_database: UserDatabase) -> None:
    """Then autogenerate finds nothing to change; and the way back leaves nothing."""
    engine = user_database.engine()
    with engine.begin() as conn:
        op = Operations(MigrationContext.configure(conn))
        create_record_table(op)
        create_outbox_tables(op)
        create_inbox_table(op)
    with engine.connect() as conn:
        assert differences(conn) == []
    with engine.begin() as conn:
        op = Operations(MigrationContext.configure(conn))
        drop_inbox_table(op)
        drop_outbox_tables(op)
        drop_record_table(op)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


def test_plain_sql_makes_the_same(user_database: UserDatabase) -> None:
    """As the module writes it, for those without Alembic."""
    written = subprocess.run(
        [sys.executable, "-m", "outbox.ddl", user_database.name], capture_output=True, text=True, check=True, cwd=ROOT
    )
    engine = user_database.engine()
    with engine.begin() as conn:
        for statement in written.stdout.split(";\n"):
            if statement.strip():
                conn.exec_driver_sql(statement)
    with engine.connect() as conn:
        assert differences(conn) == []
    engine.dispose()


@pytest.mark.parametrize(
    ("arguments", "why"), [([], "say which database"), (["oracle"], "oracle is none of postgresql, ")]
)
def test_unknown_database_is_a_usage_error(arguments: list[str], why: str) -> None:
    """Exit code 2, and the ones it knows; no SQL."""
    command = [sys.executable, "-m", "outbox.ddl", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert "postgresql|mariadb|mysql|sqlite" in run.stderr
    assert run.stderr.splitlines()[1].startswith(why)
