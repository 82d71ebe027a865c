"""A broker that is no longer, or not yet, the coordinator of the group it is asked about."""

import asyncio
import struct

from confluent_kafka import KafkaError

from bridge.core.message import MessageQueue
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import KafkaMessageStore
from tests.support.bridge_process import create_topics
from tests.support.kafka_proxy import OFFSET_FETCH, Frame, proxied_broker

QUEUE = MessageQueue("orders", 0)


def with_group_error(reply: Frame, code: int) -> bytes:
    """The reply to a question about one group, with an error for it: it ends with this code and two empty tag lists."""
    assert reply.api_version >= 8, "no error code of the group where it is looked for"
    return reply.raw[:-4] + struct.pack(">h", code) + reply.raw[-2:]


async def test_consume_offset_is_read_from_the_new_coordinator() -> None:
    """The first answer is an error that the admin client of librdkafka does not survive; the next one counts."""
    with proxied_broker() as broker:
        create_topics(broker.direct, {QUEUE.topic: 1})
        store = KafkaMessageStore(KafkaConfig({"bootstrap.servers": broker.proxy.bootstrap}))
        try:
            await store.put_consume_offset("shop", QUEUE, 7)
            gate = broker.proxy.hold(OFFSET_FETCH, is_reply=True)
            reading = asyncio.create_task(store.get_consume_offsets("shop", [QUEUE]))
            reply = await asyncio.to_thread(gate.wait_caught)
            gate.replace(with_group_error(reply, KafkaError.NOT_COORDINATOR))
            assert (await reading)[QUEUE].offset == 7
        finally:
            await store.close()
