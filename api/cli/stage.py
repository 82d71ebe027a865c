"""The processes of the demo: the bridge with its Kafka, a shop, a consumer. Real ones, each in a session of its own."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from api.cli.failures import CommandFailed, Exit
from api.cli.http_calls import client_for
from api.cli.keeper import STOP_TIMEOUT_S, Keeper

T = TypeVar("T")

_LOOK_INTERVAL_S = 0.05
_SHOWN_CHARACTERS = 2_000


class Stage:
    """Starts processes in a folder of their own, and whatever happens leaves neither behind."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="outbox-bridge-demo-"))
        self._keeper = Keeper(self.folder)
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str], settings: Mapping[str, str] | None = None) -> "Actor":
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
        return Actor(name, process, *paths)

    def stop(self, *actors: "Actor") -> None:
        """Ends them, and forgets what they printed."""
        for actor in actors:
            _end(actor.process)
            actor.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The keeper ends them in order even if we are interrupted here."""
        for process in reversed(self._running):
            _end(process)
        self._keeper.close()


class Actor:
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
