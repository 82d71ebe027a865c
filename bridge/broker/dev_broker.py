"""One real Kafka broker on this machine, for development and tests."""

import base64
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bridge.broker.jars import Report, fetch_jars
from bridge.broker.ports import (
    BrokerFailed,
    DataFolderInUse,
    DataFolderUnusable,
    FileLock,
    Java,
    Lifeline,
    PortTaken,
    check_port,
    choose_free_port,
    find_java,
    find_left_over,
    read_tail,
    start_process,
    stop_process,
    write_pid,
)
from bridge.broker.server_properties import (
    FENCED_LINE,
    HOST,
    STARTED_LINE,
    BrokerLayout,
    make_controller_properties,
    make_java_options,
    make_properties,
)

_START_TIMEOUT_S = 90.0
_FENCE_TIMEOUT_S = 20.0  # many of the controller's short sessions
_STOP_TIMEOUT_S = 15.0
_FORMAT_TIMEOUT_S = 60.0
_LOOK_INTERVAL_S = 0.05
_MAX_OUTPUT_BYTES = 10_000_000
_SHOWN_CHARACTERS = 2_000
_PORT_TRIES = 5
_TAKEN_LINE = "Address already in use"
_REMEDY_FOR_TAKEN = "Stop that process, choose another port, or use its Kafka with --kafka HOST:PORT."


