"""Kafka transactions in the in-memory log: markers, epochs, time-outs, the older protocol's late EndTxn."""

import asyncio

import pytest

from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, StoreFenced
from bridge.core.message import Message, MessageQueue
from bridge.store.memory.link import Code, Fate, LogError, StepKind
from bridge.store.memory.partition import Stamp
from bridge.store.memory.process import MemoryBatchWriter
from bridge.store.message_store import AtomicBatch
from tests.support.memory_faults import ProcessKilled, ScriptedFaults
from tests.support.memory_world import MemoryWorld, make_memory_world

IDS = ("owner-0", "owner-1")
ORDERS = MessageQueue("orders", 0)
CREDITS = MessageQueue("credits", 0)


def make_world() -> tuple[MemoryWorld, ScriptedFaults]:
    """A world with faults to be scripted."""
    faults = ScriptedFaults()
    world = make_memory_world(faults=faults)
    for partition in world.cluster.log.topics[world.topics.op].partitions:
        partition.drop_below(1)  # the first position
    return world, faults


def batch(word: str) -> AtomicBatch:
    """Two destinations, and a closing record in the op topic."""
    value = word.encode()
    messages = [Message("orders", b"k", value, (), 0), Message("credits", b"k", value, (), 0)]
    return AtomicBatch(messages, lambda _: [Message("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"~", value, (), 0)])


async def take(world: MemoryWorld, client: str = "owner") -> MemoryBatchWriter:
    """A fenced writer of a process of its own."""
    writer = world.start_process(client).owners.open_writer(IDS)
    await world.clock.drive(writer.fence())
    return writer


def everything(world: MemoryWorld) -> list[list[bytes | None]]:
    """What committed readers find in the three topics of `batch`."""
    return [world.visible(topic) for topic in ("orders", "credits", world.topics.op)]


BATCH_POINTS = 12  # before and after: add queues, two appends, add queue, append, end


@pytest.mark.parametrize("point", range(BATCH_POINTS))
async def test_killed_between_any_two_steps(point: int) -> None:
    """An owner killed anywhere in a batch leaves all of it or nothing, as the successor finds (D, L)."""
    world, faults = make_world()
    writer = await take(world)
    await writer.put_all(batch("first"))
    faults.kill_at(point)
    with pytest.raises(ProcessKilled):
        await writer.put_all(batch("torn"))
    successor = await take(world, "successor")
    await successor.put_all(batch("next"))
    is_committed = point == BATCH_POINTS - 1
    expected = [b"first", b"torn", b"next"] if is_committed else [b"first", b"next"]
    assert everything(world) == [expected] * 3


@pytest.mark.parametrize("kind", [StepKind.ADD_QUEUES, StepKind.APPEND, StepKind.END])
@pytest.mark.parametrize("fate", [Fate(request_ms=None), Fate(answer_ms=None), Fate(request_ms=60_000)])
async def test_lost_and_late_requests_leave_all_or_nothing(kind: StepKind, fate: Fate) -> None:
    """After any time-out the outcome is unknown; after the take-over nothing changes any more."""
    world, faults = make_world()
    writer = await take(world)
    faults.give(kind, fate)
    with pytest.raises(BatchOutcomeUnknown):
        await world.clock.drive(writer.put_all(batch("unknown")))
    await take(world, "successor")
    found = everything(world)
    assert found in ([[b"unknown"]] * 3, [[]] * 3)
    await world.clock.advance(120_000)
    assert everything(world) == found


async def test_late_end_acts_on_the_producers_next_transaction() -> None:
    """KAFKA-17754: a doubled EndTxn of the older protocol commits what the producer has open by then."""
    world, faults = make_world()
    writer = await take(world)
    faults.give(StepKind.END, Fate(again_ms=1_000))
    await writer.put_all(batch("first"))
    await writer.put_all(batch("second"))  # the other producer's turn
    faults.give(StepKind.ADD_QUEUES, Fate(request_ms=1_500), skip=1)  # in between the late end arrives
    with pytest.raises(BatchOutcomeUnknown):
        await world.clock.drive(_put_then_fail(world, faults, writer))
    assert world.visible("orders") == [b"first", b"second", b"torn"]
    assert world.visible(world.topics.op) == [b"first", b"second"]


async def _put_then_fail(world: MemoryWorld, faults: ScriptedFaults, writer: MemoryBatchWriter) -> None:
    faults.give(StepKind.END, Fate(request_ms=None))
    await writer.put_all(batch("torn"))


async def test_late_end_of_a_fenced_producer_does_nothing() -> None:
    """The guard: after a new init a late EndTxn carries an old epoch."""
    world, faults = make_world()
    writer = await take(world)
    faults.give(StepKind.END, Fate(request_ms=5_000))
    with pytest.raises(BatchOutcomeUnknown):
        await world.clock.drive(writer.put_all(batch("late")))
    successor = await take(world, "successor")
    faults.give(StepKind.APPEND, Fate(request_ms=1_900))
    await world.clock.drive(successor.put_all(batch("next")))
    await world.clock.advance(60_000)
    assert everything(world) == [[b"next"]] * 3


async def test_markers_come_partition_by_partition() -> None:
    """Between two markers one queue shows the batch and the other does not yet."""
    world, faults = make_world()
    writer = await take(world)
    faults.marker_delays[CREDITS] = 500
    await writer.put_all(batch("first"))
    assert (world.visible("orders"), world.visible("credits")) == ([b"first"], [])
    await world.clock.advance(500)
    assert everything(world) == [[b"first"]] * 3


async def test_next_turn_does_not_wait_for_markers() -> None:
    """Two producers in turn hide missing markers; the third batch waits for those of the first."""
    world, faults = make_world()
    writer = await take(world)
    faults.marker_delays[CREDITS] = 500
    await writer.put_all(batch("first"))
    await writer.put_all(batch("second"))
    assert world.clock.monotonic_ms() == 0
    await world.clock.drive(writer.put_all(batch("third")))
    assert world.clock.monotonic_ms() >= 500
    await world.clock.advance(1_000)
    assert everything(world) == [[b"first", b"second", b"third"]] * 3


async def test_frozen_owner_is_fenced() -> None:
    """An owner that stood still before its EndTxn is refused when it goes on; its records stay invisible (D)."""
    world, _ = make_world()
    process = world.start_process("owner")
    writer = process.owners.open_writer(IDS)
    await writer.fence()

    def freeze(_: object) -> list[Message]:
        process.freeze()
        return [Message(world.topics.op, b"~", b"zombie", (), 0)]

    zombie = asyncio.create_task(writer.put_all(AtomicBatch(batch("zombie").messages, freeze)))
    await world.clock.advance(5_000)
    successor = await take(world, "successor")
    await successor.put_all(batch("next"))
    process.thaw()
    with pytest.raises(StoreFenced):
        await world.clock.drive(_result_of(zombie))
    assert everything(world) == [[b"next"]] * 3


async def _result_of(task: asyncio.Task[object]) -> object:
    return await task


async def test_forgotten_transaction_times_out() -> None:
    """Nobody takes over: readers wait until the coordinator gives up, and the sleeper is fenced."""
    world, faults = make_world()
    writer = await take(world)
    faults.give(StepKind.END, Fate(request_ms=None))
    with pytest.raises(BatchOutcomeUnknown):
        await world.clock.drive(writer.put_all(batch("forgotten")))
    await world.store.put(ORDERS, Message("orders", b"k", b"behind"))
    assert world.visible("orders") == []
    await world.clock.advance(10_000)
    assert world.visible("orders") == [b"behind"]


async def test_leaderless_queue_holds_the_ending_transaction() -> None:
    """A queue that loses its leader before its marker holds the next init until it has one again."""
    world, faults = make_world()
    writer = await take(world)
    faults.marker_delays[CREDITS] = 100
    await writer.put_all(batch("first"))
    world.cluster.log.set_leader(CREDITS, has_leader=False)
    await world.clock.advance(1_000)
    successor = world.start_process("successor").owners.open_writer(IDS)
    with pytest.raises(BatchOutcomeUnknown):
        await world.clock.drive(successor.fence())
    world.cluster.log.set_leader(CREDITS, has_leader=True)
    await world.clock.drive(successor.fence())
    assert everything(world) == [[b"first"]] * 3


async def test_deleted_topic_frees_the_ending_transaction() -> None:
    """A deleted destination needs no marker."""
    world, faults = make_world()
    writer = await take(world)
    faults.marker_delays[CREDITS] = 100
    await writer.put_all(batch("first"))
    world.cluster.log.delete_topic("credits")
    await world.clock.advance(100)
    await world.clock.drive(writer.fence())
    assert world.visible("orders") == [b"first"]


async def test_acl_and_oversize_abort_cleanly() -> None:
    """What the log refuses definitely aborts the batch; the same writer goes on without the culprit."""
    world, _ = make_world()
    writer = await take(world)
    world.cluster.log.topics["credits"].is_denied = True
    with pytest.raises(BatchAborted) as denied:
        await writer.put_all(batch("denied"))
    assert denied.value.topic == "credits"
    world.cluster.log.topics["credits"].is_denied = False
    world.cluster.log.topics["credits"].alter({"max.message.bytes": "10"})
    with pytest.raises(BatchAborted) as large:
        await writer.put_all(batch("large"))
    assert large.value.topic == "credits"
    world.cluster.log.topics["credits"].alter({"max.message.bytes": "1000"})
    await writer.put_all(batch("next"))
    assert everything(world) == [[b"next"]] * 3


async def test_two_in_take_over_only_the_last_can_commit() -> None:
    """Of two that fence in turn the first is refused, whatever it does next."""
    world, _ = make_world()
    first, second = await take(world, "first"), await take(world, "second")
    with pytest.raises(StoreFenced):
        await first.put_all(batch("never"))
    await second.put_all(batch("next"))
    assert everything(world) == [[b"next"]] * 3


def test_same_end_twice_is_fine_but_not_the_opposite() -> None:
    """A repeated EndTxn is answered; one that contradicts, or has nothing to end, is refused."""
    world = make_world()[0]
    producers = world.cluster.producers
    stamp = Stamp(*producers.init("id", 10_000), 0)
    with pytest.raises(LogError) as nothing:
        producers.end("id", stamp, is_commit=True)
    assert nothing.value.code is Code.INVALID_TXN_STATE
    producers.add_queues("id", stamp, [ORDERS])
    producers.end("id", stamp, is_commit=True)
    producers.end("id", stamp, is_commit=True)
    with pytest.raises(LogError) as contradiction:
        producers.end("id", stamp, is_commit=False)
    assert contradiction.value.code is Code.INVALID_TXN_STATE


def test_append_outside_of_the_transaction_is_refused() -> None:
    """A late Produce to a queue that is not in the open Kafka transaction never hangs in the log."""
    world = make_world()[0]
    producers = world.cluster.producers
    stamp = Stamp(*producers.init("id", 10_000), 0)
    producers.add_queues("id", stamp, [ORDERS])
    with pytest.raises(LogError) as refused:
        producers.append("id", stamp, CREDITS, [Message("credits", b"k", b"v")])
    assert refused.value.code is Code.INVALID_TXN_STATE
    assert world.cluster.log.find(CREDITS).maximum == 0


def test_repeated_append_keeps_its_offset() -> None:
    """Sequence numbers tell a repeat from a new batch, and a gap from both."""
    world = make_world()[0]
    producers = world.cluster.producers
    stamp = Stamp(*producers.init("id", 10_000), 0)
    producers.add_queues("id", stamp, [ORDERS])
    messages = [Message("orders", b"k", b"1"), Message("orders", b"k", b"2")]
    first = producers.append("id", stamp, ORDERS, messages)
    assert producers.append("id", stamp, ORDERS, messages) == first
    assert world.cluster.log.find(ORDERS).maximum == 2
    with pytest.raises(LogError) as gap:
        producers.append("id", stamp._replace(sequence=5), ORDERS, messages)
    assert gap.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
