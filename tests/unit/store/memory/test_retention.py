"""What the log forgets: whole segments, old values; never what must stay."""

import pytest

from bridge.core.errors import QueueHalted
from bridge.core.message import Message, MessageQueue
from bridge.store.memory.log import clean
from bridge.store.memory.partition import Partition, Stamp
from tests.support.memory_world import MemoryWorld, make_memory_world

QUEUE = MessageQueue("log", 0)
SECOND = 1_000


def make_world(config: dict[str, str]) -> tuple[MemoryWorld, Partition]:
    """A world with one queue of these settings."""
    world = make_memory_world({"orders": 1})
    world.cluster.log.create_topic("log", 1, config)
    return world, world.cluster.log.find(QUEUE)


async def put(world: MemoryWorld, key: bytes, value: bytes | None, timestamp_ms: int | None = None) -> None:
    await world.store.put(QUEUE, Message("log", key, value, (), 0, timestamp_ms))


def pairs(world: MemoryWorld) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(m.queue_offset, m.key, m.value) for m in world.read_visible("log")]


async def fill_segments(world: MemoryWorld, count: int) -> None:
    """One message a second, each in a segment of its own."""
    for n in range(count):
        await put(world, b"%d" % n, b"v")
        await world.clock.advance(SECOND)


async def test_old_segments_go() -> None:
    """Segments whose newest record is too old are dropped, and the minimum moves."""
    world, partition = make_world({"segment.ms": "500", "retention.ms": "3500"})
    await fill_segments(world, 6)
    clean(world.cluster.log)
    assert (partition.minimum, partition.maximum) == (3, 6)
    reader = world.owners.open_reader(QUEUE, 2)
    with pytest.raises(QueueHalted):
        await reader.get(1, 100)


async def test_active_segment_goes_when_all_of_it_is_old() -> None:
    """An idle queue forgets everything in the end; its offsets go on."""
    world, partition = make_world({"retention.ms": "5000"})
    await fill_segments(world, 3)
    clean(world.cluster.log)
    assert partition.minimum == 0
    await world.clock.advance(5 * SECOND)
    clean(world.cluster.log)
    assert (partition.minimum, partition.maximum) == (3, 3)
    await put(world, b"k", b"new")
    assert pairs(world) == [(3, b"k", b"new")]


async def test_old_timestamps_expire_early() -> None:
    """Retention counts record timestamps: a user's old timestamp takes its segment away early."""
    world, partition = make_world({"segment.ms": "500", "retention.ms": "3500"})
    await put(world, b"k", b"old", world.clock.now_ms() - 3_600_000)
    await world.clock.advance(SECOND)
    await put(world, b"k", b"new")
    clean(world.cluster.log)
    assert partition.minimum == 1


async def test_size_bounds_the_log() -> None:
    """Segments go from the front while the rest is still as large as allowed."""
    world, partition = make_world({"segment.bytes": "100", "retention.bytes": "250"})
    for _ in range(10):
        await put(world, b"k", b"x" * 80)
    clean(world.cluster.log)
    assert partition.maximum - partition.minimum == 3


COMPACTED = {"cleanup.policy": "compact", "segment.ms": "500", "delete.retention.ms": "5000"}


async def test_compaction_spares_the_active_segment() -> None:
    """Repeated keys in the segment that is written to stay."""
    world, _ = make_world(COMPACTED)
    await put(world, b"a", b"1")
    await put(world, b"a", b"2")
    clean(world.cluster.log)
    assert len(pairs(world)) == 2
    await world.clock.advance(SECOND)
    await put(world, b"a", b"3")
    clean(world.cluster.log)
    assert pairs(world) == [(1, b"a", b"2"), (2, b"a", b"3")]


async def test_compaction_stops_at_an_open_transaction() -> None:
    """Nothing from the last stable offset on is touched; afterwards aborted records and markers go too."""
    world, partition = make_world(COMPACTED)
    producers = world.cluster.producers
    await put(world, b"a", b"1")
    await put(world, b"a", b"2")
    stamp = Stamp(*producers.init("id", 60_000), 0)
    producers.add_queues("id", stamp, [QUEUE])
    producers.append("id", stamp, QUEUE, [Message("log", b"b", b"open", (), 0)])
    await put(world, b"b", b"1")
    await put(world, b"b", b"2")
    await world.clock.advance(SECOND)
    await put(world, b"z", b"active")
    clean(world.cluster.log)
    assert [r.stored.queue_offset for r in partition.records] == [1, 2, 3, 4, 5]
    producers.end("id", stamp, is_commit=False)
    await world.clock.advance(SECOND)
    await put(world, b"z", b"active")
    clean(world.cluster.log)
    assert pairs(world) == [(1, b"a", b"2"), (4, b"b", b"2"), (5, b"z", b"active"), (7, b"z", b"active")]
    assert partition.aborted == set()


async def test_aborted_record_is_not_the_last_of_its_key() -> None:
    """An aborted value never takes a committed one away (L)."""
    world, _ = make_world(COMPACTED)
    producers = world.cluster.producers
    await put(world, b"a", b"kept")
    stamp = Stamp(*producers.init("id", 60_000), 0)
    producers.add_queues("id", stamp, [QUEUE])
    producers.append("id", stamp, QUEUE, [Message("log", b"a", b"never", (), 0)])
    producers.end("id", stamp, is_commit=False)
    await world.clock.advance(SECOND)
    await put(world, b"z", b"active")
    clean(world.cluster.log)
    assert pairs(world)[0] == (0, b"a", b"kept")


async def test_compaction_lag_protects_young_segments() -> None:
    """Within the lag every version of a key can be read."""
    world, _ = make_world(COMPACTED | {"min.compaction.lag.ms": "10000"})
    for value in (b"1", b"2"):
        await put(world, b"a", value)
    await world.clock.advance(SECOND)
    await put(world, b"z", b"active")
    clean(world.cluster.log)
    assert len(pairs(world)) == 3
    await world.clock.advance(10 * SECOND)
    clean(world.cluster.log)
    assert pairs(world) == [(1, b"a", b"2"), (2, b"z", b"active")]


async def test_tombstone_stays_for_the_delete_retention() -> None:
    """Readers have time to see that a key has ended; then nothing of it is left."""
    world, partition = make_world(COMPACTED)
    await put(world, b"a", b"1")
    await put(world, b"a", None)
    await world.clock.advance(SECOND)
    await put(world, b"z", b"active")
    clean(world.cluster.log)
    assert pairs(world) == [(1, b"a", None), (2, b"z", b"active")]
    await world.clock.advance(6 * SECOND)
    clean(world.cluster.log)
    assert pairs(world) == [(2, b"z", b"active")]
    assert (partition.minimum, partition.tombstones_seen_ms) == (0, {})


async def test_compact_and_delete_do_both() -> None:
    """The op topic's policy: last values only, and nothing beyond the retention."""
    world, partition = make_world(COMPACTED | {"cleanup.policy": "compact,delete", "retention.ms": "3500"})
    await fill_segments(world, 3)
    await put(world, b"0", b"again")
    await world.clock.advance(SECOND)
    await put(world, b"z", b"active")
    clean(world.cluster.log)
    assert pairs(world) == [(1, b"1", b"v"), (2, b"2", b"v"), (3, b"0", b"again"), (4, b"z", b"active")]
    assert partition.minimum == 1
