"""Processes of Python that start at once: forked from one that has imported everything and done nothing.

Imports are most of what a process of the bridge costs to start, seconds of processor time. A child has the
arguments, environment, folder and output that it was given and runs what `python -m` runs; it is killed, and ends,
like any other.

with ProcessPool() as pool:
    child = pool.start(["api", "serve", "--port", "0"], environment, folder, log)
    assert child.wait(30) == 0

`shared_pool()` is one for the whole run of tests.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from tests.support.source_tree import ROOT

_MOST_OPEN = 64
_MODULES = (
    "alembic.config", "api.cli.main", "api.migration", "api.process", "bridge.sql.engine", "encodings.idna",
    "mako.template", "outbox.ddl", "psycopg", "rich.progress", "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite", "sqlalchemy.ext.compiler", "tests.support.settler_world", "typer._adapters",
    "uvicorn.lifespan.off", "uvloop",
)  # fmt: skip


class Child:
    """What `subprocess.Popen` offers of a process, as far as tests need it."""

    def __init__(self, args: Sequence[str]) -> None:
        self.args = args
        self.pid = 0
        self.returncode: int | None = None
        self.started = threading.Event()
        self.ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # ended, and its parent has not told yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ProcessPool:
    """The forking process, and its children. At its end they are killed."""

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.process_pool"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children.values():
            child.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._thread.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        errors: Path | None = None,
        *,
        is_shielded: bool = False,
    ) -> Child:
        """What follows `python -m`; its output goes to the end of `log`, its errors to that of `errors`.

        `is_shielded`: from Ctrl-C in the terminal, by a group of its own.
        """
        child = Child([sys.executable, "-m", *command])
        for path in (log, errors or log):
            path.touch()  # whoever reads it need not wait for the child
        wish = {
            "command": list(command),
            "environment": dict(environment),
            "folder": str(folder),
            "outputs": [str(log), str(errors or log)],
            "is_shielded": is_shielded,
        }
        assert self._process.stdin is not None
        with self._lock:
            tag = len(self._children)
            self._children[tag] = child
            self._process.stdin.write(json.dumps({"tag": tag, **wish}) + "\n")
            self._process.stdin.flush()
        assert child.started.wait(240), "the forking process does not answer"  # at first it imports
        return child

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float
    ) -> "subprocess.CompletedProcess[str]":
        """The same to its end. Raises subprocess.TimeoutExpired, and has killed it then."""
        with tempfile.TemporaryDirectory() as told:
            out, errors = Path(told, "out"), Path(told, "errors")
            child = self.start(command, environment, folder, out, errors)
            try:
                code = child.wait(timeout_s)
            finally:
                child.kill()
            return subprocess.CompletedProcess(list(command), code, out.read_text(), errors.read_text())

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            child = self._children[told["tag"]]
            if "code" in told:
                child.returncode = told["code"]
                child.ended.set()
            else:
                child.pid = told["pid"]
                child.started.set()


@functools.cache
def shared_pool() -> ProcessPool:
    """Started when it is asked for first, ended with this process."""
    pool = ProcessPool()
    atexit.register(pool.__exit__, None, None, None)
    return pool.__enter__()


# --- in the forking process ---


def _run_child(wish: dict[str, Any]) -> None:
    """Becomes the process that was wished for. Does not return."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.closerange(3, _MOST_OPEN)  # what the forking process listens to
    outputs = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in wish["outputs"]]
    for source, target in zip((os.open(os.devnull, os.O_RDONLY), *outputs), (0, 1, 2), strict=True):
        os.dup2(source, target)
    os.closerange(3, _MOST_OPEN)
    if wish["is_shielded"]:
        os.setpgid(0, 0)
    os.chdir(wish["folder"])
    os.environ.clear()
    os.environ.update(wish["environment"])
    sys.path[0] = wish["folder"]
    sys.path.append(str(ROOT))
    if os.environ.get("PYTHONWARNINGS") == "error":  # which is read at the start of a process
        warnings.simplefilter("error")
    code = _run(*wish["command"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(module: str, *arguments: str) -> int:
    """The module as a program; its exit code."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python ends a program
        traceback.print_exc()
        return 1
    return 0


def _reap(tags: dict[int, int]) -> None:
    while tags:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        print(json.dumps({"tag": tags.pop(pid), "code": os.waitstatus_to_exitcode(status)}), flush=True)  # noqa: T201


def _serve() -> None:
    """Forks what is asked for on standard input, line by line, and tells who was born and who has died."""
    for module in _MODULES:
        __import__(module)
    gc.freeze()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, _note)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    tags: dict[int, int] = {}
    rest = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if woken in ready:
            os.read(woken, 4_096)
        _reap(tags)
        if 0 not in ready:
            continue
        received = os.read(0, 65_536)
        if not received:
            return
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            wish = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _run_child(wish)
            tags[pid] = wish["tag"]
            print(json.dumps({"tag": wish["tag"], "pid": pid}), flush=True)  # noqa: T201


def _note(_: int, __: FrameType | None) -> None:
    """The wake-up is what counts."""


if __name__ == "__main__":
    _serve()
