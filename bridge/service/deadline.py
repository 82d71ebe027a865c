"""Waiting with an end, on any clock."""

import asyncio
from typing import Any, NamedTuple

from bridge.clock import Clock


class Deadline(NamedTuple):
    """A moment of the monotonic clock after which nobody waits any more."""

    clock: Clock
    at_ms: int

    @classmethod
    def after(cls, clock: Clock, duration_ms: int) -> "Deadline":
        """The moment `duration_ms` from now."""
        return cls(clock, clock.monotonic_ms() + duration_ms)

    def left_ms(self) -> int:
        """What is left, never negative."""
        return max(0, self.at_ms - self.clock.monotonic_ms())

    def sooner(self, duration_ms: int) -> "Deadline":
        """This one, or `duration_ms` from now if that is earlier."""
        return self._replace(at_ms=min(self.at_ms, self.clock.monotonic_ms() + duration_ms))

    async def wait(self, future: "asyncio.Future[Any]") -> bool:
        """Whether `future` is done in time. It is never cancelled: not by the deadline, nor with the caller."""
        if future.done():
            return True
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(_: object = None) -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.clock.call_later(self.left_ms(), wake)
        future.add_done_callback(wake)
        try:
            await woken
        finally:
            timer.cancel()
            future.remove_done_callback(wake)
        return future.done()
