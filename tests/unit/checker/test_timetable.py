"""Due times: order, waiting for the reader, laziness of deletion."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes
from bridge.core.transaction import MAX_CHECKS, MAX_LIFE, NO_ENDPOINT, Transaction
from checker.queue_schedule import QueueTime
from checker.scheduler import CheckScheduler, DueCheck, InFlight

TIMES = CheckTimes()
T0 = 1_000_000
FIRST = T0 + 6_000
DAY = 86_400_000


def make_table(times: CheckTimes = TIMES) -> CheckScheduler:
    return CheckScheduler(
        dict.fromkeys(["g", "a", "b", "big"], times).__getitem__, report_wait_ms=30_000, max_lag_ms=15_000
    )


def make_transaction(name: str, due_ms: int = FIRST, group: str = "g", **members: Any) -> Transaction:
    """A new half message, unless `members` say otherwise."""
    made = Transaction(name, group, half=5, appended_ms=T0, ordering_hash=0, at=5, since_ms=T0, next_due_ms=due_ms)
    return replace(made, **members)


def at(now_ms: int, read_ms: int | None = None, monotonic_ms: int | None = None) -> QueueTime:
    return QueueTime(now_ms, now_ms if read_ms is None else read_ms, now_ms if monotonic_ms is None else monotonic_ms)


def take(table: CheckScheduler, moment: QueueTime, most: int = 100, group: str = "g") -> InFlight:
    return table.take(group, lambda queue_id: moment, most)


def names(asks: Sequence[DueCheck]) -> list[str]:
    return [ask.transaction.transaction_id for ask in asks]


def table_with(*transactions: Transaction, times: CheckTimes = TIMES) -> CheckScheduler:
    table = make_table(times)
    table.add_queue(0, transactions)
    assert not table.tidy()
    return table


def test_nothing_before_the_first_due_time() -> None:
    """No check before append time + timeout (K)."""
    table = table_with(make_transaction("a"))
    assert take(table, at(FIRST - 1)).asks == []
    (ask,) = take(table, at(FIRST)).asks
    assert ask == DueCheck(make_transaction("a"), 0, FIRST)


def test_longest_due_queue_first() -> None:
    """Each queue has its own clock, and a head that is due by it."""
    table = make_table()
    table.add_queue(0, [make_transaction("a", FIRST + 5), make_transaction("b", FIRST + 20)])
    table.add_queue(1, [make_transaction("c", FIRST + 3), make_transaction("d", FIRST + 20)])
    table.tidy()
    taken = table.take("g", lambda queue_id: at(FIRST + 10 * queue_id + 10), 3)
    assert names(taken.asks) == ["c", "d", "a"]
    assert [ask.queue_id for ask in taken.asks] == [1, 1, 0]


def test_longest_due_first_up_to_the_batch_size() -> None:
    """A batch takes what has waited longest; the rest is left for the next."""
    table = table_with(*[make_transaction(f"{i}", FIRST + i) for i in (3, 1, 2, 0)])
    first = take(table, at(FIRST + 9), most=3)
    assert (names(first.asks), first.is_more) == (["0", "1", "2"], True)
    assert names(take(table, at(FIRST + 9)).asks) == ["3"]


def test_queue_must_be_read_past_the_due_time() -> None:
    """Nobody is asked about what may already be decided."""
    table = table_with(make_transaction("a"))
    behind = take(table, at(FIRST + 10, read_ms=FIRST - 1))
    assert (behind.asks, behind.unread) == ([], [0])
    assert names(take(table, at(FIRST + 10, read_ms=FIRST)).asks) == ["a"]


def test_lagging_reader_stops_old_dues_too() -> None:
    """A due time passed long ago says nothing while the settler lags now."""
    table = table_with(make_transaction("a"))
    assert take(table, at(FIRST + 20_000, read_ms=FIRST + 4_999)).unread == [0]
    assert names(take(table, at(FIRST + 20_000, read_ms=FIRST + 5_000)).asks) == ["a"]


def test_in_flight_is_never_taken_twice() -> None:
    """Not by another report, not after the queue was let go and taken again."""
    table = table_with(make_transaction("a"))
    (ask,) = take(table, at(FIRST)).asks
    table.set_prepared(0, [make_transaction("a")], 0)
    assert take(table, at(FIRST + DAY // 2)).asks == []
    table.drop_queue(0)
    table.add_queue(0, [make_transaction("a")])
    table.tidy()
    assert take(table, at(FIRST + DAY // 2)).asks == []
    table.set_unanswered(ask, at(FIRST), 30_000, found_no_endpoint=False)
    assert names(take(table, at(FIRST + 30_000)).asks) == ["a"]


def test_answered_waits_for_the_settler_but_not_for_ever() -> None:
    """An appended answer is not asked for again before a report, or 30 s."""
    table = table_with(make_transaction("a"))
    (ask,) = take(table, at(FIRST)).asks
    table.set_answered(ask, at(FIRST + 100))
    table.set_prepared(0, [make_transaction("a")], 0)  # an operator's act, read before the answer
    assert take(table, at(FIRST + 30_099)).asks == []
    assert names(take(table, at(FIRST + 30_100)).asks) == ["a"]


@pytest.mark.parametrize("interval_ms", [10_000, 45_000])
def test_report_of_a_counted_answer_sets_the_next_time(interval_ms: int) -> None:
    """UNKNOWN counted: asked again when the settler says, be it sooner than a report is waited for, or later."""
    table = table_with(make_transaction("a"))
    (ask,) = take(table, at(FIRST)).asks
    table.set_answered(ask, at(FIRST))
    table.set_prepared(0, [make_transaction("a", FIRST + interval_ms, check_times=1, at=9)], 0)
    assert take(table, at(FIRST + interval_ms - 1)).asks == []
    (again,) = take(table, at(FIRST + interval_ms)).asks
    assert again.transaction.check_times == 1


def test_report_may_come_before_the_answer_has_landed() -> None:
    """A fast settler reports while the put has not returned: its due time holds."""
    table = table_with(make_transaction("a"))
    (ask,) = take(table, at(FIRST)).asks
    table.set_prepared(0, [make_transaction("a", FIRST + 10_000, check_times=1, at=9)], 0)
    table.set_answered(ask, at(FIRST))
    assert names(take(table, at(FIRST + 10_000)).asks) == ["a"]


def test_ended_while_in_flight_is_forgotten() -> None:
    """Landing what has ended changes nothing."""
    table = table_with(make_transaction("a"))
    (ask,) = take(table, at(FIRST)).asks
    assert table.is_pending(ask)
    table.set_ended(0, ["a"])
    assert not table.is_pending(ask)
    table.set_answered(ask, at(FIRST))
    assert (table.count_pending(), table.in_flight) == (0, 0)


def test_exhausted_is_parked_at_its_next_due_time() -> None:
    """After the maximum of answered checks."""
    table = table_with(make_transaction("a", check_times=15))
    assert take(table, at(FIRST - 1)).parks == {}
    assert take(table, at(FIRST)).parks == {0: {"a": MAX_CHECKS}}
    assert take(table, at(FIRST + 29_999)).parks == {}
    assert take(table, at(FIRST + 30_000)).parks == {0: {"a": MAX_CHECKS}}  # the settler said nothing


def test_old_transactions_are_asked_before_they_are_parked() -> None:
    """Nothing is parked for its age before this owner has asked."""
    table = table_with(make_transaction("a"))
    late = FIRST + 2 * DAY
    taken = take(table, at(late))
    assert (names(taken.asks), taken.parks) == (["a"], {})
    table.set_unanswered(taken.asks[0], at(late), 30_000, found_no_endpoint=False)
    assert take(table, at(late)).parks == {0: {"a": MAX_LIFE}}


def test_life_end_comes_before_the_next_try() -> None:
    """Parked when life ends, not an interval later; NO_ENDPOINT if the last round found none."""
    times = CheckTimes(max_lifetime_ms=20_000)
    table = table_with(make_transaction("a"), make_transaction("b"), times=times)
    first, second = take(table, at(FIRST)).asks
    table.set_unanswered(first, at(FIRST), 30_000, found_no_endpoint=True)
    table.set_unanswered(second, at(FIRST), 30_000, found_no_endpoint=False)
    assert take(table, at(T0 + 19_999)).parks == {}
    parks = {first.transaction.transaction_id: NO_ENDPOINT, second.transaction.transaction_id: MAX_LIFE}
    assert take(table, at(T0 + 20_000)).parks == {0: parks}


def test_answered_is_not_parked_while_its_answer_is_unread() -> None:
    """Its life may end between the answer and its being read."""
    table = table_with(make_transaction("a"), times=CheckTimes(max_lifetime_ms=6_500))
    (ask,) = take(table, at(FIRST)).asks
    table.set_answered(ask, at(FIRST + 100))
    assert take(table, at(FIRST + 20_000)).parks == {}


def test_not_asked_is_not_a_round() -> None:
    """A postponed transaction has had no round, so its life's end does not park it."""
    table = table_with(make_transaction("a"), times=CheckTimes(max_lifetime_ms=6_500))
    (ask,) = take(table, at(FIRST)).asks
    table.set_postponed(ask, at(FIRST), 5_000, was_tried=False)
    taken = take(table, at(FIRST + 5_000))
    assert (names(taken.asks), taken.parks) == (["a"], {})


