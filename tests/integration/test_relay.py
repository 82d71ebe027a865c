"""The relay on real databases: every committed row once, in order of its key, whatever fails."""

import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession

from outbox.client.errors import HandOverUnavailable
from outbox.enqueue import enqueue, enqueue_async
from outbox.hand_over import MemoryHandOver, OutboxRow, PublishResult
from outbox.relay import Relay, RelayConfig, RelayCounts, relay_transaction
from outbox.relay_queries import Tables, delete_published
from outbox.sources import ColumnMap, MappedSource, OwnSource, debezium_source
from outbox.tables import make_outbox_table
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.user_database import UserDatabase

AT_ONCE = RelayConfig(min_delay_ms=1, max_delay_ms=1, poll_ms=20)
SHORT_LEASE = RelayConfig(lease_ms=2, hand_over_ms=1, min_delay_ms=1, max_delay_ms=1)


class Paused(BaseException):
    """The process stops where it is: no `except` or `finally` of ours is meant to help."""


class PausingHandOver:
    """Stops, as SIGSTOP does, before the rows leave; `wake` lets them."""

    def __init__(self, bridge: MemoryHandOver) -> None:
        self._bridge = bridge
        self._woken = threading.Event()
        self.paused = threading.Event()

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        self.paused.set()
        assert self._woken.wait(30)
        return self._bridge.publish(rows)

    def wake(self) -> None:
        self._woken.set()


class DyingHandOver:
    """Dies after the bridge has published, before anything is marked."""

    def __init__(self, bridge: MemoryHandOver) -> None:
        self._bridge = bridge

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        self._bridge.publish(rows)
        raise Paused


class AwayHandOver:
    """A bridge that cannot be reached."""

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        raise HandOverUnavailable(f"away from {len(rows)} rows")


@pytest.fixture
def world(user_database: UserDatabase) -> Iterator[OutboxWorld]:
    made = OutboxWorld(user_database)
    yield made
    made.engine.dispose()


def run_until_empty(world: OutboxWorld, relay: Relay) -> None:
    """Rounds, until the table is. Rows leased by others are waited for."""
    for _ in range(2_000):
        relay.run_once()
        if world.count()[0] == 0:
            return
    raise AssertionError(f"still {world.count()} rows and leases")


def make_events(world: OutboxWorld, key: Any, *more: sa.Index) -> sa.Table:
    """A table of somebody else."""
    columns = [sa.Column("id", key, primary_key=True), sa.Column("number", sa.Integer)]
    texts = [sa.Column(name, sa.String(20)) for name in ("topic", "key", "payload")]
    events = sa.Table("events", sa.MetaData(), *columns, *texts, *more)
    events.create(world.engine)
    return events


def values(bridge: MemoryHandOver, key: bytes | None = None) -> list[bytes | None]:
    return [row.value for row in bridge.published if key is None or row.key == key]


def test_only_committed_rows_are_published(world: OutboxWorld) -> None:
    """Rolled back: never. Committed: as it was enqueued, once; then nothing is left of it."""
    sent = Sent("orders", b"\x00key", b"\xff value", [("h", b"1"), ("h", None), ("é", b"")], 3, 1_750_000_000_000)
    world.enqueue(sent)
    with orm.Session(world.engine) as session:
        enqueue(session, Sent("never"), table=world.table)
        session.rollback()
    bridge = MemoryHandOver()
    relay = world.relay(bridge)
    assert relay.run_once()[:2] == (1, 1)
    assert relay.run_once().claimed == 0
    (row,) = bridge.published
    assert (row.topic, row.key, row.value, row.headers) == (sent.topic, sent.key, sent.value, tuple(sent.headers))
    assert (row.partition, row.timestamp_ms, row.ordering_key) == (3, 1_750_000_000_000, None)
    assert world.count() == (0, 0)


