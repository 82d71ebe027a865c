"""What the log still has to do at a later time: delayed requests, late markers, time-outs."""

import asyncio
import heapq
from collections.abc import Callable

from bridge.clock import Clock

NEVER = 1 << 62


class Waiters:
    """Those who wait for one thing; all are woken at once."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}

    def add(self, future: asyncio.Future[None]) -> None:
        self._futures[future] = None

    def discard(self, future: asyncio.Future[None]) -> None:
        self._futures.pop(future, None)

    def wake(self) -> None:
        """Everybody who waits now goes on."""
        for future in self._futures:
            resolve(future)


class Agenda:
    """Due actions in order of time, run by whoever touches the log next: no task of its own, so no leak and no race.

    A late action sees the time at which it was due, as if somebody had been there.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._acting_at: int | None = None
        self._sleepers: dict[asyncio.Future[None], int] = {}

    def monotonic_ms(self) -> int:
        """Now, or the time at which the action that runs was due."""
        return self.clock.monotonic_ms() if self._acting_at is None else self._acting_at

    def now_ms(self) -> int:
        """The brokers' wall clock at that time."""
        if self._acting_at is None:
            return self.clock.now_ms()
        return self.clock.now_ms() - self.clock.monotonic_ms() + self._acting_at

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Runs `action` when the time has come; the same time in the order of calls."""
        due = self.monotonic_ms() + delay_ms
        self._count += 1
        heapq.heappush(self._due, (due, self._count, action))
        for future, wake_ms in self._sleepers.items():
            if due < wake_ms:
                resolve(future)

    def run_due(self) -> None:
        """Runs everything whose time has come."""
        while self._due and self._acting_at is None and self._due[0][0] <= self.clock.monotonic_ms():
            due, _, action = heapq.heappop(self._due)
            self._acting_at = due
            try:
                action()
            finally:
                self._acting_at = None

    def next_due_ms(self) -> int:
        """When the next action is due, by the monotonic clock; NEVER if none is."""
        return self._due[0][0] if self._due else NEVER

    async def wait(self, waiters: Waiters, until_ms: int) -> None:
        """Returns when `waiters` are woken, an action has become due, or it is `until_ms`; perhaps earlier."""
        wake_ms = min(until_ms, self.next_due_ms())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = None
        if wake_ms < NEVER:
            sleeper = self.clock.call_later(max(0, wake_ms - self.clock.monotonic_ms()), lambda: resolve(future))
        waiters.add(future)
        self._sleepers[future] = wake_ms
        try:
            await future
        finally:
            waiters.discard(future)
            del self._sleepers[future]
            if sleeper is not None:
                sleeper.cancel()


def resolve(future: asyncio.Future[None]) -> None:
    """Wakes the one who awaits the future, once."""
    if not future.done():
        future.set_result(None)
