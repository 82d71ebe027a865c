"""Readers beyond the contract, random reads over gaps, and what is left after closing."""

import asyncio
import contextlib
import random
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.core.errors import QueueHalted, StoreUnavailable
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore
from bridge.store.message_store import GetStatus, PutStatus
from tests.contract.kafka_world import KafkaContractWorld
from tests.contract.world import DEADLINE_S, batch_of, fresh_name, make_queue, put_values, to, until_stable
from tests.support.odd_records import put_odd_header


def find_client_threads() -> set[str]:
    """The client's own threads, which Python does not know of."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if (task / "comm").read_text().startswith("rdk:"):
                found.add(task.name)
    return found


async def test_cancelled_get_loses_nothing(world: KafkaContractWorld) -> None:
    """What a read has found after its caller went away belongs to the next caller (L)."""
    queue = await make_queue(world)
    reader = world.process.owners.open_reader(queue, 0)
    waiting = asyncio.create_task(reader.get(10, DEADLINE_S * 1_000))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await world.process.store.put_many([to(queue, b"%d" % n) for n in range(3)])
    found = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < 3:
            got = await reader.get(1, 1_000)
            assert len(got.messages) <= 1
            found += [message.value for message in got.messages]
            assert got.next_begin_offset == len(found)
    assert found == [b"0", b"1", b"2"]
    await reader.close()


async def test_header_whose_name_is_no_utf8_ends_no_process(world: KafkaContractWorld, kafka: str) -> None:
    """Whoever may write to an internal topic can write one: it is a record that cannot be understood, no more."""
    queue = await make_queue(world)
    await put_values(world, queue, *[b"v"] * 100)  # so many that Python takes short cuts in loops
    await asyncio.to_thread(put_odd_header, kafka, queue.topic)
    reader = world.process.owners.open_reader(queue, 0)
    found = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < 101:
            found += (await reader.get(101, 1_000)).messages
    assert not found[-1].headers
    await reader.close()
    assert (await world.process.store.get(queue, 100, 1)).messages[0].value is None


async def test_halted_reader_stays_halted(world: KafkaContractWorld) -> None:
    """Its queue does not hold its position: no later call may make that look like an empty queue."""
    queue = await make_queue(world)
    reader = world.process.owners.open_reader(queue, 7)
    for _ in range(3):
        with pytest.raises(QueueHalted):
            await reader.get(1, DEADLINE_S * 1_000)
    await reader.close()


async def test_closing_ends_a_waiting_get(world: KafkaContractWorld) -> None:
    """Who closes a reader does not wait for a message that may never come."""
    reader = world.process.owners.open_reader(await make_queue(world), 0)
    waiting = asyncio.create_task(reader.get(1, 3_600_000))
    await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await reader.close()
        assert (await waiting).status is GetStatus.NO_NEW_MSG
    with pytest.raises(StoreUnavailable):
        await reader.get(1, 0)


async def test_random_reads_over_gaps(world: KafkaContractWorld) -> None:
    """Offsets near and far, visible, aborted and markers, in any order: exactly what is there (I)."""
    queue, chance, visible = await make_queue(world), random.Random(7), dict[int, bytes]()
    for n in range(12):
        values = [b"%d-%d" % (n, place) for place in range(chance.randrange(1, 200))]
        if chance.random() < 0.5:
            open_one = await world.begin(fresh_name("foreign"), [to(queue, value) for value in values])
            is_commit = chance.random() < 0.5
            start = (await world.process.store.get_offsets(queue)).maximum - len(values)
            await open_one.end(is_commit=is_commit)
            visible |= {start + place: value for place, value in enumerate(values) if is_commit}
        else:
            results = await world.process.store.put_many([to(queue, value) for value in values])
            visible |= {result.queue_offset: value for result, value in zip(results, values, strict=True)}
    await until_stable(world, queue)
    end = (await world.process.store.get_offsets(queue)).maximum
    for _ in range(20):
        wanted = chance.sample(range(end), chance.randrange(1, 60))
        found = await world.process.store.get_each(queue, wanted)
        assert {offset: m.value for offset, m in found.items()} == {n: visible[n] for n in wanted if n in visible}
    offset, found_in_order = 0, dict[int, bytes | None]()
    while (got := await world.process.store.get(queue, offset, 37)).status is not GetStatus.NO_NEW_MSG:
        found_in_order |= {message.queue_offset: message.value for message in got.messages}
        offset = got.next_begin_offset
    assert found_in_order == visible


async def test_refused_neighbours_of_other_callers(world: KafkaContractWorld) -> None:
    """A message too large, and one with an impossible time, hurt nobody who put at the same moment (A, B)."""
    config = {"max.message.bytes": "2000", "message.timestamp.before.max.ms": "3600000"}
    queue, store = await make_queue(world, config), world.process.store
    bad = [to(queue, b"x" * 3_000), replace(to(queue, b"old"), timestamp_ms=1_000)]
    good = [to(queue, b"%d" % n) for n in range(40)]
    messages = [*good[:20], *bad, *good[20:]]
    results = await asyncio.gather(*[store.put(queue, message) for message in messages])
    refused = [message for message, result in zip(messages, results, strict=True) if result.refusal is not None]
    assert refused == bad
    assert len({result.queue_offset for result in results if result.status is PutStatus.PUT_OK}) == len(good)
    assert (await store.get_offsets(queue)).maximum == len(good)


async def test_full_local_queue_is_waited_for(world: KafkaContractWorld, kafka: str) -> None:
    """More messages than the client's queue takes at once: none is lost, none refused without need."""
    queue = await make_queue(world)
    config = KafkaConfig({"bootstrap.servers": kafka, "queue.buffering.max.messages": 50})
    store = KafkaMessageStore(config)
    results = await store.put_many([to(queue, b"%d" % n) for n in range(500)])
    await store.close()
    assert [result.queue_offset for result in results] == list(range(500))


