"""Who is served when: long work on the event loop in short steps, and so many a second on average."""

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

# --- long work on the event loop in short steps, so that everybody else is served between them ---


def take_error(future: "asyncio.Future[Any]") -> None:
    """A done callback: if all who waited have gone, its error is nobody's surprise."""
    if not future.cancelled():
        future.exception()


T = TypeVar("T")
Made = TypeVar("Made")
Steps = Generator[None, None, T]
"""Work that pauses after each short step, and returns its result."""


class Turns:
    """One step in each round of the loop, for all long work of a process together, in the order of asking."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.taken = 0

    async def take(self) -> None:
        """Lets everything else that is due run first."""
        self.taken += 1
        async with self._lock:
            await asyncio.sleep(0)

    async def run(self, steps: Steps[T]) -> T:
        """Its result. Raises what it raises."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.take()


class Pace:
    """Tells when many small pieces of work have become a step."""

    __slots__ = ("_spent", "_step")

    def __init__(self, step: int) -> None:
        self._step = step
        self._spent = 0

    def spend(self, cost: int) -> bool:
        """Whether it is time to take a turn."""
        self._spent += cost
        if self._spent < self._step:
            return False
        self._spent = 0
        return True


STEP_BYTES = 64 * 1024


def each_in_steps(
    items: Iterable[T], make: Callable[[T], Made], count_bytes: Callable[[Any], int] = len
) -> Steps[list[Made]]:
    """What is made of each item, with a pause after so many bytes of it."""
    made, left = list[Made](), STEP_BYTES
    for item in items:
        piece = make(item)
        made.append(piece)
        left -= count_bytes(piece)
        if left < 0:
            left = STEP_BYTES
            yield
    return made


# --- so many a second, on average: a bucket that fills steadily. Pure; times are of a clock that is never set ---


class Bucket:
    """Fills with `per_s` a second up to `most`, and is full when new. What is taken may leave a debt."""

    __slots__ = ("_at_ms", "_level", "_most", "_per_s")

    def __init__(self, per_s: float, most: float, now_ms: int) -> None:
        self._per_s = per_s
        self._most = self._level = float(most)
        self._at_ms = now_ms

    def has_one(self, now_ms: int) -> bool:
        """Whether one may be taken."""
        self._fill(now_ms)
        return self._level >= 1

    def is_full(self, now_ms: int) -> bool:
        """Whether it is as a new one would be."""
        self._fill(now_ms)
        return self._level >= self._most

    def find_wait_ms(self, now_ms: int) -> float:
        """How long until one may be taken; 0: now."""
        return 0.0 if self.has_one(now_ms) else (1 - self._level) * 1000 / self._per_s

    def take(self, amount: float = 1) -> None:
        """Takes so much; ask before whether there is any."""
        self._level -= amount

    def give_back(self) -> None:
        """Puts one back."""
        self._level = min(self._most, self._level + 1)

    def _fill(self, now_ms: int) -> None:
        self._level = min(self._most, self._level + (now_ms - self._at_ms) * self._per_s / 1000)
        self._at_ms = now_ms