@pytest.mark.parametrize("raw", [None, b"", b"a\\'\x00\xff\n"])
async def test_async_enqueue_is_published_too(user_database: UserDatabase, raw: bytes | None) -> None:
    """The twin for asyncio writes the same row, with any driver; null stays null."""
    world = OutboxWorld(user_database)
    engine = user_database.async_engine()
    async with AsyncSession(engine) as session:
        await enqueue_async(session, Sent("orders", raw, raw), ordering_key="k é", table=world.table)
        await session.commit()
    await engine.dispose()
    bridge = MemoryHandOver()
    world.relay(bridge).run_once()
    (row,) = bridge.published
    assert (row.key, row.value, row.headers, row.ordering_key) == (raw, raw, (), "k é")


def test_unsure_row_holds_back_those_after_it_and_no_others(world: OutboxWorld) -> None:
    """Order of a key through failures; other keys, and rows without one, go on."""
    world.enqueue(
        Sent("slow", b"a", b"1"), Sent("fast", b"a", b"2"), Sent("fast", b"b", b"3"), Sent("fast", None, b"4")
    )
    bridge = MemoryHandOver()
    bridge.unsure_topics.add("slow")
    relay = world.relay(bridge, AT_ONCE)
    for _ in range(3):
        relay.run_once()
    assert sorted(values(bridge), key=str) == [b"3", b"4"]
    bridge.unsure_topics.clear()
    run_until_empty(world, relay)
    assert values(bridge, b"a") == [b"1", b"2"]
    assert world.count() == (0, 0)


def test_refused_row_is_parked_with_its_reason(world: OutboxWorld) -> None:
    """It is not tried again by itself; released, it is published before those it held back; discarded, never."""
    first, second = world.enqueue(Sent("bad", b"a", b"1"), Sent("bad", b"b", b"2"))
    world.enqueue(Sent("good", b"a", b"3"), Sent("good", b"b", b"4"))
    bridge = MemoryHandOver()
    bridge.refused_topics.add("bad")
    relay = world.relay(bridge, AT_ONCE)
    assert relay.run_once().parked == 2
    assert relay.run_once().claimed == 0
    assert dict(relay.read_parked()) == {first: "422 unknown-topic", second: "422 unknown-topic"}
    bridge.refused_topics.clear()
    assert (relay.discard_parked([second]), relay.release_parked([first, second])) == (1, 1)
    run_until_empty(world, relay)
    assert (values(bridge, b"a"), values(bridge, b"b")) == ([b"1", b"3"], [b"4"])
    assert world.count() == (0, 0)


def test_parked_row_may_be_overtaken_if_that_is_wanted(world: OutboxWorld) -> None:
    """With `parked_holds` off only the refused row stays."""
    world.enqueue(Sent("bad", b"a", b"1"), Sent("good", b"a", b"2"))
    bridge = MemoryHandOver()
    bridge.refused_topics.add("bad")
    relay = world.relay(bridge, RelayConfig(parked_holds=False))
    assert (relay.run_once().parked, relay.run_once().published) == (1, 1)
    assert world.count() == (1, 1)


def test_bridge_that_is_away_costs_no_row_anything(world: OutboxWorld) -> None:
    """Nothing is counted against a row that nobody judged, and nothing waits for its lease."""
    world.enqueue(Sent("orders", b"a", b"1"), Sent("orders", b"b", b"2"))
    assert world.relay(AwayHandOver()).run_once().wait_ms > 0
    bridge = MemoryHandOver()
    assert world.relay(bridge).run_once().published == 2
    assert [row.attempts for row in bridge.published] == [0, 0]


