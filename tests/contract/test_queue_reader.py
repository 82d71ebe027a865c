"""QueueReader: follows one queue."""

import asyncio

import pytest

from bridge.core.errors import QueueHalted, StoreError
from bridge.store.message_store import GetStatus, QueueReader
from tests.contract.world import (
    DEADLINE_S,
    ContractWorld,
    fresh_name,
    make_queue,
    put_values,
    read_until,
    to,
    until_stable,
)


async def test_reader_gives_everything_in_order(world: ContractWorld) -> None:
    """From its offset on, each message once, in order, whatever the portions."""
    queue = await make_queue(world)
    values = [str(n).encode() for n in range(200)]
    await world.process.store.put_many([to(queue, value) for value in values])
    reader = world.process.owners.open_reader(queue, 50)
    found: list[bytes | None] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < 150:
            got = await reader.get(40, 1_000)
            assert len(got.messages) <= 40
            found.extend(m.value for m in got.messages)
    await reader.close()
    assert found == values[50:]


async def test_reader_waits_in_vain(world: ContractWorld) -> None:
    """NO_NEW_MSG when nothing came; position, minimum and maximum are told."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a")
    reader = world.process.owners.open_reader(queue, 1)
    got = await reader.get(10, 100)
    await reader.close()
    assert (got.status, list(got.messages), got.next_begin_offset) == (GetStatus.NO_NEW_MSG, [], 1)


async def test_reader_wakes_for_a_new_message(world: ContractWorld) -> None:
    """A waiting reader gets what is put meanwhile; several messages may come together."""
    queue = await make_queue(world)
    reader = world.process.owners.open_reader(queue, 0)
    await reader.get(10, 50)
    waiting = asyncio.create_task(reader.get(10, DEADLINE_S * 1_000))
    await put_values(world, queue, b"new")
    async with asyncio.timeout(DEADLINE_S):
        got = await waiting
    await reader.close()
    assert (got.status, [m.value for m in got.messages]) == (GetStatus.FOUND, [b"new"])
    assert (got.next_begin_offset, got.max_offset) == (1, 1)


async def open_before_markers(world: ContractWorld) -> QueueReader:
    """At the beginning of a queue that holds an aborted record and its marker alone."""
    queue = await make_queue(world)
    aborted = await world.begin(fresh_name("foreign"), [to(queue, b"never")])
    await aborted.end(is_commit=False)
    await until_stable(world, queue)
    return world.process.owners.open_reader(queue, 0)


async def test_reader_moves_over_markers(world: ContractWorld) -> None:
    """Where only markers and aborted records are left, the position still reaches the end."""
    reader = await open_before_markers(world)
    async with asyncio.timeout(DEADLINE_S):
        while (got := await reader.get(10, 100)).next_begin_offset < 2:
            assert got.status is GetStatus.NO_NEW_MSG
    await reader.close()
    assert (got.status, got.next_begin_offset) == (GetStatus.NO_NEW_MSG, 2)


async def test_reader_that_has_passed_markers_waits_for_nothing_more(world: ContractWorld) -> None:
    """Whoever reads up to a known end, as each owner does at its beginning, is there as soon as it is passed."""
    reader = await open_before_markers(world)
    async with asyncio.timeout(DEADLINE_S):
        got = await reader.get(10, 4 * DEADLINE_S * 1_000)
    await reader.close()
    assert (got.status, got.next_begin_offset) == (GetStatus.NO_NEW_MSG, 2)


async def test_reader_stops_at_an_open_transaction(world: ContractWorld) -> None:
    """Nothing behind an open Kafka transaction is given before it ends."""
    queue = await make_queue(world)
    open_one = await world.begin(fresh_name("foreign"), [to(queue, b"inside")])
    await put_values(world, queue, b"behind")
    reader = world.process.owners.open_reader(queue, 0)
    assert (await reader.get(10, 200)).status is GetStatus.NO_NEW_MSG
    await open_one.end(is_commit=True)
    assert [m.value for m in await read_until(world, queue, b"behind")] == [b"inside", b"behind"]
    async with asyncio.timeout(DEADLINE_S):
        while not (got := await reader.get(1, 1_000)).messages:
            pass
    await reader.close()
    assert got.messages[0].value == b"inside"


async def test_reader_below_the_minimum_halts(world: ContractWorld) -> None:
    """What retention has taken is never skipped in silence."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a", b"b", b"c")
    await world.drop_below(queue, 2)
    reader = world.process.owners.open_reader(queue, 0)
    with pytest.raises(QueueHalted):
        await _read_until_error(reader)
    await reader.close()


async def test_reader_above_the_maximum_halts(world: ContractWorld) -> None:
    """A position that the log has never had is an error, not an empty queue."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a")
    reader = world.process.owners.open_reader(queue, 5)
    with pytest.raises(QueueHalted):
        await _read_until_error(reader)
    await reader.close()


async def test_reader_of_a_deleted_topic_raises(world: ContractWorld) -> None:
    """A queue that is gone is an error, never "nothing new"."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a")
    reader = world.process.owners.open_reader(queue, 0)
    assert (await reader.get(10, 5_000)).status is GetStatus.FOUND
    await world.delete_topic(queue.topic)
    with pytest.raises((StoreError, QueueHalted)):
        await _read_until_error(reader)
    await reader.close()


async def _read_until_error(reader: QueueReader) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            assert not (await reader.get(10, 200)).messages
