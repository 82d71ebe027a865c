"""What the log forgets: compaction keeps the last of each key, retention moves the minimum."""

from bridge.core.message import MessageQueue
from bridge.store.message_store import GetStatus
from tests.contract.world import ContractWorld, make_queue, put_values, to, until

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "500",
    "delete.retention.ms": "60000",
}


async def read_pairs(world: ContractWorld, queue: MessageQueue) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of all messages but the fillers."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = (await world.process.store.get_offsets(queue)).minimum
    while (got := await world.process.store.get(queue, offset, 100)).status in (
        GetStatus.FOUND,
        GetStatus.NO_MATCHED_MSG,
    ):
        found.extend((m.queue_offset, m.key, m.value) for m in got.messages if m.key != b"filler")
        offset = got.next_begin_offset
    return found


async def until_compacted(world: ContractWorld, queue: MessageQueue, count: int) -> None:
    """Waits until so many messages are left; fillers let the log begin new segments."""

    async def is_compacted() -> bool:
        await world.process.store.put(queue, to(queue, b"filler", b"filler"))
        return len(await read_pairs(world, queue)) == count

    await until(world, is_compacted)


async def test_compaction_keeps_the_last_of_each_key(world: ContractWorld) -> None:
    """The last message of every key stays, at its offset, in order; readers step over the gaps."""
    queue = await make_queue(world, COMPACTED)
    for key, value in [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"a", b"3"), (b"b", b"2")]:
        await world.process.store.put(queue, to(queue, value, key))
    await until_compacted(world, queue, 3)
    assert await read_pairs(world, queue) == [(3, b"c", b"1"), (4, b"a", b"3"), (5, b"b", b"2")]
    assert (await world.process.store.get_each(queue, [0, 4]))[4].value == b"3"
    assert set(await world.process.store.get_each(queue, [0, 1, 2, 3])) == {3}


async def test_tombstone_takes_what_was_before_it(world: ContractWorld) -> None:
    """A null value is the last of its key: the values before it go, the tombstone itself stays a while."""
    queue = await make_queue(world, COMPACTED)
    for key, value in [(b"a", b"1"), (b"b", b""), (b"a", None)]:
        await world.process.store.put(queue, to(queue, value, key))
    await until_compacted(world, queue, 2)
    assert await read_pairs(world, queue) == [(1, b"b", b""), (2, b"a", None)]


async def test_retention_moves_the_minimum(world: ContractWorld) -> None:
    """What retention takes is gone from every look-up; the maximum stays, and new offsets go on."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a", b"b", b"c")
    await world.drop_below(queue, 3)
    assert tuple(await world.process.store.get_offsets(queue)) == (3, 3, 3)
    assert await world.process.store.get_each(queue, [0, 1, 2]) == {}
    assert (await world.process.store.get(queue, 3, 1)).status is GetStatus.NO_NEW_MSG
    (result,) = await put_values(world, queue, b"d")
    assert result.queue_offset == 3
