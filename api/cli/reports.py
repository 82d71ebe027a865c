"""`report`: runs on Spark, its drivers, and what it shows."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import webbrowser
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any

import msgspec
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from api.cli.connect import DEFAULT_URL, ConfigOption, UrlOption, find_all, load
from api.cli.groups import tell_findings
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    WholeSentences,
    encode,
    message_console,
    print_line,
    printable,
    say,
    show_document,
    show_failure,
    show_rows,
)  # fmt: skip
from api.cli.repairs import AUDIT, DONE, NOT_NEEDED, WANTED, find_run, find_runs, read_proposals, work_through
from bridge.broker.jars import JarSet, MavenRepository, Report, default_jar_folder, fetch_jars, parse_pins
from bridge.broker.ports import BrokerError, Java, JavaMissing, find_java
from spark.errors import BadUsage
from spark.judge.findings import ADVICE
from spark.judge.rules import FindingKind
from spark.options import SPARK_VERSION, read_json
from spark.read.table_list import MARIADB, POSTGRESQL, SQLITE, kinds_of, parse_tables

_DRIVER_PINS = "jdbc-drivers.sha256"
_DRIVERS = {POSTGRESQL: "postgresql", SQLITE: "sqlite-jdbc", MARIADB: "mariadb-java-client"}


def driver_jars(kinds: Iterable[str], report: Report | None = None) -> Sequence[Path]:
    """A JDBC driver for each kind of database. Raises JarsUnavailable, JarCorrupt, CacheUnusable."""
    pins = parse_pins((files("spark") / _DRIVER_PINS).read_text())
    jars = []
    for kind in sorted(kinds):
        wanted = tuple(pin for pin in pins if pin.name.startswith(f"{_DRIVERS[kind]}-"))
        name = f"jdbc-{wanted[0].name.removesuffix('.jar')}"
        folder = fetch_jars(default_jar_folder().with_name(name), report, JarSet(wanted, MavenRepository()))
        jars += [folder / pin.name for pin in wanted]
    return jars


NO_VERDICT = Exit.NOT_FOUND  # of these commands 3 says that nothing can be said
_JAVA_VERSIONS = (17, 21)  # the first and the last that Spark 4.0 runs on
_SPARK_REMEDY = "pip install 'outbox-bridge[spark]'"
_JAVA_REMEDY = "Install a JDK 17 or 21 and set JAVA_HOME to it."
_SIGNALLED = 128  # and the number of the signal, as shells show it
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
        raise CommandFailed(NO_VERDICT, "PySpark is not installed", _SPARK_REMEDY)
    if (found := version("pyspark")) != SPARK_VERSION:  # which may not even have what the job imports
        raise CommandFailed(NO_VERDICT, f"PySpark is {found}, not {SPARK_VERSION}", _SPARK_REMEDY)
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
        jars = driver_jars(databases, lambda jar: say(f"fetched {jar.name} ({jar.fetched} of {jar.total})"))
        return java, ",".join(map(str, jars))
    except BrokerError as error:
        remedy = _JAVA_REMEDY if isinstance(error, JavaMissing) else error.remedy
        raise CommandFailed(NO_VERDICT, error.reason, remedy) from error


report = typer.Typer(
    cls=WholeSentences,
    no_args_is_help=True,
    help="Prove from Kafka that what was committed is what consumers can read.",
)

_OUT = Path(".outbox-bridge/reports")
_LANDED = Path(".outbox-bridge/landed")
_SELFTEST_OUT = Path(".outbox-bridge/selftest")
_MOST_GROUPS = 100_000
_KIND_COLUMNS: Sequence[Column] = [("KIND", "kind"), ("FINDINGS", "findings"), ("MEANING", "means")]
_REPAIR_COLUMNS: Sequence[Column] = [
    ("TRANSACTION", "transaction_id"),
    ("KIND", "kind"),
    ("CALL", lambda row: row["call"].rpartition("/")[2] + (f" {row['body']['resolution']}" if row["body"] else "")),
    ("REMARK", lambda row: row.get("remark")),
    ("STATE", "state"),
    ("RESULT", "result"),
]
_IS_FILE = {"exists": True, "dir_okay": False, "readable": True}

OutOption = Annotated[Path, typer.Option("--out", help="Folder of the runs; each gets a numbered one inside.")]
CoresOption = Annotated[int, typer.Option("--cores", min=0, help="Processors of this machine; 0: all.")]
MemoryOption = Annotated[int, typer.Option("--memory-mb", min=512, help="Java heap.")]
WindowOption = Annotated[
    Path | None, typer.Option("--window", help="window.json of another run: read the same.", **_IS_FILE)
]
ThresholdsOption = Annotated[
    Path | None, typer.Option("--thresholds", help='JSON: findings let pass, as {"kinds": {"STALE": 5}}.', **_IS_FILE)
]
ReceiptsOption = Annotated[bool, typer.Option("--by-receipts", help="Records had no header while it was switched off.")]
LandedOption = Annotated[
    Path | None, typer.Option("--landed", help="Read what `report land`, or another run, has landed; not Kafka.")
]


@report.command(epilog="Example: outbox-bridge report run --since-last --strict")
def run(  # noqa: PLR0913, PLR0917 - a setting is an option
    out: OutOption = _OUT,
    topics: Annotated[str, typer.Option("--topics", help="Real topics, comma-separated; all if left out.")] = "",
    since_last: Annotated[bool, typer.Option("--since-last", help="Only what came since the last run.")] = False,
    window: WindowOption = None,
    landed: LandedOption = None,
    thresholds: ThresholdsOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 for warnings.")] = False,
    tables: Annotated[Path | None, typer.Option("--tables", help="JSON: producers' own tables to compare.")] = None,
    by_receipts: ReceiptsOption = False,
    cores: CoresOption = 0,
    memory_mb: MemoryOption = 1_024,
    url: UrlOption = DEFAULT_URL,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read a window of Kafka, judge every transaction, write a report for people and programs. Writes to no topic.

    Exit codes: 0 nothing wrong, 1 findings over the threshold, 2 usage, 3 no verdict, 4 warnings with --strict.
    """
    settings = load(config)
    given: dict[str, object] = {"--topics": topics, "--window": window, "--landed": landed, "--thresholds": thresholds}
    given["--tables"] = tables
    flags = [name for name, is_given in (("--since-last", since_last), ("--strict", strict)) if is_given]
    flags += ["--by-receipts"] if by_receipts or not settings.transaction_id_header else []
    given |= {"--out": out, "--cores": cores, "--memory-mb": memory_mb, "--prefix": settings.topics.prefix}
    with tempfile.TemporaryDirectory(prefix="outbox-bridge-report-") as folder:
        given["--kafka-options"] = _write(Path(folder) / "kafka.json", settings.kafka)
        groups = _fetch_groups(url)
        if groups is not None:
            given["--groups"] = _write(Path(folder) / "groups.json", groups)
        result = run_job("spark.reconcile", given, flags, () if tables is None else _kinds_of(tables))
    if groups is not None:
        tell_findings(url, Path(result.lines[-1]).parent)
    _show_run(result, output)


