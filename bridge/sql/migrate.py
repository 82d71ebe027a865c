"""Brings a database to the revision this release needs. Two at once are safe: one waits, then finds nothing to do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from bridge.core.errors import SqlUnavailable
from bridge.fault_points import FaultPoint, reach
from bridge.sql.engine import RepeatableError, open_migration_engine, translate_error

_LOCK_KEY = 0x6F_75_74_62_6F_78  # any number, the same in every release
_one_at_a_time = threading.Lock()  # alembic keeps its context in module globals


class Revisions(NamedTuple):
    """The revision a database has, None before the first; and the one this release needs."""

    current: str | None
    needed: str

    @property
    def is_current(self) -> bool:
        """Whether nothing is to be done."""
        return self.current == self.needed

    @property
    def is_newer(self) -> bool:
        """Whether a later release has migrated. What it changed leaves this one able to work: see CONTRIBUTING.md."""
        return self.current is not None and self.current.isdigit() and int(self.current) > int(self.needed)


def upgrade(url: str) -> Revisions:
    """Runs what is missing, all or nothing; `current` is what was found. Raises SqlUnavailable."""
    with _one_at_a_time, open_connection(url) as connection:
        before = _read(connection)
        if before.is_newer:
            return before
        _run(connection)
        reach(FaultPoint.MIGRATE_WRITTEN)
    reach(FaultPoint.MIGRATE_COMMITTED)
    return before


def read_revisions(url: str) -> Revisions:
    """What the database has and what it needs. Raises SqlUnavailable."""
    with open_connection(url) as connection:
        return _read(connection)


@contextmanager
def open_connection(url: str) -> Iterator[Connection]:
    """A connection in one SQL transaction that no other migration can be in."""
    engine = open_migration_engine(url)
    try:
        with engine.connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
            yield connection
    except SQLAlchemyError as error:
        translated = translate_error(error, is_committing=False)
        if translated is error:
            raise
        raise (SqlUnavailable(str(translated)) if isinstance(translated, RepeatableError) else translated) from error
    finally:
        engine.dispose()


def _read(connection: Connection) -> Revisions:
    """Without Alembic, which every process would load for it; revisions are numbers, in the names of their files."""
    needed = max(path.name.partition("_")[0] for path in (find_scripts() / "versions").glob("[0-9]*.py"))
    if not sa.inspect(connection).has_table("alembic_version"):
        return Revisions(None, needed)
    return Revisions(connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar(), needed)


def _run(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - nobody else needs it
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(find_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def find_scripts() -> Path:
    """The migrations, beside the package."""
    return Path(__file__).parents[2] / "alembic"
