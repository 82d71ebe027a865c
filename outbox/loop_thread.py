"""An event loop in a thread of its own, so that threads can share connections and requests.

After a fork the child starts one of its own at first use; the parent's connections are never used in it.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from outbox.errors import Closed, OutcomeUnknown

T = TypeVar("T")
R = TypeVar("R")

_JOIN_S = 5.0
_LINGER_S = 0.5


class LoopThread(Generic[R]):
    """Runs coroutines for threads that wait. `make`: makes in the loop what they share; `close` ends it there."""

    def __init__(self, make: Callable[[], R], close: Callable[[R], Coroutine[Any, Any, None]]) -> None:
        self._make = make
        self._close = close
        self._lock = threading.Lock()
        self._running: _Running[R] | None = None
        self._is_stopped = False
        self._finalizer: weakref.finalize[..., Any] | None = None
        _ALL.add(self)

    def run(self, use: Callable[[R], Coroutine[Any, Any, T]]) -> T:
        """Waits for the coroutine. An interrupt cancels it."""
        future = self.submit(use)
        try:
            return future.result()
        except CancelledError:
            raise OutcomeUnknown("closed before the answer came") from None
        except BaseException:
            future.cancel()
            raise

    def submit(self, use: Callable[[R], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Starts the coroutine. Raises Closed after `stop`."""
        with self._lock:
            if self._is_stopped:
                raise Closed("used after close")
            if self._running is None:
                self._running = _Running(self._make, self._close)
                self._finalizer = weakref.finalize(self, self._running.stop)
            running = self._running
            return asyncio.run_coroutine_threadsafe(use(running.shared), running.loop)

    def stop(self) -> None:
        """Cuts off what is under way and ends the thread."""
        with self._lock:
            self._is_stopped = True
            running, self._running = self._running, None
            if self._finalizer is not None:
                self._finalizer.detach()
        if running is not None:
            running.stop()

    def abandon(self) -> None:
        """After a fork: thread and connections are the parent's. They are kept, for closing them would speak to it."""
        self._lock = threading.Lock()
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._running is not None:
            _ABANDONED.append(self._running)
        self._running = None


class _Running(Generic[R]):
    """A started thread with its loop."""

    def __init__(self, make: Callable[[], R], close: Callable[[R], Coroutine[Any, Any, None]]) -> None:
        self.loop = asyncio.new_event_loop()
        self._close = close
        self._thread = threading.Thread(target=self.loop.run_forever, name="outbox-bridge", daemon=True)
        self._thread.start()
        try:
            self.shared: R = asyncio.run_coroutine_threadsafe(_call(make), self.loop).result()
        except BaseException:
            self.loop.call_soon_threadsafe(self.loop.stop)
            raise

    def stop(self) -> None:
        """Ends what runs in the loop, then the loop."""
        if not self.loop.is_running():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        if threading.current_thread() is self._thread:  # a garbage collection happened to run here
            return
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self.loop.close()

    async def _end(self) -> None:
        """First what is shared: calls that are cut off can still say what became of them."""
        try:
            await self._close(self.shared)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                _, late = await asyncio.wait(others, timeout=_LINGER_S)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
        finally:
            self.loop.call_soon(self.loop.stop)


async def _call(make: Callable[[], R]) -> R:
    return make()


_ALL: "weakref.WeakSet[LoopThread[Any]]" = weakref.WeakSet()
_ABANDONED: list[_Running[Any]] = []


def _after_fork() -> None:
    for thread in list(_ALL):
        thread.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