def test_longer_life_puts_parking_off() -> None:
    """A setting that was raised meanwhile holds; nothing spins."""
    settings = [CheckTimes(max_lifetime_ms=20_000)]
    table = CheckScheduler(lambda group: settings[0], report_wait_ms=30_000, max_lag_ms=15_000)
    table.add_queue(0, [make_transaction("a")])
    table.tidy()
    (ask,) = take(table, at(FIRST)).asks
    table.set_unanswered(ask, at(FIRST), 30_000, found_no_endpoint=False)
    settings[0] = TIMES
    taken = take(table, at(T0 + 20_000))
    assert (names(taken.asks), taken.parks) == (["a"], {})


def test_longer_life_does_not_bring_the_next_check_forward() -> None:
    """What was to be parked now, and is not, is due when it would have been."""
    settings = [CheckTimes(max_lifetime_ms=20_000)]
    table = CheckScheduler(lambda group: settings[0], report_wait_ms=30_000, max_lag_ms=15_000)
    table.add_queue(0, [make_transaction("a")])
    table.tidy()
    (ask,) = take(table, at(FIRST)).asks
    table.set_answered(ask, at(FIRST))
    table.set_prepared(0, [make_transaction("a", T0 + 50_000, check_times=1, at=9)], 0)
    settings[0] = TIMES
    assert take(table, at(T0 + 20_000)) == InFlight([], {}, [])
    assert take(table, at(T0 + 49_999)).asks == []
    assert names(take(table, at(T0 + 50_000)).asks) == ["a"]


