"""What the checker counts, for metrics."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

LATENESS_BOUNDS_MS = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)


@dataclass(slots=True)
class CheckCounts:
    """Counters since the process began, per transaction unless said otherwise.

    `answered` by resolution word, `unanswered` by failure word; `lateness` has one more bucket than there are
    bounds; `strange` entries of answers did not count.
    """

    calls: int = 0
    asked: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    unappended: int = 0  # answered, but perhaps not in the journal
    parked: int = 0
    strange: int = 0
    lateness: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BOUNDS_MS) + 1))
    groups_without_endpoint: set[str] = field(default_factory=set)
    errors: int = 0  # bugs survived, rounds that could not be recorded

    def count_lateness(self, late_ms: int) -> None:
        """One transaction was asked about so long after it was due."""
        self.lateness[bisect_left(LATENESS_BOUNDS_MS, late_ms)] += 1
