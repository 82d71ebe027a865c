"""Crash points: what is armed dies there and then, what is not costs nothing and dies nowhere."""

import subprocess
import sys

import pytest

from bridge.core.errors import ConfigError
from bridge.fault_points import ArmedFault, FaultPoint, parse_fault, reach
from tests.support.source_tree import ROOT

_DYING = """
import atexit
from bridge.fault_points import FaultPoint, arm, parse_fault, reach
atexit.register(print, "at exit")
arm(parse_fault("SETTLE_READ:3"))
try:
    for number in range(5):
        reach(FaultPoint.SETTLE_DECIDED)
        print(number, flush=True)
        reach(FaultPoint.SETTLE_READ)
finally:
    print("finally", flush=True)
"""


def test_armed_process_dies_at_the_nth_passing_as_if_killed() -> None:
    """No `finally` and no exit handler runs; other points are passed as ever."""
    done = subprocess.run([sys.executable, "-c", _DYING], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (137, ["0", "1", "2"], "")


def test_unarmed_process_passes_every_point() -> None:
    """Nobody dies who was not told to."""
    for point in FaultPoint:
        reach(point)


def test_fault_is_a_name_and_perhaps_a_passing() -> None:
    """The first one, if no number is given."""
    assert parse_fault("SETTLE_READ") == ArmedFault(FaultPoint.SETTLE_READ, 1)
    assert parse_fault("SETTLE_READ:20") == ArmedFault(FaultPoint.SETTLE_READ, 20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SETTLE_RED", "did you mean SETTLE_READ"),
        ("settle-sent-real", "did you mean SETTLE_SENT_REAL"),
        ("", "see outbox-bridge fault-points"),
        ("SETTLE_READ:", "a number from 1"),
        ("SETTLE_READ:0", "a number from 1"),
        ("SETTLE_READ:-1", "a number from 1"),
        ("SETTLE_READ:two", "a number from 1"),
    ],
)
def test_misspelt_fault_is_refused_with_what_comes_near(text: str, message: str) -> None:
    """A test that arms nothing would pass for the wrong reason."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text)
