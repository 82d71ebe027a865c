"""The Kafka adapter under the contract suite, and what is done to a real Kafka from outside."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bridge.clock import SystemClock
from bridge.core.message import Message, MessageQueue
from bridge.store.kafka.options import CLIENT_LOG
from tests.contract.kafka_adapter import open_process
from tests.contract.world import SWEEP_MS, Process

_TIMEOUT_S = 15


class KafkaTransaction:
    """A transactional producer that is not ours."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def end(self, *, is_commit: bool) -> None:
        end = self._producer.commit_transaction if is_commit else self._producer.abort_transaction
        await asyncio.to_thread(end, _TIMEOUT_S)


class KafkaContractWorld:
    """Clients of one test on a broker that many tests share."""

    def __init__(self, bootstrap_servers: str, process: Process) -> None:
        self.clock = SystemClock()
        self.process = process
        self._bootstrap_servers = bootstrap_servers
        self._started = [process]
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    async def start_process(self, client: str) -> Process:
        process = await open_process(self._bootstrap_servers, client)
        self._started.append(process)
        return process

    async def begin(self, transactional_id: str, messages: Sequence[Message]) -> KafkaTransaction:
        producer = transactional_producer(self._bootstrap_servers, transactional_id)
        await asyncio.to_thread(append_openly, producer, messages)
        return KafkaTransaction(producer)

    async def drop_below(self, queue: MessageQueue, offset: int) -> None:
        await _all_done(self._admin.delete_records([TopicPartition(queue.topic, queue.queue_id, offset)]))

    async def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        await _all_done(self._admin.incremental_alter_configs([resource], request_timeout=_TIMEOUT_S))

    async def delete_topic(self, name: str) -> None:
        await _all_done(self._admin.delete_topics([name], request_timeout=_TIMEOUT_S))
        async with asyncio.timeout(_TIMEOUT_S):
            while (await self.process.admin.describe_topics([name]))[name] is not None:
                await self.sweep()

    async def sweep(self) -> None:
        await self.clock.sleep_ms(SWEEP_MS)

    async def close(self) -> None:
        for process in reversed(self._started):
            await process.close()


async def open_kafka_world(bootstrap_servers: str) -> KafkaContractWorld:
    """A world with one process."""
    return KafkaContractWorld(bootstrap_servers, await open_process(bootstrap_servers, "main"))


def transactional_producer(bootstrap_servers: str, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
    """A client that is not ours; what it leaves open stays so for `timeout_ms`."""
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "enable.sparse.connections": False,  # or it first finds its coordinator after half a second
            "logger": CLIENT_LOG,
        }
    )


def append_openly(producer: Producer, messages: Sequence[Message]) -> None:
    """Begins a Kafka transaction and appends."""
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    for message in messages:
        producer.produce(message.topic, message.value, message.key, message.queue_id, headers=list(message.headers))
    assert producer.flush(_TIMEOUT_S) == 0


async def _all_done(futures: Mapping[Any, "Future[Any]"]) -> None:
    for future in futures.values():
        await asyncio.wrap_future(future)
