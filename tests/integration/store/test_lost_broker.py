"""A broker that stands still, is killed, or was never there."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import psutil
import pytest

from bridge.broker.dev_broker import DevBroker
from bridge.core.errors import BatchOutcomeUnknown, StoreError, StoreTimeout
from bridge.core.message import MessageQueue
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore
from bridge.store.message_store import PutStatus
from tests.contract.world import DEADLINE_S, batch_of, fresh_name, to
from tests.support.broker import BrokerFactory

QUEUE = MessageQueue("orders", 0)


class Clients(NamedTuple):
    """The stores of one process, impatient."""

    store: KafkaMessageStore
    owners: KafkaOwnerStore
    admin: KafkaTopicAdmin


@asynccontextmanager
async def open_clients(bootstrap: str, timeout_ms: int = 1_500) -> AsyncIterator[Clients]:
    """Closed at the end, whatever the broker does."""
    config = KafkaConfig({"bootstrap.servers": bootstrap}, message_timeout_ms=timeout_ms, read_timeout_ms=timeout_ms)
    owners = KafkaOwnerStore(config)
    clients = Clients(KafkaMessageStore(config, owners), owners, KafkaTopicAdmin(config))
    try:
        yield clients
    finally:
        await asyncio.gather(clients.owners.close(), clients.store.close(), clients.admin.close())


async def until_it_works(attempt: Callable[[], Awaitable[object]]) -> None:
    """The clients find the broker again by themselves."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await attempt()
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.parametrize("name", ["create", "delete", "describe", "ping"])
async def test_administration_names_the_servers_that_do_not_answer(name: str) -> None:
    """A person who has several clusters must see which one was meant."""
    async with open_clients("127.0.0.1:1", 500) as clients:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: clients.admin.create_topic("orders", 1, 1, {}),
            "delete": lambda: clients.admin.delete_topic("orders"),
            "describe": lambda: clients.admin.describe_topics(["orders"]),
            "ping": clients.admin.ping,
        }
        with pytest.raises(StoreTimeout, match=r"127\.0\.0\.1:1"):
            await calls[name]()


async def test_nobody_there_is_said_in_time() -> None:
    """Without a broker reads and puts end with their time-outs, the complaint is kept, and closing works (A)."""
    async with open_clients("127.0.0.1:1", 500) as clients:
        for attempt in (
            clients.store.get_offsets(QUEUE),
            clients.store.get(QUEUE, 0, 1),
            clients.admin.ping(),
            clients.admin.describe_cluster(),
            clients.admin.list_topics(),
        ):
            with pytest.raises(StoreTimeout):
                await attempt
        assert (await clients.store.put(QUEUE, to(QUEUE, b"v"))).status is PutStatus.OUTCOME_UNKNOWN
        assert "127.0.0.1:1" in (clients.store.last_error or "") or "down" in (clients.store.last_error or "")


async def test_paused_broker_leaves_the_outcome_unknown(broker_factory: BrokerFactory) -> None:
    """While it stands still everything ends in its time; afterwards everything goes on (A, T)."""
    broker = broker_factory()
    async with open_clients(broker.bootstrap) as clients:
        await clients.admin.create_topic(QUEUE.topic, 1, 1, {})
        ids = await _write_first(clients)
        writer = clients.owners.open_writer(ids)
        await writer.fence()
        await _pause(broker)
        batch = asyncio.create_task(writer.put_all(batch_of([], to(QUEUE, b"?"))))
        assert (await clients.store.put(QUEUE, to(QUEUE, b"put?"))).status is PutStatus.OUTCOME_UNKNOWN
        with pytest.raises(StoreTimeout):
            await clients.store.get_offsets(QUEUE)
        with pytest.raises(BatchOutcomeUnknown):
            await batch
        await writer.close()
        broker.resume()
        await until_it_works(lambda: clients.store.get_offsets(QUEUE))
        await _go_on(clients, ids)


async def test_killed_broker_is_found_again(broker_factory: BrokerFactory) -> None:
    """What was acknowledged is there after a kill, and the clients that were open then go on (L, T)."""
    broker = broker_factory()
    async with open_clients(broker.bootstrap) as clients:
        await clients.admin.create_topic(QUEUE.topic, 1, 1, {})
        ids = await _write_first(clients)
        assert (await clients.store.get_offsets(QUEUE)).minimum == 0
        broker.kill()
        with pytest.raises(StoreTimeout):
            await clients.admin.describe_topics([QUEUE.topic])
        assert (await clients.store.put(QUEUE, to(QUEUE, b"put?"))).status is PutStatus.OUTCOME_UNKNOWN
        await asyncio.to_thread(broker.start)
        await _go_on(clients, ids)


async def _write_first(clients: Clients) -> tuple[str, str]:
    name = fresh_name("owner")
    ids = (f"{name}-0", f"{name}-1")
    writer = clients.owners.open_writer(ids)
    await writer.fence()
    await writer.put_all(batch_of([], to(QUEUE, b"first")))
    await writer.close()
    return ids


async def _go_on(clients: Clients, ids: tuple[str, str]) -> None:
    """A new writer and the old store work; what was certain is there once."""
    writer = clients.owners.open_writer(ids)
    await until_it_works(writer.fence)
    await writer.put_all(batch_of([], to(QUEUE, b"second")))
    await until_it_works(lambda: _put(clients))
    await until_it_works(lambda: clients.store.get_offsets(QUEUE))
    assert clients.store.last_error is None
    values = await _read_until(clients, b"second")
    assert [value for value in values if value in {b"first", b"second"}] == [b"first", b"second"]
    assert len(values) == len(set(values))


async def _put(clients: Clients) -> None:
    result = await clients.store.put(QUEUE, to(QUEUE, uuid.uuid4().bytes))
    if result.status is not PutStatus.PUT_OK:
        raise StoreTimeout(result.detail)


async def _read_until(clients: Clients, value: bytes) -> list[bytes | None]:
    """A transaction's commit is answered before its markers are in the queues, and readers wait for those."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            values = [message.value for message in (await clients.store.get(QUEUE, 0, 100)).messages]
            if value in values:
                return values
            await asyncio.sleep(0.02)


async def _pause(broker: DevBroker) -> None:
    """The signal takes a moment."""
    broker.pause()
    assert broker.pid is not None
    async with asyncio.timeout(DEADLINE_S):
        while psutil.Process(broker.pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.01)
