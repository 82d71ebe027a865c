"""Migrations on real databases."""

import threading

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from api.migration import tell_tables
from bridge.core.errors import SqlUnavailable
from bridge.sql.engine import find_scripts, open_connection, read_revisions, upgrade
from bridge.sql.tables import metadata
from tests.support.postgres import PostgresServer


def test_fresh_database_becomes_current(empty_database_url: str) -> None:
    """`migrate` says what it found; afterwards nothing is left to do."""
    before = upgrade(empty_database_url)
    assert before.current is None
    assert not before.is_current
    assert read_revisions(empty_database_url).is_current


def test_second_migration_changes_nothing(empty_database_url: str) -> None:
    """`migrate` may be run at every start."""
    upgrade(empty_database_url)
    assert upgrade(empty_database_url).is_current


def test_migrations_give_the_tables_of_the_code(database_url: str) -> None:
    """A column added in the code alone would fail only in production."""
    with open_connection(database_url) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_partial_indexes_are_partial_in_the_database(database_url: str) -> None:
    """Alembic does not compare the condition of an index; without it every row would be in it."""
    with open_connection(database_url) as connection:
        source = "sqlite_master" if connection.dialect.name == "sqlite" else "pg_indexes"
        column, name = ("sql", "name") if source == "sqlite_master" else ("indexdef", "indexname")
        rows = dict(connection.execute(sa.text(f"SELECT {name}, {column} FROM {source}")).all())
    for index in ("ix_transactions_ended", "ix_transactions_pending", "ix_transactions_key", "ix_transaction_keys_key"):
        assert "WHERE" in rows[index]


def test_two_migrations_at_once_both_succeed(empty_database_url: str) -> None:
    """Two processes of a first deployment start together: one waits, and finds nothing to do."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(upgrade(empty_database_url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(before.is_current for before in found) == [False, True, True]


def test_tables_of_a_later_release_are_left_alone(empty_database_url: str) -> None:
    """After an upgrade that is taken back, the release before goes on with what the later one made."""
    upgrade(empty_database_url)
    with open_connection(empty_database_url) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    found = upgrade(empty_database_url)
    assert (found.current, found.is_current, found.is_newer) == ("9999", False, True)
    assert tell_tables(found) == "tables are at revision 9999, which a later release made: they were left alone"
    assert read_revisions(empty_database_url).current == "9999"


def test_failing_migration_leaves_nothing_behind(empty_database_url: str) -> None:
    """A table that is in the way: all or nothing, also for DDL."""
    with open_connection(empty_database_url) as connection:
        connection.execute(sa.text("CREATE TABLE audit (id INTEGER)"))
    with pytest.raises((sa.exc.DBAPIError, SqlUnavailable)):
        upgrade(empty_database_url)
    with open_connection(empty_database_url) as connection:
        assert set(sa.inspect(connection).get_table_names()) == {"audit"}


def test_database_out_of_reach_is_told_as_such() -> None:
    """`doctor` and `migrate` name the cause instead of a stack trace."""
    with pytest.raises(SqlUnavailable):
        read_revisions("postgresql://nobody@127.0.0.1:1/nothing")


def test_scripts_are_found_beside_the_package() -> None:
    """In a checkout as in the wheel."""
    assert (find_scripts() / "versions").is_dir()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_database_that_has_no_place_for_all_signs_is_refused(postgres: PostgresServer, encoding: str) -> None:
    """A remark with a sign that it lacks was never projected, and nothing after it: keyed prepares ended in 503."""
    url = postgres.create(f"template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")
    for look in (upgrade, read_revisions):
        with pytest.raises(SqlUnavailable, match=f"{encoding}.*ENCODING 'UTF8'") as refused:
            look(url)
        assert not refused.value.retry_helps


def test_role_without_a_schema_is_told(postgres: PostgresServer) -> None:
    """Instead of a stack trace."""
    url = sa.make_url(postgres.create()).update_query_dict({"options": "-csearch_path=nowhere"})
    with pytest.raises(SqlUnavailable, match="search_path"):
        upgrade(url.render_as_string(hide_password=False))
