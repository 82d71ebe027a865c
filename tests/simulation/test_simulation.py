"""The simulation itself: it replays, it bites, and it tells a story that a person can read."""

import os
import re
import subprocess
import sys

import msgspec
import pytest

from bridge.core import check_rules
from bridge.core.transaction import Transaction
from tests.simulation.campaign import read_corpus
from tests.simulation.schedule import MIN_FAULTS, make_schedule
from tests.simulation.shrink import shrink
from tests.simulation.world import simulate


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_seed_replays_to_the_same_event_hash(seed: int) -> None:
    """Also in another process, however that one orders its sets."""
    here = {_replay(seed, hash_seed) for hash_seed in ("1", "2")}
    assert len(here) == 1


def test_every_schedule_has_its_faults() -> None:
    """At least five each, and no two schedules are alike."""
    schedules = [make_schedule(seed) for seed in range(1, 500)]
    assert min(len(schedule.faults) for schedule in schedules) >= MIN_FAULTS
    assert len({repr(msgspec.structs.replace(schedule, seed=0)) for schedule in schedules}) == len(schedules)


def test_broken_promise_is_found_and_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison off by one: the promise is named, and few calls and faults are left of the schedule."""

    def is_exhausted(transaction: Transaction, times: object) -> bool:
        return transaction.check_times - transaction.base > 3

    monkeypatch.setattr(check_rules, "is_exhausted", is_exhausted)
    failing = next(run for seed in range(1, 200) if (run := simulate(make_schedule(seed))).violations)
    assert {violation.promise for violation in failing.violations} == {"K"}
    shortest = shrink(failing)
    assert {violation.promise for violation in shortest.violations} == {"K"}
    assert len(shortest.schedule.calls) <= 2
    assert "promise K broken" in str(shortest.violations[0])


@pytest.mark.parametrize("name", read_corpus())
def test_schedule_that_once_broke_a_promise_breaks_none(name: str) -> None:
    """Each is named after what it found."""
    assert simulate(read_corpus()[name]).violations == []


def _replay(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--replay", str(seed), "--whole"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"event hash (\w+)", done.stdout)
    assert found is not None, done.stdout[-500:]
    return found[1]
