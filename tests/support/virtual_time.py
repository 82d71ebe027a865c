"""A clock that moves only when it is told to, and loops of tasks driven by it.

    clock = VirtualClock()
    await clock.advance(30_000)             # wakes sleepers on the way, in order
    result = await clock.drive(main())      # runs `main`, moving time on whenever everybody waits

`drive` is for tests and simulations in which everything that waits, waits for this clock.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import signature
from typing import Any, Protocol, TypeVar

from bridge.clock import Timer

T = TypeVar("T")

_SETTLE_STEPS = 100_000


class World(Protocol):
    """Part of a bridge on a clock of its own."""

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Runs a story on that clock."""
        ...


def in_world(make: Callable[..., World], **options: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Runs a test in a world that is made for it, which it gets first. What the world is made of are fixtures.

    Of an option that is a class one is made, and given to the test too if it names it.
    """
    needed = [
        p for p in signature(make).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
    ]

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        own = list(signature(test).parameters.values())[1:]
        asked = {p.name: p for p in (*needed, *own) if p.name not in options}

        @wraps(test)
        def run(**fixtures: Any) -> None:
            made = {name: one() if isinstance(one, type) else one for name, one in options.items()}
            world = make(*[fixtures[p.name] for p in needed], **made)
            world.run(test(world, **{p.name: (made | fixtures)[p.name] for p in own}))

        run.__signature__ = signature(test).replace(parameters=list(asked.values()))  # type: ignore[attr-defined]
        return run

    return decorate


class NothingEverHappensError(AssertionError):
    """Everybody waits, and nobody for the clock."""


class VirtualClock:
    """Port Clock. Time stands still while tasks run."""

    def __init__(self, start_ms: int = 1_750_000_000_000) -> None:
        self._start_ms = start_ms
        self._elapsed_ms = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        self._slept: asyncio.Future[None] | None = None

    def now_ms(self) -> int:
        return self._start_ms + self._elapsed_ms

    def monotonic_ms(self) -> int:
        return self._elapsed_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        await self._push(duration_ms)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        if delay_ms <= 0:
            return asyncio.get_running_loop().call_soon(callback)
        future = self._push(delay_ms)
        future.add_done_callback(lambda woken: None if woken.cancelled() else callback())
        return future

    def _push(self, duration_ms: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._elapsed_ms + duration_ms, self._count, future))
        if self._slept is not None and not self._slept.done():
            self._slept.set_result(None)
        return future

    def shift_wall_clock(self, by_ms: int) -> None:
        """Moves `now_ms` alone, as an operator or a time server does."""
        self._start_ms += by_ms

    def next_due_ms(self) -> int | None:
        """When the next sleeper wakes, by the monotonic clock."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    async def advance(self, duration_ms: int) -> None:
        """Moves time on; whoever sleeps wakes at his own time, and everybody gets as far as he can."""
        until_ms = self._elapsed_ms + duration_ms
        await settle()
        while (due_ms := self.next_due_ms()) is not None and due_ms <= until_ms:
            self._wake(due_ms)
            await settle()
        self._elapsed_ms = until_ms

    async def advance_to_next(self) -> bool:
        """Moves time on to the next sleeper; False if there is none."""
        await settle()
        if not self.wake_next():
            return False
        await settle()
        return True

    def wake_next(self) -> bool:
        """Moves time on to the next sleeper, for a loop in which nobody is ready; False if there is none."""
        due_ms = self.next_due_ms()
        if due_ms is None:
            return False
        self._wake(due_ms)
        return True

    async def drive(self, main: Coroutine[Any, Any, T], limit_ms: int = 3_600_000) -> T:
        """Runs `main` to its end, moving time on whenever everybody waits. Raises after `limit_ms` of that time."""
        until_ms = self._elapsed_ms + limit_ms
        task = asyncio.ensure_future(main)
        try:
            while True:
                await settle()
                if task.done():
                    return task.result()
                due_ms = self.next_due_ms()
                if due_ms is None or due_ms > until_ms:
                    raise NothingEverHappensError(f"still waiting at {self._elapsed_ms} ms")
                self._wake(due_ms)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def run_freely(self) -> None:
        """Moves time on whenever everybody waits, until cancelled: a task beside a test that never asks for it."""
        while True:
            await settle()
            if self.wake_next():
                continue
            self._slept = asyncio.get_running_loop().create_future()
            await self._slept

    def _wake(self, due_ms: int) -> None:
        """Sleepers of the same time wake together, in the order in which they fell asleep."""
        self._elapsed_ms = max(self._elapsed_ms, due_ms)
        while self._sleepers and self._sleepers[0][0] <= due_ms:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)


async def settle() -> None:
    """Lets every task go on until all wait. Raises if one never does."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(_SETTLE_STEPS):
        await asyncio.sleep(0)
        if not ready:
            return
    raise NothingEverHappensError("a task spins without waiting")
