"""Calls of many callers in one request: what comes while requests are in flight travels in the next one.

Nothing is waited for: a call that finds no request of its kind in flight leaves at once.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from outbox.calls import Call
from outbox.replies import NoReply, Told

_CLOSED = NoReply("closed before it was sent", is_sent=False)
Send = Callable[[Sequence[Call], float], Awaitable[Sequence[Told]]]


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Bounds of one lane."""

    in_flight: int
    items: int
    batch_bytes: int
    waiting: int


@dataclass(slots=True, eq=False)
class _Waiting:
    call: Call
    deadline_s: float
    told: "asyncio.Future[Told]" = field(repr=False)
    is_sent: bool = False


class Lane:
    """Calls of one kind on their way, in the order they came. `send` gets calls and how long they may take."""

    def __init__(self, send: Send, limits: LaneLimits) -> None:
        self._send = send
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._is_woken = False
        self._is_closed = False

    async def ask(self, call: Call, timeout_s: float) -> Told:
        """What the bridge told of this call; never raises for what happens on the way."""
        if self._is_closed:
            return _CLOSED
        if len(self._waiting) >= self._limits.waiting:
            return NoReply(f"{self._limits.waiting} calls are waiting", is_sent=False)
        waiting = _Waiting(call, self._loop.time() + timeout_s, self._loop.create_future())
        self._waiting.append(waiting)
        self._wake()
        try:
            async with asyncio.timeout_at(waiting.deadline_s):
                return await waiting.told
        except TimeoutError:
            return NoReply(f"no answer within {timeout_s:.1f} s", is_sent=waiting.is_sent)
        finally:
            self._withdraw(waiting)

    async def close(self) -> None:
        """Sends nothing more, and cuts off what is in flight."""
        self._is_closed = True
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

    def _start(self) -> None:
        self._is_woken = False
        while self._waiting and len(self._requests) < self._limits.in_flight:
            request = self._loop.create_task(self._run(self._take()))
            self._requests.add(request)
            request.add_done_callback(self._end)

    def _end(self, request: "asyncio.Task[None]") -> None:
        self._requests.discard(request)
        self._start()

    def _take(self) -> list[_Waiting]:
        taken = [self._waiting.popleft()]
        size = len(taken[0].call.item)
        while self._waiting and len(taken) < self._limits.items:
            size += len(self._waiting[0].call.item)
            if size > self._limits.batch_bytes:
                break
            taken.append(self._waiting.popleft())
        for waiting in taken:
            waiting.is_sent = True
        return taken

    async def _run(self, taken: Sequence[_Waiting]) -> None:
        timeout_s = max(waiting.deadline_s for waiting in taken) - self._loop.time()
        told: Sequence[Told] = [NoReply("cut off")] * len(taken)
        try:
            told = await self._send([waiting.call for waiting in taken], timeout_s)
        finally:
            for waiting, its_own in zip(taken, told, strict=True):
                if not waiting.told.done():
                    waiting.told.set_result(its_own)

    def _withdraw(self, waiting: _Waiting) -> None:
        if not waiting.is_sent and waiting in self._waiting:
            self._waiting.remove(waiting)
