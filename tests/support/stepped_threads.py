"""Threads that go on one step at a time, in an order the test chooses; some may be held up by a database meanwhile."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

_HELD_UP_SECONDS = 0.15  # only chooses the schedule: whoever is late goes on beside the others
_END_SECONDS = 30


class SteppedThread:
    """Runs `work(gate)` in a thread; each call of `gate` waits for `step`. `error`: what it raised."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        self.error: Exception | None = None
        self._work = work
        self._permits = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._is_free = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._arrived.acquire(timeout=_END_SECONDS)

    def step(self) -> None:
        """Lets it go on to its next gate; returns when it is there, has ended, or is held up."""
        if not self._has_ended:
            self._permits.release()
            self._arrived.acquire(timeout=_HELD_UP_SECONDS)

    def finish(self) -> None:
        """Lets it go on to its end, without waiting for that."""
        self._is_free = True
        self._permits.release()

    def join(self) -> None:
        self._thread.join(_END_SECONDS)
        assert not self._thread.is_alive(), "still held up"

    def _gate(self) -> None:
        self._arrived.release()
        while not self._is_free and not self._permits.acquire(timeout=0.01):
            pass

    def _run(self) -> None:
        try:
            self._work(self._gate)
        except Exception as error:  # noqa: BLE001 - the test judges it
            self.error = error
        self._has_ended = True
        self._arrived.release()


def interleavings(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All orders in which actors with so many steps each may take them: their numbers, one a step."""
    if len(lengths) == 1:
        yield (0,) * lengths[0]
        return
    total, last = sum(lengths), len(lengths) - 1
    for places in itertools.combinations(range(total), lengths[-1]):
        for rest in interleavings(lengths[:-1]):
            others = iter(rest)
            yield tuple(last if place in places else next(others) for place in range(total))
