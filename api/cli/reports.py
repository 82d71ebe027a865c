"""`report`: reconciliation by Spark, on this machine; what to do about its findings."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from api.cli.failures import CommandFailed, Exit
from api.cli.http_calls import DEFAULT_URL, UrlOption, find_all
from api.cli.local import ConfigOption, load
from api.cli.output import (
    Column,
    Output,
    OutputOption,
    encode,
    print_line,
    say,
    show_document,
    show_documents,
    show_rows,
)  # fmt: skip
from api.cli.repairs import AUDIT, DONE, NOT_NEEDED, WANTED, find_run, read_proposals, work_through
from api.cli.spark_job import JobResult, run_job
from spark.advice import ADVICE
from spark.errors import BadUsage
from spark.json_file import read_json
from spark.rules import Kind
from spark.table_list import SQLITE, kinds_of, parse_tables

report = typer.Typer(no_args_is_help=True, help="Prove from Kafka that what was committed is what consumers can read.")

_OUT = Path(".outbox-bridge/reports")
_LANDED = Path(".outbox-bridge/landed")
_SELFTEST_OUT = Path(".outbox-bridge/selftest")
_MOST_GROUPS = 100_000
_KIND_COLUMNS: Sequence[Column] = [
    ("KIND", lambda row: row["kind"]),
    ("FINDINGS", lambda row: row["findings"]),
    ("MEANING", lambda row: row["means"]),
]
_REPAIR_COLUMNS: Sequence[Column] = [
    ("TRANSACTION", lambda row: row["transaction_id"]),
    ("KIND", lambda row: row["kind"]),
    ("CALL", lambda row: row["call"].rpartition("/")[2] + (f" {row['body']['resolution']}" if row["body"] else "")),
    ("STATE", lambda row: row["state"]),
    ("RESULT", lambda row: row["result"]),
]
_IS_FILE = {"exists": True, "dir_okay": False, "readable": True}

OutOption = Annotated[Path, typer.Option("--out", help="Folder of the runs; each gets a numbered one inside.")]
CoresOption = Annotated[int, typer.Option("--cores", min=0, help="Processors of this machine; 0: all.")]
MemoryOption = Annotated[int, typer.Option("--memory-mb", min=512, help="Java heap.")]
WindowOption = Annotated[
    Path | None, typer.Option("--window", help="window.json of another run: read the same.", **_IS_FILE)
]
ThresholdsOption = Annotated[
    Path | None,
    typer.Option("--thresholds", help='JSON: findings let pass, as {"kinds": {"STALE": 5}}.', **_IS_FILE),
]
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
    by_receipts: Annotated[
        bool, typer.Option("--by-receipts", help="Records had no header while it was switched off.")
    ] = False,
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
    _show_run(result, output)


@report.command(epilog="Example: outbox-bridge report land; outbox-bridge report run --since-last --landed DIR")
def land(
    out: Annotated[Path, typer.Option("--out", help="Folder of what is landed.")] = _LANDED,
    topics: Annotated[str, typer.Option("--topics", help="Real topics, comma-separated; all if left out.")] = "",
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
        for line in run_job("spark.landing", given).lines:
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
        result = run_job("spark.selftest", given, databases=[SQLITE])
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
    Exit codes: 0 all done or nothing to do, 1 some were refused, 2 usage, 3 no report there, 5 no bridge answers.
    """
    run_folder = find_run(folder)
    rows = list(work_through(url, run_folder, read_proposals(run_folder), is_applied=apply))
    if output is not Output.TABLE:
        show_documents([encode(row) for row in rows], output)
    elif rows:
        show_rows(rows, _REPAIR_COLUMNS)
    results = Counter(row["result"] for row in rows)
    known = results[DONE] + results[WANTED] + results[NOT_NEEDED]
    if not rows:
        say(f"{run_folder} proposes nothing")
    elif results[WANTED]:
        say(f"nothing was sent; --apply sends the {results[WANTED]} that are wanted")
    elif apply:
        say(f"{results[DONE]} sent; {run_folder / AUDIT} says what was answered. The next run shows what came of it")
    if known < len(rows):
        raise CommandFailed(Exit.FAILED, f"{len(rows) - known} of {len(rows)} came to nothing", "Each row says why.")


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
            rows = [{"kind": kind, "findings": kinds[kind], "means": ADVICE[Kind(kind)].meaning} for kind in kinds]
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
