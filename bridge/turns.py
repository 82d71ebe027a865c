"""Who is served when: long work on the event loop in short steps, once for all who ask, so many a second on average."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable
from typing import Any, Generic, TypeVar

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


# --- once for all who ask ---


class Recent(Generic[T]):
    """What was made for each key, for `age_ms`; who asks while it is being made waits for it with the others.

    At most `most` keys: the oldest is forgotten.
    """

    def __init__(self, age_ms: int, now_ms: Callable[[], int], most: int = 1) -> None:
        self._age_ms = age_ms
        self._now_ms = now_ms
        self._most = most
        self._made: dict[Hashable, tuple[int, T]] = {}
        self._making: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, make: Callable[[], Awaitable[T]], key: Hashable = None) -> T:
        """Made now or a moment ago. Raises what `make` raises, which is not kept."""
        made = self._made.get(key)
        if made is not None and self._now_ms() - made[0] < self._age_ms:
            return made[1]
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(self._make(make, key))
            making.add_done_callback(take_error)
        return await asyncio.shield(making)

    async def _make(self, make: Callable[[], Awaitable[T]], key: Hashable) -> T:
        try:
            made = await make()
        finally:
            del self._making[key]
        self._made.pop(key, None)
        self._made[key] = self._now_ms(), made
        if len(self._made) > self._most:
            del self._made[next(iter(self._made))]
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

    def give_back(self, amount: float = 1) -> None:
        """Puts so much back."""
        self._level = min(self._most, self._level + amount)

    def _fill(self, now_ms: int) -> None:
        self._level = min(self._most, self._level + (now_ms - self._at_ms) * self._per_s / 1000)
        self._at_ms = now_ms
