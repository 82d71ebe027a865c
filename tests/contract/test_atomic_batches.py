"""BatchWriter: all of a batch or nothing, receipts, strict turns, fencing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, StoreError, StoreFenced
from bridge.core.message import Message, MessageQueue, Receipt
from bridge.store.message_store import AtomicBatch, BatchWriter
from tests.contract.world import (
    DEADLINE_S,
    ContractWorld,
    batch_of,
    fresh_name,
    make_queue,
    make_topic,
    put_values,
    read_until,
    read_values,
    to,
    until_stable,
)


class Owner(NamedTuple):
    """A queue's owner: its two transactional ids and a fenced writer."""

    transactional_ids: tuple[str, str]
    writer: BatchWriter


@pytest.fixture
async def owner(world: ContractWorld) -> AsyncIterator[Owner]:
    """A writer that is ready."""
    name = fresh_name("owner")
    transactional_ids = (f"{name}-0", f"{name}-1")
    writer = world.process.owners.open_writer(transactional_ids)
    await writer.fence()
    yield Owner(transactional_ids, writer)
    await writer.close()


async def put_in_time(writer: BatchWriter, batch: AtomicBatch) -> None:
    """A batch whose result is not of interest."""
    async with asyncio.timeout(DEADLINE_S):
        await writer.put_all(batch)


async def test_batch_over_several_topics(world: ContractWorld, owner: Owner) -> None:
    """Everything of a batch arrives, byte for byte, in the order of the batch in each queue (L, I, O)."""
    orders, credits_ = await make_topic(world, 2), await make_topic(world)
    op = await make_queue(world)
    headers = [("b", b"\x00\xff"), ("a", None), ("b", b"")]
    messages = [
        Message(orders, b"k", b"1", headers, 0),
        Message(credits_, None, b"2", (), 0),
        Message(orders, b"", None, (), 1),
        Message(orders, b"k", b"", (), 0),
        Message(orders, b"k", b"5", (), 0),
    ]
    await owner.writer.put_all(batch_of(messages, to(op, b"op"), to(op, b"position")))
    found = await read_until(world, MessageQueue(orders, 0), b"5")
    assert [(m.key, m.value) for m in found] == [(b"k", b"1"), (b"k", b""), (b"k", b"5")]
    assert [tuple(header) for header in found[0].headers] == headers
    other = await read_until(world, MessageQueue(orders, 1), None)
    assert [(m.key, m.value) for m in other] == [(b"", None)]
    assert [(m.key, m.value) for m in await read_until(world, MessageQueue(credits_, 0), b"2")] == [(None, b"2")]
    assert [m.value for m in await read_until(world, op, b"position")] == [b"op", b"position"]


async def test_receipts_are_where_readers_find_the_messages(world: ContractWorld, owner: Owner) -> None:
    """`finish` gets one receipt for each message, in order; the result repeats them and names the last record."""
    queues = [MessageQueue(await make_topic(world, 2), n) for n in (1, 0)] + [await make_queue(world)]
    op = await make_queue(world, {"message.timestamp.type": "LogAppendTime"})
    await put_values(world, queues[0], b"earlier")
    messages = [to(queues[n % 3], str(n).encode()) for n in range(9)]
    seen: list[Receipt] = []

    def finish(receipts: Sequence[Receipt]) -> list[Message]:
        seen.extend(receipts)
        return [to(op, b"op"), to(op, b"position")]

    result = await owner.writer.put_all(AtomicBatch(messages, finish))
    assert list(result.receipts) == seen
    last = (await read_until(world, op, b"position"))[-1]
    assert (result.last_offset, result.last_stored_ms) == (last.queue_offset, last.stored_ms)
    for message, receipt in zip(messages, seen, strict=True):
        assert (receipt.topic, receipt.queue_id) == (message.topic, message.queue_id)
        assert receipt.queue_offset is not None
        queue = MessageQueue(receipt.topic, receipt.queue_id)
        found = await world.process.store.get_each(queue, [receipt.queue_offset])
        assert found[receipt.queue_offset].value == message.value


