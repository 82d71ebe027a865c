"""bridge.projector: the same rows however the work was cut, rebuilt, or compacted."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from bridge.core.errors import QueueHalted, StoreTimeout
from bridge.core.message import Message
from bridge.core.op_message import Position
from bridge.core.record import Act, ActRecord, Resolution, Source
from bridge.core.transaction import TransactionState
from bridge.log_watch import LogToReread
from bridge.projector import PositionMoved, Projector, ProjectorConfig, RebuildProgress, rebuild
from bridge.sql.bulk import insert_rows
from bridge.sql.identity import record_identity
from bridge.sql.projection import Orphan, clear_projection
from bridge.sql.rows import ALL_COLUMNS, all_values, make_row
from bridge.sql.tables import transactions
from bridge.store.memory.log import clean
from bridge.topology import identify
from tests.support.projector_world import ProjectorWorld, make_projector_world
from tests.support.virtual_time import in_world


def of(value: bytes = b"v", key: bytes | None = b"k", topic: str = "orders") -> Message:
    return Message(topic, key, value)


def counts_of(world: ProjectorWorld) -> tuple[int, int, int, int, int, int]:
    t = world.stats().total
    return t.prepared, t.committed, t.blocked, t.rolled_back, t.parked, t.pending


def differences(one: ProjectorWorld, other: ProjectorWorld) -> dict[str, set[tuple[object, ...]]]:
    """Rows that only one of them has, by table."""
    first, second = one.dump(), other.dump()
    return {name: rows for name in first if (rows := set(first[name]) ^ set(second[name]))}


SMALL = ProjectorConfig(max_read_records=2, max_waiting_records=3)


async def live_on(world: ProjectorWorld, random: Random, steps: int) -> None:
    """A random history of one or two queues, projected now and then."""
    clock, settlers = world.settlers.memory.clock, world.settlers
    names = [(f"t{n}", n % world.topics.queues) for n in range(8)]
    for _ in range(steps):
        name, queue_id = random.choice(names)
        choice = random.random()
        if choice < 0.35:
            topic = random.choice(["orders", "credits"])
            await settlers.prepare(name, *[of(topic=topic, key=random.choice([None, b"1", b"2"]))], queue_id=queue_id)
        elif choice < 0.7:
            members = random.choice(
                [{}, {"source": Source.OPERATOR, "actor": "ann", "reason": "r"}]
                + [{"source": Source.CHECK, "check_number": number, "endpoint": "e"} for number in (1, 2)]
            )
            await settlers.end(name, random.choice(list(Resolution)), queue_id=queue_id, **members)
        elif choice < 0.75 and queue_id in settlers.observer.owners:
            settlers.observer.owners[queue_id].park({settlers.id_of(name, queue_id): "MAX_CHECKS"})
        elif choice < 0.8:
            record = ActRecord(settlers.id_of(name, queue_id), random.choice(list(Act)), "a", "r", clock.now_ms())
            await settlers.act(record, queue_id)
        elif choice < 0.85:
            topic = settlers.memory.cluster.log.topics["credits"]
            topic.is_denied = not topic.is_denied
        elif choice < 0.95:
            await world.projector.run_once()
        await clock.sleep_ms(random.choice([0, 1, 30, 1_000]))
    settlers.memory.cluster.log.topics["credits"].is_denied = False
    await clock.sleep_ms(120_000)
    await world.catch_up()


@pytest.mark.parametrize("seed", range(5))
def test_projection_is_the_same_however_it_was_cut(make_sqlite_url: object, seed: int) -> None:
    """Bit by bit, all at once, with hardly any room to wait in: the rows are the same, and C holds."""
    assert callable(make_sqlite_url)
    world = make_projector_world(make_sqlite_url(), queues=2, config=SMALL)

    async def story() -> None:
        async with world.settlers.settling():
            await live_on(world, Random(seed), 90)
        for config in (ProjectorConfig(), SMALL):
            fresh = ProjectorWorld(world.settlers, type(world.database)(make_sqlite_url()), config)
            await fresh.project()
            assert differences(fresh, world) == {}, f"seed {seed}"
            await fresh.projector.close()
            fresh.database.engine.dispose()

    world.run(story())
    for queue_id in range(2):
        for transaction_id, op in world.settlers.read_op(queue_id).last.items():
            name = next(n for n in range(8) if world.settlers.id_of(f"t{n}", queue_id) == transaction_id)
            view = world.view(f"t{name}", queue_id)
            assert view is not None
            assert (view.state, view.blocked, view.receipts) == (
                op.transaction.state, op.transaction.blocked, tuple(op.receipts),
            )  # fmt: skip
    states = [row[3] for row in world.dump()["transactions"]]
    total = world.stats().total
    assert total.pending == states.count(TransactionState.PREPARED)
    assert total.prepared == total.committed + total.rolled_back + total.parked + total.pending == len(states)


@pytest.mark.parametrize("seed", range(2))
@in_world(make_projector_world, queues=2)
async def test_rebuild_beside_a_working_projector_gives_the_same_rows(world: ProjectorWorld, seed: int) -> None:
    """`projection rebuild` while the bridge runs: who is at work begins anew (19, 67)."""
    seen: list[RebuildProgress] = []
    async with world.settlers.settling():
        await live_on(world, Random(seed), 40)
        before = world.dump()
        working = asyncio.create_task(world.projector.run_forever())
        while not world.projector.is_active:
            await world.settlers.memory.clock.sleep_ms(10)
        other = world.make_projector("rebuilder")
        verdict = await rebuild(other, seen.append)
        assert {name: set(rows) ^ set(before[name]) for name, rows in world.dump().items()} == {
            name: set() for name in before
        }
        assert (verdict.total, verdict.orphan_count) == (world.stats().total, 0)
        world.projector.stop()
        await working
    assert seen[-1].applied == seen[-1].wanted


@in_world(make_projector_world, queues=2, config=SMALL)
async def test_rebuild_reads_up_to_what_was_projected_when_it_emptied_the_tables(
    world: ProjectorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was prepared and projected just before is no orphan: Kafka knows it."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.catch_up()
        look = LogToReread.check

        async def look_and_go_on(log: LogToReread) -> Mapping[int, Position]:
            found = await look(log)
            for name in map(str, range(20)):
                await world.settlers.prepare(name, of(), queue_id=1)
            await world.catch_up()
            return found

        monkeypatch.setattr(LogToReread, "check", look_and_go_on)
        verdict = await rebuild(world.projector, lambda _: None)
        assert (verdict.total.prepared, verdict.orphan_count) == (21, 0)


@pytest.mark.parametrize("lost", ["half", "op"])
@pytest.mark.parametrize("is_made_again", [False, True], ids=["missing", "made again"])
def test_rebuild_leaves_the_projection_where_the_log_is_lost(
    database_url: str, lost: str, *, is_made_again: bool
) -> None:
    """The projection alone knows then what has ended: an operator is told before anything is thrown away (F, D)."""
    world = make_projector_world(database_url)

    async def story() -> None:
        async with world.settlers.settling():
            await world.settlers.prepare("a", of())
            await world.settlers.commit("a")
            await world.catch_up()
        known = await identify(world.settlers.memory.admin, world.topics)
        await world.database.run(lambda conn: record_identity(conn, known, 1))
        log, name, before = world.settlers.memory.cluster.log, getattr(world.topics, lost), world.dump()
        config = log.topics[name].config
        log.delete_topic(name)
        if is_made_again:
            log.create_topic(name, 1, config)
        with pytest.raises(QueueHalted, match="nothing was changed; see `outbox-bridge migrate --accept-identity`"):
            await rebuild(world.projector, lambda _: None)
        assert world.dump() == before

    world.run(story())


@in_world(make_projector_world)
async def test_rebuild_names_what_kafka_does_not_know(world: ProjectorWorld) -> None:
    """Kafka restored behind SQL: such entries are listed, and nothing is published for them (63)."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.catch_up()
        ghost = make_row("0" * 28, "shop", 0, 99, 1)
        world.query(lambda c: insert_rows(c, transactions, ALL_COLUMNS, [all_values(ghost)]))
        verdict = await rebuild(world.projector, lambda _: None)
        assert (verdict.orphan_count, verdict.orphans) == (1, [Orphan("0" * 28, "shop", TransactionState.PREPARED)])
        again = await rebuild(world.projector, lambda _: None)
        assert again.orphan_count == 0
    assert counts_of(world) == (1, 0, 0, 0, 0, 1)