class DevBroker:
    """A single-node KRaft broker on loopback; its data outlive it.

    `port` and `controller_port` None: any free one, kept for the life of this object. `settings` overrule
    `server.properties`. The broker stops when this process dies, and not on Ctrl-C; what a SIGKILL left behind
    is stopped by the next `start`. One owner thread at a time.
    """

    def __init__(  # noqa: PLR0913 - named, and all but the first have defaults
        self,
        data_folder: Path,
        *,
        port: int | None = 9092,
        controller_port: int | None = None,
        heap_mb: int = 384,
        is_long_lived: bool = False,
        settings: Mapping[str, str] | None = None,
        jar_folder: Path | None = None,
    ) -> None:
        self._folder = data_folder.absolute()
        self._port = port
        self._controller_port = controller_port
        self._heap_mb = heap_mb
        self._is_long_lived = is_long_lived
        self._settings = dict(settings or {})
        self._jar_folder = jar_folder
        self._lock = FileLock(self._folder / "broker.lock")
        self._process: subprocess.Popen[bytes] | None = None
        self._printed_from = 0
        self._lifeline: Lifeline | None = None
        self._cache: StartCache | None = None

    @property
    def port(self) -> int:
        """Where clients connect; known once `start` was called if none was given."""
        if self._port is None:
            raise BrokerFailed("the broker has no port yet", "Call start first.")
        return self._port

    @property
    def bootstrap(self) -> str:
        """What Kafka clients take as `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of the Java process; None if it does not run."""
        return self._process.pid if self.is_running and self._process else None

    @property
    def is_running(self) -> bool:
        """Whether the process lives; a paused one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def output_file(self) -> Path:
        """What Kafka prints; appended to at each start."""
        return self._folder / "broker.log"

    def start(self, report: Report | None = None) -> None:
        """Returns when clients are answered. `report` is called with the progress of the jars' download, if there is
        one.

        Raises a BrokerError with its remedy, and then has left nothing running.
        """
        if self.is_running:
            return
        self.stop()  # lets go of what is left if it ended by itself
        java, jars = find_java(), fetch_jars(self._jar_folder, report)
        self._take_folder()
        try:
            left_over = find_left_over(self._pid_file, self._folder / "server.properties")
            if left_over is not None:
                stop_process(left_over.pid, self._folder / "server.properties", _STOP_TIMEOUT_S)
            self._pid_file.unlink(missing_ok=True)
            self._cache = StartCache(jars, java)
            options = make_java_options(self._heap_mb, is_long_lived=self._is_long_lived)
            self._start_on_ports((str(java.path), *options, "-cp", f"{jars}/*"))
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """SIGTERM, then SIGKILL after the deadline; harmless if it does not run."""
        self._end_process(timeout_s)
        self._lock.free()

    def kill(self) -> None:
        """SIGKILL; `start` brings it up again on the same data and port."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _end_process(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        if self._lifeline is not None:
            self._lifeline.cut()
            self._lifeline = None
        if self._process is not None:
            if self.is_running:
                stop_process(self._process.pid, self._folder / "server.properties", timeout_s)
            code = self._process.wait()
            self._process = None
            if self._cache is not None:
                self._cache.take_classes(self._folder, is_whole=code != -signal.SIGKILL)
            self._pid_file.unlink(missing_ok=True)

    @property
    def _pid_file(self) -> Path:
        return self._folder / "broker.pid"

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or not self.is_running:
            raise BrokerFailed("the broker does not run", "Call start first.")
        self._process.send_signal(number)

    def _take_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            taken = self._lock.take(wait=False)
        except OSError as error:
            remedy = "Choose another data folder or give yourself the right to write there."
            raise DataFolderUnusable(f"{self._folder} cannot be written: {error}", remedy) from error
        if not taken:
            remedy = "Stop it, or choose another data folder and other ports for this one."
            raise DataFolderInUse(f"a running process keeps its broker in {self._folder}", remedy)

    def _start_on_ports(self, command: tuple[str, ...], tries: int = _PORT_TRIES) -> None:
        """On others, if one that was chosen here, and that nobody knows yet, was taken before Kafka listened."""
        wishes = self._port, self._controller_port
        try:
            # decides the ports, once
            if self._port is None:
                self._port = choose_free_port()
            while self._controller_port in (None, self._port):
                self._controller_port = choose_free_port()
            for port in (self._port, self._controller_port):
                check_port(port, _REMEDY_FOR_TAKEN)
            layout = BrokerLayout(self._folder, self._port, self._controller_port, self._settings)
            if not self._format(layout, command) and layout.is_unclean:
                self._fence(layout, command)
            self._run(layout, command, make_properties(layout, layout.log_folder), layout.folder)
            self._await_line(STARTED_LINE)
        except PortTaken:
            if None not in wishes or tries == 1:
                raise
            self._end_process()
            self._port, self._controller_port = wishes
            self._start_on_ports(command, tries - 1)

    def _format(self, layout: BrokerLayout, command: tuple[str, ...]) -> bool:
        """Makes the log folder, whole or not at all; False if it is there already."""
        if layout.log_folder.exists():
            return False
        assert self._cache is not None
        fresh, properties = layout.folder / "log.new", layout.folder / "format.properties"
        shutil.rmtree(fresh, ignore_errors=True)
        if not self._cache.copy_formatted(fresh):
            properties.write_text(make_properties(layout, fresh))
            options = ("kafka.tools.StorageTool", "format", f"--cluster-id={make_uuid()}", "-c", str(properties))
            _run_to_its_end((*command, *options), layout.folder)
            properties.unlink()
            self._cache.keep_formatted(fresh)
        fresh.rename(layout.log_folder)
        return True

    def _fence(self, layout: BrokerLayout, command: tuple[str, ...]) -> None:
        """Lets the controller alone end the broker's old session, which a start would wait for anyway.

        Otherwise the broker begins as the leader it was before the crash, and for a moment there is none while it
        registers. A marker of a Kafka transaction that falls into that moment is never written, its partitions
        cannot be read any further (KAFKA-20734: no leader is taken for a deleted topic).
        """
        self._run(layout, command, make_controller_properties(layout), None)
        self._await_line(STARTED_LINE)
        with contextlib.suppress(BrokerFailed):  # it may have been fenced before it died
            self._await_line(FENCED_LINE, _FENCE_TIMEOUT_S)
            _await_appended(layout)
        self._end_process()

    def _run(
        self, layout: BrokerLayout, command: tuple[str, ...], properties: str, classes_folder: Path | None
    ) -> None:
        """`classes_folder`: where it may leave its classes when it ends."""
        assert self._cache is not None
        java, *rest = command
        command = (java, *self._cache.make_options(classes_folder), *rest)
        layout.properties_file.write_text(properties)
        if layout.output_file.exists() and layout.output_file.stat().st_size > _MAX_OUTPUT_BYTES:
            layout.output_file.replace(layout.output_file.with_suffix(".log.1"))
        with layout.output_file.open("a") as output:
            self._printed_from = output.tell()
            self._process = start_process((*command, "kafka.Kafka", str(layout.properties_file)), output, layout.folder)
        write_pid(self._pid_file, self._process.pid)
        self._lifeline = Lifeline(self._process.pid, layout.properties_file)

    def _await_line(self, line: str, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Kafka says so itself: STARTED_LINE after its sockets are open and the controller lets it serve."""
        deadline = time.monotonic() + timeout_s
        while line not in (printed := read_tail(self.output_file, self._printed_from)):
            if not self.is_running:
                reason = f"Kafka ended while starting:\n{printed[-_SHOWN_CHARACTERS:]}"
                if _TAKEN_LINE in printed:
                    raise PortTaken(reason, _REMEDY_FOR_TAKEN)
                raise BrokerFailed(reason, _see(self.output_file))
            if time.monotonic() > deadline:
                raise BrokerFailed(f"Kafka did not start in {timeout_s:.0f} s", _see(self.output_file))
            time.sleep(_LOOK_INTERVAL_S)


def _await_appended(layout: BrokerLayout) -> None:
    """Until what the controller has decided is in its log: it tells of that before, and forgets it if it ends now.

    The log is written in order, and an idle controller adds to it. Two additions may have been on their way.
    """
    deadline, seen = time.monotonic() + _FENCE_TIMEOUT_S, layout.count_metadata_bytes()
    for _ in range(3):
        before = seen
        while seen == before and time.monotonic() < deadline:
            time.sleep(_LOOK_INTERVAL_S)
            seen = layout.count_metadata_bytes()


def _run_to_its_end(command: tuple[str, ...], folder: Path) -> None:
    try:
        subprocess.run(  # noqa: S603
            command, cwd=folder, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        printed = f"{error.stdout}{error.stderr}"[-_SHOWN_CHARACTERS:]
        raise BrokerFailed(f"Kafka's storage could not be formatted:\n{printed}", "See the message above.") from error
    except subprocess.TimeoutExpired as error:
        raise BrokerFailed(f"formatting Kafka's storage took over {_FORMAT_TIMEOUT_S:.0f} s", "Try again.") from error


def _see(output_file: Path) -> str:
    return f"Read {output_file}. If the data were damaged, delete {output_file.parent} to begin anew (all messages go)."


# --- what makes the next start short: Kafka's classes in the form a JVM maps (JEP 350), an empty formatted folder ---
# Both lie beside the jars. Classes are written by a broker that ends in peace and found none; where they do not fit,
# Java passes over them.

_CLASSES = "classes.jsa"
_QUIET = ("-Xlog:cds*=error:stderr",)
_META = "meta.properties"
_IDS = ("cluster.id", "directory.id")


class StartCache:
    """Of these jars under this Java. What cannot be kept is not."""

    def __init__(self, jars: Path, java: Java) -> None:
        self._jars = jars
        real = java.path.resolve()
        self._java = hashlib.sha256(f"{real} {real.stat().st_mtime_ns}".encode()).hexdigest()[:12]

    @property
    def _formatted(self) -> Path:
        return self._jars.with_name(f"{self._jars.name}-formatted")

    @property
    def classes(self) -> Path:
        """Another Java cannot read them."""
        return self._jars.with_name(f"{self._jars.name}-{self._java}.jsa")

    def make_options(self, folder: Path | None) -> tuple[str, ...]:
        """For Java: to use the classes that are kept, or to leave its own in `folder`."""
        if self.classes.exists():
            return (f"-XX:SharedArchiveFile={self.classes}", *_QUIET)
        return () if folder is None else (f"-XX:ArchiveClassesAtExit={folder / _CLASSES}", *_QUIET)

    def take_classes(self, folder: Path, *, is_whole: bool) -> None:
        """What the broker has left there, which is kept if it was not killed meanwhile."""
        with contextlib.suppress(OSError):
            if is_whole and (folder / _CLASSES).exists():
                _place(folder / _CLASSES, self.classes)
            (folder / _CLASSES).unlink(missing_ok=True)

    def copy_formatted(self, target: Path) -> bool:
        """An empty log folder with ids of its own; False if none is kept."""
        try:
            shutil.copytree(self._formatted, target)
            lines = (target / _META).read_text().splitlines()
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
            return False
        kept = [line for line in lines if not line.startswith(_IDS)]
        (target / _META).write_text("\n".join([*kept, *(f"{name}={make_uuid()}" for name in _IDS), ""]))
        return True

    def keep_formatted(self, source: Path) -> None:
        """A folder as Kafka's own tool has made it."""
        with contextlib.suppress(OSError):
            _place(source, self._formatted)


def make_uuid() -> str:
    """As Kafka writes them; one that begins with a dash would be taken for an option."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")


def _place(source: Path, target: Path) -> None:
    """A copy, whole or not at all, whoever else does the same."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.") as folder:
        copy = Path(folder, target.name)
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copyfile(source, copy)
        copy.rename(target)
