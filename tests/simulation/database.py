"""One SQLite database in memory for run after run: emptied by copying a template over it."""

import sqlite3
from functools import cache

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.pool import StaticPool

from bridge.sql.groups import put_group
from bridge.sql.tables import bridge_keys, metadata
from tests.simulation.node import KEY
from tests.simulation.schedule import CALM_GROUPS
from tests.simulation.situations import SETTINGS


def endpoint_of(group: str) -> str:
    """The callback URL of a producer group."""
    return f"https://{group}.example/check"


def instance_endpoint_of(group: str) -> str:
    """The callback URL that an instance of the group registers."""
    return f"https://{group}.example/instance"


def open_database() -> Engine:
    """The engine of this process, over an empty projection and the groups of the schedules."""
    connection, engine = _open()
    _template().backup(connection)
    return engine


def back_up(engine: Engine) -> sqlite3.Connection:
    """A copy of the database as it is."""
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    _dbapi(engine).backup(copy)
    return copy


def restore(copy: sqlite3.Connection, engine: Engine) -> None:
    """Makes the database what it was, and gives the copy back."""
    copy.backup(_dbapi(engine))
    copy.close()


def _dbapi(engine: Engine) -> sqlite3.Connection:
    with engine.connect() as connection:
        found = connection.connection.driver_connection
    assert isinstance(found, sqlite3.Connection)
    return found


@cache
def _template() -> sqlite3.Connection:
    connection, engine = _make()
    with engine.begin() as conn:
        metadata.create_all(conn)
        for group in CALM_GROUPS:
            put_group(conn, group, SETTINGS, [endpoint_of(group)], 0)
        conn.execute(sa.insert(bridge_keys).values(key_id=KEY.key_id, secret=KEY.secret, signs=1, created_ms=0))
    return connection


@cache
def _open() -> tuple[sqlite3.Connection, Engine]:
    return _make()


def _make() -> tuple[sqlite3.Connection, Engine]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")  # as the bridge has it: a group takes its endpoints with it
    engine = sa.create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    engine.dialect.do_begin = lambda _: connection.execute("BEGIN")  # an event would cost every statement something
    return connection, engine
