"""Slots: limits of each group, of all, and of those that do not answer."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checker.concurrency import ConcurrencyLimiter


def start_all(slots: ConcurrencyLimiter, group: str, most: int) -> int:
    """Rounds the group can have at once now."""
    count = 0
    while True:
        slots.want(group, most)
        if group not in slots.grant():
            slots.withdraw(group)
            return count
        count += 1


def teach(slots: ConcurrencyLimiter, group: str, *answers: bool, most: int = 8) -> None:
    for was_answered in answers:
        slots.want(group, most)
        assert slots.grant() == [group]
        slots.give_back(group, was_answered=was_answered)


def test_a_new_group_begins_with_one() -> None:
    """Nobody is flooded before he has answered once."""
    assert start_all(ConcurrencyLimiter(64), "g", 8) == 1


def test_limit_grows_with_answers_up_to_the_setting() -> None:
    """One more with each answered round; a group nobody knows begins with one too."""
    slots = ConcurrencyLimiter(64)
    assert slots.limit_of("g") == 1
    for limit in (2, 3, 4, 5, 6, 7, 8, 8, 8):
        teach(slots, "g", True)
        assert slots.limit_of("g") == limit
    assert start_all(slots, "g", 8) == 8


def test_limit_halves_without_answer() -> None:
    """Down to one, never to none."""
    slots = ConcurrencyLimiter(64)
    teach(slots, "g", *[True] * 6, False)
    assert slots.limit_of("g") == 3
    teach(slots, "g", False, False, False, False)
    assert slots.limit_of("g") == 1


def test_lower_setting_holds_at_once() -> None:
    """A group that is put again with less concurrency."""
    slots = ConcurrencyLimiter(64)
    teach(slots, "g", *[True] * 7)
    assert start_all(slots, "g", 2) == 2


def test_silent_groups_share_a_quarter() -> None:
    """Dead endpoints, however many, leave three quarters to the others (B)."""
    slots = ConcurrencyLimiter(64)
    dead = [f"dead{i}" for i in range(100)]
    for group in dead:
        teach(slots, group, False)
    for group in dead:
        slots.want(group, 8)
    assert len(slots.grant()) == 16
    slots.want("good", 8)
    assert slots.grant() == ["good"]


def test_groups_that_were_never_asked_share_half() -> None:
    """However many they are, and though each keeps its call until the time is up: known ones go on (B)."""
    slots = ConcurrencyLimiter(64)
    teach(slots, "good", True)
    new = [f"new{i}" for i in range(100)]
    for group in new:
        slots.want(group, 8)
    assert slots.grant() == new[:32]
    slots.want("good", 8)
    assert slots.grant() == ["good"]
    slots.give_back("new0", was_answered=None)  # nobody was asked: as new as before
    assert slots.grant() == ["new32"]
    slots.give_back("new1", was_answered=True)
    slots.give_back("new2", was_answered=False)
    assert slots.grant() == ["new33", "new34"]


def test_a_single_slot_is_for_new_groups_too() -> None:
    """Half of one is not none."""
    slots = ConcurrencyLimiter(1)
    slots.want("new", 1)
    assert slots.grant() == ["new"]


def test_no_group_has_more_than_half() -> None:
    """Whatever its settings say."""
    slots = ConcurrencyLimiter(64)
    teach(slots, "greedy", *[True] * 100, most=256)
    assert start_all(slots, "greedy", 256) == 32


@pytest.mark.parametrize(("total", "most", "limit"), [(1, 8, 1), (3, 8, 1), (9, 8, 4), (64, 1, 1), (64, 0, 1)])
def test_half_is_rounded_down_but_never_to_nothing(total: int, most: int, limit: int) -> None:
    """Few slots, or a setting of one, still let a group be asked."""
    slots = ConcurrencyLimiter(total)
    teach(slots, "g", *[True] * 9, most=most)
    assert slots.limit_of("g") == limit
    assert start_all(slots, "g", most) == limit


def test_withdrawn_round_is_not_granted() -> None:
    """Its place in the line is lost, also when the group comes again."""
    slots = ConcurrencyLimiter(1)
    slots.want("g", 1)
    slots.withdraw("g")
    slots.withdraw("nobody")
    assert slots.grant() == []
    slots.want("other", 1)
    slots.want("g", 1)
    assert slots.grant() == ["other"]


def test_wanting_again_goes_to_the_end_of_the_line() -> None:
    """One round waits for each group, and it is the latest."""
    slots = ConcurrencyLimiter(1)
    for group in ("g", "other", "g"):
        slots.want(group, 1)
    assert slots.grant() == ["other"]
    slots.give_back("other", was_answered=True)
    assert slots.grant() == ["g"]
    slots.give_back("g", was_answered=True)
    assert slots.grant() == []


def running(slots: ConcurrencyLimiter, group: str, rounds: int) -> None:
    """So many rounds of a group that has learnt to have as many."""
    teach(slots, group, *[True] * (rounds - 1))
    assert start_all(slots, group, rounds) == rounds


def test_rounds_that_run_when_a_group_falls_silent_use_up_the_quarter() -> None:
    """And leave it when the group answers again, all of them at once."""
    slots = ConcurrencyLimiter(12)  # a quarter: 3
    running(slots, "failing", 4)
    teach(slots, "dead", False)
    slots.want("dead", 1)
    slots.give_back("failing", was_answered=False)  # its three others count
    assert slots.grant() == []
    slots.give_back("failing", was_answered=True)
    assert slots.grant() == ["dead"]
    slots.give_back("dead", was_answered=False)
    for _ in range(2):
        slots.give_back("failing", was_answered=True)
    assert (slots.in_use, set(slots._used.values())) == (0, {0})


def test_every_silent_round_that_ends_makes_room_for_one() -> None:
    """Not for more: the quarter stays full."""
    slots = ConcurrencyLimiter(8)
    dead = ["d1", "d2", "d3", "d4"]
    for group in dead:
        teach(slots, group, False)
    for group in dead:
        slots.want(group, 1)
    assert slots.grant() == ["d1", "d2"]
    slots.give_back("d1", was_answered=False)
    assert slots.grant() == ["d3"]
    slots.give_back("d2", was_answered=None)
    assert slots.grant() == ["d4"]
    assert (slots.is_silent("d4"), slots.in_use) == (True, 2)


def test_a_quarter_is_rounded_down() -> None:
    """Of seven slots one."""
    slots = ConcurrencyLimiter(7)
    for group in ("d1", "d2"):
        teach(slots, group, False)
    for group in ("d1", "d2"):
        slots.want(group, 1)
    assert slots.grant() == ["d1"]


def test_place_in_the_line_is_worth_nothing_at_a_limit_that_sank() -> None:
    """Two rounds went unanswered while the next one waited: two that run are enough now."""
    slots = ConcurrencyLimiter(16)
    running(slots, "g", 8)
    for _ in range(4):
        slots.give_back("g", was_answered=None)
    slots.want("g", 8)
    for limit in (4, 2):
        slots.give_back("g", was_answered=False)
        assert slots.limit_of("g") == limit
    assert slots.grant() == []
    slots.give_back("g", was_answered=None)
    assert slots.grant() == ["g"]


def test_group_that_fell_silent_while_it_waited_waits_among_the_silent() -> None:
    """Its place among the others is worth nothing."""
    slots = ConcurrencyLimiter(4)  # a quarter: 1
    running(slots, "g", 2)
    teach(slots, "dead", False)
    slots.want("dead", 1)
    assert slots.grant() == ["dead"]
    slots.want("a", 1)
    assert slots.grant() == ["a"]
    slots.give_back("g", was_answered=True)
    slots.want("b", 1)
    assert slots.grant() == ["b"]
    slots.want("g", 2)  # all slots are taken
    slots.give_back("g", was_answered=False)
    assert slots.grant() == []
    slots.give_back("dead", was_answered=False)
    assert slots.grant() == ["g"]


def test_group_at_its_limit_has_no_place_in_the_line() -> None:
    """Who may start is served before who might not."""
    slots = ConcurrencyLimiter(2)
    for group in ("g", "x", "other"):
        teach(slots, group, True)
    for group in ("g", "x"):
        slots.want(group, 1)
    assert slots.grant() == ["g", "x"]
    slots.want("g", 1)
    slots.want("other", 1)
    slots.give_back("g", was_answered=None)
    assert slots.grant() == ["other"]


def test_first_come_first_served() -> None:
    """When all slots are taken, the longest waiting gets the next."""
    slots = ConcurrencyLimiter(4)
    groups = [f"g{i}" for i in range(6)]
    for group in groups:
        teach(slots, group, True)
    for group in groups:
        slots.want(group, 1)
    assert slots.grant() == groups[:4]
    slots.give_back("g2", was_answered=True)
    assert slots.grant() == ["g4"]
    slots.give_back("g0", was_answered=None)
    assert slots.grant() == ["g5"]


def test_silent_group_gets_its_turn_among_busy_ones() -> None:
    """The order of asking holds over both kinds, so a recovered endpoint is found out."""
    slots = ConcurrencyLimiter(4)
    teach(slots, "silent", False)
    for group in ("a", "b", "c", "d"):
        teach(slots, group, True)
        slots.want(group, 1)
        slots.grant()
    slots.want("silent", 1)
    slots.want("e", 1)
    slots.give_back("a", was_answered=True)
    assert slots.grant() == ["silent"]


def test_group_at_its_limit_waits_aside() -> None:
    """It holds up nobody, and goes on when a round of its own ends."""
    slots = ConcurrencyLimiter(4)
    slots.want("g", 1)
    assert slots.grant() == ["g"]
    slots.want("g", 1)
    slots.want("other", 1)
    assert slots.grant() == ["other"]
    slots.give_back("g", was_answered=True)
    assert slots.grant() == ["g"]


def test_forgetting_starts_anew() -> None:
    """A group in use is not forgotten."""
    slots = ConcurrencyLimiter(4)
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


@given(STEPS, st.integers(4, 12))
def test_limits_hold_whatever_happens(steps: Sequence[tuple[int, bool | None]], total: int) -> None:
    """All slots, a group's own, the quarter, the half: no sequence breaks them, and none is lost."""
    slots = ConcurrencyLimiter(total)
    holding: Counter[str] = Counter()
    heard: set[str] = set()
    for number, was_answered in steps:
        group = f"g{number}"
        if holding[group] and was_answered is not None:
            holding[group] -= 1
            slots.give_back(group, was_answered=was_answered)
            heard.add(group)
        slots.want(group, 3)
        silent_before = sum(count for name, count in holding.items() if slots.is_silent(name))
        for granted in slots.grant():
            holding[granted] += 1
            assert holding[granted] <= 3
            if slots.is_silent(granted):
                silent_before += 1
                assert silent_before <= total // 4
            assert sum(count for name, count in holding.items() if name not in heard) <= total // 2
        assert slots.in_use == holding.total() <= total
    for group in list(holding.elements()):
        slots.give_back(group, was_answered=True)
    assert set(slots._used.values()) == {0}
