"""Calls of one kind that travel together: while as many are under way as may be, others wait for the next request.

So few callers at once never wait for each other, and of many a request carries all that came during the one before.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from outbox.client.calls import Call
from outbox.client.replies import CallResult, NoReply

_CLOSED = NoReply("closed before it was sent", is_sent=False)
PATIENCE_S = 0.05  # a request that takes longer than an idle bridge needs is no longer waited for
Send = Callable[[Sequence[Call], float], Awaitable[Sequence[CallResult]]]


@dataclass(frozen=True, slots=True)
class BatcherLimits:
    """Bounds of one lane. `in_flight`: that many calls under way make others wait, that many requests are the most."""

    in_flight: int
    items: int
    batch_bytes: int
    waiting: int


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call, until its caller has the answer or has gone."""

    call: Call
    deadline_s: float
    is_sent: bool = False


W = TypeVar("W", bound=_Waiting)


class Batcher(Generic[W]):
    """Calls on their way, in the order they came. `send` gets calls and how long they may take."""

    def __init__(self, send: Send, limits: BatcherLimits) -> None:
        self._send = send
        self._limits = limits
        self._waiting: deque[W] = deque()
        self._requests_under_way = 0
        self._calls_under_way = 0
        self._is_closed = False

    async def ask(self, call: Call, timeout_s: float) -> CallResult:
        """The bridge's answer to this call; never raises for what happens on the way."""
        raise NotImplementedError

    async def close(self) -> None:
        """Sends nothing more, and cuts off what is in flight."""
        raise NotImplementedError

    def _refuse(self) -> NoReply | None:
        if self._is_closed:
            return _CLOSED
        if len(self._waiting) >= self._limits.waiting:
            return NoReply(f"{self._limits.waiting} calls are waiting", is_sent=False)
        return None

    def _may_send(self, *, is_patient: bool) -> bool:
        """Whether another request may leave now."""
        most = self._limits.in_flight
        has_room = self._requests_under_way < most and (self._calls_under_way < most or not is_patient)
        return has_room and bool(self._waiting)

    def _take(self) -> list[W]:
        """The next request's, which is under way now."""
        taken = [self._waiting.popleft()]
        size = len(taken[0].call.item)
        while self._waiting and len(taken) < self._limits.items:
            size += len(self._waiting[0].call.item)
            if size > self._limits.batch_bytes:
                break
            taken.append(self._waiting.popleft())
        for waiting in taken:
            waiting.is_sent = True
        self._requests_under_way += 1
        self._calls_under_way += len(taken)
        return taken

    def _note_end(self, taken: Sequence[W]) -> None:
        self._requests_under_way -= 1
        self._calls_under_way -= len(taken)


