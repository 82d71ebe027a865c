"""Databases as a user of `outbox` has them: an SQLite file, a real PostgreSQL, a real MariaDB; empty.

pytest_plugins = ["tests.support.postgres", "tests.support.user_databases"]

def test_something(user_database: UserDatabase) -> None: ...   # on each of the three
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mariadb import MariaServer
from tests.support.postgres import PostgresServer
from tests.support.user_database import UserDatabase


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaServer]:
    server = MariaServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def user_database(request: pytest.FixtureRequest, tmp_path: Path) -> UserDatabase:
    """An empty database, on each of the three."""
    name: str = request.param
    if name == "sqlite":
        file = tmp_path / "shop.db"
        return UserDatabase(name, f"sqlite:///{file}", f"sqlite+aiosqlite:///{file}")
    if name == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = postgres.create()
        return UserDatabase(name, url, url)
    mariadb: MariaServer = request.getfixturevalue("mariadb")
    made = mariadb.create()
    return UserDatabase(name, mariadb.url_of(made, "pymysql"), mariadb.url_of(made, "aiomysql"))
