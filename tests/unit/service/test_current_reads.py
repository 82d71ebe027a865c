"""Reads that wait for the projection, and what they share."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from bridge.core.message import Message, MessageQueue
from bridge.service.contract import Prepared, RefusalCode, Refused
from bridge.service.journal import Deadline, EndOffsets
from bridge.service.reads import CurrentReads, Freshness, ProjectionPositions
from bridge.sql.engine import InlineDatabase, SqlConfig
from bridge.store.memory.link import Fate, StepKind
from bridge.store.message_store import QueueOffsets
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

T = TypeVar("T")


class CountingDatabase(InlineDatabase):
    """Counts reads."""

    reads = 0

    async def read(self, work: Callable[[Connection], T]) -> T:
        self.reads += 1
        return await super().read(work)


def make_reads(world: ServiceWorld, database: InlineDatabase, *, is_aside: bool = False) -> CurrentReads:
    clock = world.settlers.memory.clock
    ends = EndOffsets(world.settlers.memory.store, world.topics)
    return CurrentReads(database, ends, ProjectionPositions(database, clock), clock, 2_000, is_aside=is_aside)


async def append(world: ServiceWorld) -> None:
    await world.settlers.memory.store.put(MessageQueue(world.topics.half, 0), Message("", b"k"))


@in_world(make_service_world, faults=ScriptedFaults)
async def test_many_waiters_share_one_poller_and_one_note(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """A hundred callers ask for one end, and the database once each 20 ms."""
    database = CountingDatabase(str(world.database.url))
    clock = world.settlers.memory.clock
    reads = make_reads(world, database)
    await append(world)
    faults.steps.clear()
    work = [reads.read([0], lambda connection: 7, Deadline.after(clock, 2_000)) for _ in range(100)]
    tasks = [asyncio.create_task(one) for one in work]
    await world.sleep(200)
    assert len([step for step in faults.steps if step.kind is StepKind.GET]) == 1
    world.put_position(0, 1)
    answers = await asyncio.gather(*tasks)
    assert {(answer.currency, answer.value) for answer in answers} == {(Freshness.CURRENT, 7)}
    assert database.reads < 100 + 15 + 100
    before = database.reads
    await world.sleep(1_000)
    assert database.reads == before


@in_world(make_service_world, faults=ScriptedFaults)
async def test_note_is_never_older_than_the_question(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """Who asks while a note is under way gets the next one: it must not miss what was appended before."""
    clock = world.settlers.memory.clock
    ends = EndOffsets(world.settlers.memory.store, world.topics)
    faults.give(StepKind.GET, Fate(answer_ms=100))
    first = asyncio.create_task(ends.note(0, Deadline.after(clock, 1_000)))
    await world.sleep(50)
    await append(world)
    later = [asyncio.create_task(ends.note(0, Deadline.after(clock, 1_000))) for _ in range(3)]
    assert await first == 0
    assert [await task for task in later] == [1, 1, 1]


@in_world(make_service_world)
async def test_broker_that_was_frozen_hides_nothing_that_was_decided(world: ServiceWorld) -> None:
    """It tells the journal's end as it was, until it knows that another one leads: nothing is unknown for that (A)."""
    async with world.serving() as api, world.settlers.settling():
        end_as_it_was = await api.backing.store.get_offsets(MessageQueue(world.topics.half, 0))
        [prepared] = await api.transactions.prepare([world.call()])
        assert isinstance(prepared, Prepared)
        await world.sleep(1_000)

        async def answer(_: MessageQueue) -> QueueOffsets:
            return end_as_it_was

        api.backing.store.get_offsets = answer  # type: ignore[method-assign]
        clock = world.settlers.memory.clock
        found = await api.reads.find_one(prepared.transaction_id, Deadline.after(clock, 500))
        assert isinstance(found, Refused), "no projector has come to it"
        assert found.code is RefusalCode.PROJECTION_BEHIND


@in_world(make_service_world, faults=ScriptedFaults)
async def test_unreachable_log_or_database_is_not_behind(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """Nobody can tell how far it is: 503, and in time."""
    clock = world.settlers.memory.clock
    reads = make_reads(world, world.database)
    faults.give(StepKind.GET, Fate(answer_ms=None))
    start = clock.monotonic_ms()
    answer = await reads.read([0], lambda connection: 7, Deadline.after(clock, 500))
    assert (answer.currency, clock.monotonic_ms() - start) == (Freshness.UNREACHABLE, 500)
    await world.sleep(10_000)
    await append(world)
    task = asyncio.create_task(reads.read([0], lambda connection: 7, Deadline.after(clock, 500)))
    await world.sleep(100)
    world.database.is_down = True
    assert (await task).currency is Freshness.UNREACHABLE
    missing = await reads.refuse_missing("0" * 28)
    assert (missing.code, missing.transaction_id) == (RefusalCode.UNAVAILABLE, "0" * 28)


@in_world(make_service_world)
async def test_what_is_only_shown_holds_up_no_look_up(world: ServiceWorld) -> None:
    """However many want it: it takes its turn with lists."""
    database = InlineDatabase(str(world.database.url))
    shown = make_reads(world, database, is_aside=True)
    for _ in range(SqlConfig().threads // 2):
        await database.list_turns.acquire()
    deadline = Deadline.after(world.settlers.memory.clock, 500)
    asked = asyncio.create_task(shown.read_beyond({}, lambda _: 7, deadline))
    looked_up = await make_reads(world, database).read_beyond({}, lambda _: 7, deadline)
    assert (looked_up.currency, looked_up.value) == (Freshness.CURRENT, 7)
    database.list_turns.release()
    assert (await asked).value == 7
