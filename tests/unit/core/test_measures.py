"""What loops measure, for metrics."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.measures import DURATION_BOUNDS_MS, MOST_NAMES, OTHER_NAMES, ByName, Durations


def test_each_duration_is_counted_under_its_bound() -> None:
    """A duration that equals a bound belongs to it; none is lost, and a clock that went back counts as no time."""
    durations = Durations()
    for bound_ms in DURATION_BOUNDS_MS:
        durations.add(bound_ms)
    durations.add_since([100, 100, 1_100], now_ms=1_000 + 60_001 + 100)
    durations.add(-5)
    assert durations.counts == [2, *[1] * (len(DURATION_BOUNDS_MS) - 1), 3]
    assert durations.sum_ms == sum(DURATION_BOUNDS_MS) + 2 * 61_001 + 60_001


def test_names_are_bounded_and_no_count_ever_falls() -> None:
    """First come, first shown: a name keeps its place, and those that came too late share one."""
    counts: ByName[Counter[str]] = ByName(Counter)
    for n in range(300):
        counts.of(f"g{n}")["COMMIT"] += 1
    counts.of("g0")["COMMIT"] += 1
    assert len(counts) == MOST_NAMES + 1
    assert counts["g0"]["COMMIT"] == 2
    assert counts[OTHER_NAMES]["COMMIT"] == 200
    assert counts.of(OTHER_NAMES) is counts[OTHER_NAMES]


@given(st.lists(st.integers(0, 200_000)), st.integers(0, 200_000))
def test_many_at_once_count_as_one_by_one(begins_ms: list[int], now_ms: int) -> None:
    """In whatever order, and where clocks went back."""
    together, apart = Durations(), Durations()
    together.add_since(begins_ms, now_ms)
    for begin_ms in begins_ms:
        apart.add(now_ms - begin_ms)
    assert (together.counts, together.sum_ms) == (apart.counts, apart.sum_ms)


def test_bound_of_a_share() -> None:
    """Of none there is none, nor of what is longer than all bounds."""
    durations = Durations()
    assert (durations.count, durations.find_bound(0.5)) == (0, None)
    for duration_ms in (1, 3, 7, 10**6):
        durations.add(duration_ms)
    assert [durations.find_bound(share) for share in (0.25, 0.5, 0.75, 0.95)] == [1, 5, 10, None]
