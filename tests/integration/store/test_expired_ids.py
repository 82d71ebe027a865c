"""Transactional ids that Kafka forgets for want of use: after a week by default, here within seconds."""

import asyncio

import pytest

from bridge.core.errors import StoreFenced
from tests.contract.kafka_world import open_kafka_world
from tests.contract.world import batch_of, make_queue, read_values, to
from tests.integration.store.test_batches_under_stress import fenced_writer, fresh_ids
from tests.support.broker import BrokerFactory

FORGETS_SOON = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}
FORGOTTEN_S = 4.0


@pytest.mark.parametrize("is_publishing", [True, False])
async def test_writer_whose_ids_were_forgotten_does_not_know_whether_it_is_the_owner(
    broker_factory: BrokerFactory, *, is_publishing: bool
) -> None:
    """An owner is frozen with a batch in its hands, another one settles it, then nobody writes until Kafka has
    forgotten both: it would let in whoever comes first, so nothing is written before the queue is read again (D)."""
    kafka = broker_factory(FORGETS_SOON).bootstrap
    world = await open_kafka_world(kafka)
    try:
        queue, op, ids = await make_queue(world), await make_queue(world), fresh_ids()
        async with fenced_writer(kafka, ids) as frozen:
            await frozen.put_all(batch_of([to(queue, b"first")], to(op, b"1")))
            await frozen.put_all(batch_of([to(queue, b"second")], to(op, b"2")))
            async with fenced_writer(kafka, ids) as successor:
                await successor.put_all(batch_of([to(queue, b"third")], to(op, b"3")))
            await asyncio.sleep(FORGOTTEN_S)
            with pytest.raises(StoreFenced):
                await frozen.put_all(batch_of([to(queue, b"third")] if is_publishing else [], to(op, b"never")))
        async with fenced_writer(kafka, ids) as next_owner:
            await next_owner.put_all(batch_of([to(queue, b"fourth")], to(op, b"4")))
        assert await read_values(world, queue) == [b"first", b"second", b"third", b"fourth"]
        assert await read_values(world, op) == [b"1", b"2", b"3", b"4"]
    finally:
        await world.close()
