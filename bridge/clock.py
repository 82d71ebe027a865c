"""Port for time, and the machine's own clock."""

import asyncio
import time
from typing import Protocol


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


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)