def test_life_end_comes_before_the_next_check() -> None:
    """Counted and due in an hour: parked when its life is over."""
    table = table_with(make_transaction("a"), times=CheckTimes(max_lifetime_ms=20_000))
    (ask,) = take(table, at(FIRST)).asks
    table.set_answered(ask, at(FIRST))
    table.set_prepared(0, [make_transaction("a", FIRST + 3_600_000, check_times=1, at=9)], 0)
    assert take(table, at(T0 + 19_999)).parks == {}
    assert take(table, at(T0 + 20_000)).parks == {0: {"a": MAX_LIFE}}


def test_put_off_to_the_time_it_had_is_due_again() -> None:
    """What did not fit into a call is taken with the next."""
    table = table_with(*[make_transaction(f"{i}", FIRST + i) for i in range(3)])
    asks = take(table, at(FIRST + 1)).asks
    assert table._tables[0]._lanes["g"].live == 1
    for ask in asks:
        table.set_postponed(ask, at(FIRST + 1), 0, was_tried=False)
    assert names(take(table, at(FIRST + 2)).asks) == ["0", "1", "2"]
    assert table._tables[0]._lanes["g"].live == 0


def test_answer_that_nobody_reports_was_a_round() -> None:
    """Its life may end while the settler says nothing."""
    table = table_with(make_transaction("a"), times=CheckTimes(max_lifetime_ms=20_000))
    (ask,) = take(table, at(FIRST)).asks
    table.set_answered(ask, at(FIRST + 100))
    assert take(table, at(FIRST + 30_100)).parks == {0: {"a": MAX_LIFE}}


