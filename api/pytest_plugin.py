"""Fixtures for tests of services that send through a bridge; pytest finds them by itself (`-p no:outbox_bridge`: not).

    def test_order_is_announced(outbox_bridge):
        outbox_bridge.create_topic("orders.created")
        ...                                             # the application, with outbox_bridge.url
        (message,) = outbox_bridge.published("orders.created")

Loaded by every run of pytest where the package is installed: nothing else is imported before a fixture is used.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from api.testing.kafka import KafkaOutboxBridge
    from api.testing.memory import MemoryOutboxBridge

_SERVER_PARTS = ("aiohttp", "confluent_kafka", "fastapi", "msgspec", "uvicorn")


@pytest.fixture(scope="session")
def _outbox_bridge_parts() -> None:
    """A bridge needs more than the producer's side does."""
    if any(find_spec(name) is None for name in _SERVER_PARTS):
        pytest.fail("these fixtures run a bridge: pip install 'outbox-bridge[server]'", pytrace=False)


@pytest.fixture(scope="session")
def _outbox_bridge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: an empty database is made in it once."""
    return tmp_path_factory.mktemp("outbox-bridge")


@pytest.fixture
def outbox_bridge(_outbox_bridge_parts: None, _outbox_bridge_folder: Path) -> "Iterator[MemoryOutboxBridge]":
    """A whole bridge on an in-memory log, empty for each test."""
    from api.testing.memory import MemoryOutboxBridge  # noqa: PLC0415  # slow to import

    bridge = MemoryOutboxBridge(_outbox_bridge_folder)
    bridge.start()
    try:
        yield bridge
    finally:
        bridge.stop()


@pytest.fixture(scope="session")
def _outbox_bridge_kafka(
    _outbox_bridge_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[KafkaOutboxBridge]":
    from api.testing.kafka import NoKafka, running_bridge  # noqa: PLC0415  # slow to import

    with ExitStack() as stack:
        try:
            bridge = stack.enter_context(running_bridge(tmp_path_factory.mktemp("outbox-bridge-kafka")))
        except NoKafka as missing:
            pytest.fail(str(missing), pytrace=False)
        yield bridge


@pytest.fixture
def outbox_bridge_kafka(_outbox_bridge_kafka: "KafkaOutboxBridge") -> "Iterator[KafkaOutboxBridge]":
    """A whole bridge on a real Kafka, one for the run; each test sees what is its own."""
    with _outbox_bridge_kafka.for_one_test():
        yield _outbox_bridge_kafka
