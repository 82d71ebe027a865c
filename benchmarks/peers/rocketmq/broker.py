"""Starts RocketMQ on loopback, runs `TransactionLoad` on it, ends it. Needs Java 17, javac and Maven."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from bridge.broker.ports import choose_free_port

VERSION = "5.3.3"  # the newest one that rests while it has nothing to do
THREADS = (8, 32, 64)

_HERE = Path(__file__).parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "outbox-bridge" / f"rocketmq-{VERSION}"
_OPEN_S = 60.0
_NAMES = 128, "org.apache.rocketmq.namesrv.NamesrvStartup", "names.conf"  # megabytes, class, settings
_BROKER = 1024, "org.apache.rocketmq.broker.BrokerStartup", "broker.conf"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
# its direct buffers and its serializer reach into the JDK
_JDK_DOORS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)


class PeerUnavailable(Exception):
    """RocketMQ cannot be run here."""


@dataclass(frozen=True, slots=True)
class RocketMq:
    """A running name server and broker."""

    folder: Path
    jars: Path
    name_server: str
    broker_port: int
    processes: list[subprocess.Popen[bytes]]

    def restart_broker(self) -> None:
        """Kills it, and starts it again with what it has on its disk."""
        self.processes[-1].kill()
        self.processes[-1].wait()
        self.processes[-1] = _start(self.folder, self.jars, *_BROKER)
        _await_port(self.broker_port, self.processes[-1])

    def load(self, threads: int, warm_up_s: int, seconds: int, bytes_: int = 1_000) -> dict[str, float]:
        """What `TransactionLoad` measured. Raises PeerUnavailable."""
        return self.load_at(self.name_server, f"bench_{threads}_{bytes_}", threads, warm_up_s, seconds, bytes_)

    def load_at(  # noqa: PLR0917 - as the program has them
        self,
        name_server: str,
        topic: str,
        threads: int,
        warm_up_s: int,
        seconds: int,
        bytes_: int = 1_000,
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, float]:
        """The same against any name server. `tell`: hears each line when it is written."""
        command = [*_java(self.jars, self.folder, 512), "-cp", f"{self.folder / 'classes'}:{self.jars}/*"]
        numbers = [str(number) for number in (threads, warm_up_s, seconds, bytes_)]
        last, program = "", [*command, "TransactionLoad", name_server, topic, *numbers]
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            killer = Timer(warm_up_s + seconds + 60, process.kill)
            killer.start()
            assert process.stdout is not None
            for last in process.stdout:
                if tell is not None:
                    tell(last.strip())
            killer.cancel()
        if process.returncode:
            raise PeerUnavailable(f"the client ended with {process.returncode}: {last}")
        found: dict[str, float] = json.loads(last)
        return found

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It stands still meanwhile: at rest it uses a processor."""
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in self.processes:
                process.send_signal(signal.SIGCONT)


@contextmanager
def running_rocketmq(settings: Mapping[str, str] | None = None) -> Iterator[RocketMq]:
    """`settings`: of the broker. Raises PeerUnavailable where a tool, the network or a port is missing."""
    jars = _fetch()
    with TemporaryDirectory(prefix="rocketmq-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "classes").mkdir()
        _run(["javac", "-cp", f"{jars}/*", "-d", str(folder / "classes"), str(_HERE / "TransactionLoad.java")])
        name_port, broker_port = choose_free_port(), choose_free_port()
        _configure(folder, name_port, broker_port, settings or {})
        started: list[subprocess.Popen[bytes]] = []
        try:
            for port, program in ((name_port, _NAMES), (broker_port, _BROKER)):
                started.append(_start(folder, jars, *program))
                _await_port(port, started[-1])
            yield RocketMq(folder, jars, f"127.0.0.1:{name_port}", broker_port, started)
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()


def _fetch() -> Path:
    """Its jars, from Maven's repository, once."""
    for tool in ("mvn", "java", "javac"):
        if shutil.which(tool) is None:
            raise PeerUnavailable(f"{tool} is missing: install Maven and a JDK of version 17")
    if not _CACHE.exists():
        part = _CACHE.with_name(f"{_CACHE.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        _run(["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), _COPY, f"-DoutputDirectory={part}"], timeout=600)
        part.rename(_CACHE)
    return _CACHE


def _configure(folder: Path, name_port: int, broker_port: int, more: Mapping[str, str]) -> None:
    (folder / "names.conf").write_text(f"listenPort={name_port}\nkvConfigPath={folder}/kv.json\n")
    settings: dict[str, object] = {
        "brokerName": "peer",
        "brokerIP1": "127.0.0.1",
        "listenPort": broker_port,
        "namesrvAddr": f"127.0.0.1:{name_port}",
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "mappedFileSizeCommitLog": 256 * 1024 * 1024,
        "flushDiskType": "ASYNC_FLUSH",
        "autoCreateTopicEnable": "true",
        "diskMaxUsedSpaceRatio": 95,
        "timerWheelEnable": "false",
        **more,
    }
    (folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (folder / "logback.xml").write_text("<configuration><root level='OFF'/></configuration>\n")


def _java(jars: Path, folder: Path, heap_mb: int) -> list[str]:
    quiet = f"-Drmq.logback.configurationFile={folder / 'logback.xml'}"
    return ["java", f"-Xmx{heap_mb}m", "-XX:+UseG1GC", *_JDK_DOORS, f"-Duser.home={folder}", quiet]


def _start(folder: Path, jars: Path, heap_mb: int, main: str, file: str) -> subprocess.Popen[bytes]:
    command = [*_java(jars, folder, heap_mb), "-cp", f"{jars}/*", main, "-c", str(folder / file)]
    with (folder / f"{file}.log").open("wb") as output:
        environment = {**os.environ, "ROCKETMQ_HOME": str(folder)}
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + _OPEN_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise PeerUnavailable("RocketMQ did not start") from None
            time.sleep(0.1)


def _run(command: Sequence[str], timeout: float = 120) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise PeerUnavailable(f"{command[0]}: {done.stderr[-500:] or done.stdout[-500:]}")
    return done.stdout
