"""The relay while its database is killed and comes back, or has a wrong clock."""

import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from outbox.client.errors import HandOverUnavailable, OutboxConfigError
from outbox.enqueue import enqueue
from outbox.hand_over import MemoryHandOver, OutboxRow, PublishResult, PublishStatus
from outbox.relay import Notifier, Relay, RelayConfig
from outbox.relay_database import OutboxDatabase, SourceSpec
from outbox.sources import OwnSource
from tests.support.cli_process import wait_for
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.postgres import PostgresServer
from tests.support.user_database import MortalDatabase, Server, UserDatabase

# PyMySQL leaves the sockets of refused connections to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
LONG_LEASE = RelayConfig(lease_ms=3_600_000, min_delay_ms=10, max_delay_ms=100, poll_ms=20)


class FatalHandOver:
    """The database dies when the bridge has published, before that is noted; the first time only."""

    def __init__(self, server: Server) -> None:
        self._bridge = MemoryHandOver()
        self._server = server
        self.killed = threading.Event()
        self.values: list[bytes | None] = []

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        self.values += [row.value for row in rows]
        fates = self._bridge.publish(rows)
        if not self.killed.is_set():
            self._server.kill()
            self.killed.set()
        return fates


def test_database_that_was_killed_costs_no_lease(mortal_database: MortalDatabase) -> None:
    """What was published is noted as soon as the database is back, not when the lease is over; nothing comes twice."""
    server, world = mortal_database.server, OutboxWorld(mortal_database.database)
    world.enqueue(*[Sent("orders", b"k", b"%d" % number) for number in range(3)])
    hand_over, stop = FatalHandOver(server), threading.Event()
    thread = threading.Thread(target=world.relay(hand_over, LONG_LEASE).run_forever, args=(stop,))
    thread.start()
    try:
        assert hand_over.killed.wait(60)
        server.start()
        wait_for(lambda: world.count() == (0, 0), "an empty outbox")
    finally:
        stop.set()
        thread.join(60)
    assert hand_over.values == [b"0", b"1", b"2"]
    world.engine.dispose()


def test_relay_is_stopped_while_its_database_is_away(mortal_database: MortalDatabase) -> None:
    """It waits for nothing then."""
    server, world = mortal_database.server, OutboxWorld(mortal_database.database)
    world.enqueue(Sent("orders", b"k", b"0"))
    hand_over, stop = FatalHandOver(server), threading.Event()
    thread = threading.Thread(target=world.relay(hand_over, LONG_LEASE).run_forever, args=(stop,))
    thread.start()
    assert hand_over.killed.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    server.start()


def test_stop_ends_a_wait_for_rows(user_database: UserDatabase) -> None:
    """However long the pause between looks is: a relay that is told to end has seconds, not a minute."""
    engine, stop = user_database.engine(), threading.Event()
    waker, began_s = Notifier(engine), time.monotonic()
    threading.Timer(0.2, stop.set).start()
    waker.wait(stop, 20_000)
    waker.close()
    engine.dispose()
    assert time.monotonic() - began_s < 10


def test_lease_of_a_clock_that_was_years_ahead_is_over(user_database: UserDatabase) -> None:
    """The database's was, and has been set back: its row, and all behind it, would wait for that year."""
    world = OutboxWorld(user_database)
    world.enqueue(Sent("orders", b"a", b"1"), Sent("orders", b"a", b"2"), Sent("orders", None, b"3"))
    bridge = MemoryHandOver()
    bridge.unsure_topics.add("orders")
    relay = world.relay(bridge, RelayConfig(min_delay_ms=60_000))
    assert relay.run_once().delayed == 2
    bridge.unsure_topics.clear()
    assert relay.run_once().claimed == 0
    with world.engine.begin() as conn:
        ahead_ms = 20 * 365 * 86_400_000
        conn.execute(sa.update(world.leases).values(free_ms=world.leases.c.free_ms + ahead_ms))
    assert [relay.run_once().published for _ in range(2)] == [2, 1]
    assert world.count() == (0, 0)
    world.engine.dispose()