def test_a_round_is_not_undone_by_one_that_never_began() -> None:
    """Tried once, put off once: it may be parked."""
    table = table_with(make_transaction("a"), times=CheckTimes(max_lifetime_ms=20_000))
    (ask,) = take(table, at(FIRST)).asks
    table.set_unanswered(ask, at(FIRST), 1_000, found_no_endpoint=True)
    (ask,) = take(table, at(FIRST + 1_000)).asks
    table.set_postponed(ask, at(FIRST + 1_000), 29_000, was_tried=False)
    assert take(table, at(FIRST + 30_000)).parks == {0: {"a": MAX_LIFE}}, "the last round did not look for endpoints"


def test_exhausted_waits_for_its_next_due_time_beyond_its_life() -> None:
    """The last answer may still be on its way; the end of its life wakes nobody."""
    table = table_with(make_transaction("a"), times=CheckTimes(max_checks=1, max_lifetime_ms=10_000))
    (ask,) = take(table, at(FIRST)).asks
    table.set_answered(ask, at(FIRST))
    table.set_prepared(0, [make_transaction("a", FIRST + 30_000, check_times=1, at=9)], 0)
    table.wake(0, FIRST)
    table.rest("g")
    assert table.next_front_ms(0) == FIRST + 30_000
    assert take(table, at(FIRST + 30_000)).parks == {0: {"a": MAX_CHECKS}}


def test_operator_is_heard_after_a_round_without_answer() -> None:
    """Asking now means now, not at the next interval."""
    table = table_with(make_transaction("a"))
    (ask,) = take(table, at(FIRST)).asks
    table.set_unanswered(ask, at(FIRST), 30_000, found_no_endpoint=False)
    table.set_prepared(0, [make_transaction("a", FIRST + 1_000, at=9)], 0)
    assert names(take(table, at(FIRST + 1_000)).asks) == ["a"]


def test_landing_in_a_queue_that_was_let_go_ends_the_flight_alone() -> None:
    """Its next owner knows the rest."""
    table = table_with(make_transaction("a"))
    (ask,) = take(table, at(FIRST)).asks
    table.drop_queue(0)
    table.set_unanswered(ask, at(FIRST), 1, found_no_endpoint=True)
    assert (table.in_flight, table.count_pending(), table.is_pending(ask)) == (0, 0, False)


def test_groups_do_not_stand_between_each_other() -> None:
    """One group's backlog is not walked for another's work (B)."""
    table = table_with(*[make_transaction(f"x{i}", group="big") for i in range(5_000)], make_transaction("a"))
    assert names(take(table, at(FIRST), most=1).asks) == ["a"]


def test_wake_names_groups_at_rest_once() -> None:
    """A group is woken when its first due time comes, and again only after it rested."""
    table = table_with(make_transaction("a"), make_transaction("b", FIRST + 500))
    assert table.wake(0, FIRST - 1) == []
    assert table.next_front_ms(0) == FIRST
    assert table.wake(0, FIRST) == ["g"]
    assert table.wake(0, FIRST) == []
    take(table, at(FIRST))
    table.rest("g")
    assert table.wake(0, FIRST + 499) == []
    assert table.wake(0, FIRST + 500) == ["g"]


