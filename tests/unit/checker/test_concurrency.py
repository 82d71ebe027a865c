"""Slots: limits of each group, of all, and of those that do not answer."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from checker.concurrency import Slots


def start_all(slots: Slots, group: str, most: int) -> int:
    """Rounds the group can have at once now."""
    count = 0
    while True:
        slots.want(group, most)
        if group not in slots.grant():
            slots.withdraw(group)
            return count
        count += 1


def teach(slots: Slots, group: str, *answers: bool, most: int = 8) -> None:
    for was_answered in answers:
        slots.want(group, most)
        assert slots.grant() == [group]
        slots.give_back(group, was_answered=was_answered)


def test_a_new_group_begins_with_one() -> None:
    """Nobody is flooded before he has answered once."""
    assert start_all(Slots(64), "g", 8) == 1


def test_limit_grows_with_answers_up_to_the_setting() -> None:
    """One more with each answered round."""
    slots = Slots(64)
    teach(slots, "g", *[True] * 20)
    assert start_all(slots, "g", 8) == 8


def test_limit_halves_without_answer() -> None:
    """Down to one, never to none."""
    slots = Slots(64)
    teach(slots, "g", *[True] * 7, False)
    assert slots.limit_of("g") == 4
    teach(slots, "g", False, False, False, False)
    assert slots.limit_of("g") == 1


def test_lower_setting_holds_at_once() -> None:
    """A group that is put again with less concurrency."""
    slots = Slots(64)
    teach(slots, "g", *[True] * 7)
    assert start_all(slots, "g", 2) == 2


def test_silent_groups_share_a_quarter() -> None:
    """Dead endpoints, however many, leave three quarters to the others (B)."""
    slots = Slots(64)
    dead = [f"dead{i}" for i in range(100)]
    for group in dead:
        teach(slots, group, False)
    for group in dead:
        slots.want(group, 8)
    assert len(slots.grant()) == 16
    slots.want("good", 8)
    assert slots.grant() == ["good"]


def test_no_group_has_more_than_half() -> None:
    """Whatever its settings say."""
    slots = Slots(64)
    teach(slots, "greedy", *[True] * 100, most=256)
    assert start_all(slots, "greedy", 256) == 32


def test_first_come_first_served() -> None:
    """When all slots are taken, the longest waiting gets the next."""
    slots = Slots(4)
    groups = [f"g{i}" for i in range(6)]
    for group in groups:
        slots.want(group, 1)
    assert slots.grant() == groups[:4]
    slots.give_back("g2", was_answered=True)
    assert slots.grant() == ["g4"]
    slots.give_back("g0", was_answered=None)
    assert slots.grant() == ["g5"]


def test_silent_group_gets_its_turn_among_busy_ones() -> None:
    """The order of asking holds over both kinds, so a recovered endpoint is found out."""
    slots = Slots(4)
    teach(slots, "silent", False)
    for group in ("a", "b", "c", "d"):
        slots.want(group, 1)
    slots.grant()
    slots.want("silent", 1)
    slots.want("e", 1)
    slots.give_back("a", was_answered=True)
    assert slots.grant() == ["silent"]


def test_group_at_its_limit_waits_aside() -> None:
    """It holds up nobody, and goes on when a round of its own ends."""
    slots = Slots(4)
    slots.want("g", 1)
    assert slots.grant() == ["g"]
    slots.want("g", 1)
    slots.want("other", 1)
    assert slots.grant() == ["other"]
    slots.give_back("g", was_answered=True)
    assert slots.grant() == ["g"]


def test_forgetting_starts_anew() -> None:
    """A group in use is not forgotten."""
    slots = Slots(4)
    teach(slots, "g", False)
    assert slots.is_silent("g")
    slots.forget("g")
    assert not slots.is_silent("g")
    slots.want("g", 1)
    slots.grant()
    slots.forget("g")
    slots.give_back("g", was_answered=True)
    assert slots.in_use == 0


STEPS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([None, True, False])), max_size=200)


@settings(deadline=None)
@given(STEPS, st.integers(4, 12))
def test_limits_hold_whatever_happens(steps: Sequence[tuple[int, bool | None]], total: int) -> None:
    """All slots, a group's own, the quarter: no sequence breaks them, and none is lost."""
    slots = Slots(total)
    holding: Counter[str] = Counter()
    for number, was_answered in steps:
        group = f"g{number}"
        if holding[group] and was_answered is not None:
            holding[group] -= 1
            slots.give_back(group, was_answered=was_answered)
        slots.want(group, 3)
        silent_before = sum(count for name, count in holding.items() if slots.is_silent(name))
        for granted in slots.grant():
            holding[granted] += 1
            assert holding[granted] <= 3
            if slots.is_silent(granted):
                silent_before += 1
                assert silent_before <= total // 4
        assert slots.in_use == holding.total() <= total
    for group in list(holding.elements()):
        slots.give_back(group, was_answered=True)
    assert slots._silent_in_use == 0
