"""Due times and the monotonic clock: append times jump when a broker's clock is set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes
from bridge.core.transaction import MAX_LIFE
from checker.queue_schedule import QueueTime
from checker.scheduler import CheckScheduler, InFlight
from tests.unit.checker.test_timetable import DAY, FIRST, T0, at, make_table, make_transaction, names, take

LONG_AFTER = FIRST + 3_600_000
TAKEN = QueueTime(T0 + 10_000, T0 + 10_000, 1_000)


def test_first_check_of_a_live_half_message_waits_by_the_monotonic_clock_too() -> None:
    """A jump of Kafka's time makes nothing due; both conditions hold."""
    table = make_table()
    table.add_queue(0, [])
    table.set_prepared(0, [make_transaction("a")], read_monotonic_ms=500)
    jumped = FIRST + 3_600_000
    assert take(table, at(jumped, monotonic_ms=6_499)).asks == []
    assert take(table, at(jumped, monotonic_ms=6_500)).asks == []  # put off by one more millisecond of Kafka's time
    assert names(take(table, at(jumped + 1, monotonic_ms=6_501)).asks) == ["a"]


def test_asking_for_a_check_before_the_first_one_shortens_no_wait() -> None:
    """An operator's act, read right after the half message: the immunity holds by both clocks (K)."""
    table = make_table()
    table.add_queue(0, [])
    table.set_prepared(0, [make_transaction("a")], read_monotonic_ms=500)
    table.set_prepared(0, [make_transaction("a", at=9)], read_monotonic_ms=501)
    assert take(table, at(LONG_AFTER, monotonic_ms=6_499)).asks == []
    assert names(take(table, at(LONG_AFTER + 1, monotonic_ms=6_500)).asks) == ["a"]


def test_only_new_half_messages_wait_so() -> None:
    """A resumed or counted transaction is due by Kafka's time alone."""
    table = make_table()
    table.add_queue(0, [])
    resumed = make_transaction("a", T0 + DAY, at=99, since_ms=T0 + DAY)
    table.set_prepared(0, [resumed], read_monotonic_ms=0)
    assert names(take(table, at(T0 + DAY, monotonic_ms=0)).asks) == ["a"]


def read_back(times: CheckTimes | None = None, *, is_sorted: bool = True) -> CheckScheduler:
    """The queue of a transaction that was asked about once, taken over ten seconds after its prepare."""
    table = make_table(times or CheckTimes(max_lifetime_ms=7 * DAY))
    table.add_queue(0, [make_transaction("a", check_times=1, at=7)], TAKEN)
    assert not is_sorted or not table.tidy()
    return table


def test_what_was_appended_by_a_clock_that_was_ahead_waits_from_its_take_over_by_both_clocks() -> None:
    """Also if Kafka's time jumps to that clock right after it (K)."""
    table = make_table()
    table.add_queue(0, [make_transaction("a")], QueueTime(T0 - 3_000, T0 - 3_000, 1_000))
    assert take(table, at(LONG_AFTER, monotonic_ms=6_999)).asks == []
    assert names(take(table, at(LONG_AFTER + 1, monotonic_ms=7_000)).asks) == ["a"]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_check_after_an_answer_waits_for_an_interval_of_both_clocks(*, is_sorted: bool) -> None:
    """By append times, which are behind once a clock that was ahead was set back, all would be due at once (K)."""
    table = read_back(is_sorted=is_sorted)
    table.set_prepared(0, [make_transaction("a", FIRST, check_times=2, at=9)], read_monotonic_ms=5_000)
    assert take(table, at(LONG_AFTER, monotonic_ms=34_999)).asks == []
    assert names(take(table, at(LONG_AFTER + 1, monotonic_ms=35_000)).asks) == ["a"]


