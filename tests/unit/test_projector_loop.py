"""The projector's loop: who works, how many write at once, what does not stop it, what it forgets."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from api.web.health import _projector
from bridge.core.errors import SqlUnavailable
from bridge.core.message import Message, MessageQueue
from bridge.projector import ProjectorConfig
from bridge.sql.projection import apply_chunk
from bridge.sql.tables import leases, pending_ages, projection_positions
from tests.support.projector_world import DatabaseThatFails, ProjectorWorld, make_projector_world
from tests.support.settler_world import make_settler_world
from tests.support.virtual_time import in_world

T = TypeVar("T")


def of() -> Message:
    return Message("orders", b"k", b"v")


def committed(world: ProjectorWorld) -> int:
    return world.stats().total.committed


@in_world(make_projector_world)
async def test_standby_takes_over_when_the_active_one_dies(world: ProjectorWorld) -> None:
    """One works, the other waits for its lease to end; nothing is counted twice."""
    clock = world.settlers.memory.clock
    other = world.make_projector("other")
    first = asyncio.create_task(world.projector.run_forever())
    while not world.projector.is_active:
        await clock.sleep_ms(10)
    second = asyncio.create_task(other.run_forever())
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        while world.view("a") is None:
            await clock.sleep_ms(10)
        assert not other.is_active
        world.database.fail_before = 10**9  # dies without giving its lease back
        first.cancel()
        await asyncio.wait([first])
        world.database.fail_before = 0
        await world.settlers.commit("a")
        while committed(world) == 0:
            await clock.sleep_ms(10)
        assert other.is_active
    other.stop()
    await second
    assert (world.stats().total.prepared, committed(world)) == (1, 1)


@in_world(make_projector_world)
async def test_ages_are_made_anew_by_who_takes_over(world: ProjectorWorld) -> None:
    """An older release that was at work, as in an upgrade, kept none of them."""

    def ages() -> list[int]:
        return [count for _, count in world.stats().total.age_histogram if count]

    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settlers.prepare("b", of())
        await world.catch_up()
        world.query(lambda c: c.execute(sa.delete(pending_ages)))
        await world.settlers.commit("a")
        await world.catch_up()
        assert ages() == [-1]
        await world.projector.close()
        running = asyncio.create_task(world.projector.run_forever())
        await world.settlers.memory.clock.sleep_ms(1_000)
        world.projector.stop()
        await running
        assert ages() == [1]


def test_standby_says_nothing_of_what_halted_before_another_took_over(make_sqlite_url: Callable[[], str]) -> None:
    """Else it would not be ready, and an alert would stand, for as long as it lives, whatever is repaired."""
    world = make_projector_world(make_sqlite_url())

    async def story() -> None:
        clock = world.settlers.memory.clock
        async with world.settlers.settling():
            await world.settlers.prepare("a", of())
            await world.catch_up()
            await world.projector.close()
            identity = world.query(lambda c: c.execute(sa.select(projection_positions.c.op_topic_id)).scalar_one())
            world.query(lambda c: c.execute(sa.update(projection_positions).values(op_topic_id="another")))
            first = asyncio.create_task(world.projector.run_forever())
            while not world.projector.halted:
                await clock.sleep_ms(10)
            later_ms = clock.now_ms() + 3_600_000
            world.query(lambda c: c.execute(sa.update(leases).values(owner="other", until_ms=later_ms)))
            while world.projector.is_active:
                await clock.sleep_ms(10)
            world.query(lambda c: c.execute(sa.update(projection_positions).values(op_topic_id=identity)))
            assert world.projector.halted == {}
            world.projector.stop()
            await first

    world.run(story())


@in_world(make_projector_world, queues=2)
async def test_unknown_version_halts_its_queue_and_no_other(world: ProjectorWorld) -> None:
    """A newer format is not guessed at: that queue is not ready until a newer projector runs (40)."""
    op = MessageQueue(world.topics.op, 0)
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settlers.prepare("b", of(), queue_id=1)
        await world.catch_up()
        await world.settlers.commit("b", queue_id=1)
        await world.settled()
        key = world.settlers.id_of("a").encode()
        await world.settlers.memory.store.put(op, Message(op.topic, key, b'{"v":2}'))
        running = asyncio.create_task(world.projector.run_forever())
        while committed(world) == 0 or not world.projector.halted:
            await world.settlers.memory.clock.sleep_ms(50)
        world.projector.stop()
        await running
    assert list(world.projector.halted) == [0]
    assert "version" in world.projector.halted[0]


@in_world(make_projector_world)
async def test_projector_at_rest_keeps_its_lease_and_forgets_what_is_old(world: ProjectorWorld) -> None:
    """Nothing to read and an SQL that fails now and then are no reason to stop and begin anew."""
    clock = world.settlers.memory.clock
    async with world.settlers.settling():
        await world.settlers.prepare("old", of())
        await world.settlers.commit("old")
        await world.settled()
        clock.shift_wall_clock(7 * 86_400_000 + 1_000)
        await world.settlers.prepare("new", of())
        await world.settlers.commit("new")
        await world.settled()
    running = asyncio.create_task(world.projector.run_forever())
    while committed(world) < 2:
        await clock.sleep_ms(10)
    world.database.fail_before = 3  # renewals of the lease and a purge
    for _ in range(2_000):
        assert world.projector.is_active
        await clock.sleep_ms(10)
    assert world.database.fail_before == 0
    world.projector.stop()
    await running
    assert (world.view("old"), world.view("new") is None) == (None, False)


@pytest.mark.parametrize(
    ("moved", "interval_ms"), [(0, 20), (1, 20), (100, 50), (599, 299), (2_000, 300), (2_499, 300), (2_500, 0)]
)
def test_interval_grows_with_what_comes(moved: int, interval_ms: int) -> None:
    """At rest nobody waits for the projector, and behind its time it never waits itself."""
    assert ProjectorConfig().interval_after(moved) == interval_ms


class CountingDatabase(DatabaseThatFails):
    """`most`: so many chunks were applied at once."""

    applying = most = 0

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        if not isinstance(work, partial) or work.func is not apply_chunk:
            return await super().run(work, timeout_ms)
        self.applying += 1
        self.most = max(self.most, self.applying)
        try:
            for _ in range(20):
                await asyncio.sleep(0)
            return await super().run(work, timeout_ms)
        finally:
            self.applying -= 1


@pytest.mark.parametrize(("is_sqlite", "writers"), [(True, 1), (False, 2)])
def test_queues_leave_the_pool_to_readers(make_sqlite_url: Callable[[], str], is_sqlite: bool, writers: int) -> None:
    """SQLite has one writer; of PostgreSQL's pool the projector takes half, however many queues have come in."""
    database = CountingDatabase(make_sqlite_url())
    database.is_sqlite = is_sqlite
    world = ProjectorWorld(make_settler_world(queues=6), database, ProjectorConfig())

    async def story() -> None:
        async with world.settlers.settling():
            for queue_id in range(6):
                await world.settlers.prepare("a", of(), queue_id=queue_id)
            await world.settled()
        running = asyncio.create_task(world.projector.run_forever())
        while world.stats().total.prepared < 6:
            await world.settlers.memory.clock.sleep_ms(10)
        world.projector.stop()
        await running

    world.run(story())
    assert database.most == writers