def test_groups_wake_in_the_order_of_their_due_times() -> None:
    """No order of a set decides who begins."""
    transactions = [make_transaction(name, FIRST - place, group=name) for place, name in enumerate("abcdefgh")]
    assert table_with(*transactions).wake(0, FIRST) == list("hgfedcba")


def test_earlier_time_wakes_earlier() -> None:
    """An operator asks now; the later time, still registered, wakes nobody."""
    table = table_with(make_transaction("a", FIRST + 60_000))
    table.set_prepared(0, [make_transaction("a", FIRST)], 0)
    assert table.wake(0, FIRST) == ["g"]
    assert names(take(table, at(FIRST)).asks) == ["a"]
    assert table.wake(0, FIRST + 60_000) == []


def test_groups_with_nothing_due_for_ever_leave_nothing() -> None:
    """Neither a lane nor a time that would wake them; a group nobody knows may rest too."""
    table = table_with(make_transaction("a"))
    take(table, at(FIRST))
    table.rest("g")
    table.rest("nobody")
    assert table._tables[0]._lanes == {}
    assert table.wake(0, FIRST) == []
    assert table.next_front_ms(0) is None


def test_ended_ones_leave_no_trace_for_long() -> None:
    """What ended before it was due is dropped in bulk, not kept until then; also what was to be asked again."""
    table = make_table()
    table.add_queue(0, [make_transaction("other", FIRST + 2 * DAY)])
    for start in range(0, 50_000, 100):
        batch = [make_transaction(f"{i}", FIRST + DAY) for i in range(start, start + 100)]
        table.set_prepared(0, batch, 0)
        if start % 200:
            table.set_prepared(0, [replace(t, at=9, check_times=1) for t in batch], 0)
        table.set_ended(0, [t.transaction_id for t in batch])
        table.tidy()
    new, lane = table._tables[0].new, table._tables[0]._lanes["g"]
    assert (lane.live, len(lane.heap) <= 1_026) == (1, True)
    assert (len(new), sum(len(ids) for ids, _ in new._slots.values()) <= 1_024) == (0, True)


def test_stale_heads_do_not_make_a_long_step() -> None:
    """A step is bounded even when everything in the heap has ended."""
    table = table_with(*[make_transaction(f"{i}", FIRST + i) for i in range(6_000)])
    table.set_ended(0, [f"{i}" for i in range(2_900)])
    first = take(table, at(FIRST + 9_000), most=10)
    assert first.is_more


@pytest.mark.parametrize(
    ("stale", "live", "taken", "is_more"), [(2_008, 1, 1, False), (2_009, 2, 1, True), (2_010, 2, 0, True)]
)
def test_a_step_looks_at_so_many_heads(stale: int, live: int, taken: int, is_more: bool) -> None:
    """As many as are wanted, and 2,000 that are stale."""
    table = table_with(*[make_transaction(f"{i}", FIRST + i) for i in range(stale + live)])
    table.set_ended(0, [f"{i}" for i in range(stale)])
    step = take(table, at(FIRST + 9_000), most=10)
    assert (len(step.asks), step.is_more) == (taken, is_more)


def test_lane_is_compacted_when_it_holds_more_that_is_stale_than_not() -> None:
    """And 1,024 besides; one lane a step."""
    table = table_with(*[make_transaction(f"{i}") for i in range(2_000)])
    lane = table._tables[0]._lanes["g"]
    for step in range(3_024):
        table.set_prepared(0, [make_transaction(f"{step % 2_000}", FIRST + 1 + step, at=9)], 0)
    assert not table.tidy()
    assert len(lane.heap) == 5_024
    table.set_prepared(0, [make_transaction("7", FIRST + DAY, at=9)], 0)
    assert table.tidy()
    assert not table.tidy()
    assert (len(lane.heap), lane.live) == (2_000, 2_000)


def test_unknown_queue_is_ignored() -> None:
    """Reports may cross with a release."""
    table = make_table()
    table.set_prepared(7, [make_transaction("a")], 0)
    table.set_ended(7, ["a"])
    table.drop_queue(7)
    assert table.count_pending() == 0