@in_world(make_projector_world)
async def test_rebuild_ends_where_the_journal_ends_before_what_was_decided(world: ProjectorWorld) -> None:
    """It would wait for ever for records that nobody will write (54, 56)."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.catch_up()
    partition = world.settlers.memory.cluster.log.topics[world.topics.half].partitions[0]
    partition.records.clear()
    partition.maximum = 0
    with pytest.raises(QueueHalted, match="ends at 0"):
        await rebuild(world.projector, lambda _: None)


@pytest.mark.parametrize("lost", ["half", "op"])
@in_world(make_projector_world)
async def test_database_that_is_older_than_what_kafka_keeps_says_that_it_must_be_rebuilt(
    world: ProjectorWorld, lost: str
) -> None:
    """As after a restore: the queue's projection halts, with the remedy, and a rebuild is one (63)."""
    async with world.settlers.settling():
        await world.settlers.prepare("before", of())
        await world.catch_up()
        await world.projector.close()
        for name in ("a", "b"):
            await world.settlers.prepare(name, of())
            await world.settlers.commit(name)
            await world.settled()
    partition = world.settlers.memory.cluster.log.topics[getattr(world.topics, lost)].partitions[0]
    partition.drop_below(partition.maximum - 1)
    with pytest.raises(QueueHalted, match="outbox-bridge projection rebuild"):
        await world.projector.run_once()
    assert "projection rebuild" in world.projector.halted[0]
    if lost == "half":  # whose states the op topic has; that is compacted, and never loses its beginning by itself
        await rebuild(world.projector, lambda _: None)
        assert world.projector.halted == {}


