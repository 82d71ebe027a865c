"""One producer group that asks for topics nobody has takes nothing from the others."""

from bridge.node import Node
from bridge.service.contract import Outcome, PrepareCall, Prepared, RefusalCode, Refused
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

FLOOD = 10_000


def invented(world: ServiceWorld, *numbers: int) -> list[PrepareCall]:
    return [world.call(group="pest", topic=f"invented-{number}") for number in numbers]


async def is_prepared(world: ServiceWorld, api: Node, topic: str) -> bool:
    """What another group hears."""
    [answer] = await api.transactions.prepare([world.call(topic=topic)])
    return isinstance(answer, Prepared)


@in_world(make_service_world)
async def test_group_that_invents_topics_takes_no_look_up_from_another(world: ServiceWorld) -> None:
    """One after the other: it is told to come back, the other group's topics are found, known before or not."""
    log = world.settlers.memory.cluster.log
    for number in range(3):
        log.create_topic(f"real-{number}")
    async with world.serving() as api:
        assert await is_prepared(world, api, "orders")
        await api.transactions.prepare([world.call(group="pest", topic="orders")])
        refused = None
        for number in range(FLOOD):
            [refused] = await api.transactions.prepare(invented(world, number))
            if number % 4_000 == 0:
                assert await is_prepared(world, api, f"real-{number // 4_000}")
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
        assert refused.retry_after_s == 1
        assert await is_prepared(world, api, "orders")


@in_world(make_service_world)
async def test_invented_topics_in_the_same_list_leave_room_for_a_real_one(world: ServiceWorld) -> None:
    """Together in one list, first and last: the others' topics are among those that are looked up."""
    world.settlers.memory.cluster.log.create_topic("known")
    async with world.serving() as api:
        await api.transactions.prepare([world.call(group=group, topic="known") for group in ("pest", "shop")])
        calls = [*invented(world, *range(FLOOD)), world.call()]
        answers = await api.transactions.prepare(calls)
        assert isinstance(answers[-1], Prepared)
        assert all(isinstance(answer, Refused) for answer in answers[:-1])