def test_interval_of_the_group_counts() -> None:
    """As its settings say when the answer is read."""
    table = read_back(CheckTimes(interval_ms=2_000, max_lifetime_ms=7 * DAY))
    table.set_prepared(0, [make_transaction("a", FIRST, check_times=2, at=9)], read_monotonic_ms=5_000)
    assert take(table, at(LONG_AFTER, monotonic_ms=6_999)).asks == []
    assert names(take(table, at(LONG_AFTER + 1, monotonic_ms=7_000)).asks) == ["a"]


def test_operator_who_asks_for_a_check_gets_it_at_once() -> None:
    """No answer came with it, so no interval has begun."""
    table = read_back()
    counted = make_transaction("a", FIRST, check_times=2, at=9)
    table.set_prepared(0, [counted], read_monotonic_ms=5_000)
    table.set_prepared(0, [replace(counted, at=10)], read_monotonic_ms=5_001)
    assert names(take(table, at(LONG_AFTER, monotonic_ms=5_001)).asks) == ["a"]


@pytest.mark.parametrize("is_read_back", [True, False])
def test_interval_outlasts_no_life(*, is_read_back: bool) -> None:
    """A minute of life by the monotonic clock, from the prepare that was read, or as old as it was when taken over."""
    times = CheckTimes(interval_ms=3_600_000, max_lifetime_ms=60_000)
    table, end_ms = read_back(times), 51_000
    if not is_read_back:
        table.set_ended(0, ["a"])
        table.set_prepared(0, [make_transaction("a")], read_monotonic_ms=1_000)
        end_ms = 61_000
    table.set_prepared(0, [make_transaction("a", FIRST, check_times=2, at=9)], read_monotonic_ms=5_000)
    assert take(table, at(T0 + 60_000, monotonic_ms=end_ms - 1)).asks == []
    (ask,) = take(table, at(T0 + 60_001, monotonic_ms=end_ms)).asks
    table.set_postponed(ask, at(T0 + 60_001, monotonic_ms=end_ms), 1, was_tried=True)
    assert take(table, at(T0 + 60_002, monotonic_ms=end_ms + 1)).parks == {0: {"a": MAX_LIFE}}


@pytest.mark.parametrize("outcome", ["unanswered", "answered", "offered"])
def test_jump_of_append_times_begins_no_round_anew(outcome: str) -> None:
    """Nobody answered, the answer is on its way, or it may be fetched: 30 seconds of both clocks (K)."""
    table, moment = make_table(CheckTimes(max_lifetime_ms=7 * DAY)), at(FIRST, monotonic_ms=7_000)
    table.add_queue(0, [make_transaction("a")], TAKEN)
    table.tidy()
    (ask,) = take(table, moment).asks
    if outcome == "unanswered":
        table.set_unanswered(ask, moment, 30_000, found_no_endpoint=False)
    elif outcome == "answered":
        table.set_answered(ask, moment)
    else:
        table.set_offered(ask, moment, 30_000, found_nobody=False)
    assert take(table, at(FIRST + DAY, monotonic_ms=36_999)).asks == []
    assert names(take(table, at(FIRST + DAY + 1, monotonic_ms=37_000)).asks) == ["a"]


def test_round_after_one_without_answer_outlasts_no_life() -> None:
    """An hour's interval, a minute of life: parked when that is over by both clocks."""
    table = make_table(CheckTimes(interval_ms=3_600_000, max_lifetime_ms=60_000))
    table.add_queue(0, [])
    table.set_prepared(0, [make_transaction("a")], read_monotonic_ms=1_000)
    moment = at(FIRST, monotonic_ms=7_000)
    (ask,) = take(table, moment).asks
    table.set_unanswered(ask, moment, 3_600_000, found_no_endpoint=False)
    assert take(table, at(T0 + DAY, monotonic_ms=60_999)) == InFlight([], {}, [])
    assert take(table, at(T0 + DAY + 1, monotonic_ms=61_000)).parks == {0: {"a": MAX_LIFE}}


