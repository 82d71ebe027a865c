"""A connection to one bridge, for threads or for an event loop, from its first use to `close`.

After a fork the child starts one of its own at first use; the parent's connections are never used in it.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from outbox.client.caller import Caller
from outbox.client.calls import Call, PlainCall
from outbox.client.config import BridgeConfig, check_url
from outbox.client.errors import Closed, Misuse, OutcomeUnknown
from outbox.client.replies import Reply

T = TypeVar("T")


def run_now(flow: Coroutine[Any, Any, T]) -> T:
    """Its result, in the caller's thread. This is why what both faces do is written once."""
    try:
        flow.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    flow.close()
    raise RuntimeError("a step of a blocking flow has suspended")


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
        _THREADS.add(self)

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


_THREADS: "weakref.WeakSet[LoopThread[Any]]" = weakref.WeakSet()
_ABANDONED: list[_Running[Any]] = []


def _abandon_threads() -> None:
    for thread in list(_THREADS):
        thread.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_threads)


class Lifetime:
    """Counts what is under way; safe in threads."""

    def __init__(self) -> None:
        self._under_way = 0
        self._is_closing = False
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        _LIFETIMES.add(self)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Something that `close` waits for. Raises Closed after it."""
        with self._lock:
            if self._is_closing:
                raise Closed("used after close")
            self._under_way += 1
        try:
            yield
        finally:
            self._leave()

    def close(self, call_when_idle: Callable[[], None]) -> bool:
        """Ends it; whether this is the first call. What is given is called, from any thread, once nothing goes on."""
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
            is_idle = self._under_way == 0
            if not is_idle:
                self._waiting.append(call_when_idle)
        if is_idle:
            call_when_idle()
        return is_first

    def forget_other_threads(self) -> None:
        """After a fork: what other threads had under way, and the lock they may have held, are the parent's."""
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting.clear()

    def _leave(self) -> None:
        with self._lock:
            self._under_way = max(0, self._under_way - 1)
            idle = self._waiting if self._under_way == 0 else []
            if idle:
                self._waiting = []
        for call_when_idle in idle:
            call_when_idle()


_LIFETIMES: "weakref.WeakSet[Lifetime]" = weakref.WeakSet()


def _forget_threads() -> None:
    for lifetime in list(_LIFETIMES):
        lifetime.forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


class ThreadConnection:
    """For threads: their calls meet in an event loop of its own thread, started at first use."""

    def __init__(self, url: str, config: BridgeConfig) -> None:
        address = check_url(url)
        self.config = config
        self.lifetime = Lifetime()
        self.thread = LoopThread(lambda: Caller(address, config), Caller.close)

    async def ask(self, call: Call | PlainCall) -> Reply:
        """Blocks until the answer is there; never suspends. Raises OutboxError."""
        return self.thread.run(lambda caller: caller.call(call))

    def close(self) -> None:
        """Takes nothing new, waits for what is under way, cuts off what takes too long."""
        idle = threading.Event()
        self.lifetime.close(idle.set)
        idle.wait(self.config.close_timeout_s)
        self.thread.stop()


class LoopConnection:
    """For one event loop, the one it is first used in."""

    def __init__(self, url: str, config: BridgeConfig) -> None:
        self._url = check_url(url)
        self.config = config
        self.lifetime = Lifetime()
        self._caller: Caller | None = None

    async def ask(self, call: Call | PlainCall) -> Reply:
        """Suspends until the answer is there. Raises OutboxError."""
        return await self.caller_here().call(call)

    def caller_here(self) -> Caller:
        """The calls of the running loop; those of one that has been closed are gone with it. Raises Misuse."""
        loop = asyncio.get_running_loop()
        if self._caller is None or (self._caller.loop is not loop and self._caller.loop.is_closed()):
            self._caller = Caller(self._url, self.config)
        if self._caller.loop is not loop:
            raise Misuse("in use in another event loop: make one for each")
        return self._caller

    async def close(self) -> None:
        """Takes nothing new, waits for what is under way, cuts off what takes too long."""
        loop, idle = asyncio.get_running_loop(), asyncio.Event()
        self.lifetime.close(lambda: _set_in(loop, idle))
        with suppress(TimeoutError):
            await asyncio.wait_for(idle.wait(), self.config.close_timeout_s)
        caller, self._caller = self._caller, None
        if caller is not None and caller.loop is loop:
            await caller.close()


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