async def test_batch_of_closing_records_only(world: ContractWorld, owner: Owner) -> None:
    """A batch without messages still writes its position."""
    op = await make_queue(world)
    result = await owner.writer.put_all(batch_of([], to(op, b"position")))
    assert (list(result.receipts), result.last_offset) == ([], 0)
    assert await read_values(world, op) == [b"position"]


async def test_timestamp_asked_for_is_kept_in_a_batch(world: ContractWorld, owner: Owner) -> None:
    """A message of a batch arrives with the timestamp it asked for (I)."""
    queue, op = await make_queue(world), await make_queue(world)
    asked = world.clock.now_ms() - 7_200_000
    await owner.writer.put_all(batch_of([Message(queue.topic, b"k", b"v", (), 0, asked)], to(op, b"position")))
    assert (await read_until(world, queue, b"v"))[0].stored_ms == asked


async def test_many_batches_in_strict_turns(world: ContractWorld, owner: Owner) -> None:
    """Batches one after the other are all there, once, in order (L, D, O)."""
    queue, op = await make_queue(world), await make_queue(world)
    for n in range(30):
        await owner.writer.put_all(batch_of([to(queue, b"%d" % n)], to(op, b"position %d" % n)))
    assert await read_values(world, queue) == [b"%d" % n for n in range(30)]
    assert await read_values(world, op) == [b"position %d" % n for n in range(30)]


async def test_batch_of_many_messages(world: ContractWorld, owner: Owner) -> None:
    """A batch as large as the settler makes them: 2,000 messages, each with its receipt."""
    queue, op = await make_queue(world), await make_queue(world)
    values = [b"%d" % n for n in range(2_000)]
    result = await owner.writer.put_all(batch_of([to(queue, value) for value in values], to(op, b"position")))
    assert [receipt.queue_offset for receipt in result.receipts] == list(range(2_000))
    assert await read_values(world, queue) == values


async def test_too_large_message_aborts_the_batch(world: ContractWorld, owner: Owner) -> None:
    """Nothing of an aborted batch is visible anywhere (P); the writer goes on, and names the culprit."""
    queue, op = await make_queue(world), await make_queue(world)
    small = await make_queue(world, {"max.message.bytes": "2000"})
    messages = [to(queue, b"never"), to(small, b"x" * 3_000)]
    with pytest.raises(BatchAborted) as aborted:
        await owner.writer.put_all(batch_of(messages, to(op, b"never")))
    assert aborted.value.topic == small.topic
    await owner.writer.put_all(batch_of([to(queue, b"next"), to(small, b"small")], to(op, b"position")))
    assert await read_values(world, queue) == [b"next"]
    assert await read_values(world, small) == [b"small"]
    assert await read_values(world, op) == [b"position"]


async def test_batch_that_comes_behind_its_place_is_aborted(world: ContractWorld, owner: Owner) -> None:
    """An owner that does not know the end of its queue has not read all of it; nothing of its batch is visible (D)."""
    op = await make_queue(world)
    await owner.writer.put_all(replace(batch_of([], to(op, b"first")), last_at_most=0))
    with pytest.raises(BatchAborted):
        await owner.writer.put_all(replace(batch_of([], to(op, b"never")), last_at_most=0))
    await until_stable(world, op)
    end = (await world.process.store.get_offsets(op)).maximum
    await owner.writer.put_all(replace(batch_of([], to(op, b"next")), last_at_most=end))
    assert await read_values(world, op) == [b"first", b"next"]


async def test_missing_destination_fails_the_batch(world: ContractWorld, owner: Owner) -> None:
    """A topic that is gone fails the batch; nothing is visible, and a new writer goes on."""
    queue, op, gone = await make_queue(world), await make_queue(world), await make_queue(world)
    await owner.writer.put_all(batch_of([to(gone, b"there")], to(op, b"first")))
    await world.delete_topic(gone.topic)
    with pytest.raises((BatchAborted, BatchOutcomeUnknown)):
        await put_in_time(owner.writer, batch_of([to(queue, b"never"), to(gone, b"never")], to(op, b"never")))
    successor = world.process.owners.open_writer(owner.transactional_ids)
    await successor.fence()
    await successor.put_all(batch_of([to(queue, b"next")], to(op, b"second")))
    await successor.close()
    assert await read_values(world, queue) == [b"next"]
    assert await read_values(world, op) == [b"first", b"second"]