@report.command(epilog="Example: outbox-bridge report land; outbox-bridge report run --since-last --landed DIR")
def land(
    out: Annotated[Path, typer.Option("--out", help="Folder of what is landed.")] = _LANDED,
    topics: Annotated[str, typer.Option("--topics", help="Real topics, comma-separated; all if left out.")] = "",
    by_receipts: ReceiptsOption = False,
    cores: CoresOption = 0,
    memory_mb: MemoryOption = 1_024,
    config: ConfigOption = None,
) -> None:
    """Land what came since the last landing into Parquet, as hashes, for runs with --landed. To be run each minute.

    May be ended at any time: the next one goes on. Exit codes: 0 landed, 2 usage, 3 not landed.
    """
    settings = load(config)
    given: dict[str, object] = {"--out": out, "--topics": topics, "--cores": cores, "--memory-mb": memory_mb}
    with tempfile.TemporaryDirectory(prefix="outbox-bridge-report-") as folder:
        given |= {
            "--prefix": settings.topics.prefix,
            "--kafka-options": _write(Path(folder) / "kafka.json", settings.kafka),
        }
        flags = ["--by-receipts"] if by_receipts or not settings.transaction_id_header else []
        for line in run_job("spark.landing", given, flags).lines:
            print_line(line)


@report.command(epilog='Example: spark-submit --master yarn "$(outbox-bridge report job)" --kafka broker:9092')
def job() -> None:
    """Where the file is that `spark-submit` starts, for runs on a cluster."""
    print_line(str(files("spark") / "submit.py"))