@in_world(make_projector_world)
async def test_broker_s_clock_that_was_years_ahead_purges_nothing(world: ProjectorWorld) -> None:
    """One record of 2038 is the newest for as long as its projector lives; repeats would be known to nobody (D)."""
    log = world.settlers.memory.cluster.log
    journal_and_op = [log.topics[name].partitions[0] for name in (world.topics.half, world.topics.op)]
    async with world.settlers.settling():
        await world.settlers.prepare("before", of())
        await world.settlers.commit("before")
        await world.catch_up()
        for ahead_ms in (20 * 365 * 86_400_000, 0):
            for partition in journal_and_op:
                partition.ahead_ms = ahead_ms
            await world.settlers.prepare(f"ahead {ahead_ms}", of())
            await world.settlers.rollback(f"ahead {ahead_ms}")
            await world.catch_up()
        assert await world.projector.purge() == 0
        world.settlers.memory.clock.shift_wall_clock(8 * 86_400_000)
        await world.settlers.prepare("after", of())
        await world.catch_up()
        assert await world.projector.purge() == 2


class FullDatabase(DatabaseThatFails):
    """Takes what needs no more room, such as a lease; no chunk while it `is_full`."""

    is_full = True

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        if self.is_full and isinstance(work, partial) and work.func is apply_chunk:
            raise SqlUnavailable("its disk is full")
        return await super().run(work, timeout_ms)


def test_projector_that_writes_in_vain_says_why(make_sqlite_url: Callable[[], str]) -> None:
    """Its lease is kept meanwhile, and search stands still: readiness said that all was well."""
    database = FullDatabase(make_sqlite_url())
    world = ProjectorWorld(make_settler_world(), database, ProjectorConfig())

    async def story() -> None:
        clock = world.settlers.memory.clock
        async with world.settlers.settling():
            await world.settlers.prepare("a", of())
            await world.settled()
        running = asyncio.create_task(world.projector.run_forever())
        while not (told := await _projector(world.projector)).detail:
            await clock.sleep_ms(10)
        assert (told.is_ok, told.is_degraded) == (False, True)
        assert told.detail == "queues held up: {0: 'its disk is full'}"
        database.is_full = False
        while world.stats().total.prepared == 0:
            await clock.sleep_ms(10)
        assert (await _projector(world.projector)).is_ok
        world.projector.stop()
        await running

    world.run(story())
