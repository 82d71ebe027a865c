"""A client process on the shared broker, with what the contract suite does to a log from outside."""

import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.kafka_world import KafkaContractWorld, open_kafka_world


@pytest.fixture
async def world(kafka: str) -> AsyncIterator[KafkaContractWorld]:
    """The Kafka adapter and its broker."""
    opened = await open_kafka_world(kafka)
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Whatever a test opens and closes, no thread of a client stays behind."""
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("kafka-")] == []
