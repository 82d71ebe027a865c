"""What a seed stands for."""

from collections import Counter

from tests.chaos.orders import make_size
from tests.chaos.schedule import BROKER_KINDS, DESTINATION_KINDS, HELD_KINDS, Kind, make_lanes

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
    assert sum(counts[kind] for kind in DESTINATION_KINDS) == SIZE.destination_faults
    assert all(lane == sorted(lane) for lane in lanes.values())
    assert all(0 <= fault.at_s <= SIZE.minutes * 60 for fault in faults)
    assert all(1 <= fault.seconds <= SIZE.longest_hold_s for fault in faults if fault.kind in HELD_KINDS)


def test_a_run_can_leave_the_destinations_alone() -> None:
    """Then their lane is not there, and the others are what they were."""
    lanes = make_lanes(make_size("ci", destination_faults=0), 7)
    assert lanes == {name: lane for name, lane in make_lanes(SIZE, 7).items() if name != "destinations"}
