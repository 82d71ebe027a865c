"""Calls of all connections, gathered into batches: one put for many is what makes the door fast."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

C = TypeVar("C")
A = TypeVar("A")
_MOST_CALLS = 500
_MOST_BATCHES = 2


class Gatherer(Generic[C, A]):
    """A batch goes out as soon as fewer than two are on their way, with whatever has come by then."""

    def __init__(self, ask: Callable[[Sequence[C]], Awaitable[Sequence[A]]], failed: Callable[[Exception], A]) -> None:
        self._ask = ask
        self._failed = failed
        self._waiting: deque[tuple[C, Callable[[A], None]]] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    def __len__(self) -> int:
        """How many wait to go out."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether everything has its answer."""
        return not self._waiting and not self._batches

    def add(self, call: C, give: Callable[[A], None]) -> None:
        """The answer is given later, once."""
        self._waiting.append((call, give))
        if not self._is_scheduled and len(self._batches) < _MOST_BATCHES:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        if self._waiting and len(self._batches) < _MOST_BATCHES:
            batch = [self._waiting.popleft() for _ in range(min(_MOST_CALLS, len(self._waiting)))]
            task = asyncio.ensure_future(self._run(batch))
            self._batches.add(task)
            task.add_done_callback(self._end)

    async def _run(self, batch: Sequence[tuple[C, Callable[[A], None]]]) -> None:
        try:
            answers = await self._ask([call for call, _ in batch])
        except Exception as error:  # noqa: BLE001 - nobody waits for the task; whoever waits for the calls is told
            answers = [self._failed(error)] * len(batch)
        for (_, give), answer in zip(batch, answers, strict=True):
            give(answer)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._batches.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        self._begin()