class RecordedStop(threading.Event):
    """Passes over pauses, and is set after some of them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.paused_s: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.paused_s.append(timeout or 0)
        if len(self.paused_s) == self._most:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("user_database", ["sqlite"], indirect=True)
def test_relay_asks_a_bridge_that_is_away_less_and_less(world: OutboxWorld) -> None:
    """Each try leases and gives back all it has claimed; but rows must not wait long for it when it is back."""
    world.enqueue(Sent("orders", b"a", b"1"))
    stop = RecordedStop(7)
    world.relay(AwayHandOver(), RelayConfig(max_requests=1)).run_forever(stop)
    assert stop.paused_s == [0.5, 1, 2, 4, 8, 10, 10]


def test_leases_of_rows_deleted_by_hand_are_cleaned_bit_by_bit(world: OutboxWorld) -> None:
    """Nobody else would ever delete them; those of rows that are there stay."""
    ids = sorted(world.enqueue(*[Sent("bad", b"%d" % number) for number in range(6)]))
    bridge = MemoryHandOver()
    bridge.refused_topics.add("bad")
    relay = world.relay(bridge)
    relay.run_once()
    with world.engine.begin() as conn:
        conn.execute(sa.delete(world.table).where(world.table.c.message_id.in_([ids[0], ids[1], ids[4]])))
    assert [relay.clean_leases(2) for _ in range(5)] == [2, 0, 1, 0, 0]
    assert [row_id for row_id, _ in relay.read_parked()] == [ids[2], ids[3], ids[5]]


@pytest.mark.parametrize("key", [sa.Integer, sa.Uuid, sa.String(36)])
def test_leases_of_a_table_of_somebody_else_are_cleaned(world: OutboxWorld, key: Any) -> None:
    """Whatever type its keys have."""
    makers = {sa.Integer: lambda number: number, sa.Uuid: lambda number: uuid.UUID(int=number)}
    keys = [makers.get(key, lambda number: f'{number}"\\,{{ }}')(number) for number in range(1, 4)]
    events = make_events(world, key)
    with world.engine.begin() as conn:
        conn.execute(sa.insert(events), [{"id": one, "number": n, "topic": "bad"} for n, one in enumerate(keys)])
    bridge = MemoryHandOver()
    bridge.refused_topics.add("bad")
    relay = world.relay(bridge, source=MappedSource(events, ColumnMap(sequence="number"), "events"))
    assert relay.run_once().parked == 3
    with world.engine.begin() as conn:
        conn.execute(sa.delete(events).where(events.c.id == keys[1]))
    assert (relay.clean_leases(), len(relay.read_parked())) == (1, 2)


SHAPES = {
    "long": (sa.String(100), lambda number: "com.example.shop.orders.OrderCreated/" * 2 + str(number)),
    "bytes": (sa.LargeBinary(16).with_variant(sa.BINARY(16), "mariadb"), lambda number: bytes([128 + number]) * 16),
    "long bytes": (
        sa.LargeBinary().with_variant(sa.VARBINARY(80), "mariadb"),
        lambda number: bytes(70) + bytes([number]),
    ),
    "other signs": (sa.String(20), lambda number: "\u00e4\u00f6\u00fc"[number - 1]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_whose_keys_no_lease_can_hold_are_no_one_row(world: OutboxWorld, shape: str) -> None:
    """Cut off at 64 signs, or with a ? for each other one, two were one: the second row was deleted unpublished."""
    if world.database.name == "postgresql":  # as old databases have it: rows with keys of bytes were never found
        with world.engine.begin() as conn:
            conn.exec_driver_sql(f"ALTER DATABASE {conn.engine.url.database} SET standard_conforming_strings = off")
    has_no_bytes = world.database.name == "sqlite"  # as keys
    kind, make = SHAPES["long" if has_no_bytes and "bytes" in shape else shape]
    events = make_events(world, kind)
    with world.engine.begin() as conn:
        same = {"topic": "orders", "payload": "same"}
        conn.execute(sa.insert(events), [{"id": make(number), "number": number, **same} for number in (1, 2)])
        conn.execute(sa.insert(events).values(id=make(3), number=3, topic="bad"))
    bridge = MemoryHandOver()
    bridge.refused_topics.add("bad")
    relay = world.relay(bridge, source=MappedSource(events, ColumnMap(sequence="number"), "events"))
    counts = relay.run_once()
    is_told = (
        shape == "other signs" and world.database.name != "mariadb"
    )  # no bridge takes such a key: refused, and kept
    assert (counts.published, counts.parked, len(bridge.published)) == ((0, 3, 0) if is_told else (2, 1, 2))
    assert (relay.clean_leases(), len(relay.read_parked())) == (0, counts.parked)
    assert relay.discard_parked([row_id for row_id, _ in relay.read_parked()]) == counts.parked
    with world.engine.connect() as conn:
        assert conn.execute(sa.select(events)).all() == []


def test_row_without_a_place_in_the_order_stops_nobody(world: OutboxWorld) -> None:
    """A null beside numbers cannot be compared: every claim failed, of every relay, for ever."""
    events = make_events(world, sa.String(36), sa.Index("ix_events", "key", "number"))
    with world.engine.begin() as conn:
        rows = [{"id": str(n), "number": n or None, "key": str(n), "topic": "orders", "payload": "v"} for n in range(3)]
        conn.execute(sa.insert(events), rows)
    bridge = MemoryHandOver()
    relay = world.relay(bridge, source=MappedSource(events, ColumnMap(sequence="number"), "events"))
    assert (relay.run_once().published, len(bridge.published)) == (3, 3)


def test_lease_in_use_is_not_cleaned(world: OutboxWorld) -> None:
    """Its relay may be about to mark it."""
    world.enqueue(Sent("orders", b"a"))
    dying = world.relay(DyingHandOver(MemoryHandOver()))
    with pytest.raises(Paused):
        dying.run_once()
    with world.engine.begin() as conn:
        conn.execute(sa.delete(world.table))
    dying.clean_leases()
    assert world.count() == (0, 1)


def test_killed_relay_doubles_nothing(world: OutboxWorld) -> None:
    """Published and never marked: after its lease another hands the row over again, with the same key."""
    world.enqueue(Sent("orders", b"a", b"1"), Sent("orders", b"a", b"2"))
    bridge = MemoryHandOver()
    dying = Relay(world.engine, DyingHandOver(bridge), OwnSource(world.table), world.leases, SHORT_LEASE, lambda: 0)
    with pytest.raises(Paused):
        dying.run_once()
    run_until_empty(world, world.relay(bridge, AT_ONCE))
    assert values(bridge) == [b"1", b"2"]


def test_paused_relay_neither_doubles_nor_reorders(world: OutboxWorld) -> None:
    """It wakes long after its lease, with a row that others have published, and all rows after it."""
    world.enqueue(*[Sent("orders", b"a", b"%d" % number) for number in range(4)])
    bridge = MemoryHandOver()
    sleeper = PausingHandOver(bridge)
    slow = Relay(
        world.database.engine(), sleeper, OwnSource(world.table), world.leases, SHORT_LEASE, monotonic_ms=lambda: 0
    )
    counts = []
    thread = threading.Thread(target=lambda: counts.append(slow.run_once()))
    thread.start()
    assert sleeper.paused.wait(30)
    run_until_empty(world, world.relay(bridge, AT_ONCE))
    sleeper.wake()
    thread.join(30)
    assert values(bridge) == [b"0", b"1", b"2", b"3"]
    assert world.count() == (0, 0)
    assert counts[0].claimed == 1


def test_late_verdict_does_not_touch_the_lease_of_another(world: OutboxWorld) -> None:
    """A relay that comes back with a refusal, when another has the row, parks nothing."""
    world.enqueue(Sent("orders", b"a", b"1"))
    refusing, taking = MemoryHandOver(), MemoryHandOver()
    refusing.refused_topics.add("orders")
    counts: dict[str, RelayCounts] = {}
    sleepers = {"late": PausingHandOver(refusing), "new": PausingHandOver(taking)}
    threads = []
    for name, config in (("late", SHORT_LEASE), ("new", RelayConfig())):
        relay = Relay(world.database.engine(), sleepers[name], OwnSource(world.table), world.leases, config, lambda: 0)
        threads.append(threading.Thread(target=run_until_claimed, args=(relay, counts, name)))
        threads[-1].start()
        assert sleepers[name].paused.wait(30)
    for sleeper, thread in zip(sleepers.values(), threads, strict=True):
        sleeper.wake()
        thread.join(30)
    assert (counts["late"].lost, counts["new"].published) == (1, 1)
    assert (values(taking), world.count()) == ([b"1"], (0, 0))


def run_until_claimed(relay: Relay, counts: dict[str, RelayCounts], name: str) -> None:
    """Rounds until one has rows: a lease may not be over yet."""
    while not counts.get(name, RelayCounts()).claimed:
        counts[name] = relay.run_once()


def test_relay_whose_lease_is_over_hands_nothing_over(world: OutboxWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Where it can know, it leaves the rows to whoever has them now, and says so: it may be so with each claim."""
    world.enqueue(Sent("orders"))
    bridge = MemoryHandOver()
    times = iter((0, 50_000))
    relay = Relay(world.engine, bridge, OwnSource(world.table), world.leases, monotonic_ms=lambda: next(times))
    assert (relay.run_once().lost, bridge.published) == (1, [])
    assert "relay_claim_too_late" in caplog.text


