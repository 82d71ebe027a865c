"""The command line as real processes: commands, and `dev` with everything it starts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.process_pool import shared_pool

DEADLINE_S = 240.0


NOBODYS_PROXY = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:1")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Without settings of whoever runs the tests."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_BRIDGE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])
    return {**own, "PATH": path, **(extra or {})}


def run_command(
    *arguments: str, folder: Path, settings: Mapping[str, str] | None = None, timeout_s: float = DEADLINE_S
) -> "subprocess.CompletedProcess[str]":
    """One command to its end."""
    return shared_pool().run(["api", *arguments], environment(settings), folder, timeout_s)


@contextmanager
def running(*arguments: str, folder: Path, settings: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """One command, killed at the end if it still runs."""
    words = [sys.executable, "-m", "api", *arguments]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=folder, env=environment(settings), text=True, **quiet) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Until it says so."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not in {DEADLINE_S:.0f} s"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    """Whether the process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass(slots=True)
class DevProcess:
    """A running `outbox-bridge dev`."""

    popen: "subprocess.Popen[str]"
    log: Path
    url: str
    kafka: str
    data: Path

    @property
    def settings(self) -> dict[str, str]:
        """What lets other commands find its Kafka and its database."""
        return {
            "OUTBOX_BRIDGE_KAFKA": json.dumps({"bootstrap.servers": self.kafka}),
            "OUTBOX_BRIDGE_DATA_DIR": str(self.data),
            "OUTBOX_BRIDGE_URL": self.url,
            "BRIDGE": self.url,
        }

    def family(self) -> list[int]:
        """Pids of everything it started, the broker with them."""
        return [child.pid for child in psutil.Process(self.popen.pid).children(recursive=True)]

    def end(self, number: signal.Signals) -> int:
        """Signals it and waits; the exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(DEADLINE_S)


@contextmanager
def running_dev(folder: Path, *arguments: str, settings: Mapping[str, str] | None = None) -> Iterator[DevProcess]:
    """`dev` on free ports, ready; killed at the end if it still runs."""
    log = folder / "dev.log"
    with log.open("a") as errors:
        popen = subprocess.Popen(
            [sys.executable, "-m", "api", "dev", "--port", "0", "-o", "json", *arguments],
            cwd=folder,
            env=environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with popen:
        try:
            assert popen.stdout is not None
            line = popen.stdout.readline()
            assert line, f"dev ended: {log.read_text()}"
            ready = json.loads(line)
            yield DevProcess(popen, log, ready["url"], ready["kafka"], Path(ready["data"]))
        finally:
            if popen.poll() is None:
                popen.terminate()
                try:
                    popen.wait(DEADLINE_S)
                except subprocess.TimeoutExpired:
                    popen.kill()
