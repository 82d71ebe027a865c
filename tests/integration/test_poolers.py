"""Behind PgBouncer each transaction may be in another session of PostgreSQL: nothing may rest on a session."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import psycopg
import pytest
import sqlalchemy as sa

from bridge.core.errors import SqlUnavailable
from bridge.sql.bulk import add_rows, insert_rows
from bridge.sql.engine import Database, SqlConfig, read_revisions, upgrade
from bridge.sql.tables import group_counts, leases
from outbox.client.listener import Resolution
from outbox.hand_over import MemoryHandOver
from outbox.relay import Notifier, RelayConfig
from outbox.relay_database import OutboxDatabase, SourceSpec
from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord
from tests.support.cli_process import wait_for
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.pgbouncer import Pooler
from tests.support.postgres import PostgresServer
from tests.support.record_checks import ask
from tests.support.user_database import UserDatabase

LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
SETTINGS = (*LIMITS, "synchronous_commit")
COUNTS = ("producer_group", "prepared", "committed", "blocked", "rolled_back", "parked")
SHARED = 2  # sessions, for more clients than that


@pytest.fixture(params=["transaction", "session"])
def pooler(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[Pooler]:
    """In either mode that has transactions."""
    with closing(Pooler(postgres, request.param, SHARED if request.param == "transaction" else 20)) as made:
        yield made


@pytest.fixture
def shared(postgres: PostgresServer) -> Iterator[Pooler]:
    """Few sessions for all."""
    with closing(Pooler(postgres, "transaction", SHARED)) as made:
        yield made


def connect(url: str) -> "psycopg.Connection[tuple[str, ...]]":
    """As another service does, which prepares nothing."""
    return psycopg.connect(url.replace("+psycopg", ""), prepare_threshold=None)


def read_sessions(url: str, *queries: str) -> list[list[str]]:
    """What the next clients find in sessions, two at once."""
    with connect(url) as one, connect(url) as other:
        return [[str(conn.execute(query.encode()).fetchall()) for query in queries] for conn in (one, other)]


async def test_bridge_works_behind_a_pooler(pooler: Pooler, postgres: PostgresServer) -> None:
    """Each SQL transaction has its limits and is durable, however sessions are passed on, and the next client of one
    finds nothing of it."""
    direct = postgres.create()
    with connect(direct) as conn:
        name = sa.make_url(direct).database
        conn.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    url = pooler.url_of(direct)
    assert (await asyncio.to_thread(upgrade, url)).current is None
    assert (await asyncio.to_thread(read_revisions, url)).is_current
    databases = [Database(url, SqlConfig(statement_timeout_ms=9_000, call_timeout_ms=60_000)) for _ in range(2)]

    def read_settings(conn: sa.Connection, names: tuple[str, ...] = LIMITS) -> tuple[str, ...]:
        return tuple([conn.execute(sa.text(f"SHOW {name}")).scalar_one() for name in names])

    def write(conn: sa.Connection, number: int) -> tuple[str, ...]:
        insert_rows(conn, leases, ("name", "owner", "until_ms"), [(f"{number}-{n}", "me", n) for n in range(3)])
        add_rows(conn, group_counts, COUNTS, [("a", 1, 0, 0, 0, 0), ("b", 2, 0, 0, 0, 0)])
        return read_settings(conn, SETTINGS)

    for turn in range(10):  # more often than it takes to have a statement prepared
        numbers = range(turn * 8, turn * 8 + 8)
        written = [databases[number % 2].run(partial(write, number=number)) for number in numbers]
        found = [databases[number % 2].read(read_settings) for number in numbers]
        assert set(await asyncio.gather(*written)) == {("9s", "9s", "45s", "on")}
        assert set(await asyncio.gather(*found)) == {("9s", "9s", "45s")}
    counted = await databases[0].read(lambda conn: conn.execute(sa.select(group_counts.c.prepared)).scalars().all())
    assert sorted(counted) == [80, 160]
    for database in databases:
        await database.close()
    queries = [f"SHOW {name}" for name in SETTINGS]
    assert read_sessions(url, *queries) == read_sessions(direct, *queries)


async def test_pooler_that_leaves_no_transaction_whole_is_named(postgres: PostgresServer) -> None:
    """The database itself can be reached; what the pooler says of its own is told."""
    with closing(Pooler(postgres, "statement", SHARED)) as pooler:
        database = Database(pooler.url_of(postgres.create()))
        with pytest.raises(SqlUnavailable, match="database's pooler refuses: transaction blocks not allowed"):
            await database.read(lambda conn: None)
        await database.close()


def test_relays_work_behind_a_pooler(
    pooler: Pooler, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What one of them repeats, and so might prepare, is in the other's session the next time; each row comes once."""
    url, bridge, stop = pooler.url_of(postgres.create()), MemoryHandOver(), threading.Event()
    world = OutboxWorld(UserDatabase("postgresql", url, url))
    for number in range(20):
        world.enqueue(*[Sent("orders", b"%d" % key, b"%d" % number) for key in range(3)])
    outboxes = [OutboxDatabase(url) for _ in range(2)]
    relays = [one.open_relay(SourceSpec(), bridge, RelayConfig(max_rows=2, poll_ms=20)) for one in outboxes]
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(relay.run_forever, stop) for relay in relays]
        try:
            wait_for(lambda: world.count() == (0, 0), "an empty outbox")
        finally:
            stop.set()
        for one in running:
            one.result()
    assert len(bridge.published) == len({row.row for row in bridge.published}) == 60
    assert [record.message for record in caplog.records if "not_notified" not in record.message] == []
    for outbox in outboxes:
        outbox.close()


def enqueue_until(world: OutboxWorld, is_over: threading.Event) -> None:
    while not is_over.wait(0.1):
        world.enqueue(Sent("orders"))


def test_relay_is_woken_through_a_pooler_that_leaves_it_a_session(
    pooler: Pooler, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it has none it says so, once, and looks by itself; what it would listen for must not reach others."""
    url, is_over = pooler.url_of(postgres.create()), threading.Event()
    world = OutboxWorld(UserDatabase("postgresql", url, url))
    is_shared = pooler.mode == "transaction"
    with ThreadPoolExecutor() as pool, closing(Notifier(world.engine)) as waker:
        enqueuing = pool.submit(enqueue_until, world, is_over)
        for _ in range(2):
            waker.wait(threading.Event(), 10 if is_shared else 3_600_000)
        is_over.set()
        enqueuing.result()
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["relay_not_notified"] * is_shared
    if is_shared:
        assert read_sessions(url, "SELECT pg_listening_channels()") == [["[]"]] * SHARED


def test_checks_leave_no_limits_in_a_session(shared: Pooler, postgres: PostgresServer) -> None:
    """Each wait of theirs is short; the next client's may be long."""
    direct, record = postgres.create(), TransactionRecord(make_record_table(sa.MetaData()))
    url = shared.url_of(direct)
    engine = UserDatabase("postgresql", url, url).engine()
    record.table.metadata.create_all(engine)
    assert ask(record, engine, "never") == [Resolution.ROLLBACK]
    queries = [f"SHOW {name}" for name in SETTINGS]
    assert read_sessions(url, *queries) == read_sessions(direct, *queries)
