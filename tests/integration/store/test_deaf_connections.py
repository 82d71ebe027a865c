"""Clients whose connections stay open and carry nothing any more, on a real Kafka; new connections work."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from bridge.core.errors import StoreError
from bridge.core.message import Message, MessageQueue
from bridge.store.kafka.consumer import KafkaQueueReader, LookUpClient
from bridge.store.kafka.groups import OffsetClient
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.producer import AppendClient
from bridge.store.message_store import PutStatus
from tests.support.bridge_process import create_topics, read_committed
from tests.support.kafka_proxy import ProxiedBroker, proxied_broker

DEADLINE_S = 120
SETUP_S = 20  # below the half minute after which a client gives up a connection that is not made
SOON_S = 40  # below the minute after which a client lets go of a connection unless it is told otherwise
# Left to itself no client would let a connection go within the deadline.
PATIENT = {"socket.timeout.ms": 300_000, "socket.max.fails": 0}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedBroker]:
    """A broker with a proxy before it."""
    with proxied_broker() as broker:
        yield broker


def make_config(kafka: ProxiedBroker) -> KafkaConfig:
    options = {"bootstrap.servers": kafka.proxy.bootstrap, **PATIENT}
    return KafkaConfig(options, read_timeout_ms=2_000, message_timeout_ms=300_000)


async def repeat(call: Callable[[], Awaitable[object]]) -> int:
    """Until it has an answer; how often it had none."""
    failed = 0
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await call()
            except StoreError:
                failed += 1
            else:
                return failed


async def test_deaf_offset_client_is_replaced(kafka: ProxiedBroker) -> None:
    """Metadata and offsets are told again."""
    create_topics(kafka.direct, {"offsets": 1})
    queue = MessageQueue("offsets", 0)
    client = OffsetClient(make_config(kafka))
    try:
        before = await client.get_offsets(queue)
        kafka.proxy.deafen()
        assert await repeat(lambda: client.get_offsets(queue)) > 0
        assert await client.get_offsets(queue) == before
    finally:
        await client.close()


async def test_deaf_reader_hears_again_soon(kafka: ProxiedBroker) -> None:
    """Else its queue, or all callers of a process, would wait for a minute although every broker is well (T)."""
    create_topics(kafka.direct, {"follows": 1})
    append = AppendClient(KafkaConfig({"bootstrap.servers": kafka.direct}))
    options = {"bootstrap.servers": kafka.proxy.bootstrap}
    reader = KafkaQueueReader(KafkaConfig(options), MessageQueue("follows", 0), 0)

    async def read() -> bytes | None:
        while not (messages := (await reader.get(10, 500)).messages):
            pass
        return messages[0].value

    try:
        async with asyncio.timeout(SOON_S):
            await append.put_many([Message("follows", None, b"before", (), 0)])
            assert await read() == b"before"
            kafka.proxy.deafen()
            await append.put_many([Message("follows", None, b"after", (), 0)])
            assert await read() == b"after"
    finally:
        await append.close()
        await reader.close()


async def test_connection_that_is_not_made_is_given_up_soon() -> None:
    """As to an address of a name where nobody is any more: the next try may go to another one (T)."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as nobody, socket.create_connection(nobody.getsockname()):
        options = {"bootstrap.servers": f"127.0.0.1:{nobody.getsockname()[1]}"}  # whose one place is taken
        reader = KafkaQueueReader(KafkaConfig(options), MessageQueue("follows", 0), 0)
        try:
            async with asyncio.timeout(SETUP_S):
                while reader.errors.last_error is None:
                    await reader.get(10, 500)
        finally:
            await reader.close()


async def test_deaf_look_up_client_is_replaced(kafka: ProxiedBroker) -> None:
    """Reads at an offset work again."""
    create_topics(kafka.direct, {"reads": 1})
    queue = MessageQueue("reads", 0)
    append = AppendClient(make_config(kafka))
    look_up = LookUpClient(make_config(kafka))
    try:
        await append.put_many([Message("reads", None, b"1", (), 0)])
        before = await look_up.get_each(queue, [0])
        kafka.proxy.deafen()
        assert await repeat(lambda: look_up.get_each(queue, [0])) > 0
        assert await look_up.get_each(queue, [0]) == before
    finally:
        await append.close()
        await look_up.close()


async def test_deaf_producer_is_replaced_and_sends_nothing_twice(kafka: ProxiedBroker) -> None:
    """What was on its way is unknown, not refused; what follows is written once."""
    create_topics(kafka.direct, {"puts": 1})
    client = AppendClient(make_config(kafka))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await client.put_many([Message("puts", None, b"before", (), 0)])
            kafka.proxy.deafen()
            (lost,) = await client.put_many([Message("puts", None, b"lost", (), 0)])
            (kept,) = await client.put_many([Message("puts", None, b"after", (), 0)])
    finally:
        await client.close()
    assert (lost.status, lost.refusal) == (PutStatus.OUTCOME_UNKNOWN, None)
    assert kept.status is PutStatus.PUT_OK
    assert [record.value for record in read_committed(kafka.direct, ["puts"])] == [b"before", b"after"]
