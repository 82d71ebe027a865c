"""Databases as a user of `outbox` has them: an SQLite file, a real PostgreSQL, a real MariaDB; empty.

def test_something(user_database: UserDatabase) -> None: ...   # on each of the three

@pytest.mark.parametrize("user_database", ["psycopg2", "pg8000"], indirect=True)   # with other drivers
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.mariadb import MariaServer
from tests.support.postgres import PostgresServer
from tests.support.user_database import MortalDatabase, UserDatabase


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaServer]:
    server = MariaServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def user_database(request: pytest.FixtureRequest, tmp_path: Path) -> UserDatabase:
    """An empty database, on each of the three; or of PostgreSQL with the drivers that are named."""
    if request.param == "sqlite":
        file = tmp_path / "shop.db"
        return UserDatabase("sqlite", f"sqlite:///{file}", f"sqlite+aiosqlite:///{file}")
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = postgres.create()
        return UserDatabase("postgresql", url, url)
    if request.param in {"psycopg2", "pg8000"}:
        return _with_driver(request.getfixturevalue("postgres").create(), request.param)
    return _on_mariadb(request.getfixturevalue("mariadb"))


@pytest.fixture(params=["postgresql", "mariadb"])
def mortal_database(request: pytest.FixtureRequest) -> Iterator[MortalDatabase]:
    """An empty database whose server may be killed; it must be up at the end."""
    server: PostgresServer | MariaServer
    if request.param == "postgresql":
        server = PostgresServer(is_durable=True)
        url = server.create()
        yield MortalDatabase(server, UserDatabase("postgresql", url, url))
    else:
        server = MariaServer(is_durable=True)
        yield MortalDatabase(server, _on_mariadb(server))
    server.close()
    gc.collect()  # what drivers left open is this test's


def _on_mariadb(server: MariaServer) -> UserDatabase:
    name = server.create()
    return UserDatabase("mariadb", server.url_of(name, "pymysql"), server.url_of(name, "aiomysql"))


def _with_driver(url: str, driver: str) -> UserDatabase:
    made = sa.make_url(url)
    place = {"unix_sock": f"{made.query['host']}/.s.PGSQL.5432"} if driver == "pg8000" else made.query
    urls = (made.set(drivername=f"postgresql+{driver}", query=place), made.set(drivername="postgresql+asyncpg"))
    return UserDatabase("postgresql", *[each.render_as_string(hide_password=False) for each in urls])
