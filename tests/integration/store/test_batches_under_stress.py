"""Atomic batches on a real broker: what goes wrong outside, and what the writer makes of it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, StoreFenced, StoreUnavailable
from bridge.core.message import Message, MessageQueue, Receipt
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.transactional_producer import MOST_ROUNDS, KafkaBatchWriter, LimitOf, no_limit
from bridge.store.message_store import AtomicBatch
from tests.contract.kafka_world import KafkaContractWorld
from tests.contract.world import (
    DEADLINE_S,
    batch_of,
    fresh_name,
    make_queue,
    make_topic,
    put_values,
    read_until,
    read_values,
    to,
    wait_for_leader,
)


async def add_queues(bootstrap: str, topic: str, queues: int) -> None:
    """The topic has so many queues from now on."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    await asyncio.wrap_future(admin.create_partitions([NewPartitions(topic, queues)])[topic])


def fresh_ids() -> tuple[str, str]:
    """The transactional ids of a queue nobody has used."""
    name = fresh_name("owner")
    return f"{name}-0", f"{name}-1"


@asynccontextmanager
async def fenced_writer(
    bootstrap: str, ids: tuple[str, str], limit: LimitOf = no_limit, call_timeout_ms: int = 2_000
) -> AsyncIterator[KafkaBatchWriter]:
    """A writer that is ready, closed at the end."""
    config = KafkaConfig({"bootstrap.servers": bootstrap}, call_timeout_ms=call_timeout_ms)
    writer = KafkaBatchWriter(config, ids, limit)
    try:
        await writer.fence()
        yield writer
    finally:
        await writer.close()


class Frozen:
    """A batch whose writer stands still after its messages were written, as a process that is paused there."""

    def __init__(self, messages: Sequence[Message], closing: Message) -> None:
        self.written = threading.Event()
        self.thawed = threading.Event()
        self._closing = closing
        self.batch = AtomicBatch(messages, self._finish)

    def _finish(self, _: Sequence[Receipt]) -> list[Message]:
        self.written.set()
        assert self.thawed.wait(DEADLINE_S)
        return [self._closing]

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.written.wait, DEADLINE_S)


async def test_deleted_topic_fails_the_batch_whole(world: KafkaContractWorld, kafka: str) -> None:
    """Aborted or unknown, by what the client has heard by then; never visible, and nobody else is blamed (P)."""
    queue, op, gone, ids = await make_queue(world), await make_queue(world), await make_queue(world), fresh_ids()
    async with fenced_writer(kafka, ids) as writer:
        await writer.put_all(batch_of([to(gone, b"there")], to(op, b"first")))
        await writer.put_all(batch_of([to(gone, b"there")], to(op, b"second")))
        await world.delete_topic(gone.topic)
        with pytest.raises((BatchAborted, BatchOutcomeUnknown)) as raised:
            await writer.put_all(batch_of([to(queue, b"never"), to(gone, b"never")], to(op, b"never")))
        if isinstance(raised.value, BatchAborted):
            assert raised.value.topic in {gone.topic, None}
        else:
            with pytest.raises(StoreUnavailable):
                await writer.put_all(batch_of([], to(op, b"never")))
    async with fenced_writer(kafka, ids) as successor:
        await successor.put_all(batch_of([to(queue, b"next")], to(op, b"third")))
    assert await read_values(world, queue) == [b"next"]
    assert await read_values(world, op) == [b"first", b"second", b"third"]


async def test_second_writer_frees_the_readers_of_a_frozen_one(world: KafkaContractWorld, kafka: str) -> None:
    """An owner frozen in mid-batch holds readers up; who takes its ids frees them, and it is refused (D, T)."""
    queue, op, ids = await make_queue(world), await make_queue(world), fresh_ids()
    frozen = Frozen([to(queue, b"never")], to(op, b"never"))
    async with fenced_writer(kafka, ids) as owner:
        late = asyncio.create_task(owner.put_all(frozen.batch))
        await frozen.wait()
        await put_values(world, queue, b"behind")
        assert (await world.process.store.get_offsets(queue)).stable == 0
        async with fenced_writer(kafka, ids) as successor:
            assert [m.value for m in await read_until(world, queue, b"behind")] == [b"behind"]
            await successor.put_all(batch_of([to(queue, b"new")], to(op, b"new")))
            frozen.thawed.set()
            with pytest.raises(StoreFenced):
                await late
    assert await read_values(world, queue) == [b"behind", b"new"]
    assert await read_values(world, op) == [b"new"]


async def test_hanging_call_kills_the_writer_not_the_loop(world: KafkaContractWorld, kafka: str) -> None:
    """A call that does not return in spite of its time-out ends as unknown, while the loop goes on."""
    queue, op = await make_queue(world), await make_queue(world)
    frozen = Frozen([to(queue, b"never")], to(op, b"never"))
    async with fenced_writer(kafka, fresh_ids(), call_timeout_ms=250) as writer:
        hanging = asyncio.create_task(writer.put_all(frozen.batch))
        await frozen.wait()
        await put_values(world, op, b"meanwhile")
        with pytest.raises(BatchOutcomeUnknown):
            await hanging
        with pytest.raises(StoreUnavailable):
            await writer.put_all(batch_of([], to(op, b"never")))
        frozen.thawed.set()


