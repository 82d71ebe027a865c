"""When a transaction is checked and when it is parked."""

import pytest
from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes, Due, decide_due, first_check_ms
from bridge.core.record import HalfMessage
from bridge.core.transaction import MAX_CHECKS, MAX_LIFE, Transaction

TIMES = CheckTimes(transaction_timeout_ms=6_000, interval_ms=30_000, max_checks=3, max_lifetime_ms=100_000)
T = Transaction("0" * 28, "g", 0, 1_000, 0, since_ms=1_000, next_due_ms=7_000)


@pytest.mark.parametrize(("immunity", "expected"), [(None, 7_000), (2, 7_000), (6, 7_000), (60, 61_000)])
def test_first_check_waits_for_timeout_and_immunity(immunity: int | None, expected: int) -> None:
    """Append time + the longer of the two (K, hole 7)."""
    assert first_check_ms(HalfMessage("0" * 28, "g", 1, 0, immunity_s=immunity), 1_000, TIMES) == expected


@pytest.mark.parametrize(
    ("transaction", "now", "had_round", "expected"),
    [
        (T, 6_999, False, (Due.NOTHING, "")),
        (T, 7_000, False, (Due.ASK, "")),
        (replace(T, check_times=2), 7_000, True, (Due.ASK, "")),
        (replace(T, check_times=3), 6_999, True, (Due.NOTHING, "")),
        (replace(T, check_times=3), 7_000, True, (Due.PARK, MAX_CHECKS)),
        (replace(T, check_times=3, base=3), 7_000, True, (Due.ASK, "")),
        (replace(T, check_times=1, max_checks=1), 7_000, True, (Due.PARK, MAX_CHECKS)),
        (replace(T, next_due_ms=200_000), 101_000, True, (Due.PARK, MAX_LIFE)),
        (T, 101_000, False, (Due.ASK, "")),
        (replace(T, next_due_ms=200_000), 101_000, False, (Due.NOTHING, "")),
        (replace(T, max_life_s=1), 7_000, True, (Due.PARK, MAX_LIFE)),
        (replace(T, max_life_s=50, next_due_ms=200_000), 50_999, True, (Due.NOTHING, "")),
        (replace(T, max_life_s=50, next_due_ms=200_000), 51_000, True, (Due.PARK, MAX_LIFE)),
    ],
)
def test_due_table(transaction: Transaction, now: int, had_round: bool, expected: tuple[Due, str]) -> None:
    """Never early, never after the allowance, never parked for its age before somebody was asked (K, row 41)."""
    assert decide_due(transaction, TIMES, now, had_round=had_round) == expected
