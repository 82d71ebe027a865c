"""Fixtures for tests of services that send through a bridge; pytest finds them by itself (`-p no:outbox_bridge`: not).

    def test_order_is_announced(outbox_bridge):
        outbox_bridge.create_topic("orders.created")
        ...                                             # the application, with outbox_bridge.url
        (message,) = outbox_bridge.published("orders.created")

Loaded by every run of pytest where the package is installed: nothing else is imported before a fixture is used, and of
the application nothing at all: the bridge is a process of its own.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outbox.testing.bridge import KafkaOutboxBridge, MemoryOutboxBridge
    from outbox.testing.process import BridgeProcess

_SERVER_PARTS = ("aiohttp", "confluent_kafka", "fastapi", "msgspec", "uvicorn")


@pytest.fixture(scope="session")
def _outbox_bridge_parts() -> None:
    """A bridge needs more than the producer's side does."""
    if any(find_spec(name) is None for name in _SERVER_PARTS):
        pytest.fail("these fixtures run a bridge: pip install 'outbox-bridge[server]'", pytrace=False)


@pytest.fixture(scope="session")
def _outbox_bridge_process(
    _outbox_bridge_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[BridgeProcess]":
    """One for all tests."""
    from outbox.testing.process import BridgeProcess  # noqa: PLC0415  # slow to import

    with BridgeProcess("memory", tmp_path_factory.mktemp("outbox-bridge")) as process:
        yield process


@pytest.fixture
def outbox_bridge(_outbox_bridge_process: "BridgeProcess") -> "Iterator[MemoryOutboxBridge]":
    """A whole bridge on an in-memory log, empty for each test."""
    from outbox.testing.bridge import MemoryOutboxBridge  # noqa: PLC0415  # slow to import

    bridge = MemoryOutboxBridge(_outbox_bridge_process)
    bridge.open()
    try:
        yield bridge
    finally:
        bridge.close()


@pytest.fixture(scope="session")
def _outbox_bridge_kafka(
    _outbox_bridge_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[KafkaOutboxBridge]":
    from outbox.testing.bridge import KafkaOutboxBridge  # noqa: PLC0415  # slow to import
    from outbox.testing.process import BridgeFailed, BridgeProcess  # noqa: PLC0415

    with BridgeProcess("kafka", tmp_path_factory.mktemp("outbox-bridge-kafka")) as process:
        bridge = KafkaOutboxBridge(process)
        try:
            bridge.open()
        except BridgeFailed as failed:
            pytest.fail(str(failed), pytrace=False)
        try:
            yield bridge
        finally:
            bridge.close()


@pytest.fixture
def outbox_bridge_kafka(_outbox_bridge_kafka: "KafkaOutboxBridge") -> "Iterator[KafkaOutboxBridge]":
    """A whole bridge on a real Kafka, one for the run; each test sees what is its own."""
    with _outbox_bridge_kafka.for_one_test():
        yield _outbox_bridge_kafka