@report.command(epilog="Example: outbox-bridge report selftest --transactions 100000")
def selftest(  # noqa: PLR0913, PLR0917 - a setting is an option
    out: OutOption = _SELFTEST_OUT,
    transactions: Annotated[int, typer.Option("--transactions", min=1, help="Ordinary ones.")] = 10_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each anomaly is planted.")] = 10,
    cores: CoresOption = 0,
    memory_mb: MemoryOption = 1_024,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Plant every kind of anomaly in topics made for it, run the job on them, and compare. Deletes the topics.

    Exit codes: 0 all found and nothing else, 1 not so, 2 usage, 3 no verdict.
    """
    settings = load(config)
    given: dict[str, object] = {"--out": out, "--transactions": transactions, "--rounds": rounds}
    given |= {"--cores": cores, "--memory-mb": memory_mb}
    with tempfile.TemporaryDirectory(prefix="outbox-bridge-report-") as folder:
        given["--kafka-options"] = _write(Path(folder) / "kafka.json", settings.kafka)
        result = run_job("spark.selftest.run", given, databases=[SQLITE])
    _show_selftest(result, output)


@report.command(epilog="Example: outbox-bridge report repair .outbox-bridge/reports/000001 --apply")
def repair(
    folder: Annotated[Path, typer.Argument(help="A run's folder; of a folder of runs the last one.")] = _OUT,
    apply: Annotated[bool, typer.Option("--apply", help="Send the calls; without it they are only shown.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what could be done about findings, and do it with --apply. Each transaction is looked at again before.

    Only calls that cannot make anything worse are proposed: to ask a group again, to settle what is recorded. What is
    sent and answered is written to repaired.jsonl beside the report, and audited by the bridge.
    Exit codes: 0 all done or nothing to do, 1 some were not done, 2 usage, 3 no report there, 5 no bridge answers.
    """
    run_folder = find_run(folder)
    rows = list(work_through(url, run_folder, read_proposals(run_folder), is_applied=apply))
    if rows or output is not Output.TABLE:
        show_rows(rows, _REPAIR_COLUMNS, output)
    results = Counter(row["result"] for row in rows)
    known = results[DONE] + results[WANTED] + results[NOT_NEEDED]
    if not rows:
        say(f"{run_folder} proposes nothing")
    elif results[WANTED]:
        say(f"nothing was sent; --apply sends the {results[WANTED]} that are wanted")
    elif apply:
        say(f"{results[DONE]} sent; {run_folder / AUDIT} says what was answered. The next run shows what came of it")
    if known < len(rows):
        reason = f"{len(rows) - known} of {len(rows)} were not done, or nobody knows whether they were"
        raise CommandFailed(Exit.FAILED, reason, "Each row says why.")


@report.command("list", epilog="Example: outbox-bridge report list")
def list_runs(out: OutOption = _OUT, output: OutputOption = Output.TABLE) -> None:
    """The runs in a folder, newest first: when, and what was found."""
    rows = [_read_run(run) for run in reversed(find_runs(out))]
    names = ("run", "taken_at", "findings", "sentence")
    show_rows(rows, [(name.replace("_", " ").upper(), name) for name in names], output)


@report.command(epilog="Example: outbox-bridge report show --open")
def show(
    folder: Annotated[Path, typer.Argument(help="A run's folder; of a folder of runs the last one.")] = _OUT,
    is_opened: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a run has found, and where its page is."""
    run_folder = find_run(folder)
    page = run_folder / "report.html"
    if output is not Output.TABLE:
        show_document((run_folder / "summary.json").read_bytes(), output)
    else:
        print_line(_read_run(run_folder)["sentence"])
        print_line(str(page))
    if is_opened and not webbrowser.open(page.absolute().as_uri()):
        raise CommandFailed(Exit.FAILED, "no browser could be started", f"Open {page} by hand.")


def _read_run(run: Path) -> dict[str, Any]:
    """A line of the list. Raises CommandFailed."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        taken_at, findings = summary["window"]["taken_at"], summary["findings"]["total"]
        return {"run": run.name, "taken_at": taken_at, "findings": findings, "sentence": summary["sentence"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "Let `report run` write it anew."
        raise CommandFailed(Exit.FAILED, f"{run} holds no summary that can be read", remedy) from error


def _show_run(result: JobResult, output: Output) -> None:
    """The verdict, what was found by kind, and as the last line where the report is."""
    page = Path(result.lines[-1])
    if output is not Output.TABLE:
        summary = msgspec.Raw((page.parent / "summary.json").read_bytes())
        show_document(encode({"folder": str(page.parent), "report": str(page), "summary": summary}), output)
    else:
        print_line(result.lines[-2])
        kinds = json.loads((page.parent / "summary.json").read_text(encoding="utf-8"))["findings"]["by_kind"]
        if kinds:
            rows = [
                {"kind": kind, "findings": kinds[kind], "means": ADVICE[FindingKind(kind)].meaning} for kind in kinds
            ]
            show_rows(rows, _KIND_COLUMNS)
        print_line(str(page))
    if (page.parent / "repair.jsonl").stat().st_size:
        say(f"what can be done: outbox-bridge report repair {page.parent}")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _show_selftest(result: JobResult, output: Output) -> None:
    """What was planted and found; as the last line where its report is."""
    page = Path(result.lines[-1])
    if output is Output.TABLE:
        for line in result.lines:
            print_line(line)
    else:
        truth = msgspec.Raw((page.parent / "selftest.json").read_bytes())
        show_document(encode({"folder": str(page.parent), "report": str(page), "selftest": truth}), output)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _kinds_of(tables: Path) -> Iterable[str]:
    """The kinds of databases that a file of tables names."""
    try:
        return kinds_of(parse_tables(read_json(tables)))
    except BadUsage as error:
        raise CommandFailed(Exit.USAGE, error.reason, error.remedy) from error


def _fetch_groups(url: str) -> dict[str, Any] | None:
    """The groups' settings; without them checks are judged by the bounds of all settings."""
    try:
        listed, _ = find_all(url, "/v1/producer-groups", "producer_groups", {}, _MOST_GROUPS)
        return {"producer_groups": [msgspec.json.decode(group) for group in listed]}
    except CommandFailed as failure:
        say(f"check limits of the groups are not known ({failure.reason}); only impossible ones are findings")
        return None


def _write(path: Path, document: Mapping[str, Any]) -> Path:
    """A file nobody else can read: Kafka's options hold passwords."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
