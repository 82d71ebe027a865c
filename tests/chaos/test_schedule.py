"""What a seed stands for."""

from collections import Counter

from tests.chaos.orders import make_size
from tests.chaos.schedule import BROKER_KINDS, HELD_KINDS, Kind, make_lanes

SIZE = make_size("ci")


def test_one_seed_is_one_schedule() -> None:
    """A failing run can be begun again with the same faults."""
    assert make_lanes(SIZE, 7) == make_lanes(SIZE, 7) != make_lanes(SIZE, 8)


def test_a_schedule_has_all_that_was_ordered() -> None:
    """Each kind, as often as wanted, within the minutes, and no hold longer than allowed."""
    lanes = make_lanes(SIZE, 7)
    faults = [fault for lane in lanes.values() for fault in lane]
    counts = Counter(fault.kind for fault in faults)
    assert set(counts) == set(Kind)
    assert counts[Kind.KILL] == SIZE.kills
    assert sum(counts[kind] for kind in BROKER_KINDS) == SIZE.broker_faults
    assert sum(counts[kind] for kind in HELD_KINDS) == SIZE.held_ends
    assert all(lane == sorted(lane) for lane in lanes.values())
    assert all(0 <= fault.at_s <= SIZE.minutes * 60 for fault in faults)
    assert all(1 <= fault.seconds <= SIZE.longest_hold_s for fault in faults if fault.kind in HELD_KINDS)
