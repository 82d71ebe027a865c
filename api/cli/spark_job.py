"""Runs a Spark job of ours in a process of its own: its progress, its last words, how it ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import FrameType
from typing import IO

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from api.cli.failures import CommandFailed, Exit
from api.cli.output import message_console, printable, say, show_failure
from api.cli.spark_jars import connector_jars, driver_jars
from bridge.broker.errors import BrokerError, JavaMissing
from bridge.broker.jars import FetchProgress
from bridge.broker.java import Java, find_java

NO_VERDICT = Exit.NOT_FOUND  # of these commands 3 says that nothing can be said
_JAVA_VERSIONS = (17, 21)  # the first and the last that Spark 4.0 runs on
_JAVA_REMEDY = "Install a JDK 17 or 21 and set JAVA_HOME to it."
_SIGNALLED = 128  # and the number of the signal, as shells tell it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOLD = re.compile(r"\[ *\d+\.\d s\] (?P<text>.*)")
_LAST_WORDS = 30


@dataclass(frozen=True, slots=True)
class JobResult:
    """`exit_code` of the job; `lines`: what it wrote as its result."""

    exit_code: int
    lines: Sequence[str]


def run_job(
    module: str, given: Mapping[str, object], flags: Sequence[str] = (), databases: Iterable[str] = ()
) -> JobResult:
    """The result of a job that came to one. Ends the command with the job's exit code, and its reason, if it did not.

    `databases`: the kinds that it reads.

    The job is in a process group of its own and is handed every signal once, so that it can end cleanly.
    """
    if find_spec("pyspark") is None:
        raise CommandFailed(NO_VERDICT, "PySpark is not installed", "pip install 'outbox-bridge[spark]'")
    java, jars = _find_java_parts(databases)
    options = [f"{name}={value}" for name, value in {**given, "--jars": jars}.items() if value not in {None, ""}]
    environment = {**os.environ, "JAVA_HOME": str(java.path.resolve().parents[1]), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", module, *options, *flags]
    with tempfile.TemporaryFile("w+") as result:
        popen = subprocess.Popen(  # noqa: S603
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=result,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
        with popen, _handing_on(popen):
            assert popen.stderr is not None
            said = _follow(popen.stderr)
            code = popen.wait()
        result.seek(0)
        lines = result.read().splitlines()
    return _conclude(code if code >= 0 else _SIGNALLED - code, lines, said)


def _conclude(code: int, lines: Sequence[str], said: "_Said") -> JobResult:
    """A verdict counts only with its result: Python ends with 1 for a defect too."""
    if code in {0, 1, 4} and lines:
        return JobResult(code, lines)
    if code > _SIGNALLED:
        say("stopped; what was begun does not count, and the next run reads the same again", "yellow")
    else:
        if not said.reason or any(line.startswith("Traceback") for line in said.rest):
            for line in said.rest:
                say(f"  {line}", "dim")
        reason = said.reason or f"the job has ended with {code}; its last words are above"
        show_failure(CommandFailed(Exit.FAILED, reason, said.remedy))
    raise typer.Exit(NO_VERDICT if code in {0, 1, 4} else code)


@dataclass(slots=True)
class _Said:
    """What the job wrote to standard error besides its progress."""

    reason: str
    remedy: str
    rest: "deque[str]"


def _follow(stream: "IO[str] | Iterable[str]") -> _Said:
    """Shows the job's steps as they come; what Java and Spark say besides is kept for a bad end."""
    said = _Said("", "", deque(maxlen=_LAST_WORDS))
    with _steps() as show:
        for line in (line.rstrip("\n") for line in stream):
            told = _TOLD.fullmatch(line)
            if told is not None:
                show(line, told["text"])
            elif line.startswith("error: "):
                said.reason = printable(line.removeprefix("error: "))
            elif line.startswith("what to do: "):
                said.remedy = printable(line.removeprefix("what to do: "))
            else:
                said.rest.append(printable(line))
    return said


@contextmanager
def _steps() -> Iterator[Callable[[str, str], None]]:
    """Shows a step: on a terminal below those before it, with the time that runs; elsewhere a line each."""
    console = message_console()
    if not console.is_terminal:
        yield lambda line, _: console.print(Text(line))
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting Spark")

        def show(line: str, text: str) -> None:
            console.print(Text(printable(line), style="dim"))
            progress.update(task, description=printable(text))

        yield show


@contextmanager
def _handing_on(job: "subprocess.Popen[str]") -> Iterator[None]:
    """Signals go to the job, until it has ended."""

    def hand_on(number: int, _: FrameType | None) -> None:
        job.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _find_java_parts(databases: Iterable[str]) -> tuple[Java, str]:
    """Java and the jars. No verdict without them: 1 would say that something was found."""
    try:
        java = find_java()
        if not _JAVA_VERSIONS[0] <= java.major <= _JAVA_VERSIONS[1]:
            reason = f"{java.path} is Java {java.major}, on which Spark does not run"
            raise CommandFailed(NO_VERDICT, reason, _JAVA_REMEDY)
        jars = (*connector_jars(_tell_jar), *driver_jars(databases, _tell_jar))
        return java, ",".join(map(str, jars))
    except BrokerError as error:
        remedy = _JAVA_REMEDY if isinstance(error, JavaMissing) else error.remedy
        raise CommandFailed(NO_VERDICT, error.reason, remedy) from error


def _tell_jar(progress: FetchProgress) -> None:
    say(f"fetched {progress.name} ({progress.fetched} of {progress.total})")