@dataclass(slots=True, eq=False)
class _Task(_Waiting):
    told: "asyncio.Future[CallResult]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class LoopBatcher(Batcher[_Task]):
    """For the tasks of an event loop. Requests are tasks of their own: one that is cancelled takes nobody along."""

    def __init__(self, send: Send, limits: BatcherLimits) -> None:
        super().__init__(send, limits)
        self._loop = asyncio.get_running_loop()
        self._requests: set[asyncio.Task[None]] = set()
        self._is_woken = False
        self._impatient: asyncio.TimerHandle | None = None

    async def ask(self, call: Call, timeout_s: float) -> CallResult:
        refused = self._refuse()
        if refused is not None:
            return refused
        waiting = _Task(call, self._loop.time() + timeout_s)
        self._waiting.append(waiting)
        self._wake()
        try:
            async with asyncio.timeout_at(waiting.deadline_s):
                return await waiting.told
        except TimeoutError as error:
            return NoReply(f"no answer within {timeout_s:.1f} s", is_sent=waiting.is_sent, cause=error)
        finally:
            if not waiting.is_sent and waiting in self._waiting:
                self._waiting.remove(waiting)

    async def close(self) -> None:
        self._is_closed = True
        if self._impatient is not None:
            self._impatient.cancel()
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.told.done():
                waiting.told.set_result(_CLOSED)
        for request in list(self._requests):
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    def _wake(self) -> None:
        """Looks again when everybody who is ready now has asked."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._start)

    def _start(self, *, is_patient: bool = True) -> None:
        self._is_woken = False
        while self._may_send(is_patient=is_patient):
            taken = self._take()
            request = self._loop.create_task(self._run(taken))
            self._requests.add(request)
            request.add_done_callback(partial(self._end, taken))
        if self._waiting and self._impatient is None:
            self._impatient = self._loop.call_later(PATIENCE_S, self._lose_patience)

    def _lose_patience(self) -> None:
        self._impatient = None
        self._start(is_patient=False)

    def _end(self, taken: Sequence[_Task], request: "asyncio.Task[None]") -> None:
        self._requests.discard(request)
        self._note_end(taken)
        self._start()

    async def _run(self, taken: Sequence[_Task]) -> None:
        timeout_s = max(waiting.deadline_s for waiting in taken) - self._loop.time()
        told: Sequence[CallResult] = [NoReply("cut off")] * len(taken)
        try:
            told = await self._send([waiting.call for waiting in taken], timeout_s)
        finally:
            for waiting, its_own in zip(taken, told, strict=True):
                if not waiting.told.done():
                    waiting.told.set_result(its_own)


def _make_taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Thread(_Waiting):
    """`woken` is let go once there is an answer, or something to send: `batch`, in which it is itself."""

    told: CallResult | None = None
    batch: "Sequence[_Thread]" = ()
    is_gone: bool = False
    woken: threading.Lock = field(default_factory=_make_taken_lock)


class ThreadBatcher(Batcher[_Thread]):
    """For threads. Each request is sent by one of those whose calls are in it: the one that has most time left."""

    def __init__(self, send: Send, limits: BatcherLimits) -> None:
        super().__init__(send, limits)
        self._lock = threading.Lock()

    async def ask(self, call: Call, timeout_s: float) -> CallResult:
        waiting = _Thread(call, time.monotonic() + timeout_s)
        with self._lock:
            refused = self._refuse()
            if refused is not None:
                return refused
            is_first = not self._waiting
            self._waiting.append(waiting)
            self._pass_on()
        try:
            self._await_turn(waiting, timeout_s, is_first=is_first)
            if waiting.batch:
                await self._run(waiting)
        finally:
            self._leave(waiting)
        return waiting.told or NoReply(f"no answer within {timeout_s:.1f} s", is_sent=waiting.is_sent)

    async def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for waiting in self._waiting:
                waiting.told = _CLOSED
                waiting.woken.release()
            self._waiting.clear()

    def _await_turn(self, waiting: _Thread, timeout_s: float, *, is_first: bool) -> None:
        """Until it has an answer, or something to send. The first one that waits watches over the others' patience."""
        if is_first and timeout_s > PATIENCE_S:
            if waiting.woken.acquire(timeout=PATIENCE_S):
                return
            timeout_s -= PATIENCE_S
            with self._lock:
                if not waiting.is_sent:
                    self._pass_on(is_patient=False)
        waiting.woken.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def _pass_on(self, *, is_patient: bool = True) -> None:
        """Sends what waits if it may leave. To be called under the lock."""
        if not self._may_send(is_patient=is_patient):
            return
        batch = self._take()
        sender = max(batch, key=lambda waiting: waiting.deadline_s)
        sender.batch = batch
        sender.woken.release()

    async def _run(self, sender: _Thread) -> None:
        batch = sender.batch
        told: Sequence[CallResult] = [NoReply("cut off")] * len(batch)
        try:
            told = await self._send([waiting.call for waiting in batch], sender.deadline_s - time.monotonic())
        finally:
            sender.batch = ()
            with self._lock:
                self._note_end(batch)
                self._pass_on()
            for waiting, its_own in zip(batch, told, strict=True):
                waiting.told = its_own
                if waiting is not sender:
                    waiting.woken.release()

    def _leave(self, waiting: _Thread) -> None:
        """One that is interrupted before it has sent its batch leaves it to the others."""
        with self._lock:
            waiting.is_gone = True
            if waiting.batch:
                others = [other for other in waiting.batch if not other.is_gone]
                for other in others:
                    other.is_sent = False
                self._waiting.extendleft(reversed(others))
                self._note_end(waiting.batch)
                self._pass_on()
            elif not waiting.is_sent and waiting in self._waiting:
                self._waiting.remove(waiting)
