"""What was prepared lately: little is kept of those that have ended, however late they would have been asked about."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes
from bridge.core.pending_table import PendingTable
from bridge.core.transaction import Transaction, make_transaction_id
from checker.queue_schedule import NewTransactions, QueueTime
from checker.scheduler import CheckScheduler

T0 = 1_000_000
GROUPS = ("a", "b")


def make(number: int, delay_ms: int, now_ms: int = 0) -> Transaction:
    """Prepared at `now_ms`, due after `delay_ms`."""
    id_ = make_transaction_id(0, number * 7919)
    return Transaction(
        id_, GROUPS[number % 2], number, now_ms, number, at=number, since_ms=now_ms, next_due_ms=now_ms + delay_ms
    )


@pytest.mark.parametrize("most", [10, 10_000])
def test_slots_of_ended_ones_are_forgotten(most: int) -> None:
    """Each with an immunity of its own, which may be a week: what has ended is not kept for as long."""
    new = NewTransactions(most)
    for number in range(5_000):
        t = make(number, number * 1_000)
        new.add(t, 7)
        new.compact()
        if number != 3_000:
            assert new.transactions.pop(t.transaction_id, None) or new.drop_packed(t.transaction_id)
    new.compact()
    assert new.first_ms is not None
    assert 0 <= 3_000_000 - new.first_ms < 256 * 2_048, "earlier slots have nothing to be looked at"
    ((left, read_ms),) = new.pop_due(3_000_000, 9)
    assert (left, read_ms) == (make(3_000, 3_000_000), 7)
    assert list(new.pop_due(5_000_000, 9)) == []
    assert (new.first_ms, len(new)) == (None, 0)


def test_what_a_row_cannot_hold_is_found_too() -> None:
    """It stays an object, however many there are."""
    new, odd = NewTransactions(0), [replace(make(n, 500), check_times=2**20) for n in range(3)]
    for t in odd:
        new.add(t, None)
        new.compact()
    assert new.pop(odd[1].transaction_id) == (odd[1], None)
    assert list(new.pop_due(256, 9)) == [(odd[0], None), (odd[2], None)]


def test_rows_that_are_due_come_in_steps_by_slot() -> None:
    """However many a queue that was taken over has: those that are due first come first, and nobody waits for all."""
    scheduler = CheckScheduler(lambda _: CheckTimes(), report_wait_ms=3_000, max_lag_ms=15_000)
    scheduler.add_queue(0, [], QueueTime(T0, T0, 0), rows_of([make(n, 9_000 - n, 0) for n in range(4_100)]))
    for opened in (2_000, 4_000, 4_100):
        scheduler.wake(0, T0)
        entries = scheduler._tables[0].entries.values()
        assert 0 <= len(entries) - opened < 9
        assert max(entry.due_ms for entry in entries) < 4_901 + opened + 256
        assert scheduler.is_behind(0, T0) is (opened < 4_100)
    assert scheduler.count_pending() == 4_100


def test_asked_when_the_queue_was_taken_over_again() -> None:
    """The answer lands: the next check is not due at once."""
    (t,), moment = [make(2, 100, T0)], QueueTime(T0 + 500, T0 + 500, 500)
    scheduler = CheckScheduler(lambda _: CheckTimes(), report_wait_ms=30_000, max_lag_ms=15_000, max_objects=0)
    scheduler.add_queue(0, [t], QueueTime(T0, T0, 0))
    (ask,) = scheduler.take("a", lambda _: moment, 1).asks
    scheduler.drop_queue(0)
    scheduler.add_queue(0, [], moment, rows_of([t]))
    assert scheduler.take("a", lambda _: moment, 1).asks == []
    scheduler.set_unanswered(ask, moment, 2_000, found_no_endpoint=False)
    for later_ms, asks in ((2_499, 0), (2_500, 1)):
        later = QueueTime(T0 + later_ms, T0 + later_ms, later_ms)
        assert len(scheduler.take("a", lambda _, later=later: later, 1).asks) == asks


def rows_of(transactions: Sequence[Transaction]) -> PendingTable:
    """The same as a queue's owner has them."""
    rows = PendingTable()
    assert all(rows.add(t, t.half) for t in transactions)
    return rows


