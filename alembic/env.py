"""Runs migrations on the connection that `bridge.sql.engine` gives, or on `-x url=` for `alembic revision`."""

from alembic import context

from bridge.sql.engine import open_connection
from bridge.sql.tables import metadata


def run() -> None:
    """One SQL transaction for all migrations: also SQLite rolls its DDL back."""
    given = context.config.attributes.get("connection")
    if given is not None:
        migrate(given)
        return
    with open_connection(context.get_x_argument(as_dictionary=True)["url"]) as connection:
        migrate(connection)


def migrate(connection) -> None:  # noqa: ANN001 - alembic's own type is not public
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


run()