class FatalAgain(MemoryHandOver):
    """The database dies whenever a row has been published."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        fates = super().publish(rows)
        self._server.kill()
        return fates


@pytest.mark.parametrize("mortal_database", ["postgresql"], indirect=True)
def test_row_is_durable_before_it_is_published(mortal_database: MortalDatabase) -> None:
    """With synchronous_commit off, a crash took back the local transaction whose message was out already."""
    server, world = mortal_database.server, OutboxWorld(mortal_database.database)
    with world.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for setting in ("synchronous_commit = off", "wal_writer_delay = '10s'"):
            conn.exec_driver_sql(f"ALTER SYSTEM SET {setting}")
        conn.exec_driver_sql("SELECT pg_reload_conf()")
        conn.exec_driver_sql("CHECKPOINT")  # so that the log's writer sleeps
    world.enqueue(Sent("orders", b"k", b"0"))
    hand_over = FatalAgain(server)
    relay = world.relay(hand_over)
    with pytest.raises(sa.exc.OperationalError):
        relay.run_once()
    server.start()
    wait_for(partial(_answers, world.engine), "a database that has recovered")
    assert [row.value for row in hand_over.published] == [b"0"]
    assert world.count() == (1, 1)


def _answers(engine: sa.Engine) -> bool:
    try:
        with engine.connect():
            return True
    except sa.exc.OperationalError:
        return False


class Interrupt(threading.Event):
    """Ctrl-C while the relay waits for rows."""

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__()
        self._pool = engine.pool

    def is_set(self) -> bool:
        if isinstance(self._pool, sa.QueuePool) and self._pool.checkedout():
            raise KeyboardInterrupt
        return False


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_relay_that_is_interrupted_leaves_nothing_in_the_pool(user_database: UserDatabase) -> None:
    """Its connection for notifications commits each statement by itself: the service's next session kept what was
    rolled back."""
    world = OutboxWorld(user_database)
    engine = sa.create_engine(user_database.url, pool_use_lifo=True)  # what the relay gave back last comes first
    with pytest.raises(KeyboardInterrupt):
        Relay(engine, MemoryHandOver(), OwnSource(world.table), world.leases).run_forever(Interrupt(engine))
    gc.collect()
    with orm.Session(engine) as session:
        enqueue(session, Sent("orders"), table=world.table)
        session.rollback()
    engine.dispose()
    assert world.count() == (0, 0)


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_relay_leaves_a_server_that_takes_no_writes_any_more(user_database: UserDatabase) -> None:
    """Another has taken over, and connections to this one have outlived that: each answers, and none can be used."""
    world, engine, hand_over = OutboxWorld(user_database), sa.create_engine(user_database.url), MemoryHandOver()
    with engine.begin() as conn:
        conn.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")  # this connection's server
    world.enqueue(Sent("orders"))
    relay = Relay(engine, hand_over, OwnSource(world.table), world.leases)
    with pytest.raises(sa.exc.InternalError):
        relay.run_once()
    assert relay.run_once().published == 1
    engine.dispose()


@pytest.mark.parametrize("user_database", ["mariadb"], indirect=True)
def test_relay_that_would_read_other_messages_than_were_written_is_refused(user_database: UserDatabase) -> None:
    """MariaDB gives a ? for each sign that the connection's character set lacks: messages were published so."""
    OutboxWorld(user_database).engine.dispose()
    opened = OutboxDatabase(f"{user_database.url}&charset=utf8mb3")
    with pytest.raises(OutboxConfigError, match="charset=utf8mb4"):
        opened.open_relay(SourceSpec(), MemoryHandOver(), RelayConfig())
    opened.close()
    engine = sa.create_engine(f"{user_database.url}&charset=latin1")
    world = OutboxWorld(user_database)
    with pytest.raises(OutboxConfigError, match="charset=utf8mb4"):
        Relay(engine, MemoryHandOver(), OwnSource(world.table), world.leases).run_once()
    engine.dispose()