@in_world(make_projector_world, queues=2)
async def test_rebuild_ends_after_a_minute_without_progress(world: ProjectorWorld) -> None:
    """A projector that holds the lease and does nothing, as if frozen for ever (19)."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.catch_up()
    await world.projector.close()
    other = world.make_projector("frozen")
    assert await other.hold_lease()
    renewing = asyncio.create_task(renew(world, other))
    with pytest.raises(StoreTimeout, match="s: queue 0 is at 0 of 1;"):
        await rebuild(world.projector, lambda _: None)
    renewing.cancel()


@in_world(make_projector_world, config=SMALL)
async def test_rebuild_waits_for_a_slow_projector_as_long_as_it_gets_on(world: ProjectorWorld) -> None:
    """Minutes, if it takes that long: only standing still for a minute is an end (19)."""
    clock = world.settlers.memory.clock

    async def crawl(projector: Projector) -> None:
        while True:
            for _ in range(25):
                await clock.sleep_ms(1_000)
                assert await projector.hold_lease()
            while not (await projector.run_once()).chunks:
                pass

    async with world.settlers.settling():
        for number in range(6):
            await world.settlers.prepare(f"{number}", of())
            await world.settlers.settled()
        await world.catch_up()
    await world.projector.close()
    other, began_ms = world.make_projector("slow"), clock.monotonic_ms()
    assert await other.hold_lease()
    crawling = asyncio.create_task(crawl(other))
    verdict = await rebuild(world.projector, lambda _: None)
    assert (verdict.orphan_count, verdict.total.pending) == (0, 6)
    assert clock.monotonic_ms() - began_ms > 60_000
    crawling.cancel()


async def renew(world: ProjectorWorld, projector: Projector) -> None:
    while True:
        await world.settlers.memory.clock.sleep_ms(1_000)
        await projector.hold_lease()


def test_compacted_log_still_gives_every_state(database_url: str) -> None:
    """The op topic keeps one message an id, the journal may have lost the half messages (11)."""
    world = make_projector_world(database_url, config=ProjectorConfig(max_read_records=2, max_waiting_records=3))

    async def story() -> None:
        log = world.settlers.memory.cluster.log
        async with world.settlers.settling():
            for n in range(6):
                await world.settlers.prepare(f"t{n}", of())
                await world.settlers.end(f"t{n}", Resolution.UNKNOWN, source=Source.CHECK, check_number=1)
            for n in range(3):
                await world.settlers.commit(f"t{n}")
                await world.settlers.settled()
            await world.catch_up()
        log.topics[world.topics.op].alter({"segment.ms": "1000", "min.compaction.lag.ms": "0"})
        world.settlers.memory.clock.shift_wall_clock(2 * 86_400_000)
        async with world.settlers.settling():
            await world.settlers.prepare("new", of())
            await world.catch_up()
            clean(log)
            log.topics[world.topics.half].partitions[0].drop_below(4)
            before = {name: world.view(name) for name in ("t0", "t3", "t5", "new")}
            await rebuild(world.projector, lambda _: None)
        after = {name: world.view(name) for name in before}
        assert after["t0"] is not None
        assert (after["t0"].state, after["t0"].messages, after["t0"].receipts != ()) == ("COMMITTED", (), True)
        assert {name: after[name] for name in ("t3", "t5", "new")} == {
            name: before[name] for name in ("t3", "t5", "new")
        }

    world.run(story())
    assert counts_of(world) == (7, 3, 0, 0, 0, 4)


@in_world(make_projector_world, config=SMALL)
async def test_what_has_ended_long_ago_is_kept_until_its_half_message_was_read(world: ProjectorWorld) -> None:
    """Compaction leaves op messages of weeks without a position: they are applied before the journal is (C, 19)."""
    clock = world.settlers.memory.clock

    async def settle(*names: str) -> None:
        async with world.settlers.settling():
            for name in names:
                await world.settlers.prepare(name, of())
                await world.settlers.commit(name)
                await world.settlers.settled()
            await world.catch_up()

    log = world.settlers.memory.cluster.log
    await settle(*[f"old{n}" for n in range(8)])
    log.topics[world.topics.op].alter({"segment.ms": "1000", "min.compaction.lag.ms": "0"})
    clock.shift_wall_clock(8 * 86_400_000)
    await settle(*[f"new{n}" for n in range(6)])
    clock.shift_wall_clock(2 * 86_400_000)
    await settle("last")
    clean(log)
    await world.database.run(clear_projection)
    idle = 0
    while idle < 2:
        idle = 0 if await step(world.projector) else idle + 1
    assert counts_of(world) == (15, 15, 0, 0, 0, 0)
    assert (world.view("old0"), world.view("new0") is None) == (None, False)


async def step(at_work: Projector) -> int:
    """One step of a projector at work, which forgets what is old every few seconds."""
    try:
        return (await at_work.run_once()).chunks + await at_work.purge()
    except PositionMoved:
        return 1


async def make_weeks(world: ProjectorWorld) -> None:
    """One that ended long ago, projected, and one that ended now."""
    for name, days in (("old", 0), ("new", 8)):
        world.settlers.memory.clock.shift_wall_clock(days * 86_400_000)
        async with world.settlers.settling():
            await world.settlers.prepare(name, of())
            await world.settlers.commit(name)
            await world.settled()
        if name == "old":
            await world.project()


@in_world(make_projector_world, config=SMALL)
async def test_projector_that_slept_through_a_rebuild_forgets_nothing(world: ProjectorWorld) -> None:
    """Frozen, and at work again before it knows that another one has begun the projection anew (19, C)."""
    await make_weeks(world)
    await world.project()
    await world.database.run(clear_projection)
    other = world.make_projector("other")
    while world.stats().total.prepared < 1:
        await other.run_once()
    assert await world.projector.purge() == 0
    await world.project(other)
    assert await other.purge() == 1
    await other.close()
    assert counts_of(world) == (2, 2, 0, 0, 0, 0)


@in_world(make_projector_world)
async def test_what_is_forgotten_during_a_rebuild_is_no_orphan(world: ProjectorWorld) -> None:
    """A database of last week: the projector at work reads on, and forgets, before the rebuild is judged (63)."""
    await make_weeks(world)
    await world.projector.close()
    at_work, cleared = world.make_projector("at work"), asyncio.Event()
    assert await at_work.hold_lease()

    async def work() -> None:
        await cleared.wait()
        while await step(at_work) or world.view("new") is None:
            pass

    working = asyncio.create_task(work())
    verdict = await rebuild(world.projector, lambda _: cleared.set())
    assert (verdict.orphan_count, verdict.orphans) == (0, [])
    await working
    await at_work.close()
    assert counts_of(world) == (2, 2, 0, 0, 0, 0)


def test_second_rebuild_makes_no_orphans_of_everything(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator empties the tables when the first one's rebuild is about to conclude: it goes on waiting."""
    world = make_projector_world(database_url)
    run, emptied = world.database.run, list[str]()

    async def run_behind_another(work: Any, timeout_ms: int | None = None) -> Any:
        if emptied == ["soon"]:
            emptied[:] = ["now"]
            await run(clear_projection)
        return await run(work, timeout_ms)

    def on_progress(progress: RebuildProgress) -> None:
        if not emptied and progress.applied == progress.wanted:
            emptied.append("soon")

    async def story() -> None:
        async with world.settlers.settling():
            for number in range(5):
                await world.settlers.prepare(f"t{number}", of())
                await world.settlers.end(f"t{number}", Resolution.COMMIT)
            await world.catch_up()
            await world.projector.close()
            monkeypatch.setattr(world.database, "run", run_behind_another)
            first = world.make_projector("first")
            verdict = await rebuild(first, on_progress)
            assert emptied == ["now"]
            assert (verdict.total.committed, verdict.orphan_count) == (5, 0)
            await first.close()

    world.run(story())
