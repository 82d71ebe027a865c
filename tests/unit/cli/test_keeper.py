"""api.cli.demo_environment: a command's children do not outlive it."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from api.cli.demo_environment import Keeper, stop_all

DEADLINE_S = 20.0

SLEEPER = "import signal, sys, time; print('up', flush=True); time.sleep(600)"
DEAF_SLEEPER = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"

PARENT = f"""
import subprocess, sys, time
from pathlib import Path
from api.cli.demo_environment import Keeper
keeper = Keeper(Path(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True, stdout=subprocess.DEVNULL)
keeper.keep(child.pid)
print(child.pid, flush=True)
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_children_and_folder_end_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL runs no cleanup of the parent's: the keeper sees its pipe close."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "file").write_text("")
    with subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        deadline = time.monotonic() + DEADLINE_S
        while not is_gone(child) or folder.exists():
            assert time.monotonic() < deadline, "child or folder outlived their parent"
            time.sleep(0.02)


def test_closing_returns_when_the_children_have_ended() -> None:
    """And is harmless for those that ended by themselves."""
    keeper = Keeper()
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL) as child:
        keeper.keep(child.pid)
        keeper.close()
        assert child.wait(DEADLINE_S) == -15


def test_deaf_child_is_killed() -> None:
    """One that ignores SIGTERM gets SIGKILL."""
    with subprocess.Popen([sys.executable, "-c", DEAF_SLEEPER], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stop_all([psutil.Process(child.pid)], timeout_s=0.2)
        assert child.wait(DEADLINE_S) == -9
