"""Requests that are lost, late, doubled; clients that stand still."""

import asyncio

from bridge.core.message import Message, MessageQueue
from bridge.store.memory.link import Fate, StepKind
from bridge.store.message_store import GetStatus, PutStatus
from tests.support.memory_faults import ScriptedFaults
from tests.support.memory_world import MemoryWorld, make_memory_world

QUEUE = MessageQueue("orders", 0)
LATER_MS = 30_000


def make_world() -> tuple[MemoryWorld, ScriptedFaults]:
    """A world with faults to be scripted."""
    faults = ScriptedFaults()
    return make_memory_world(faults=faults), faults


def message(value: bytes) -> Message:
    return Message("orders", b"k", value)


async def test_lost_request_is_unknown_and_never_written() -> None:
    """The client cannot tell a lost request from a lost answer."""
    world, faults = make_world()
    faults.give(StepKind.PUT, Fate(request_ms=None))
    result = await world.clock.drive(world.store.put(QUEUE, message(b"lost")))
    await world.clock.advance(10 * LATER_MS)
    assert result.status is PutStatus.OUTCOME_UNKNOWN
    assert world.visible("orders") == []


async def test_lost_answer_is_unknown_but_written() -> None:
    """An unknown put may be in the log (A)."""
    world, faults = make_world()
    faults.give(StepKind.PUT, Fate(answer_ms=None))
    result = await world.clock.drive(world.store.put(QUEUE, message(b"there")))
    assert result.status is PutStatus.OUTCOME_UNKNOWN
    assert world.visible("orders") == [b"there"]


async def test_late_request_is_written_after_the_time_out() -> None:
    """A put that has timed out may be appended afterwards, with the time of its arrival."""
    world, faults = make_world()
    faults.give(StepKind.PUT, Fate(request_ms=LATER_MS))
    start_ms = world.clock.now_ms()
    result = await world.clock.drive(world.store.put(QUEUE, message(b"late")))
    assert result.status is PutStatus.OUTCOME_UNKNOWN
    assert world.visible("orders") == []
    await world.clock.advance(2 * LATER_MS)
    assert [(m.value, m.stored_ms) for m in world.read_visible("orders")] == [(b"late", start_ms + LATER_MS)]


async def test_slow_answer_within_the_time_out_is_an_answer() -> None:
    """Slowness alone is no fault."""
    world, faults = make_world()
    faults.give(StepKind.PUT, Fate(request_ms=3_000, answer_ms=3_000))
    result = await world.clock.drive(world.store.put(QUEUE, message(b"slow")))
    assert (result.status, world.clock.monotonic_ms()) == (PutStatus.PUT_OK, 6_000)


async def test_hidden_retry_of_a_put_appends_nothing_twice() -> None:
    """The idempotent producer's repeat is recognised (D)."""
    world, faults = make_world()
    faults.give(StepKind.PUT, Fate(again_ms=1_000))
    assert (await world.clock.drive(world.store.put(QUEUE, message(b"once")))).status is PutStatus.PUT_OK
    await world.clock.advance(2_000)
    assert world.visible("orders") == [b"once"]


async def test_puts_of_one_client_do_not_overtake_each_other() -> None:
    """A slow put holds up the later ones of its client to the same queue, and no others."""
    world, faults = make_world()
    faults.give(StepKind.PUT, Fate(request_ms=2_000))
    first = asyncio.create_task(world.store.put(QUEUE, message(b"first")))
    await world.clock.advance(0)
    second = asyncio.create_task(world.store.put(QUEUE, message(b"second")))
    await world.start_process("other").store.put(QUEUE, message(b"other"))
    await world.clock.advance(2_000)
    results = await asyncio.gather(first, second)
    assert [result.queue_offset for result in results] == [1, 2]
    assert world.visible("orders") == [b"other", b"first", b"second"]


async def test_frozen_client_sends_and_sees_nothing() -> None:
    """SIGSTOP and SIGCONT: what the client wanted to do happens afterwards."""
    world, _ = make_world()
    process = world.start_process("frozen")
    process.freeze()
    put = asyncio.create_task(process.store.put(QUEUE, message(b"after")))
    await world.clock.advance(60_000)
    assert not put.done()
    process.thaw()
    assert (await put).status is PutStatus.PUT_OK


async def test_killed_client_does_nothing_more() -> None:
    """SIGKILL: not even what stands in `finally` blocks reaches the log, and the session runs out by itself."""
    world, _ = make_world()
    process = world.start_process("killed")
    member = process.owners.join_group("group", "orders")
    successor = world.owners.join_group("group", "orders")

    async def work() -> None:
        try:
            while True:
                await process.store.put(QUEUE, message(b"alive"))
                await world.clock.sleep_ms(100)
        finally:
            await member.close()
            await process.store.put(QUEUE, message(b"never"))

    working = asyncio.create_task(work())
    await world.clock.advance(250)
    process.kill()
    working.cancel()
    await asyncio.wait([working])
    assert world.visible("orders") == [b"alive"] * 3
    assert not successor.is_owned(0)
    await world.clock.advance(10_000)
    world.cluster.agenda.run_due()
    assert all(successor.is_owned(queue_id) for queue_id in range(3))


async def test_leaderless_queue_is_a_time_out() -> None:
    """Without a leader a put is unknown and a reader finds nothing; with one again both go on."""
    world, _ = make_world()
    await world.store.put(QUEUE, message(b"before"))
    world.cluster.log.set_leader(QUEUE, has_leader=False)
    assert (await world.store.put(QUEUE, message(b"lost"))).status is PutStatus.OUTCOME_UNKNOWN
    reader = world.owners.open_reader(QUEUE, 0)
    assert (await world.clock.drive(reader.get(10, 500))).status is GetStatus.NO_NEW_MSG
    waiting = asyncio.create_task(reader.get(10, 500))
    await world.clock.advance(100)
    world.cluster.log.set_leader(QUEUE, has_leader=True)
    assert [m.value for m in (await waiting).messages] == [b"before"]
