"""What the loops measure for the metrics: how long things take, and counts by name. Bounded, whatever happens. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TypeVar

DURATION_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)

T = TypeVar("T")


class Durations:
    """Counts durations by upper bound. `counts` has one more element than there are bounds: those beyond all."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BOUNDS_MS) + 1)
        self.sum_ms = 0

    def add(self, duration_ms: int, times: int = 1) -> None:
        """One duration, or several alike; clocks of others may make it negative, which counts as none."""
        self.counts[bisect_left(DURATION_BOUNDS_MS, duration_ms)] += times
        self.sum_ms += max(0, duration_ms) * times

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.counts)

    def find_bound(self, share: float) -> int | None:
        """The bound that this share of the durations is not beyond, for a page; None: none, or they are beyond all."""
        seen, wanted = 0, share * self.count
        for bound_ms, count in zip(DURATION_BOUNDS_MS, self.counts, strict=False):
            seen += count
            if 0 < wanted <= seen:
                return bound_ms
        return None

    def add_since(self, begins_ms: Iterable[int], now_ms: int) -> None:
        """The durations from each of these moments, as a rule in order, to `now_ms`: in a few steps for thousands."""
        begins = sorted(begins_ms)
        if begins and begins[-1] > now_ms:
            begins = [min(begin_ms, now_ms) for begin_ms in begins]
        self.sum_ms += now_ms * len(begins) - sum(begins)
        left = len(begins)
        for place, bound_ms in enumerate(DURATION_BOUNDS_MS):
            if not left:
                return
            first = bisect_left(begins, now_ms - bound_ms, 0, left)
            self.counts[place] += left - first
            left = first
        self.counts[-1] += left


MOST_NAMES = 100
OTHER_NAMES = "other"


class ByName(dict[str, T]):
    """A value for each of the first names; later ones share the value of `other`, so that no counter ever falls."""

    def __init__(self, make: Callable[[], T]) -> None:
        super().__init__()
        self._make = make

    def of(self, name: str) -> T:
        """The value that counts for this name."""
        known = self.get(name)
        if known is None:
            label = name if len(self) < MOST_NAMES else OTHER_NAMES
            known = self.get(label)
            if known is None:
                known = self[label] = self._make()
        return known
