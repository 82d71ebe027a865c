"""Ends a command's child processes, and removes its folder, when the command dies in any way, SIGKILL included.

Runs as a process beside the command: told pids line by line, and when its standard input ends it stops the newest
first. The pipe closes whatever the command dies of.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 20.0
_KILL_TIMEOUT_S = 5.0
_LOOK_INTERVAL_S = 0.02


class Keeper:
    """The command's end of the pipe. `folder` is removed at the end."""

    def __init__(self, folder: Path | None = None) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "api.cli.keeper", *([str(folder)] if folder else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def keep(self, pid: int) -> None:
        """From now on this child does not outlive us."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % pid)
        self._process.stdin.flush()

    def close(self) -> None:
        """Stops what still runs; returns when it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def stop_all(children: Sequence[psutil.Process], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """SIGTERM to one after the other, newest first, and SIGKILL to those that do not listen."""
    for child in reversed(children):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
            if not _has_ended(child, timeout_s):
                child.kill()
                _has_ended(child, _KILL_TIMEOUT_S)


def _has_ended(child: psutil.Process, timeout_s: float) -> bool:
    """Whether it did within the time. One that its parent has not reaped yet has ended, too."""
    deadline = time.monotonic() + timeout_s
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_INTERVAL_S)
    return True


def main() -> None:
    """Remembers who a pid was: it may be somebody else's later."""
    children = []
    for line in sys.stdin.buffer:
        with contextlib.suppress(psutil.NoSuchProcess):
            children.append(psutil.Process(int(line)))
    stop_all(children)
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
