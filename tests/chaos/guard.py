"""Ends what a run has started when the run itself ends, in whatever way, so that nothing of it stays behind.

python -m tests.chaos.guard MARK    waits for the end of its standard input
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

MARK = "CHAOS_RUN"  # in the environment of all processes of a run


@contextmanager
def guarded(mark: str) -> Iterator[None]:
    """Marks all processes that this one starts from now on. The system closes the pipe when this one is killed."""
    os.environ[MARK] = mark
    command = (sys.executable, "-m", "tests.chaos.guard", mark)
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # ends the pipe, and waits
        yield


def end_all(mark: str) -> None:
    """SIGKILL to every process of the run but this one, and its disks are let go."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                process.kill()
    for disk in psutil.disk_partitions(all=True):
        if disk.mountpoint.startswith(mark):
            subprocess.run(("umount", "--lazy", disk.mountpoint), capture_output=True, check=False)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_all(sys.argv[1])
