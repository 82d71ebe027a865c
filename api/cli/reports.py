"""`report`: reconciliation by Spark, on this machine; what to do about its findings."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.failures import CommandFailed, Exit
from api.cli.http_calls import DEFAULT_URL, UrlOption, call
from api.cli.local import ConfigOption, load
from api.cli.output import Column, say, show_rows
from api.cli.spark_jars import connector_jars, driver_jars
from bridge.broker.jars import FetchProgress
from bridge.broker.java import find_java
from spark.errors import BadUsage
from spark.json_file import read_json
from spark.table_list import SQLITE, kinds_of, parse_tables

report = typer.Typer(no_args_is_help=True, help="Prove from Kafka that what was committed is what consumers can read.")

_JAVA_VERSIONS = (17, 21)  # the first and the last that Spark 4.0 runs on
_OUT = Path(".outbox-bridge/reports")
_SELFTEST_OUT = Path(".outbox-bridge/selftest")
_COLUMNS: Sequence[Column] = [
    ("TRANSACTION", lambda row: row["transaction_id"]),
    ("KIND", lambda row: row["kind"]),
    ("CALL", lambda row: f"{row['method']} {row['path']}"),
    ("STATE", lambda row: row["state"]),
    ("RESULT", lambda row: row["result"]),
]

OutOption = Annotated[Path, typer.Option("--out", help="Folder of the runs; each gets a numbered one inside.")]
CoresOption = Annotated[int, typer.Option("--cores", min=0, help="Processors of this machine; 0: all.")]
MemoryOption = Annotated[int, typer.Option("--memory-mb", min=512, help="Java heap.")]


@report.command(epilog="Example: outbox-bridge report run --since-last --strict")
def run(  # noqa: PLR0913, PLR0917 - a setting is an option
    out: OutOption = _OUT,
    topics: Annotated[str, typer.Option("--topics", help="Real topics, comma-separated; all if left out.")] = "",
    since_last: Annotated[bool, typer.Option("--since-last", help="Only what came since the last run.")] = False,
    window: Annotated[Path | None, typer.Option("--window", help="window.json of another run: read the same.")] = None,
    thresholds: Annotated[Path | None, typer.Option("--thresholds", help="JSON: findings that are let pass.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 for warnings.")] = False,
    tables: Annotated[Path | None, typer.Option("--tables", help="JSON: producers' own tables to compare.")] = None,
    by_receipts: Annotated[
        bool, typer.Option("--by-receipts", help="Records had no header while it was switched off.")
    ] = False,
    cores: CoresOption = 0,
    memory_mb: MemoryOption = 1_024,
    url: UrlOption = DEFAULT_URL,
    config: ConfigOption = None,
) -> None:
    """Read a window of Kafka, judge every transaction, write a report. Writes to no topic.

    Exit codes: 0 nothing wrong, 1 findings over the threshold, 2 usage, 3 indeterminate, 4 warnings with --strict.
    """
    settings = load(config)
    given: dict[str, object] = {"--topics": topics, "--window": window, "--thresholds": thresholds}
    given["--tables"] = tables
    flags = [name for name, is_given in (("--since-last", since_last), ("--strict", strict)) if is_given]
    flags += ["--by-receipts"] if by_receipts or not settings.transaction_id_header else []
    given |= {"--out": out, "--cores": cores, "--memory-mb": memory_mb, "--prefix": settings.topics.prefix}
    with tempfile.TemporaryDirectory(prefix="outbox-bridge-report-") as folder:
        given["--kafka-options"] = _write(Path(folder) / "kafka.json", settings.kafka)
        groups = _fetch_groups(url)
        if groups is not None:
            given["--groups"] = _write(Path(folder) / "groups.json", groups)
        _run_job("spark.reconcile", given, flags, [] if tables is None else _find_drivers(tables))


@report.command(epilog="Example: outbox-bridge report selftest --transactions 100000")
def selftest(
    out: OutOption = _SELFTEST_OUT,
    transactions: Annotated[int, typer.Option("--transactions", min=1, help="Ordinary ones.")] = 10_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each anomaly is planted.")] = 10,
    cores: CoresOption = 0,
    memory_mb: MemoryOption = 1_024,
    config: ConfigOption = None,
) -> None:
    """Plant every kind of anomaly in topics made for it, run the job on them, and compare. Deletes the topics."""
    settings = load(config)
    given: dict[str, object] = {"--out": out, "--transactions": transactions, "--rounds": rounds}
    given |= {"--cores": cores, "--memory-mb": memory_mb}
    with tempfile.TemporaryDirectory(prefix="outbox-bridge-report-") as folder:
        given["--kafka-options"] = _write(Path(folder) / "kafka.json", settings.kafka)
        _run_job("spark.selftest", given, [], driver_jars([SQLITE], _tell_jar))


@report.command(epilog="Example: outbox-bridge report repair .outbox-bridge/reports/000001 --apply")
def repair(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    apply: Annotated[bool, typer.Option("--apply", help="Send the calls; without it they are only shown.")] = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show what could be done about findings, and do it with --apply. Each call's precondition is looked at first.

    Only calls that cannot make anything worse are proposed: to ask a group again, to settle what is recorded.
    """
    rows = [_repair(url, proposal, is_applied=apply) for proposal in _read_proposals(folder)]
    show_rows(rows, _COLUMNS)
    if not apply and any(row["result"] == "wanted" for row in rows):
        say("nothing was sent; --apply sends what is wanted")


