"""What a killed run leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.guard import MARK
from tests.support.source_tree import ROOT

_SLEEPER = (sys.executable, "-c", "import signal; signal.pause()")


def test_nothing_of_a_killed_run_stays(tmp_path: Path) -> None:
    """The end of the run's process closes the pipe: all that carry its mark are killed, paused ones too."""
    ours, others = {**os.environ, MARK: str(tmp_path)}, {**os.environ, MARK: f"{tmp_path}-other"}
    command = (sys.executable, "-m", "tests.chaos.guard", str(tmp_path))
    with (
        subprocess.Popen(_SLEEPER, env=ours) as sleeper,
        subprocess.Popen(_SLEEPER, env=others) as stranger,
        subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as guard,
    ):
        assert guard.stdin is not None
        guard.stdin.close()
        assert sleeper.wait(60) == -9
        assert guard.wait(60) == 0
        assert stranger.poll() is None
        stranger.kill()