def test_database_without_an_encoding_is_read(postgres: PostgresServer) -> None:
    """As initdb makes it where no language is set: drivers read bytes for texts, and nothing could be read of these."""
    url = postgres.create("template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
    world = OutboxWorld(UserDatabase("postgresql", f"{url}&client_encoding=utf8", ""))
    world.enqueue(Sent("orders", "k é".encode()))
    opened, bridge = OutboxDatabase(url), MemoryHandOver()
    assert opened.open_relay(SourceSpec(), bridge, RelayConfig()).run_once().published == 1
    opened.close()
    world.engine.dispose()


KEEPING = {
    "sqlite": ("CREATE TRIGGER keep BEFORE DELETE ON outbox_message BEGIN SELECT RAISE(IGNORE); END",),
    "postgresql": (
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER keep BEFORE DELETE ON outbox_message FOR EACH ROW EXECUTE FUNCTION keep()",
    ),
}


@pytest.mark.parametrize("user_database", list(KEEPING), indirect=True)
def test_row_that_cannot_be_deleted_is_parked(user_database: UserDatabase) -> None:
    """A trigger, a rule or row level security keeps it without an error: it was handed over again and again, and
    published once more when the bridge had forgotten its key."""
    world, bridge = OutboxWorld(user_database), MemoryHandOver()
    relay = world.relay(bridge, LONG_LEASE)
    with world.engine.begin() as conn:
        for statement in KEEPING[user_database.name]:
            conn.exec_driver_sql(statement)
    world.enqueue(Sent("orders", b"k"), Sent("orders"))
    assert relay.run_once() == (2, 2, 2, 0, 0, 0)
    assert relay.run_once().claimed == 0
    parked = relay.read_parked()
    assert ["published, but" in why for _, why in parked] == [True, True]
    assert (relay.discard_parked([row for row, _ in parked]), world.count()) == (0, (2, 2))
    with world.engine.begin() as conn:
        conn.exec_driver_sql("DROP TRIGGER keep" + (" ON outbox_message" if user_database.name == "postgresql" else ""))
    assert (relay.discard_parked([row for row, _ in parked]), world.count()) == (2, (0, 0))
    assert len(bridge.published) == 2


REFUSING = {
    "sqlite": (
        """CREATE TRIGGER keep BEFORE DELETE ON outbox_message WHEN OLD.topic = 'kept'
        BEGIN SELECT RAISE(ABORT, 'why'); END""",
    ),
    "postgresql": (
        "CREATE TABLE shipment (message BIGINT REFERENCES outbox_message DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO shipment SELECT id FROM outbox_message WHERE topic = 'kept'",
    ),
    "mariadb": (
        """CREATE TRIGGER keep BEFORE DELETE ON outbox_message FOR EACH ROW
        IF OLD.topic = 'kept' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'why'; END IF""",
    ),
}


def test_row_whose_deletion_is_refused_is_parked_alone(user_database: UserDatabase) -> None:
    """Another table refers to it, or a trigger raises: all rows of its claim were handed over again and again, and
    published once more when the bridge had forgotten their keys."""
    world, bridge = OutboxWorld(user_database), MemoryHandOver()
    relay = world.relay(bridge, LONG_LEASE)
    world.enqueue(*[Sent("kept" if number == 2 else "orders", b"%d" % number) for number in range(5)])
    with world.engine.begin() as conn:
        for statement in REFUSING[user_database.name]:
            conn.exec_driver_sql(statement)
    counts = relay.run_once()
    assert (counts.claimed, counts.published, counts.parked) == (5, 5, 1)
    ((_, why),) = relay.read_parked()
    assert "published, but" in why
    assert "why" in why or "shipment" in why
    assert world.count() == (1, 1)
    assert (relay.run_once().claimed, len(bridge.published)) == (0, 5)


RELAY_ROLE = (
    "CREATE ROLE relay LOGIN",
    "GRANT SELECT, INSERT, UPDATE ON outbox_message TO relay",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_lease TO relay",
)


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_relay_that_may_not_delete_publishes_nothing(user_database: UserDatabase) -> None:
    """It handed the same rows over with each lease, and they were published once more after a week."""
    world, bridge = OutboxWorld(user_database), MemoryHandOver()
    with world.engine.begin() as conn:
        for statement in RELAY_ROLE:
            conn.exec_driver_sql(statement)
    world.enqueue(Sent("orders"))
    engine = sa.create_engine(sa.make_url(user_database.url).set(username="relay"), poolclass=sa.NullPool)
    relay = Relay(engine, bridge, OwnSource(world.table), world.leases)
    for _ in range(2):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied for table outbox_message"):
            relay.run_once()
    assert len(bridge.published) == 0
    with world.engine.begin() as conn:
        conn.exec_driver_sql("GRANT DELETE ON outbox_message TO relay")
    assert (relay.run_once().published, world.count()) == (1, (0, 0))
    with world.engine.begin() as conn:
        conn.exec_driver_sql("DROP OWNED BY relay")
        conn.exec_driver_sql("DROP ROLE relay")


class Killed(BaseException):
    """The process stops where it is."""


class GroupHandOver(MemoryHandOver):
    """The keys of one producer group. `ends`: how the first hand-overs end, in turn."""

    def __init__(self, publisher: str, *ends: str) -> None:
        super().__init__()
        self.publisher = publisher
        self.ends = list(ends)

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        end = self.ends.pop(0) if self.ends else ""
        if end == "not reached":
            raise HandOverUnavailable("refused", is_sent=False)
        if end == "forbidden":
            return [PublishResult(PublishStatus.NOT_YET, "403 forbidden")] * len(rows)
        fates = super().publish(rows)
        if end == "killed":
            raise Killed
        if end == "not heard":
            raise HandOverUnavailable("cut off")
        return [PublishResult(PublishStatus.UNKNOWN, "504 outcome-unknown")] * len(rows) if end == "unknown" else fates


SOON_OVER = RelayConfig(lease_ms=2, hand_over_ms=1, min_delay_ms=1, max_delay_ms=1)


def run_until(world: OutboxWorld, hand_over: GroupHandOver, is_over: Callable[[Relay], object]) -> Relay:
    """Rounds of a relay with a clock that never takes a lease for over."""
    relay = Relay(world.engine, hand_over, OwnSource(world.table), world.leases, SOON_OVER, lambda: 0)
    for _ in range(1_000):
        if is_over(relay):
            return relay
        with suppress(Killed):
            relay.run_once()
    raise AssertionError(hand_over.publisher)


@pytest.mark.parametrize("ends", [["killed", "not reached"], ["not heard"], ["unknown", "forbidden"]])
def test_row_in_doubt_is_not_published_as_another_group(user_database: UserDatabase, ends: list[str]) -> None:
    """The bridge knows keys for a group alone: whoever sees to the table says what becomes of it. Others go on."""
    world, shop = OutboxWorld(user_database), GroupHandOver("shop")
    world.enqueue(Sent("orders", b"a", b"1"))
    orders = GroupHandOver("orders", *ends)
    run_until(world, orders, lambda _: not orders.ends)
    world.enqueue(Sent("orders", b"b", b"2"))
    relay = run_until(world, shop, lambda relay: relay.read_parked() and shop.published)
    ((row_id, reason),) = relay.read_parked()
    assert ([row.value for row in shop.published], world.count()) == ([b"2"], (1, 1))
    assert "may have published it" in reason
    relay.release_parked([row_id])
    run_until(world, shop, lambda _: world.count()[0] == 0)
    assert ([row.value for row in shop.published], world.count()) == ([b"2", b"1"], (0, 0))


def test_row_in_doubt_is_published_by_relays_of_its_group(user_database: UserDatabase) -> None:
    """Its key makes it a repeat; nobody need do anything."""
    world, orders = OutboxWorld(user_database), GroupHandOver("orders", "killed", "forbidden", "unknown")
    world.enqueue(Sent("orders", b"a", b"1"))
    run_until(world, orders, lambda _: world.count()[0] == 0)
    assert (len(orders.published), world.count()) == (1, (0, 0))


def test_row_that_was_certainly_not_taken_is_published_as_another_group(user_database: UserDatabase) -> None:
    """A wrong group, or a wrong address, that is mended."""
    world, shop = OutboxWorld(user_database), GroupHandOver("shop")
    world.enqueue(Sent("orders", b"a", b"1"))
    wrong = GroupHandOver("ordres", "forbidden", "not reached")
    run_until(world, wrong, lambda _: not wrong.ends)
    run_until(world, shop, lambda _: world.count()[0] == 0)
    assert (len(shop.published), world.count()) == (1, (0, 0))


@pytest.mark.parametrize(("days", "published"), [(5, 1), (8, 0)])
def test_lease_of_an_older_release_is_taken_over_while_keys_are_known(
    user_database: UserDatabase, days: int, published: int
) -> None:
    """It names no group. The bridge knows keys for 7 days: a row that was in hand before that may be published."""
    world, shop = OutboxWorld(user_database), GroupHandOver("shop")
    (row_id,) = world.enqueue(Sent("orders", b"a", b"1"))
    lease = {"source": "outbox", "row_id": row_id, "state": "waiting", "attempts": 0}
    free_ms = time.time_ns() // 1_000_000 - days * 86_400_000
    with world.engine.begin() as conn:
        token = "3b241101-e2bb-4255-8caf-4136c566a962"
        conn.execute(sa.insert(world.leases).values(**lease, token=token, free_ms=free_ms))
    relay = run_until(world, shop, lambda relay: shop.published or relay.read_parked())
    assert (len(shop.published), len(relay.read_parked())) == (published, 1 - published)
