"""Logs that are not what was left: a queue halts, stays halted, and publishes nothing twice."""

import pytest

from bridge.core.message import Message
from bridge.store.memory.link import StepKind
from bridge.store.memory.log import Topic
from tests.support.held_steps import HeldSteps
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world

KEYED = Message("credits", b"k", b"v")


def recreate(world: SettlerWorld, name: str) -> Topic:
    """Deleted and made again with the same settings: another id, and empty."""
    log = world.memory.cluster.log
    config = log.topics[name].config
    queues = len(log.topics[name].partitions)
    log.delete_topic(name)
    return log.create_topic(name, queues, config)


def truncate(world: SettlerWorld, name: str, end: int) -> None:
    """What an unclean election does: records from `end` on were never there, and offsets are given out again."""
    partition = world.memory.cluster.log.topics[name].partitions[0]
    del partition.records[partition.find_index(end) :]
    partition.maximum = end


async def live(world: SettlerWorld, name: str = "a") -> None:
    async with world.settling():
        await world.prepare(name, KEYED)
        await world.commit(name)
        await world.settled()


@pytest.mark.parametrize("loss", ["recreated", "emptied"])
@in_world(make_settler_world)
async def test_lost_op_topic_publishes_nothing_again(world: SettlerWorld, loss: str) -> None:
    """No position is never a beginning (D, 53)."""
    await live(world)
    if loss == "recreated":
        recreate(world, world.topics.op)
    else:
        truncate(world, world.topics.op, 0)
    async with world.settling("next"):
        await world.memory.clock.sleep_ms(30_000)
        assert world.settlers["next"].status[0].hold.value == "halted"
        assert list(world.watches["next"].halts) == [0]
    assert world.memory.visible("credits") == [b"v"]


@pytest.mark.parametrize("loss", ["recreated", "truncated"])
@in_world(make_settler_world)
async def test_lost_journal_stays_halted_when_it_has_grown_again(world: SettlerWorld, loss: str) -> None:
    """Records that reach S again are other ones: none of them is taken for decided (L, 53, 56)."""
    await live(world)
    if loss == "recreated":
        recreate(world, world.topics.half)
    else:
        truncate(world, world.topics.half, 1)
    await world.memory.clock.sleep_ms(1_000)
    for name in "bcdef":
        await world.prepare(name, KEYED)
    async with world.settling("next"):
        await world.memory.clock.sleep_ms(30_000)
        assert world.settlers["next"].status[0].hold.value == "halted"
    assert world.read_op().positions[-1].owner == "settler"


@in_world(make_settler_world)
async def test_topic_recreated_under_a_running_owner_halts_it(world: SettlerWorld) -> None:
    """Its clients would go on with the new topic as if nothing had been (62)."""
    async with world.settling():
        await world.prepare("a", KEYED)
        await world.settled()
        recreate(world, world.topics.op)
        await world.memory.clock.sleep_ms(3_000)
        await world.commit("a")
        await world.memory.clock.sleep_ms(30_000)
        assert world.settlers["settler"].status[0].hold.value == "halted"
    assert world.memory.visible("credits") == []


@in_world(make_settler_world, faults=HeldSteps)
async def test_topic_recreated_under_a_take_over_halts_it(world: SettlerWorld, faults: HeldSteps) -> None:
    """It does not wait for the end of what is gone, which nobody will ever reach (62)."""
    await live(world)
    coming = faults.hold(StepKind.GET, client="next", subject=world.topics.half)
    async with world.settling("next"):
        await coming.reached.wait()  # the end of the op topic is known, nothing of it is read
        recreate(world, world.topics.op)
        coming.release()
        await world.memory.clock.sleep_ms(20_000)
        assert world.settlers["next"].status[0].hold.value == "halted"
    assert world.memory.visible("credits") == [b"v"]
