"""The thread that owns a Kafka client, its queue of calls, and when the client is to be replaced."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import structlog

from bridge.core.errors import StoreUnavailable

DEAF_S = 15.0
"""A client can stay deaf for ever after a broker was frozen (librdkafka 4615, 4820, 5301)."""


class Silence:
    """How long the calls about each thing have had no answer. A refusal is an answer; a pause without calls is none."""

    def __init__(self, limit_s: float = DEAF_S, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._limit_s = limit_s
        self._since: dict[Hashable, float] = {}

    def end(self, about: Hashable = None) -> None:
        """Somebody has answered."""
        self._since.pop(about, None)

    def go_on(self, about: Hashable = None, since: float | None = None) -> bool:
        """Nobody has answered a call that began then (now). Whether that has lasted for too long: replace the client.

        Then all begins anew: so the next one has as long as this one had.
        """
        now = self.now()
        first = self._since.setdefault(about, now if since is None else since)
        if now - first < self._limit_s:
            return False
        self._since.clear()
        return True


def let_go(end: Callable[[], object]) -> None:
    """Ends a replaced client on the side: that waits for its threads, and perhaps for a broker."""
    threading.Thread(target=end, name="kafka-let-go", daemon=True).start()


T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0
_LOG = structlog.get_logger()


class _Call(NamedTuple):
    run: Callable[[], Any]
    future: "asyncio.Future[Any]"


class ClientThread:
    """Runs calls one at a time, in order, in a daemon thread: a call that hangs holds up neither loop nor exit."""

    def __init__(self, name: str, close_timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        self._close_timeout_s = close_timeout_s
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def submit(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Its result, or what it raised, in a future of the event loop. Raises StoreUnavailable after `close`."""
        if self._is_closed:
            raise StoreUnavailable(f"{self._thread.name} is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(_Call(call, future))
        return future

    async def close(self, last: Callable[[], None]) -> None:
        """Runs `last`, then ends the thread. A hanging one is left behind after a while."""
        if self._is_closed:
            return
        done = self.submit(last)
        self._is_closed = True
        self._calls.put(None)
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await done
        except TimeoutError:
            _LOG.error("kafka_client_abandoned", client=self._thread.name)
            return
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                result = call.run()
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                self._answer(call.future, None, error)
            else:
                self._answer(call.future, result, None)
            del call  # or an idle thread keeps the last result alive

    def _answer(self, future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so is everybody who waits
            self._loop.call_soon_threadsafe(_resolve, future, result, error)


def _resolve(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # seen; or a caller that has gone would leave a complaint in the log
