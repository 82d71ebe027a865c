"""What a successor rebuilds, and what it must not do when the log does not hold what it needs."""

from collections.abc import Callable

import pytest

from bridge.core.errors import UnknownRecordVersion
from bridge.core.message import Message
from bridge.core.op_message import POSITION_KEY
from bridge.core.record import Resolution, Source
from bridge.core.transaction import TransactionState
from bridge.settler.settler import Hold
from bridge.store.memory.partition import Partition
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world


async def pass_traffic(world: SettlerWorld, duration_ms: int, name: str) -> None:
    """Others are prepared and rolled back, one every ten seconds."""
    for n in range(duration_ms // 10_000):
        await world.prepare(f"{name}{n}", Message("orders", None, None))
        await world.rollback(f"{name}{n}")
        await world.memory.clock.sleep_ms(10_000)
    await world.settled()


def partition_of(world: SettlerWorld, topic: str) -> Partition:
    return world.memory.cluster.log.topics[topic].partitions[0]


async def leave_one_pending(world: SettlerWorld) -> None:
    """`pending` is PREPARED and counted once, `a` committed; nobody owns the queue any more."""
    async with world.settling("first"):
        await world.prepare("a", Message("credits", b"k", b"a"))
        await world.prepare("pending", Message("credits", b"k", b"p"))
        await world.end("pending", Resolution.UNKNOWN, source=Source.CHECK, check_number=1)
        await world.commit("a")
        await world.prepare("new", Message("orders", b"k", b"n"))
        await world.settled()


@in_world(make_settler_world)
async def test_end_is_read_back_for_as_long_as_its_half_message_is(world: SettlerWorld) -> None:
    """An older one holds L back for longer than ended ones are remembered, over two take-overs, each of which
    remembers them anew (P, D, F)."""
    async with world.settling("first"):
        await world.prepare("old", Message("orders", b"k", b"old"))
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.commit("a")
        await pass_traffic(world, 150_000, "x")
    for name, duration_ms in (("second", 130_000), ("third", 20_000)):
        world.observer.pending.clear()
        async with world.settling(name):
            await pass_traffic(world, duration_ms, name)
            assert world.read_op().positions[-1].l == 0
            assert world.observer.pending.keys() == {world.id_of("old")}
    async with world.settling("fourth"):
        await world.commit("a")
        await world.settled()
    assert world.memory.visible("credits") == [b"v"]


@in_world(make_settler_world)
async def test_deleted_consume_offsets_change_nothing(world: SettlerWorld) -> None:
    """The position is in the op topic: a successor begins there, whatever the group has or has not committed (L, D)."""
    async with world.settling("first"):
        await world.prepare("a", Message("credits", b"k", b"a"))
        await world.commit("a")
        await pass_traffic(world, 150_000, "x")
    await world.prepare("b", Message("credits", b"k", b"b"))
    await world.commit("b")
    world.memory.cluster.groups.delete_offsets(world.topics.group)
    async with world.settling("second"):
        await world.settled()
        world.memory.cluster.groups.delete_offsets(world.topics.group)
        await world.prepare("c", Message("credits", b"k", b"c"))
        await world.commit("c")
        await world.settled()
    assert world.memory.visible("credits") == [b"a", b"b", b"c"]


def cut_journal(world: SettlerWorld) -> None:
    """The half message that holds L is gone."""
    l = world.read_op().positions[-1].l  # noqa: E741 - the name of the format
    partition_of(world, world.topics.half).drop_below(l + 1)


def cut_op_topic(world: SettlerWorld) -> None:
    """Op messages from O on are gone, the last position is not."""
    partition = partition_of(world, world.topics.op)
    partition.drop_below(partition.maximum - 2)
    assert any(record.stored.key == POSITION_KEY for record in partition.records)


def lose_op_topic(world: SettlerWorld) -> None:
    """Not even a position is left."""
    partition = partition_of(world, world.topics.op)
    partition.drop_below(partition.maximum)


@pytest.mark.parametrize("lose", [cut_journal, cut_op_topic, lose_op_topic])
@in_world(make_settler_world)
async def test_log_that_lost_its_beginning_halts_the_queue(
    world: SettlerWorld, lose: Callable[[SettlerWorld], None]
) -> None:
    """What is needed to rebuild is gone: nothing is decided as if it had never been, and it is said (L, S)."""
    await leave_one_pending(world)
    lose(world)
    await world.commit("pending", request="r")
    positions = len(world.read_op().positions)
    async with world.settling("second"):
        await world.memory.clock.sleep_ms(30_000)
        status = world.settlers["second"].status[0]
        assert status.hold is Hold.HALTED
        assert status.reason
    assert len(world.read_op().positions) == positions, "nothing moves"
    assert world.read_op().answers == []


@in_world(make_settler_world)
async def test_journal_that_is_cut_under_its_owner_halts_the_queue(world: SettlerWorld) -> None:
    """An owner that lags behind what retention leaves never goes on at the next record there is (L)."""
    async with world.settling("first") as first:
        await world.prepare("a", Message("credits", b"k", b"a"))
        await world.settled()
        first.freeze()
        await world.commit("a")
        await world.prepare("b", Message("credits", b"k", b"b"))
        journal = partition_of(world, world.topics.half)
        journal.drop_below(journal.maximum - 1)
        first.thaw()
        await world.memory.clock.sleep_ms(30_000)
        assert world.settlers["first"].status[0].hold is Hold.HALTED
    assert world.memory.visible("credits") == []
    assert world.read_op().positions[-1].s == 1


@in_world(make_settler_world)
async def test_newer_op_message_halts_the_successor(world: SettlerWorld) -> None:
    """A state that this release cannot read is not left out: the owner that knows it must come back (L, D)."""
    await leave_one_pending(world)
    newer = world.read_op().last[world.id_of("pending")]
    assert newer.transaction.state is TransactionState.PREPARED
    raw = b'{"v":2,"state":"COMMITTED"}'
    await world.memory.store.put_many([Message(world.topics.op, world.id_of("pending").encode(), raw, (), 0)])
    await world.commit("pending")
    async with world.settling("second"):
        await world.memory.clock.sleep_ms(30_000)
        status = world.settlers["second"].status[0]
        assert (status.hold, status.reason) == (Hold.HALTED, str(UnknownRecordVersion("op message version 2")))
    assert world.memory.visible("credits") == [b"a"]
