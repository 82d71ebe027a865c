"""What a seed stands for in a run of kills."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.kills.schedule import COPIES, ROLES, Target, make_acts


def test_one_seed_is_one_schedule_of_kills() -> None:
    """A failing run can be begun again with the same kills."""
    assert make_acts(100, 240, 8) == make_acts(100, 240, 8) != make_acts(100, 240, 9)


@given(st.integers(6, 120), st.floats(1, 300), st.integers(0, 2**32))
def test_each_kill_hits_what_is_up_and_ends_in_a_start(kills: int, seconds: float, seed: int) -> None:
    """As many as ordered, by their times, on every role; each process is killed and started in turns."""
    acts = make_acts(kills, seconds, seed)
    assert sum(act.is_kill for act in acts) == kills
    assert [act.at_s for act in acts] == sorted(act.at_s for act in acts)
    assert {act.target.role for act in acts} == set(ROLES)
    for target in (Target(role, copy) for role in ROLES for copy in range(COPIES)):
        turns = [act.is_kill for act in acts if act.target == target]
        assert turns == [True, False] * (len(turns) // 2)


def test_producers_and_relays_are_killed_most() -> None:
    """They are what a run of kills is about."""
    counts = Counter(act.target.role for act in make_acts(1_000, 1_000, 8) if act.is_kill)
    assert {role for role, _ in counts.most_common(2)} == {"producer", "relay"}
