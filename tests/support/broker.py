"""Real Kafka brokers for tests: one for a whole test run, and private ones to kill and pause."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest

from bridge.broker.dev_broker import DevBroker, StartCache
from bridge.broker.jars import fetch_jars
from bridge.broker.ports import FileLock, JarsUnavailable, JavaMissing, find_java
from tests.support.removal import remove_beside

BrokerFactory = Callable[..., DevBroker]
_PEACE_S = 120.0
_STOP = "stop"


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


class BrokerForAll:
    """One broker for all processes of a run: a Kafka of its own would cost each of them half a minute of processor.

    The process that hands the tests out has it, outlives the others, and starts it for the first of them that asks.
    """

    def __init__(self) -> None:
        self._listener = Listener(family="AF_UNIX")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """For `ask_for_broker`."""
        return str(self._listener.address)

    def close(self) -> None:
        """The broker and its data are gone then."""
        with Client(self.address) as asker:
            asker.send(_STOP)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with ExitStack() as brokers:
            bootstrap = ""
            while True:
                with self._listener.accept() as asker:
                    if asker.recv() == _STOP:
                        return
                    try:
                        bootstrap = bootstrap or brokers.enter_context(running_broker()).bootstrap
                        asker.send(bootstrap)
                    except (Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - told to who asks
                        asker.send(error)


def ask_for_broker(address: str) -> str:
    """`bootstrap.servers` of the one broker of a run. Raises what kept it from starting."""
    with Client(address) as door:
        door.send("")
        told: str | BaseException = door.recv()
    if isinstance(told, BaseException):
        raise told
    return told
