"""Real Kafka brokers for tests: one for a whole test run, and private ones to kill and pause."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from bridge.broker.dev_broker import DevBroker, StartCache
from bridge.broker.jars import fetch_jars
from bridge.broker.ports import FileLock, JarsUnavailable, JavaMissing, find_java
from tests.support.removal import remove_beside

BrokerFactory = Callable[..., DevBroker]
_PEACE_S = 120.0


@cache
def _keep_classes() -> None:
    """All others start in half the time with what this one leaves when it ends; done once on a machine."""
    jars = fetch_jars()
    with FileLock(jars.with_name("tests.lock")), tempfile.TemporaryDirectory(prefix="outbox-bridge-kafka-") as folder:
        if not StartCache(jars, find_java()).classes.exists():
            broker = DevBroker(Path(folder), port=None)
            broker.start()
            broker.stop(_PEACE_S)


@contextmanager
def running_broker(
    settings: Mapping[str, str] | None = None, heap_mb: int = 384, *, is_long_lived: bool = False
) -> Iterator[DevBroker]:
    """A broker of its own on free ports with empty data; both are gone afterwards.

    `kill()`, `pause()`, `resume()`, `stop()` and `start()` act on the same data and port.
    """
    folder = Path(tempfile.mkdtemp(prefix="outbox-bridge-kafka-"))
    broker = DevBroker(folder, port=None, heap_mb=heap_mb, is_long_lived=is_long_lived, settings=settings)
    try:
        try:
            _keep_classes()
            broker.start()
        except (JavaMissing, JarsUnavailable) as missing:
            pytest.skip(f"no Kafka: {missing}. {missing.remedy}")
        yield broker
    finally:
        broker.kill()
        remove_beside(folder)


@contextmanager
def broker_maker() -> Iterator[BrokerFactory]:
    """Makes started brokers (the arguments of `running_broker`) and ends them all at the end."""
    with ExitStack() as brokers:

        def make(settings: Mapping[str, str] | None = None, heap_mb: int = 384) -> DevBroker:
            return brokers.enter_context(running_broker(settings, heap_mb))

        yield make
