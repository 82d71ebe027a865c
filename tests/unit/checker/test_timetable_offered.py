"""Due times of checks that are offered, to be claimed by whoever comes for them."""

import pytest

from bridge.core.check_rules import CheckTimes
from bridge.core.transaction import MAX_LIFE, NO_ENDPOINT
from checker.scheduler import InFlight
from tests.unit.checker.test_timetable import FIRST, T0, at, make_transaction, table_with, take


@pytest.mark.parametrize(("found_nobody", "why"), [(True, NO_ENDPOINT), (False, MAX_LIFE)])
def test_offered_check_is_left_alone_as_long_as_it_can_be_claimed(*, found_nobody: bool, why: str) -> None:
    """Its life may end meanwhile; that nobody came for it is why it is parked then."""
    table = table_with(make_transaction("a"), times=CheckTimes(max_lifetime_ms=20_000))
    (ask,) = take(table, at(FIRST)).asks
    table.set_offered(ask, at(FIRST), 54_000, found_nobody=found_nobody)
    assert take(table, at(T0 + 59_999)) == InFlight([], {}, [])
    assert take(table, at(T0 + 60_000)).parks == {0: {"a": why}}
    table.set_ended(0, ["a"])
    table.set_offered(ask, at(T0 + 60_000), 30_000, found_nobody=found_nobody)
    assert (table.count_pending(), table.in_flight) == (0, 0)


def test_offered_check_is_current_until_an_answer_is_counted() -> None:
    """By whatever way it came; it stays pending. Where the queue is not held nothing is known."""
    table = table_with(make_transaction("a"))
    (ask,) = take(table, at(FIRST)).asks
    assert table.is_current(ask)
    assert not table.is_current(ask._replace(queue_id=7))
    table.set_prepared(0, [make_transaction("a", FIRST + 30_000, check_times=1, at=9)], 0)
    assert (table.is_current(ask), table.is_pending(ask)) == (False, True)
    table.set_ended(0, ["a"])
    assert not table.is_current(ask)