@pytest.mark.parametrize("is_due", [True, False])
def test_jump_of_append_times_ends_no_life(*, is_due: bool) -> None:
    """Lived through for 36 of its 60 seconds: asked if that is due, parked once the owner's clock says so too."""
    table = make_table(CheckTimes(max_lifetime_ms=60_000))
    table.add_queue(0, [])
    table.set_prepared(0, [make_transaction("a")], read_monotonic_ms=1_000)
    (ask,) = take(table, at(FIRST, monotonic_ms=7_000)).asks
    table.set_answered(ask, at(FIRST, monotonic_ms=7_000))
    jumped = T0 + DAY
    counted = make_transaction("a", jumped if is_due else jumped + DAY, check_times=1, at=9)
    table.set_prepared(0, [counted], read_monotonic_ms=7_000)
    for now_ms, monotonic_ms in ((jumped, 37_000), (jumped + 24_500, 60_999)):  # with a millisecond left
        step = take(table, at(now_ms, monotonic_ms=monotonic_ms))
        assert (names(step.asks), step.parks) == (["a"] if is_due and now_ms == jumped else [], {})
        for again in step.asks:
            table.set_unanswered(again, at(now_ms, monotonic_ms=monotonic_ms), DAY, found_no_endpoint=False)
        assert take(table, at(jumped + 23_999, monotonic_ms=60_999)) == InFlight([], {}, []), "not looked at before"
    assert take(table, at(jumped + 24_501, monotonic_ms=61_000)).parks == {0: {"a": MAX_LIFE}}


@given(st.data())
def test_new_ones_are_taken_as_if_they_had_been_in_order_all_along(data: st.DataObject) -> None:
    """Each when it is due by append times and by the owner's clock; those that ended meanwhile are not."""
    table, due = make_table(), {}
    table.add_queue(0, [])
    for number in range(data.draw(st.integers(1, 8))):
        t = make_transaction(f"{number}", FIRST + data.draw(st.integers(0, 1_000)))
        read_ms = data.draw(st.sampled_from([0, 300]))
        table.set_prepared(0, [t], read_ms)
        due[t.transaction_id] = (t.next_due_ms, read_ms + t.next_due_ms - T0)
    ended = data.draw(st.sets(st.sampled_from(sorted(due))))
    table.set_ended(0, ended)
    assert table.count_pending() == len(due) - len(ended)
    asked: dict[str, int] = {}
    for now_ms in range(FIRST, FIRST + 2_000, data.draw(st.integers(50, 400))):
        found = take(table, at(now_ms, monotonic_ms=now_ms - T0)).asks
        asked |= dict.fromkeys([i for i in names(found) if i not in asked], now_ms)
    assert asked.keys() == due.keys() - ended
    assert all(asked[i] >= due[i][0] and asked[i] - T0 >= due[i][1] for i in asked)


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=8), st.integers(0, 7), st.booleans())
def test_what_was_read_back_is_asked_when_it_is_due_however_far_that_is(
    delays: list[int], changed: int, is_ended: bool
) -> None:
    """Put in order at once or late, the same ones at the same times."""
    transactions = [make_transaction(f"{n}", FIRST + delay) for n, delay in enumerate(delays)]
    seen: list[dict[str, int]] = []
    for taken in (None, QueueTime(T0, T0, 0)):
        table, asked = make_table(), dict[str, int]()
        table.add_queue(0, transactions, taken)
        assert not table.tidy()
        if is_ended:
            table.set_ended(0, [f"{changed}"])
        elif changed < len(delays):
            table.set_prepared(0, [replace(transactions[changed], at=9, next_due_ms=FIRST + 5)], 0)
        for now_ms in range(FIRST, FIRST + 62_000, 250):
            asked |= dict.fromkeys(names(take(table, at(now_ms)).asks), now_ms)
        seen.append(asked)
    assert seen[0] == seen[1]
    assert all(
        asked - (FIRST + delays[int(name)]) in range(250) for name, asked in seen[1].items() if int(name) != changed
    )
