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
        timer = asyncio.ensure_future(self.clock.sleep_ms(self.left_ms()))
        try:
            await asyncio.wait((future, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return future.done()


def take_error(task: "asyncio.Future[Any]") -> None:
    """A done callback for a task that may outlive whoever waits for it: its error is nobody's surprise then."""
    if not task.cancelled():
        task.exception()