@given(st.data())
def test_packed_ones_are_due_in_the_same_order_and_answered_alike(data: st.DataObject) -> None:
    """Whatever is prepared, changes, ends and is asked about: with rows it goes as with objects."""
    schedulers = [
        CheckScheduler(lambda _: CheckTimes(), report_wait_ms=3_000, max_lag_ms=15_000, max_objects=most)
        for most in (0, 3, 4_096)
    ]
    read_back = [
        replace(
            make(n, data.draw(st.integers(0, 30_000)), T0 - data.draw(st.integers(-3_000, 6_000))),
            check_times=data.draw(st.integers(0, 1)),
        )
        for n in range(data.draw(st.integers(0, 6)))
    ]
    known, count, now_ms = {t.half: t for t in read_back}, len(read_back), T0
    schedulers[0].add_queue(0, [], QueueTime(T0, T0, 0), rows_of(read_back))
    for scheduler in schedulers[1:]:
        scheduler.add_queue(0, read_back, QueueTime(T0, T0, 0))
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["prepare", "prepare", "change", "end", "pass", "tidy"]))
        chosen = known[data.draw(st.sampled_from(sorted(known)))] if known else None
        if step == "prepare":
            batch = [make(count + n, data.draw(st.integers(0, 20_000)), now_ms) for n in range(3)]
            count += 3
            known |= {t.half: t for t in batch}
            for scheduler in schedulers:
                scheduler.set_prepared(0, batch, now_ms - T0)
        elif step == "change" and chosen:
            is_answer = data.draw(st.booleans())
            changed = replace(
                chosen,
                at=count + now_ms,
                check_times=chosen.check_times + is_answer,
                next_due_ms=now_ms + data.draw(st.integers(0, 9_000)),
            )
            known[chosen.half] = changed
            for scheduler in schedulers:
                scheduler.set_prepared(0, [changed], now_ms - T0)
        elif step == "end" and chosen:
            del known[chosen.half]
            for scheduler in schedulers:
                scheduler.set_ended(0, [chosen.transaction_id])
        elif step == "tidy":
            assert len({scheduler.tidy() for scheduler in schedulers}) == 1
        else:
            now_ms += data.draw(st.integers(0, 5_000))
            moment = QueueTime(now_ms, now_ms, now_ms - T0 + data.draw(st.integers(-500, 500)))
            how = data.draw(st.sampled_from(["answered", "unanswered", "offered", "postponed"]))
            seen = []
            for scheduler in schedulers:
                scheduler.wake(0, now_ms)
                taken = [scheduler.take(group, lambda _: moment, 4) for group in GROUPS]  # noqa: B023
                for ask in [ask for group in taken for ask in group.asks]:
                    if how == "answered":
                        scheduler.set_answered(ask, moment)
                    elif how == "unanswered":
                        scheduler.set_unanswered(ask, moment, 2_000, found_no_endpoint=True)
                    elif how == "offered":
                        scheduler.set_offered(ask, moment, 2_000, found_nobody=False)
                    else:
                        scheduler.set_postponed(ask, moment, 0, was_tried=False)
                for group in GROUPS:
                    scheduler.rest(group)
                seen.append(taken)
            assert seen[0] == seen[1] == seen[2]
        assert schedulers[1].next_front_ms(0) == schedulers[2].next_front_ms(0)
        assert {scheduler.count_pending() for scheduler in schedulers} == {len(known)}


def test_rows_that_are_many_are_looked_at_bit_by_bit() -> None:
    """Whatever ends meanwhile is not due, and all others are once, however many steps that takes."""
    new, read_back = NewTransactions(10), [make(n, 100, T0) for n in range(12_000)]
    new.adopt(rows_of(read_back), lambda row: row.appended_ms > T0, lambda t: t)
    due: list[str] = []
    for step in range(6):
        assert new.first_ms is not None or step > 3, "there is more to be looked at"
        due += [t.transaction_id for t, _ in new.pop_due(T0 + 1_000, 3_000)]
        for t in read_back[10_000 + step * 300 : 10_300 + step * 300]:
            if t.transaction_id not in due:
                new.drop_packed(t.transaction_id)
                due.append(t.transaction_id)
    while new.first_ms is not None:
        due += [t.transaction_id for t, _ in new.pop_due(T0 + 1_000, 3_000)]
    assert sorted(due) == sorted(t.transaction_id for t in read_back)
    assert len(new) == 0
