"""The worlds the contract suite runs on: memory first, then a real Kafka."""

import importlib
from collections.abc import AsyncIterator

import pytest

from tests.contract.memory_adapter import MemoryContractWorld
from tests.contract.world import ContractWorld


@pytest.fixture(params=["memory", "kafka"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[ContractWorld]:
    """An adapter under test."""
    if request.param == "memory":
        memory = MemoryContractWorld()
        yield memory
        await memory.close()
        return
    kafka = importlib.import_module("tests.contract.kafka_world")
    opened = await kafka.open_kafka_world(request.getfixturevalue("kafka"))
    yield opened
    await opened.close()
