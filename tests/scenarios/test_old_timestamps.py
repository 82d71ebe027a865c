"""Commits that are older than their topic takes timestamps when they can be published at last."""

import pytest

from bridge.core.message import Message
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world

HOUR_MS = 3_600_000
LIMIT = {"message.timestamp.before.max.ms": str(HOUR_MS)}


async def block_for(world: SettlerWorld, duration_ms: int, *messages: Message) -> int:
    """Commits them while the topic takes nothing; when that was."""
    topic = world.memory.cluster.log.topics["credits"]
    topic.alter(LIMIT)
    for n, message in enumerate(messages):
        await world.prepare(f"t{n}", message)
    await world.settled()
    topic.is_denied = True
    committed_ms = world.memory.clock.now_ms()
    for n, _ in enumerate(messages):
        await world.commit(f"t{n}")
    await world.memory.clock.sleep_ms(duration_ms)
    assert world.op_of("t0").transaction.blocked
    topic.is_denied = False
    await world.memory.clock.sleep_ms(120_000)
    return committed_ms


def test_commit_blocked_for_longer_than_its_topic_takes_timestamps_is_stamped_anew() -> None:
    """Nobody asked for a timestamp: the record is published, with a time the topic takes (L)."""
    world = make_settler_world()

    async def story() -> None:
        async with world.settling():
            committed_ms = await block_for(world, 2 * HOUR_MS, Message("credits", b"k", b"v"))
            [record] = world.memory.read_visible("credits")
            assert record.stored_ms >= committed_ms + 2 * HOUR_MS

    world.run(story(), 4 * HOUR_MS)


def test_commit_that_is_young_enough_keeps_the_time_of_its_commit() -> None:
    """However late it is published (I)."""
    world = make_settler_world()

    async def story() -> None:
        async with world.settling():
            committed_ms = await block_for(world, HOUR_MS // 2, Message("credits", b"k", b"v"))
            [record] = world.memory.read_visible("credits")
            assert record.stored_ms == committed_ms

    world.run(story(), 4 * HOUR_MS)


def test_timestamp_that_was_asked_for_stays_and_is_the_reason() -> None:
    """It became too old: published under no other (I), shown, and nobody else's commit fails for it (B)."""
    world = make_settler_world()
    asked_ms = world.memory.clock.now_ms()

    async def story() -> None:
        async with world.settling():
            old = Message("credits", b"k", b"old", timestamp_ms=asked_ms)
            await block_for(world, 2 * HOUR_MS, old, Message("credits", b"l", b"v"))
            assert world.op_of("t0").transaction.reason == "INVALID_TIMESTAMP"
            assert world.memory.visible("credits") == [b"v"]
            world.memory.cluster.log.topics["credits"].alter({"message.timestamp.before.max.ms": str(10 * HOUR_MS)})
            await world.memory.clock.sleep_ms(120_000)

    world.run(story(), 4 * HOUR_MS)
    assert [record.stored_ms for record in world.memory.read_visible("credits") if record.value == b"old"] == [asked_ms]


@pytest.mark.parametrize("limit_ms", [1_000, 10_000])
def test_topic_that_takes_only_young_timestamps_is_published_to(limit_ms: int) -> None:
    """A settler that was away decides the commit late: that is no reason to block it (L)."""
    world = make_settler_world()

    async def story() -> None:
        world.memory.cluster.log.topics["credits"].alter({"message.timestamp.before.max.ms": str(limit_ms)})
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.commit("a")
        await world.memory.clock.sleep_ms(HOUR_MS)
        async with world.settling():
            await world.settled()
            assert world.memory.visible("credits") == [b"v"]

    world.run(story(), 4 * HOUR_MS)


@in_world(make_settler_world)
async def test_commit_of_a_time_that_is_years_ahead_is_stamped_anew(world: SettlerWorld) -> None:
    """A broker's clock was: no topic takes that time, so it would stay blocked for years. Its next owner knows (L)."""
    ours = [world.memory.cluster.log.topics[name].partitions[0] for name in (world.topics.half, world.topics.op)]
    async with world.settling("first"):
        for partition in ours:
            partition.ahead_ms = 20 * 365 * 24 * HOUR_MS
        await world.prepare("t0", Message("credits", b"k", b"v"))
        await world.commit("t0")
        await world.memory.clock.sleep_ms(10_000)
        assert world.op_of("t0").transaction.reason == "INVALID_TIMESTAMP"
        for partition in ours:
            partition.ahead_ms = 0
    taken_over_ms = world.memory.clock.now_ms()
    async with world.settling("second"):
        await world.memory.clock.sleep_ms(120_000)
    [record] = world.memory.read_visible("credits")
    assert taken_over_ms <= record.stored_ms <= world.memory.clock.now_ms()