async def test_writer_wants_its_fence_first(world: ContractWorld) -> None:
    """Without `fence` a writer writes nothing."""
    op = await make_queue(world)
    name = fresh_name("owner")
    writer = world.process.owners.open_writer((f"{name}-0", f"{name}-1"))
    with pytest.raises(StoreError):
        await writer.put_all(batch_of([], to(op, b"never")))
    await writer.close()
    assert await read_values(world, op) == []


async def test_successor_fences_the_last_owner(world: ContractWorld, owner: Owner) -> None:
    """Who takes the ids fences the last owner: its next batch is refused and invisible (D)."""
    queue, op = await make_queue(world), await make_queue(world)
    await owner.writer.put_all(batch_of([to(queue, b"old")], to(op, b"old")))
    other = await world.start_process("successor")
    successor = other.owners.open_writer(owner.transactional_ids)
    await successor.fence()
    with pytest.raises(StoreFenced):
        await put_in_time(owner.writer, batch_of([to(queue, b"never")], to(op, b"never")))
    await successor.put_all(batch_of([to(queue, b"new")], to(op, b"new")))
    await successor.close()
    assert await read_values(world, queue) == [b"old", b"new"]
    assert await read_values(world, op) == [b"old", b"new"]


async def test_successor_fences_both_turns(world: ContractWorld, owner: Owner) -> None:
    """The last owner is refused also when its second producer is the one to go on."""
    op = await make_queue(world)
    for n in range(3):
        await owner.writer.put_all(batch_of([], to(op, b"%d" % n)))
    successor = world.process.owners.open_writer(owner.transactional_ids)
    await successor.fence()
    with pytest.raises(StoreFenced):
        await put_in_time(owner.writer, batch_of([], to(op, b"never")))
    await successor.close()
    assert await read_values(world, op) == [b"0", b"1", b"2"]


async def test_dead_writer_stays_dead(world: ContractWorld, owner: Owner) -> None:
    """After any error but a clean abort nothing more goes out of a writer."""
    op = await make_queue(world)
    successor = world.process.owners.open_writer(owner.transactional_ids)
    await successor.fence()
    for _ in range(2):
        with pytest.raises(StoreError):
            await put_in_time(owner.writer, batch_of([], to(op, b"never")))
    await successor.close()
    assert await read_values(world, op) == []


@pytest.mark.parametrize("turn", [0, 1])
async def test_fence_ends_what_the_last_owner_left_open(world: ContractWorld, turn: int) -> None:
    """A Kafka transaction left open under either id is aborted, and readers go on at once (P, T)."""
    queue, op = await make_queue(world), await make_queue(world)
    name = fresh_name("owner")
    transactional_ids = (f"{name}-0", f"{name}-1")
    await world.begin(transactional_ids[turn], [to(queue, b"never")])
    await put_values(world, queue, b"behind")
    writer = world.process.owners.open_writer(transactional_ids)
    await writer.fence()
    await until_stable(world, queue)
    await writer.put_all(batch_of([to(queue, b"next")], to(op, b"position")))
    await writer.close()
    assert await read_values(world, queue) == [b"behind", b"next"]


async def test_maximum_after_fence_is_the_true_end(world: ContractWorld, owner: Owner) -> None:
    """Everything the last owner committed lies below the maximum that is noted after `fence`."""
    op = await make_queue(world)
    result = await owner.writer.put_all(batch_of([], to(op, b"position")))
    successor = world.process.owners.open_writer(owner.transactional_ids)
    await successor.fence()
    offsets = await world.process.store.get_offsets(op)
    await successor.close()
    assert result.last_offset is not None
    assert offsets.maximum > result.last_offset
