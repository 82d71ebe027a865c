"""The examples as processes: against the built wheel, in a virtual environment that knows nothing of this checkout."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx2

from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import wait_until
from tests.support.faulty_front import Exchange, Fault, let_through
from tests.support.source_tree import ROOT

EXAMPLES = ROOT / "examples"
_TIMEOUT_S = 400  # the first build of Go compiles its library
_OLDEST_SQLALCHEMY = "2.0.43"


def build_environment(folder: Path) -> Path:
    """The Python of a new virtual environment with the wheel of this checkout and what the examples require.

    With the oldest SQLAlchemy that the SDK takes: all else is tested with the newest. From uv's cache where that has
    everything, else from the registry.
    """
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")], cwd=ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(folder / "venv")])
    python = folder / "venv" / "bin" / "python"
    required = sorted(EXAMPLES.glob("*/requirements.txt"))
    wanted = [argument for path in required for argument in ("-r", str(path))]
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    command = [*install, *wanted, f"sqlalchemy=={_OLDEST_SQLALCHEMY}", f"outbox-bridge @ {wheel.as_uri()}"]
    if run([*command, "--offline"], is_checked=False).returncode != 0:
        run(command)
    return python


def install_wheel(folder: Path, wheel: Path) -> Path:
    """The programs of a new virtual environment that has the wheel, and nothing of what it requires."""
    uv = [sys.executable, "-m", "uv"]
    run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")])
    programs = folder / "venv" / "bin"
    run([*uv, "pip", "install", "--quiet", "--python", str(programs / "python"), "--no-deps", str(wheel)])
    return programs


def run(
    command: Sequence[str], *, cwd: Path = ROOT, settings: Mapping[str, str] | None = None, is_checked: bool = True
) -> "subprocess.CompletedProcess[str]":
    """One command to its end."""
    done = subprocess.run(
        command, cwd=cwd, env=environment(settings), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0 or not is_checked, done.stdout + done.stderr
    return done


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Without anything that leads to this checkout, and without traces in the examples' folders."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_BRIDGE_", "PYTHONPATH"))}
    return {**own, "PYTHONDONTWRITEBYTECODE": "1", **(settings or {})}


@dataclass(slots=True)
class ExampleProcess:
    """A program of an example: started, killed and started again at the same port."""

    command: Sequence[str]
    folder: Path
    settings: Mapping[str, str]
    log: Path
    port: int = field(default_factory=choose_free_port)
    _popen: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """A process that may not be ready yet."""
        command = [part.replace("{port}", str(self.port)) for part in self.command]
        settings = {name: value.replace("{port}", str(self.port)) for name, value in self.settings.items()}
        with self.log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait_answering(self, path: str) -> Self:
        """Returns when it answers HTTP."""
        wait_until(lambda: self._is_answering(path), 60, f"{self.folder.name} answers")
        return self

    def wait_ended(self) -> int:
        """Its exit code."""
        assert self._popen is not None
        return self._popen.wait(_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL to it and all that it started. May be called by any thread."""
        if self._popen is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait(30)

    def end(self) -> int:
        """SIGTERM; the exit code."""
        assert self._popen is not None
        self._popen.terminate()
        return self._popen.wait(30)

    def _is_answering(self, path: str) -> bool:
        assert self._popen is not None
        assert self._popen.poll() is None, self.log.read_text()[-3000:]
        try:
            return httpx2.get(self.url + path, timeout=5).status_code < 500
        except httpx2.TransportError:
            return False


def killing_before(path_end: str, kill: Callable[[], None]) -> Fault:
    """The caller is killed when it sends this: the bridge never hears of it."""

    def fault(exchange: Exchange) -> None:
        if not exchange.asked.path.endswith(path_end):
            let_through(exchange)
            return
        kill()
        exchange.cut()

    return fault


def killing_after(path_end: str, kill: Callable[[], None], told: list[str]) -> Fault:
    """The bridge does it, and the caller is killed before the answer comes, which is added to `told`."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        if not exchange.asked.path.endswith(path_end):
            exchange.answer(answer.status_code, answer.content, answer.headers)
            return
        kill()
        told.append(answer.text)
        exchange.cut()

    return fault


def copy_without_traces(example: str, folder: Path) -> Path:
    """The example's folder, elsewhere: what it writes beside itself stays there."""
    return Path(shutil.copytree(EXAMPLES / example, folder / example, ignore=shutil.ignore_patterns("__pycache__")))
