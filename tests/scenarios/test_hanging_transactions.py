"""A Kafka transaction of another producer hangs: what is written behind it cannot be read, and that is told (52)."""

from pathlib import Path

from bridge.core.message import Message, MessageQueue
from bridge.core.transaction import TransactionState
from bridge.service.contract import Outcome, RefusalCode
from bridge.store.memory.coordinators import Stamp
from tests.support.lost_log_world import LostLogWorld, make_lost_log_world
from tests.support.virtual_time import in_world

_LONG_MS = 900_000  # as brokers allow


def begin_alien(world: LostLogWorld, *queues: MessageQueue) -> Stamp:
    """Some other application begins to write there, and does not end it."""
    producers = world.memory.cluster.producers
    stamp = Stamp(*producers.init("alien", _LONG_MS), 0)
    producers.add_queues("alien", stamp, queues)
    for queue in queues:
        producers.append("alien", stamp, queue, [Message(queue.topic, b"b", b"open", (), queue.queue_id)])
    return stamp


@in_world(make_lost_log_world)
async def test_partition_that_readers_wait_at_is_named(world: LostLogWorld) -> None:
    """Its age from the first message that cannot be read on; told once no Kafka transaction of the bridge's could be
    the reason; nothing is left to tell when it has ended."""
    async with world.running() as node:
        partitions = range(len(world.memory.cluster.log.topics["orders"].partitions))
        stamp = begin_alien(world, *[MessageQueue("orders", number) for number in partitions])
        for number in range(3):
            made = await world.prepare(node, b"%d" % number)
            assert (await world.end(node, made)).state is TransactionState.COMMITTED
        await world.until(lambda: node.stable_offsets.age_ms >= 10_000, "noticed")
        assert node.stable_offsets.describe() == ""
        await world.memory.clock.sleep_ms(60_000)
        told = node.stable_offsets.describe()
        assert told.startswith("orders[")
        assert "]: nothing from offset 0 on can be read" in told
        assert "a Kafka transaction there hangs" in told
        assert told.count("nothing from") == 1
        world.memory.cluster.producers.end("alien", stamp, is_commit=False)
        await world.until(lambda: node.stable_offsets.age_ms == 0, "over")
        assert node.stable_offsets.describe() == ""
    assert world.memory.visible("orders") == [b"0", b"1", b"2"]


def see_named(world: LostLogWorld, topic: str, after_ms: int) -> None:
    """A Kafka transaction of somebody else hangs in a queue of the topic, which is named once that time has passed;
    nothing is lost when it has ended."""

    async def story() -> None:
        async with world.running() as node:
            made = await world.prepare(node, b"v")
            queue = MessageQueue(topic, made.queue_id)
            stamp = begin_alien(world, queue)
            refused = await world.end(node, made)
            assert (refused.code, refused.outcome) == (RefusalCode.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
            await world.memory.clock.sleep_ms(after_ms)
            assert f"{queue.topic}[{queue.queue_id}]: nothing from offset" in node.stable_offsets.describe()
            world.memory.cluster.producers.end("alien", stamp, is_commit=False)
            await world.until(lambda: node.stable_offsets.age_ms == 0, "over")
            assert (await world.end(node, made)).state is TransactionState.COMMITTED
        assert world.memory.visible("orders") == [b"v"]

    world.run(story())


def test_op_topic_that_readers_wait_at_is_named_by_its_owner(tmp_path: Path) -> None:
    """What it writes is not known to anybody."""
    world = make_lost_log_world(tmp_path)
    see_named(world, world.topics.op, 90_000)


def test_journal_that_its_owner_waits_at_is_named(tmp_path: Path) -> None:
    """The owner reads no end any more, and nothing else is wrong."""
    world = make_lost_log_world(tmp_path)
    see_named(world, world.topics.half, 180_000)


@in_world(make_lost_log_world)
async def test_op_topic_that_no_take_over_can_read_is_named(world: LostLogWorld) -> None:
    """By the settler that tries; it goes on by itself when the other one has ended."""
    async with world.running(is_settling=False) as api:
        made = await world.prepare(api, b"v")
        op = MessageQueue(world.topics.op, made.queue_id)
        stamp = begin_alien(world, op)
        async with world.running(is_awaited=False) as node:
            await world.until(lambda: "nothing from offset" in node.stable_offsets.describe(), "told", 180_000)
            assert f"{op.topic}[{op.queue_id}]" in node.stable_offsets.describe()
            world.memory.cluster.producers.end("alien", stamp, is_commit=False)
            await world.until(lambda: node.is_ready, "ready")
            assert (await world.end(api, made)).state is TransactionState.COMMITTED
            await world.until(lambda: node.stable_offsets.age_ms == 0, "over")
    assert world.memory.visible("orders") == [b"v"]
