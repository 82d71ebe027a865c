"""A connection to one bridge, for threads or for an event loop, from its first use to `close`.

After a fork the child starts one of its own at first use; the parent's connections are never used in it.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from outbox.client.batcher import LoopBatcher, ThreadBatcher
from outbox.client.caller import Caller, breaker_of, forget_breakers
from outbox.client.calls import Call, Request
from outbox.client.config import BridgeConfig, check_url
from outbox.client.errors import Closed, Misuse
from outbox.client.replies import Reply
from outbox.client.transport import LoopTransport, ThreadTransport

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


def submit_or_run(pool: ThreadPoolExecutor, call: Callable[..., T], *given: object) -> "Future[T]":
    """In the pool; here once the main thread has ended: pools take nothing more then, though other threads go on."""
    try:
        return pool.submit(call, *given)
    except RuntimeError:
        done: Future[T] = Future()
        run_into(done, call, *given)
        return done


def run_into(future: "Future[T]", call: Callable[..., T], *given: object) -> None:
    """Runs the call now, unless it is cancelled; the future has what becomes of it."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call(*given))
    except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the result
        future.set_exception(error)


class OwnThreads(ThreadPoolExecutor):
    """A thread for each call: neither does it end with the main thread, nor does that wait for it."""

    def submit(self, call: Callable[..., T], /, *given: object, **named: object) -> "Future[T]":
        """As a pool's."""
        future: Future[T] = Future()
        arguments = (future, partial(call, *given, **named))
        threading.Thread(target=run_into, args=arguments, name=self._thread_name_prefix, daemon=True).start()
        return future


class Lifetime:
    """Counts what is under way; safe in threads."""

    def __init__(self) -> None:
        self._under_way = 0
        self.is_closing = False  # nothing new is taken
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        _OF_THREADS.add(self)

    def __enter__(self) -> None:
        """Something that `close` waits for begins. Raises Closed after it."""
        _look_for_fork()
        with self._lock:
            if self.is_closing:
                raise Closed("used after close")
            self._under_way += 1

    def close(self, call_when_idle: Callable[[], None]) -> bool:
        """Ends it; whether this is the first call. What is given is called, from any thread, once nothing goes on."""
        _look_for_fork()
        with self._lock:
            is_first, self.is_closing = not self.is_closing, True
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

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._under_way = max(0, self._under_way - 1)
            idle = self._waiting if self._under_way == 0 else []
            if idle:
                self._waiting = []
        for call_when_idle in idle:
            call_when_idle()


# --- forks: none of what the parent has under way, and none of its connections, is the child's ---

_OF_THREADS: "weakref.WeakSet[Lifetime | ThreadConnection]" = weakref.WeakSet()
_LOCKS: dict[int, threading.Lock] = {}  # one of each process: the parent's may be held by a thread of its own
_known_pid = os.getpid()


def _look_for_fork() -> None:
    """Servers that fork in C, as uWSGI does, call no hook of Python's: everybody looks before a connection is used."""
    if _known_pid != os.getpid():
        _forget_parent()


def _forget_parent() -> None:
    global _known_pid  # noqa: PLW0603 - of the process
    pid = os.getpid()
    with _LOCKS.setdefault(pid, threading.Lock()):
        if _known_pid != pid:
            forget_breakers()
            for one in list(_OF_THREADS):
                one.forget_other_threads()
            _known_pid = pid


def _note_fork() -> None:
    global _known_pid  # noqa: PLW0603 - as above
    _known_pid = 0  # in a namespace of its own a child may have its parent's number
    _forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class ThreadConnection:
    """For threads: each calls over connections that they share."""

    def __init__(self, url: str, config: BridgeConfig) -> None:
        self.url = check_url(url)
        self.config = config
        self.lifetime = Lifetime()
        self._lock = threading.Lock()
        self._is_closed = False
        self._transport: ThreadTransport | None = None
        self._caller: Caller | None = None
        _OF_THREADS.add(self)

    async def ask(self, call: Call | Request, timeout_s: float | None = None) -> Reply:
        """Blocks until the answer is there; never suspends. Raises OutboxError."""
        return await self._find_caller().call(call, timeout_s)

    def close(self) -> None:
        """Takes nothing new, waits for what is under way, cuts off what takes too long."""
        idle = threading.Event()
        self.lifetime.close(idle.set)
        idle.wait(self.config.close_timeout_s)
        with self._lock:
            self._is_closed = True
            caller = self._caller
        if caller is not None:
            run_now(caller.close())

    def forget_other_threads(self) -> None:
        """After a fork: what they do goes on in the parent, whose connections are never used here."""
        self._lock = threading.Lock()
        if self._transport is not None:
            self._transport.abandon()
        self._transport = self._caller = None

    def _find_caller(self) -> Caller:
        """Made at its first use: certificates are slow to load. Raises Closed."""
        _look_for_fork()
        caller = self._caller
        if caller is not None and not self._is_closed:
            return caller
        with self._lock:
            if self._is_closed:
                raise Closed("used after close")
            if self._caller is None:
                self._transport = ThreadTransport(self.url, self.config.http)
                self._caller = Caller(self.config, self._transport, breaker_of(self.url), ThreadBatcher)
            return self._caller


class LoopConnection:
    """For one event loop, the one it is first used in."""

    def __init__(self, url: str, config: BridgeConfig) -> None:
        self.url = check_url(url)
        self.config = config
        self.lifetime = Lifetime()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._caller: Caller | None = None

    async def ask(self, call: Call | Request, timeout_s: float | None = None) -> Reply:
        """Suspends until the answer is there. Raises OutboxError."""
        return await self._find_caller().call(call, timeout_s)

    async def close(self) -> None:
        """Takes nothing new, waits for what is under way, cuts off what takes too long."""
        if self._loop is None:  # nothing ever was; under trio it has been refused, and that is told
            self.lifetime.close(lambda: None)
            return
        loop, idle = asyncio.get_running_loop(), asyncio.Event()
        self.lifetime.close(lambda: _set_in(loop, idle))
        with suppress(TimeoutError):
            await asyncio.wait_for(idle.wait(), self.config.close_timeout_s)
        await self.cut_off()

    async def cut_off(self) -> None:
        """Ends what is under way."""
        caller, self._caller = self._caller, None
        if caller is not None and self._loop is asyncio.get_running_loop():
            await caller.close()

    def _find_caller(self) -> Caller:
        """The calls of the running loop; those of one that has been closed are gone with it. Raises Misuse."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:  # as under trio
            raise Misuse("an AsyncBridge needs asyncio's event loop; a Bridge needs none") from error
        if self._caller is None or (self._loop is not loop and self._loop is not None and self._loop.is_closed()):
            self._loop = loop
            transport = LoopTransport(self.url, self.config.http)
            self._caller = Caller(self.config, transport, breaker_of(self.url), LoopBatcher)
        if self._loop is not loop:
            raise Misuse("in use in another event loop: make one for each")
        return self._caller


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
