"""What the demo runs in: processes, folders and steps; all end with the command, however it ends.

Runs as a process beside the command: reads a pid a line, and when its standard input ends it stops the newest
first. The pipe closes whatever the command dies of.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2
import psutil
from rich.status import Status
from rich.text import Text

from api.cli.connect import client_for
from api.cli.output import CommandFailed, Exit, message_console
from bridge.broker.jars import FetchProgress

STOP_TIMEOUT_S = 20.0
_KILL_TIMEOUT_S = 5.0
_KEEPER_INTERVAL_S = 0.02


class Keeper:
    """The command's end of the pipe. `folder` is removed at the end."""

    def __init__(self, folder: Path | None = None) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "api.cli.demo_environment", *([str(folder)] if folder else [])],
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
        time.sleep(_KEEPER_INTERVAL_S)
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


_EVERY = 10  # jars, for a line where no bar can be drawn


class Steps:
    """One step after the other, each with the time it took."""

    def __init__(self) -> None:
        self._console = message_console()
        self._status: Status | None = None
        self._start = self._step_start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the first step."""
        return time.monotonic() - self._start

    def begin(self, name: str) -> None:
        """A step has begun."""
        self._step_start = time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(f"starting {name} ...")
            self._status.start()

    def end(self, text: str) -> None:
        """The step has come to its end."""
        self.close()
        took = time.monotonic() - self._step_start
        self._console.print(Text.assemble(("  ok ", "green"), text, (f"  {took:.1f} s", "dim")))

    def report_jars(self, progress: FetchProgress) -> None:
        """Kafka's jars are being fetched."""
        done = f"fetching Kafka, once: {progress.fetched} of {progress.total} jars"
        if self._status is not None:
            width = 24 * progress.fetched // progress.total
            self._status.update(f"{done} [green]{'━' * width}[/green][dim]{'━' * (24 - width)}[/dim]")
        elif progress.fetched % _EVERY == 0 or progress.fetched in {1, progress.total}:
            self._console.print(Text(f"  {done}"))

    def close(self) -> None:
        """No step runs any more."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


T = TypeVar("T")

_LOOK_INTERVAL_S = 0.05
_SHOWN_CHARACTERS = 2_000


class DemoEnvironment:
    """Starts processes in a folder of their own, and whatever happens leaves neither behind."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="outbox-bridge-demo-"))
        self._keeper = Keeper(self.folder)
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str], settings: Mapping[str, str] | None = None) -> "DemoProcess":
        """A process; what it prints goes to files in the folder."""
        paths = self.folder / f"{name}.out", self.folder / f"{name}.log"
        own = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_BRIDGE_")}
        with paths[0].open("ab") as out, paths[1].open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                cwd=self.folder,
                env={**own, "PYTHONUNBUFFERED": "1", **(settings or {})},
                start_new_session=True,
            )
        self._keeper.keep(process.pid)
        self._running.append(process)
        return DemoProcess(name, process, *paths)

    def stop(self, *actors: "DemoProcess") -> None:
        """Ends them, and forgets what they printed."""
        for actor in actors:
            _end(actor.process)
            actor.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The keeper ends them in order even if we are interrupted here."""
        for process in reversed(self._running):
            _end(process)
        self._keeper.close()


class DemoProcess:
    """One process of the demo."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], out: Path, log: Path) -> None:
        self.name = name
        self.process = process
        self._out = out
        self._log = log

    def until(self, find: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """What `find` gives as soon as it gives something. Raises CommandFailed if the process ends before."""
        deadline = time.monotonic() + timeout_s
        while (found := find()) is None:
            if self.process.poll() is not None:
                raise self._failed(f"the {self.name} ended with code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise self._failed(f"{what} did not happen within {timeout_s:.0f} s")
            time.sleep(_LOOK_INTERVAL_S)
        return found

    @property
    def found_port_taken(self) -> bool:
        """Whether it ended because somebody else listens where it should."""
        return self.process.poll() not in {None, 0} and "in use" in self._read_log()

    def forget(self) -> None:
        """Removes what it printed."""
        self._out.unlink()
        self._log.unlink()

    def first_line(self) -> dict[str, Any] | None:
        """The JSON it printed when it was ready."""
        line, end, _ = self._out.read_text().partition("\n")
        return dict(json.loads(line)) if end else None

    def answers(self, url: str) -> bool | None:
        """Whether it listens already; None if not."""
        try:
            return True if client_for(url).get(url, timeout=1).is_success else None
        except httpx2.TransportError:
            return None

    def _failed(self, reason: str) -> CommandFailed:
        printed = self._read_log()
        return CommandFailed(
            Exit.FAILED, f"{reason}\n{printed}" if printed else reason, "`outbox-bridge doctor` looks for causes."
        )

    def _read_log(self) -> str:
        return self._log.read_text(errors="replace")[-_SHOWN_CHARACTERS:].strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def find_shop() -> Path:
    """The folder of the example shop, in a checkout of the project."""
    folder = Path(__file__).parents[2] / "examples" / "shop"
    if not (folder / "shop.py").is_file():
        raise CommandFailed(Exit.FAILED, "the example shop is not here", "Run the demo from a checkout of the project.")
    return folder
