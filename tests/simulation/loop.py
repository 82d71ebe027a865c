"""An event loop without a selector: when nobody is ready, virtual time moves to the next sleeper."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar

from tests.support.virtual_time import NothingEverHappensError, VirtualClock

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """For programs that wait for nothing but this clock and each other: no files, sockets, threads or timers."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """As the standard loop does it, without its checks for debugging."""
        handle = asyncio.Handle(callback, args, self, copy_context() if context is None else context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        while not self._stopping:
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
