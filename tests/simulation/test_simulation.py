"""The simulation itself: it replays, it bites, and it tells a story that a person can read."""

import os
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

_ORDERED_ONCE = (7024, 7036, 7038, 7054, 7066, 7075, 7078, 7092, 7105, 7125, 7189, 8236)
"""Seeds that went otherwise in another process: sets of group names, sets of tasks, and a secret by real chance."""


def test_seeds_replay_to_the_same_event_hashes() -> None:
    """In another process too, however that one orders its sets."""
    assert len({_replay(hash_seed) for hash_seed in ("1", "2", "3")}) == 1


def test_command_replays_a_seed() -> None:
    """It names the event hash that a campaign adds up."""
    assert simulate(make_schedule(1)).story.hash() in _run("-m", "tests.simulation", "--replay", "1", "--whole")


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


_PROGRAM = """
from tests.simulation.schedule import make_schedule
from tests.simulation.world import simulate
for seed in {seeds}:
    print(seed, simulate(make_schedule(seed)).story.hash())
"""


def _replay(hash_seed: str) -> str:
    return _run("-c", _PROGRAM.format(seeds=_ORDERED_ONCE), PYTHONHASHSEED=hash_seed)


def _run(*arguments: str, **environment: str) -> str:
    command, environment = [sys.executable, *arguments], os.environ | environment
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
