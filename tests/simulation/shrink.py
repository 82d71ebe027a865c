"""Makes a failing schedule as short as it gets while it still breaks the same promise."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.simulation.schedule import Schedule, shorten
from tests.simulation.world import Run, simulate

T = TypeVar("T")


def shrink(run: Run, most_runs: int = 400) -> Run:
    """The shortest failing run found; calls are left out first, then faults, then deeds."""
    promises = {violation.promise for violation in run.violations}
    best, left = run, most_runs

    def breaks(schedule: Schedule) -> bool:
        nonlocal best, left
        left -= 1
        again = simulate(schedule)
        is_same = bool(promises & {violation.promise for violation in again.violations})
        if is_same:
            best = again
        return is_same

    before = -1
    while before != _size(best.schedule) and left > 0:
        before = _size(best.schedule)
        _thin(
            best.schedule.faults, lambda kept: breaks(shorten(best.schedule, best.schedule.calls, kept)), lambda: left
        )
        _thin(
            best.schedule.calls, lambda kept: breaks(shorten(best.schedule, kept, best.schedule.faults)), lambda: left
        )
    return best


def _thin(entries: Sequence[T], breaks: Callable[[Sequence[T]], bool], left: Callable[[], int]) -> None:
    """Leaves out halves, quarters, ... single entries, for as long as it still breaks."""
    kept = list(entries)
    size = max(1, len(kept) // 2)
    while kept and left() > 0:
        place = 0
        while place < len(kept) and left() > 0:
            shorter = kept[:place] + kept[place + size :]
            if breaks(shorter):
                kept = shorter
            else:
                place += size
        if size == 1:
            return
        size = max(1, size // 2)


def _size(schedule: Schedule) -> int:
    return len(schedule.calls) + len(schedule.faults)