def test_many_relays_share_the_rows(world: OutboxWorld) -> None:
    """Three at once, while rows come: each row once, each key in order."""
    bridge, lock = MemoryHandOver(), threading.Lock()
    handed: dict[str, int] = defaultdict(int)

    class Counting:
        def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
            with lock:
                for row in rows:
                    handed[row.row_id] += 1
                return bridge.publish(rows)

    stop = threading.Event()
    config = RelayConfig(max_rows=5, poll_ms=10, min_delay_ms=1)
    threads = [threading.Thread(target=world.relay(Counting(), config).run_forever, args=(stop,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        world.enqueue(*[Sent("orders", b"%d" % key, b"%d" % number) for key in range(4)], Sent("orders", None, b"x"))
    until_empty(world)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert [values(bridge, b"%d" % key) for key in range(4)] == [[b"%d" % number for number in range(20)]] * 4
    assert len(bridge.published) == 100
    assert set(handed.values()) == {1}  # leases keep them apart; the key would only save the day


def until_empty(world: OutboxWorld) -> None:
    """Waits for relays that run beside."""
    for _ in range(3_000):
        if world.count()[0] == 0:
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"still {world.count()} rows and leases")


def test_row_is_moved_to_the_archive(world: OutboxWorld) -> None:
    """In the same transaction in which it leaves the table."""
    archive = make_outbox_table(sa.MetaData(), "outbox_archive")
    archive.metadata.create_all(world.engine)
    (message_id,) = world.enqueue(Sent("orders", b"a", b"1"))
    world.relay(MemoryHandOver(), source=OwnSource(world.table, archive)).run_once()
    with world.engine.connect() as conn:
        assert conn.scalars(sa.select(archive.c.message_id)).all() == [message_id]
    assert world.count() == (0, 0)


def test_row_is_archived_once_by_relays_that_mark_it_at_the_same_time(world: OutboxWorld) -> None:
    """One was frozen as it handed the row over, and another has done so since: both know that it is published."""
    columns = [sa.Column(column.name, column.type, autoincrement=False) for column in world.table.c]
    archive = sa.Table("outbox_archive", sa.MetaData(), *columns, mysql_engine="InnoDB")
    archive.create(world.engine)
    (message_id,) = world.enqueue(Sent("orders", b"a", b"1"))
    tables = Tables(OwnSource(world.table, archive), world.leases)
    row = OutboxRow(message_id, message_id, message_id, "orders")

    def mark() -> None:
        with world.engine.connect() as conn, relay_transaction(conn):
            delete_published(conn, tables, [row])

    other = threading.Thread(target=mark)
    with world.engine.connect() as conn, relay_transaction(conn):
        delete_published(conn, tables, [row])
        other.start()
        other.join(0.5)  # it waits for this one's end
    other.join(30)
    with world.engine.connect() as conn:
        assert conn.scalars(sa.select(archive.c.message_id)).all() == [message_id]


def test_debezium_table_is_published_as_its_event_router_does(world: OutboxWorld) -> None:
    """Topic from aggregatetype, key aggregateid, the payload as it is, its id as header; in the column's order."""
    made = sa.Table(
        "outboxevent",
        sa.MetaData(),
        sa.Column("id", sa.Uuid, primary_key=True),
        *[sa.Column(name, sa.String(255), nullable=False) for name in ("aggregatetype", "aggregateid", "type")],
        sa.Column("payload", sa.Text().with_variant(postgresql.JSONB(), "postgresql")),
        sa.Column("number", sa.Integer, nullable=False),
    )
    made.create(world.engine)
    events = sa.Table("outboxevent", sa.MetaData(), autoload_with=world.engine)
    late, early = uuid.UUID("a" * 32), uuid.UUID("b" * 32)
    fixed = {"aggregatetype": "order", "aggregateid": "7", "type": "Made"}
    with world.engine.begin() as conn:
        conn.execute(sa.insert(made).values(id=early, payload=sa.literal_column("'{\"n\": 1.10}'"), number=1, **fixed))
        conn.execute(sa.insert(made).values(id=late, payload=sa.null(), number=2, **fixed))
    bridge = MemoryHandOver()
    relay = world.relay(bridge, source=debezium_source(events, "number"))
    assert [relay.run_once().published for _ in range(3)] == [1, 1, 0]
    shown = (lambda one: one.hex) if world.database.name == "sqlite" else str  # it has no such type
    assert [(row.topic, row.key, row.value, row.headers) for row in bridge.published] == [
        ("outbox.event.order", b"7", b'{"n": 1.10}', (("id", shown(early).encode()),)),
        ("outbox.event.order", b"7", None, (("id", shown(late).encode()),)),
    ]
    with world.engine.connect() as conn:
        assert conn.execute(sa.select(made)).all() == []


@pytest.mark.parametrize("headers", ["{no json", "[" * 100_000])
def test_row_that_is_no_message_is_parked(world: OutboxWorld, headers: str) -> None:
    """It stops nobody without its key, and says why."""
    world.enqueue(Sent("orders", b"a", b"1"), Sent("orders", b"b", b"2"))
    with world.engine.begin() as conn:
        conn.execute(sa.update(world.table).where(world.table.c.value == b"1").values(headers=headers))
    bridge = MemoryHandOver()
    relay = world.relay(bridge)
    assert (relay.run_once()[:3], values(bridge)) == ((2, 1, 1), [b"2"])
    assert [reason[:10] for _, reason in relay.read_parked()] == ["no message"]


def test_postgres_wakes_a_sleeping_relay(world: OutboxWorld) -> None:
    """A notification, not the next look a minute later, brings the row; elsewhere the look does."""
    published = threading.Event()

    class Telling(MemoryHandOver):
        def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
            fates = super().publish(rows)
            if any(row.topic == "wanted" for row in rows):
                published.set()
            return fates

    stop = threading.Event()
    poll_ms = 60_000 if world.database.name == "postgresql" else 20
    thread = threading.Thread(target=world.relay(Telling(), RelayConfig(poll_ms=poll_ms)).run_forever, args=(stop,))
    thread.start()
    for _ in range(200):  # the first may come before it listens
        world.enqueue(Sent("wanted"))
        if published.wait(0.2):
            break
    assert published.is_set()
    stop.set()
    world.enqueue(Sent("last"))
    thread.join(60)
    assert not thread.is_alive()
