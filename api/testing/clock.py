"""The machine's clock, which a test may set forward."""

import asyncio
import time
from collections.abc import Callable

from bridge.clock import Clock, Timer

_TURNS = 20  # of the event loop: enough for what has woken to go back to sleep


class MovableClock:
    """Port Clock. Used in one event loop."""

    def __init__(self) -> None:
        self._ahead_ms = 0
        self._timers: set[_MovableTimer] = set()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._ahead_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(duration_ms, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        timer = _MovableTimer(self.monotonic_ms() + delay_ms, callback, self._timers)
        timer.start(delay_ms)
        return timer

    async def move(self, duration_ms: int) -> None:
        """Sets it forward; whoever sleeps wakes at his own time on the way, and goes on before the next."""
        until_ms = self.monotonic_ms() + duration_ms
        while (now_ms := self.monotonic_ms()) < until_ms:
            next_ms = min([until_ms, *(timer.due_ms for timer in self._timers)])
            self._ahead_ms += max(next_ms - now_ms, 0)
            for timer in sorted(self._timers, key=lambda timer: timer.due_ms):
                if timer.due_ms <= next_ms:
                    timer.fire()
            for _ in range(_TURNS):
                await asyncio.sleep(0)


class _MovableTimer:
    """A call that comes when the machine's clock says so, or as soon as it is moved past that time."""

    def __init__(self, due_ms: int, callback: Callable[[], None], timers: "set[_MovableTimer]") -> None:
        self.due_ms = due_ms
        self._callback = callback
        self._timers = timers
        self._handle: asyncio.TimerHandle | None = None

    def start(self, delay_ms: int) -> None:
        """In the running event loop."""
        self._timers.add(self)
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self.fire)

    def fire(self) -> None:
        """Now, and not again."""
        self.cancel()
        self._callback()

    def cancel(self) -> None:
        self._timers.discard(self)
        if self._handle is not None:
            self._handle.cancel()


class TrueDate:
    """The same clock with the machine's date: who verifies a signature does not know that time was moved."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic_ms = clock.monotonic_ms
        self.sleep_ms = clock.sleep_ms
        self.call_later = clock.call_later

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