async def test_closed_store_refuses(world: KafkaContractWorld, kafka: str) -> None:
    """After closing a put is a definite no, and a read an error."""
    queue = await make_queue(world)
    store = KafkaMessageStore(KafkaConfig({"bootstrap.servers": kafka}))
    await store.close()
    assert (await store.put(queue, to(queue, b"never"))).status is PutStatus.REFUSED
    with pytest.raises(StoreUnavailable):
        await store.get_offsets(queue)


async def test_no_thread_stays_behind(world: KafkaContractWorld, kafka: str) -> None:
    """Closing the stores ends the threads of everything that was opened through them and left open."""
    queue, op = await make_queue(world), await make_queue(world)
    before, clients_before = set(threading.enumerate()), find_client_threads()
    config = KafkaConfig({"bootstrap.servers": kafka}, client_id="left-open")
    owners = KafkaOwnerStore(config)
    store = KafkaMessageStore(config, owners)
    await store.put(queue, to(queue, b"v"))
    await store.get(queue, 0, 1)
    writer = owners.open_writer((fresh_name("owner"), fresh_name("owner")))
    await writer.fence()
    await writer.put_all(batch_of([], to(op, b"position")))
    await owners.open_reader(queue, 0).get(1, 5_000)
    await owners.join_group(fresh_name("group"), queue.topic).next_change()
    opened = {thread.name for thread in set(threading.enumerate()) - before}
    assert len([name for name in opened if name.startswith("kafka-")]) == 7
    await asyncio.gather(owners.close(), store.close())
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert [name for name in left if name.startswith("kafka-")] == []
    assert find_client_threads() - clients_before == set()


async def test_reader_far_behind_gets_everything(world: KafkaContractWorld) -> None:
    """Portions of 2,000, no message twice, none left out, whatever the fetches bring (L, D)."""
    queue = await make_queue(world)
    for start in range(0, 20_000, 5_000):
        await world.process.store.put_many([to(queue, b"%d" % n) for n in range(start, start + 5_000)])
    await put_values(world, queue, b"end")
    reader, offsets = world.process.owners.open_reader(queue, 0), list[int]()
    async with asyncio.timeout(DEADLINE_S):
        while len(offsets) < 20_001:
            got = await reader.get(2_000, 1_000)
            assert len(got.messages) <= 2_000
            offsets += [message.queue_offset for message in got.messages]
    await reader.close()
    assert offsets == list(range(20_001))
