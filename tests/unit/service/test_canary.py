"""bridge.service.canary: whether a transaction gets through, or why not, without leaving heaps behind."""

import asyncio
from pathlib import Path

import pytest

from bridge.core.message import MessageQueue
from bridge.core.record import Act, EndRecord
from bridge.core.transaction import TransactionView
from bridge.node import Node
from bridge.service.canary import ARRIVED, CANARY_GROUP, FAILED, Canary, CanaryConfig
from bridge.service.operate import Who
from bridge.store.memory.link import Fate, NoFaults, Step, StepKind
from bridge.store.message_store import GetResult, MessageStore
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

TOPIC = "orders"


class SlowLog(NoFaults):
    """Each request takes three milliseconds."""

    async def before(self, step: Step) -> Fate:
        return Fate(request_ms=3)


class LosesPuts(NoFaults):
    """No request to append arrives while `is_on`."""

    is_on = False

    async def before(self, step: Step) -> Fate:
        return Fate(request_ms=None if self.is_on and step.kind is StepKind.PUT else 0)


def make_canary(api: Node, topic: str = TOPIC, interval_ms: int = 60_000) -> Canary:
    backing = api.backing
    config = CanaryConfig(topic, interval_ms)
    return Canary(config, api.transactions, api.directory, backing.store, backing.clock, api.make_text)


async def count_prepared(world: ServiceWorld) -> int:
    """Half messages of the canary, in all queues."""
    journals = [await world.journal(queue_id) for queue_id in range(world.topics.queues)]
    return sum(getattr(record, "group", None) == CANARY_GROUP for journal in journals for record in journal)


def test_canary_arrives_and_tells_how_long_each_step_took(tmp_path: Path) -> None:
    """Prepared, published, read again: a new one each time."""
    world = make_service_world(tmp_path, faults=SlowLog())

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling():
            canary = make_canary(api)
            first, second = await canary.run_once(), await canary.run_once()
            assert (first.failure, second.failure) == (None, None)
            assert min(first.prepare_ms, first.settle_ms, first.read_ms) >= 3
            assert first.total_ms == first.prepare_ms + first.settle_ms + first.read_ms
            assert (canary.last, canary.counts) == (second, {ARRIVED: 2})
            assert canary.durations.count == 2
            assert await count_prepared(world) == 2

    world.run(story())


class LateMarkers:
    """Of the store's look-ups: the first ones find nothing yet."""

    def __init__(self, store: MessageStore, looks: int) -> None:
        self._store = store
        self._left = looks

    async def get(self, queue: MessageQueue, offset: int, max_count: int) -> GetResult:
        self._left -= 1
        return await self._store.get(queue, offset if self._left < 0 else 10_000, max_count)


@pytest.mark.parametrize(("looks", "has_arrived"), [(3, True), (100_000, False)])
@in_world(make_service_world)
async def test_canary_waits_for_the_marker_behind_its_message(
    world: ServiceWorld, looks: int, has_arrived: bool
) -> None:
    """A broker answers EndTxn before readers may see what it committed; but it does not wait for ever."""
    async with world.serving() as api, world.settlers.settling():
        canary = make_canary(api)
        canary._store = LateMarkers(api.backing.store, looks)  # type: ignore[assignment]
        run = await canary.run_once()
        assert (run.failure is None) == has_arrived
        assert run.read_ms >= 60
        assert has_arrived or "not found at orders[" in str(run.failure)