async def test_cancelled_batch_kills_the_writer(world: KafkaContractWorld, kafka: str) -> None:
    """Nobody knows what became of a batch whose caller has gone: the writer takes no other."""
    queue, op = await make_queue(world), await make_queue(world)
    frozen = Frozen([to(queue, b"?")], to(op, b"?"))
    async with fenced_writer(kafka, fresh_ids()) as writer:
        running = asyncio.create_task(writer.put_all(frozen.batch))
        await frozen.wait()
        running.cancel()
        frozen.thawed.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(StoreUnavailable):
            await writer.put_all(batch_of([], to(op, b"never")))


async def test_partitions_added_later_can_be_written(world: KafkaContractWorld, kafka: str) -> None:
    """A queue younger than the writer's knowledge of its topic is looked up, not refused."""
    topic, op = await make_topic(world, 1), await make_queue(world)
    async with fenced_writer(kafka, fresh_ids()) as writer:
        await writer.put_all(batch_of([to(MessageQueue(topic, 0), b"old")], to(op, b"first")))
        await add_queues(kafka, topic, 3)
        await wait_for_leader(world, MessageQueue(topic, 2))
        await writer.put_all(batch_of([to(MessageQueue(topic, 2), b"new")], to(op, b"second")))
    assert [m.value for m in await read_until(world, MessageQueue(topic, 2), b"new")] == [b"new"]


async def test_many_messages_to_a_topic_with_a_small_limit(world: KafkaContractWorld, kafka: str) -> None:
    """Fifty messages of 10 kB to a topic that takes 100 kB a request: in one request all would be refused."""
    small, op = await make_queue(world, {"max.message.bytes": "100000"}), await make_queue(world)
    messages = [to(small, b"%d" % n + b"x" * 10_000) for n in range(50)]
    async with fenced_writer(kafka, fresh_ids(), {small.topic: 100_000}.get) as writer:
        result = await writer.put_all(batch_of(messages, to(op, b"position")))
    assert [receipt.queue_offset for receipt in result.receipts] == list(range(50))


async def test_writer_goes_on_when_a_topic_with_a_small_limit_comes_into_use(
    world: KafkaContractWorld, kafka: str
) -> None:
    """Beside messages for topics with usual limits, in one Kafka transaction; nothing is opened anew (B)."""
    queue, op = await make_queue(world), await make_queue(world)
    small, limits = await make_queue(world, {"max.message.bytes": "1000"}), dict[str, int]()
    async with fenced_writer(kafka, fresh_ids(), limits.get) as writer:
        await writer.put_all(batch_of([to(queue, b"x")], to(op, b"first")))
        limits[small.topic] = 1_000
        values = [b"%d" % n + b"x" * 300 for n in range(20)]
        messages = [to(each, value) for value in values for each in (small, queue)]
        result = await writer.put_all(batch_of(messages, to(op, b"second")))
    assert [receipt.queue_offset for receipt in result.receipts[::2]] == list(range(20))
    assert await read_values(world, small) == values
    assert await read_values(world, queue) == [b"x", *values]


async def test_more_requests_than_a_kafka_transaction_has_time_for_are_not_begun(
    world: KafkaContractWorld, kafka: str
) -> None:
    """A clean abort that names the topic: whoever wanted it tries fewer at once."""
    small, op = await make_queue(world, {"max.message.bytes": "1000"}), await make_queue(world)
    async with fenced_writer(kafka, fresh_ids(), {small.topic: 1_000}.get) as writer:
        with pytest.raises(BatchAborted, match="not begun") as raised:
            await writer.put_all(batch_of([to(small, b"x" * 800)] * (MOST_ROUNDS + 1), to(op, b"never")))
        assert raised.value.topic == small.topic
        await writer.put_all(batch_of([to(small, b"x" * 800)] * 3, to(op, b"first")))
    assert await read_values(world, op) == [b"first"]


async def test_refused_message_twice_to_the_same_queue(world: KafkaContractWorld, kafka: str) -> None:
    """After a refusal the client has lost count of that queue's numbers; batches go on all the same (D)."""
    small, op = await make_queue(world, {"max.message.bytes": "2000"}), await make_queue(world)
    async with fenced_writer(kafka, fresh_ids()) as writer:
        for n in range(3):
            with pytest.raises(BatchAborted):
                await writer.put_all(batch_of([to(small, b"x" * 3_000)], to(op, b"never")))
            await writer.put_all(batch_of([to(small, b"%d" % n)], to(op, b"%d" % n)))
    assert await read_values(world, small) == [b"0", b"1", b"2"]
    assert await read_values(world, op) == [b"0", b"1", b"2"]