def _repair(url: str, proposal: Mapping[str, Any], *, is_applied: bool) -> dict[str, Any]:
    """One proposal, with the state found and what came of it."""
    path = f"/v1/transactions/{proposal['transaction_id']}"
    state = call(url, "GET", path).members["state"]
    if state not in proposal["precondition"]["state"]:
        return {**proposal, "state": state, "result": "not needed any more"}
    if not is_applied:
        return {**proposal, "state": state, "result": "wanted"}
    call(url, str(proposal["method"]), str(proposal["path"]), body=proposal["body"])
    return {**proposal, "state": state, "result": "done"}


def _read_proposals(folder: Path) -> list[dict[str, Any]]:
    path = folder / "repair.jsonl"
    if not (folder / "manifest.json").exists():
        raise CommandFailed(Exit.NOT_FOUND, f"{folder} holds no complete report", "Name a run's folder.")
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise CommandFailed(Exit.FAILED, f"{path} cannot be read: {error}") from error


def _find_drivers(tables: Path) -> Sequence[Path]:
    """The JDBC drivers that a file of tables needs."""
    try:
        kinds = kinds_of(parse_tables(read_json(tables)))
    except BadUsage as error:
        raise CommandFailed(Exit.USAGE, error.reason, error.remedy) from error
    return driver_jars(kinds, _tell_jar)


def _run_job(module: str, given: Mapping[str, object], flags: Sequence[str], drivers: Sequence[Path] = ()) -> None:
    """Runs the job in a process of its own, whose exit code becomes ours."""
    if find_spec("pyspark") is None:
        raise CommandFailed(Exit.USAGE, "PySpark is not installed", "pip install 'outbox-bridge[spark]'")
    java = find_java()
    if not _JAVA_VERSIONS[0] <= java.major <= _JAVA_VERSIONS[1]:
        remedy = "Install a JDK 17 or 21 and set JAVA_HOME to it."
        raise CommandFailed(Exit.USAGE, f"{java.path} is Java {java.major}, on which Spark does not run", remedy)
    jars = ",".join(str(jar) for jar in (*connector_jars(_tell_jar), *drivers))
    options = [f"{name}={value}" for name, value in {**given, "--jars": jars}.items() if value not in {None, ""}]
    environment = {**os.environ, "JAVA_HOME": str(java.path.resolve().parents[1]), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, "-m", module, *options, *flags], env=environment, check=False)  # noqa: S603
    if done.returncode:
        raise typer.Exit(done.returncode if done.returncode > 0 else Exit.FAILED)


def _fetch_groups(url: str) -> dict[str, Any] | None:
    """The groups' settings; without them checks are judged by the bounds of all settings."""
    try:
        return call(url, "GET", "/v1/producer-groups").members
    except CommandFailed as failure:
        say(f"check limits of the groups are not known ({failure.reason}); only impossible ones are findings")
        return None


def _write(path: Path, document: Mapping[str, Any]) -> Path:
    """A file nobody else can read: Kafka's options hold passwords."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _tell_jar(progress: FetchProgress) -> None:
    say(f"fetched {progress.name} ({progress.fetched} of {progress.total})")