@in_world(make_service_world)
async def test_canary_that_an_operator_gave_up_is_followed_by_another(world: ServiceWorld) -> None:
    """What was abandoned is never published: the next one shows whether the way is open again."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        canary = make_canary(api)
        assert (await canary.run_once()).failure is None
        topic = world.settlers.memory.cluster.log.topics[TOPIC]
        topic.is_denied = True
        assert (await canary.run_once()).failure
        assert canary._open is not None
        told = await api.transactions.act(canary._open[0], Act.ABANDON, Who("ann", "why"))
        assert isinstance(told, TransactionView)
        topic.is_denied = False
        await world.sleep(60_000)
        assert (await canary.run_once()).failure
        assert canary._open is None
        while (await canary.run_once()).failure:  # what the settler knows of the topic is a little old
            await world.sleep(1_000)
        assert await count_prepared(world) == 3


@in_world(make_service_world)
async def test_canary_that_cannot_be_published_is_followed_and_not_repeated(world: ServiceWorld) -> None:
    """A topic that takes nothing gets one; once it takes it, that one has arrived."""
    async with world.serving() as api, world.settlers.settling():
        canary = make_canary(api)
        assert (await canary.run_once()).failure is None
        topic = world.settlers.memory.cluster.log.topics[TOPIC]
        topic.is_denied = True
        failures = [(await canary.run_once()).failure for _ in range(3)]
        assert all(failures)
        assert await count_prepared(world) == 2
        topic.is_denied = False
        await world.sleep(60_000)
        assert (await canary.run_once()).failure is None
        assert (canary.counts[FAILED], await count_prepared(world)) == (3, 2)
        assert (await canary.run_once()).failure is None


@in_world(make_service_world)
async def test_canary_an_hour_apart_is_followed_each_minute(world: ServiceWorld) -> None:
    """Its alert looks at the last five minutes: where looks were further apart it never fired, nor ended in time."""
    async with world.serving() as api, world.settlers.settling():
        canary = make_canary(api, interval_ms=3_600_000)
        topic = world.settlers.memory.cluster.log.topics[TOPIC]
        topic.is_denied = True
        looks = asyncio.ensure_future(canary.run_forever())
        await world.sleep(300_000)
        assert canary.counts[FAILED] >= 4
        topic.is_denied = False
        await world.sleep(120_000)
        assert canary.counts[ARRIVED] == 1
        await world.sleep(3_000_000)
        assert canary.counts[ARRIVED] == 1
        looks.cancel()


@in_world(make_service_world, faults=LosesPuts)
async def test_canary_that_may_not_have_been_prepared_is_not_committed(world: ServiceWorld, faults: LosesPuts) -> None:
    """An end of what was never prepared would be a finding of the next report; what was is rolled back by itself."""
    async with world.serving() as api, world.settlers.settling():
        canary = make_canary(api)
        assert (await canary.run_once()).failure is None
        faults.is_on = True
        assert (await canary.run_once()).failure
        faults.is_on = False
        assert (await canary.run_once()).failure is None
        journals = [await world.journal(queue_id) for queue_id in range(world.topics.queues)]
        ends = [record for journal in journals for record in journal if isinstance(record, EndRecord)]
        assert len(ends) == await count_prepared(world) == 2


@in_world(make_service_world)
async def test_canary_without_a_topic_says_what_to_do(world: ServiceWorld) -> None:
    """The remedy is in what readiness shows."""
    async with world.serving() as api, world.settlers.settling():
        canary = make_canary(api, "nowhere")
        failure = (await canary.run_once()).failure
        assert failure is not None
        assert "outbox-bridge topic create nowhere" in failure
        assert await count_prepared(world) == 0


@in_world(make_service_world)
async def test_database_that_is_away_is_a_failure_and_no_end(world: ServiceWorld) -> None:
    """The loop goes on; the next one arrives."""
    async with world.serving() as api, world.settlers.settling():
        canary = make_canary(api)
        world.database.is_down = True
        failure = (await canary.run_once()).failure
        world.database.is_down = False
        assert failure is None or "down" in failure
        assert (await canary.run_once()).failure is None


@in_world(make_service_world)
async def test_canary_rests_while_all_prepares_are_switched_off(world: ServiceWorld) -> None:
    """What an operator wants is no failure; one that is under way is followed until it has arrived."""
    who = Who("ann", "release")
    async with world.serving() as api, world.settlers.settling():
        canary = make_canary(api)
        assert (await canary.run_once()).failure is None
        topic = world.settlers.memory.cluster.log.topics[TOPIC]
        topic.is_denied = True
        assert (await canary.run_once()).failure
        await api.groups.switch_prepares(who, is_paused=True)
        await world.sleep(5_000)
        looks = asyncio.ensure_future(canary.run_forever())
        topic.is_denied = False
        await world.sleep(300_000)
        assert canary.counts[ARRIVED] == 2
        assert (canary.last, await count_prepared(world)) == (None, 2)
        await api.groups.switch_prepares(who, is_paused=False)
        await world.sleep(120_000)
        looks.cancel()
        assert canary.counts[ARRIVED] > 2
        assert canary.last is not None
        assert canary.last.failure is None
