"""The tables of `outbox` in a user's own Alembic history: the real command in a project of its own."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.alembic_project import AlembicProject
from tests.support.user_database import UserDatabase

OURS = {"outbox_transaction", "outbox_message", "outbox_lease"}
CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
UPGRADE = """op.create_table(
        "orders",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(9)),
        sa.UniqueConstraint("name", name="uq_orders_name"),
    )
    ddl.create_record_table(op)
    ddl.create_outbox_tables(op)"""
DOWNGRADE = """ddl.drop_outbox_tables(op)
    ddl.drop_record_table(op)
    op.drop_table("orders")"""


def tables_of(database: UserDatabase) -> set[str]:
    engine = database.engine()
    names = set(sa.inspect(engine).get_table_names()) - {"alembic_version"}
    engine.dispose()
    return names


@pytest.fixture(params=[{}, CONVENTION], ids=["plain", "convention"])
def project(request: pytest.FixtureRequest, user_database: UserDatabase, tmp_path: Path) -> AlembicProject:
    """With names of constraints as the database makes them, and by a convention, as many projects have one."""
    folder = tmp_path / "project"
    folder.mkdir()
    return AlembicProject(folder, user_database.url, request.param)


def test_autogenerate_writes_a_migration_that_is_complete(project: AlembicProject, user_database: UserDatabase) -> None:
    """It runs as it was written; then nothing is left to change; and the way back leaves nothing."""
    project.run("revision", "--autogenerate", "-m", "with outbox")
    project.run("upgrade", "head")
    assert tables_of(user_database) >= OURS
    project.run("check")
    project.run("downgrade", "base")
    assert tables_of(user_database) == set()


def test_migration_by_hand_makes_what_autogenerate_expects(
    project: AlembicProject, user_database: UserDatabase
) -> None:
    """Whoever calls `create_record_table(op)` is not told later to change constraints or types."""
    project.write_migration(UPGRADE, DOWNGRADE)
    project.run("upgrade", "head")
    assert tables_of(user_database) >= OURS
    project.run("check")
    project.run("downgrade", "base")
    assert tables_of(user_database) == set()


def test_offline_migration_is_sql_that_the_server_takes(project: AlembicProject, user_database: UserDatabase) -> None:
    """`alembic upgrade head --sql`, for those whose databases only an administrator may change."""
    project.write_migration(UPGRADE, DOWNGRADE)
    written = project.run("upgrade", "head", "--sql")
    statements = [part.strip() for part in written.split(";\n")]
    engine = user_database.engine()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for statement in statements:
            if statement and statement not in {"BEGIN", "COMMIT"}:
                conn.exec_driver_sql(statement)
    engine.dispose()
    project.run("check")