def test_due_count_walks_only_through_what_is_due() -> None:
    """The gauge is bounded."""
    table = table_with(*[make_transaction(f"{i}", FIRST + i) for i in range(1_000)])
    assert table.count_due(lambda queue_id: FIRST + 99, 10_000) == 100
    assert table.count_due(lambda queue_id: FIRST + 999, 50) == 50


def test_due_count_is_of_all_queues_and_groups() -> None:
    """Each queue by its own time; about as many as wanted, however many there are."""
    table = make_table()
    for queue_id in (0, 1, 2):
        lanes = [make_transaction(f"{queue_id}{group}{i}", FIRST + i, group) for group in "ab" for i in range(10)]
        table.add_queue(queue_id, lanes)
    table.tidy()
    assert table.count_due(lambda queue_id: FIRST + queue_id, 100) == 2 + 4 + 6
    assert table.count_due(lambda queue_id: FIRST + 9, 100) == 60
    assert table.count_due(lambda queue_id: FIRST + 9, 25) == 25
    assert table.count_due(lambda queue_id: FIRST + 9, 0) == 0


def test_new_half_message_is_woken_and_counted_when_its_time_comes() -> None:
    """Though nothing put it in order before."""
    table = table_with()
    assert table.next_front_ms(0) is None
    table.set_prepared(0, [make_transaction("a")], 0)
    front_ms = table.next_front_ms(0)
    assert front_ms is not None
    assert 0 <= FIRST - front_ms < 256, "looked at a little sooner"
    for due_ms, next_ms in ((FIRST + DAY, front_ms), (T0 + 1, T0 + 1)):
        table.set_prepared(0, [make_transaction("b", due_ms, "b", at=9)], 0)
        assert table.next_front_ms(0) == next_ms, "the earlier one of those in order and the new ones"
    assert table.count_due(lambda queue_id: FIRST, 10) == 2
    table.set_prepared(0, [make_transaction(name, group="a") for name in "cd"], 0)
    assert table.wake(0, FIRST) == ["b", "a", "g"]
    assert names(take(table, at(FIRST + 1), group="a").asks) == ["c", "d"]


EVENTS = st.lists(
    st.tuples(st.sampled_from(["prepare", "end", "take", "answer", "miss"]), st.integers(0, 5), st.integers(0, 3_000)),
    max_size=60,
)


@given(EVENTS)
def test_takes_exactly_what_a_plain_list_would(events: Sequence[tuple[str, int, int]]) -> None:
    """Heaps with lazy deletion give what a search through everything gives."""
    table = table_with()
    due: dict[str, int] = {}
    flying: dict[str, DueCheck] = {}
    answered: set[str] = set()  # what the settler says of them is older than their answer
    now = FIRST
    for event, number, step in events:
        name = f"{number}"
        if event == "prepare" and name in answered:
            table.set_prepared(0, [make_transaction(name, now + step, at=9)], 0)
        elif event == "prepare" and name not in flying:
            due[name] = now + step
            table.set_prepared(0, [make_transaction(name, now + step, at=9)], 0)
        elif event == "end":
            due.pop(name, None)
            answered.discard(name)
            table.set_ended(0, [name])
        elif event == "take":
            now += step
            taken = take(table, at(now)).asks
            assert set(names(taken)) == {n for n, due_ms in due.items() if due_ms <= now and n not in flying}
            flying |= {ask.transaction.transaction_id: ask for ask in taken}
            answered -= flying.keys()
        elif event in {"answer", "miss"} and name in flying:
            ask = flying.pop(name)
            wait_ms = 30_000 if event == "answer" else step
            if event == "answer":
                table.set_answered(ask, at(now))
            else:
                table.set_unanswered(ask, at(now), wait_ms, found_no_endpoint=False)
            if name in due:
                due[name] = now + wait_ms
                answered |= {name} if event == "answer" else set()
        assert table.in_flight == len(flying)
