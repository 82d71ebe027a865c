"""Bytes of requests: who gets them, and that they come back."""

from pathlib import Path

import pytest

from api.settings import load_settings
from api.web.guard import ByteLease
from api.web.limits import SMALL_BYTES, ByteBudget
from bridge.core.errors import ConfigError

TOTAL = SMALL_BYTES * 8


def test_large_ones_leave_the_last_quarter() -> None:
    """A small request is served beside large ones that hold all they can."""
    budget = ByteBudget(TOTAL)
    large, small, late = ByteLease(budget), ByteLease(budget), ByteLease(budget)
    assert large.grow(TOTAL * 3 // 4)
    assert not late.grow(SMALL_BYTES + 1)
    assert small.grow(SMALL_BYTES)
    assert not small.grow(1)
    assert budget.used == TOTAL * 3 // 4 + SMALL_BYTES


def test_small_ones_together_stay_below_the_whole() -> None:
    """To the byte."""
    budget = ByteBudget(TOTAL)
    leases = [ByteLease(budget) for _ in range(9)]
    assert [lease.grow(SMALL_BYTES) for lease in leases] == [True] * 8 + [False]
    assert budget.used == TOTAL


def test_refused_lease_takes_nothing_more() -> None:
    """A later piece would stand in the place of the missing one."""
    budget = ByteBudget(TOTAL)
    other, lease = ByteLease(budget), ByteLease(budget)
    assert lease.grow(10)
    assert other.grow(TOTAL * 3 // 4 - 10)
    assert not lease.grow(SMALL_BYTES)
    other.close()
    assert not lease.grow(1)
    assert lease.is_refused
    assert budget.used == 10


def test_bytes_come_back_once() -> None:
    """However often a request ends, and whatever arrives afterwards."""
    budget = ByteBudget(TOTAL)
    lease = ByteLease(budget)
    lease.grow(100)
    lease.shrink(30)
    assert budget.used == 70
    lease.shrink(1_000)
    assert budget.used == 0
    lease.grow(5)
    lease.close()
    lease.close()
    assert not lease.grow(5)
    assert (budget.used, lease.is_refused) == (0, False)


def test_budget_has_room_for_the_largest_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else such a body would be told to come again for ever."""
    monkeypatch.chdir(tmp_path)
    assert load_settings().limits.in_flight_bytes == 256 * 1024 * 1024
    with pytest.raises(ConfigError, match=r"limits\.in_flight_bytes"):
        load_settings({"limits": {"in_flight_bytes": 8 * 1024 * 1024, "body_bytes": 8 * 1024 * 1024}})
