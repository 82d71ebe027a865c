"""An event loop without a selector: when nobody is ready, virtual time moves to the next sleeper."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.virtual_time import NothingEverHappensError, VirtualClock

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """For programs that wait for nothing but this clock and each other: no files, sockets, threads or timers."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        if not ready and not self._clock.wake_next():
            raise NothingEverHappensError(f"everybody waits at {self._clock.monotonic_ms()} ms")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


def run_virtually(clock: VirtualClock, main: Coroutine[Any, Any, T]) -> T:
    """The result of `main` on the clock's time. What is still running at its end is cancelled."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
