"""Port for time, and the machine's own clock."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from bridge.core.record import is_too_late

DOUBT_MS = 120_000  # as long as what has ended is remembered


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> object:
        """The call does not come any more."""
        ...


class Clock(Protocol):
    """Wall clock and monotonic clock, milliseconds; virtual in simulations."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, for display and signatures; never for due times."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never goes back."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Suspends the caller."""
        ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Calls in the event loop, without a task of its own."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)


class OwnerTime:
    """Kafka's time as the owner of a queue knows it: the newest append time seen + monotonic time since.

    It never goes back: what was appended while a broker's clock was ahead would be due as much too late.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._newest_ms = 0
        self._seen_at_ms = 0

    def observe(self, stored_ms: int) -> None:
        """An append time was seen."""
        if stored_ms > self.now_ms():
            self._begin(stored_ms)

    def now_ms(self) -> int:
        """0 as long as no append time was seen."""
        return self._newest_ms + self.clock.monotonic_ms() - self._seen_at_ms if self._newest_ms else 0

    def _begin(self, stored_ms: int) -> None:
        self._newest_ms, self._seen_at_ms = stored_ms, self.clock.monotonic_ms()


class KafkaTime(OwnerTime):
    """Kafka's time as a process knows it. It goes back once append times have been far behind for two minutes: a
    broker's clock was ahead, and what was looked up by such a time would count however late it is appended."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._agreed_at_ms = 0
        self._doubted_at_ms: int | None = None

    def observe(self, stored_ms: int) -> None:
        """An append time was seen. One that was read late may set the time back too far, until the next one."""
        at = self.clock.monotonic_ms()
        if is_too_late(stored_ms, self.now_ms()):
            self._doubted_at_ms = at
            if at - self._agreed_at_ms > DOUBT_MS:
                self._begin(stored_ms)
            return
        self._agreed_at_ms = at
        if self._doubted_at_ms is not None and at - self._doubted_at_ms > DOUBT_MS:
            self._doubted_at_ms = None
        super().observe(stored_ms)

    @property
    def is_doubted(self) -> bool:
        """Whether append times were far behind, lately or last: a broker's clock was set back, or differs."""
        return self._doubted_at_ms is not None
