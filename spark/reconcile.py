"""One run: window, landing, fold, verdicts, report. Entry of `spark-submit`; nothing is ever written to a topic.

spark-submit "$(outbox-bridge report job)" --kafka broker:9092 --out /reports
"""

import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.errors import BadUsage, Indeterminate, ReconcileError, explain, was_interrupted
from spark.judge import totals
from spark.judge.findings import CLEARED, FINDINGS_FILE, Finding, compare, decide_exit, decode_findings
from spark.judge.fold import fold_sql
from spark.judge.judging import (
    Judged,
    find_misplaced,
    find_out_of_order,
    find_unreadable,
    judge_suspects,
    keep_events,
    link_by_receipts,
)
from spark.judge.producer_tables import ProducerTables
from spark.judge.rules import FindingKind
from spark.options import Options, parse_options
from spark.read.envelope import OffsetRange, QueuePlace, Scope, Tolerances
from spark.read.events import TRANSACTIONS, IngestedEvents, Late, fold_events, land, write_carry
from spark.read.offsets import look_for_topics, take_window
from spark.read.sources import KafkaAccess
from spark.read.window import Window, check_goes_on, find_landed, read_window
from spark.report.files import Measured, Run, RunIndex, as_rows, count_unfinished, hold, make_summary, write_report
from spark.session import BRIEF_OFFSETS, running_session

Tell = Callable[[str], None]
_INTERRUPTED = 130  # as shells show it
_COMPACTION_LAG_MS = 86_400_000  # of the op topic, at least
_BY_RECEIPTS = " Records were found by their receipts, so duplicates and phantoms cannot be seen."

_LEG = pa.struct([("leg", pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
_FINDING = pa.schema(
    [
        *((name, pa.string()) for name in ("transaction_id", "kind", "detail", "group", "topic")),
        ("legs", pa.list_(_LEG)),
        *((name, pa.string()) for name in ("first_seen", "state", "remark")),
    ]
)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended and where its report is."""

    exit_code: int
    folder: Path
    sentence: str


def reconcile(spark: SparkSession, options: Options, tell: Tell) -> RunOutcome:
    """One run. Raises ReconcileError."""
    with explained(), hold(options.out):
        return _run(spark, options, tell)


@contextmanager
def explained() -> Iterator[None]:
    """What Spark, Java and the disk raise, as Indeterminate with one line; Ctrl-C stays what it is."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if was_interrupted(error):
            raise KeyboardInterrupt from error
        raise _not_judged(explain(error)) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise _not_judged(f"{place}{error.strerror or error}") from error


def _not_judged(reason: str) -> Indeterminate:
    is_full = os.strerror(errno.ENOSPC) in reason
    room = "Make room in --out, and in the folder of SPARK_LOCAL_DIRS, else /tmp. " if is_full else ""
    return Indeterminate(reason, f"{room}What was read is not judged; run it again.")


def _run(spark: SparkSession, options: Options, tell: Tell) -> RunOutcome:
    ledger = RunIndex.open(options.out)
    last = ledger.last if options.since_last else None
    run, folder = ledger.make_folder()
    tables = _read_tables(spark, options, folder, None if last is None else ledger.folder_of(last.run), tell)
    window, units = _choose_window(options, ledger, last)
    tell(f"run {run}: {len(window.extents)} partitions, {window.offsets:,} offsets")
    earlier = [] if last is None else [ledger.folder_of(known) for known in ledger.chain_of(last)]
    landed = IngestedEvents(folder, earlier, window.taken_ms)
    access = KafkaAccess(options.kafka, options.by_receipts)
    land(spark, window, landed, access, units)
    if options.by_receipts:
        link_by_receipts(spark, window, folder, landed.before)
    look = totals.look_at(spark)
    if not options.by_receipts and totals.is_header_missing(spark, look, window):
        raise Indeterminate(
            "no record of the real topics names its transaction: the header is off, or everything is missing",
            "If transaction_id_header is false, find records by their receipts: --by-receipts.",
        )
    window = window.with_times(look.times()).with_starts(look.starts())
    tell("landed; folding")
    scope = _make_scope(window, options, ledger, last)
    late = _fold(spark, scope, landed)
    keep_events(spark)
    tell("folded; judging")
    judged = judge_suspects(spark, scope)
    tell(f"{judged.told:,} transactions told event by event")
    judged.findings += find_unreadable(spark, scope)
    before = (
        []
        if last is None
        else decode_findings((ledger.folder_of(last.run) / FINDINGS_FILE).read_text(encoding="utf-8"))
    )
    if tables is None:  # nobody has looked: what did not agree stays
        judged.findings += [one for one in before if one.kind == FindingKind.TABLE_MISMATCH and one.state != CLEARED]
    else:
        is_read_first = options.window is None and options.landed is None
        judged.findings += tables.judge(scope, landed.before, is_read_first=is_read_first)
    overtakings, judged.related = find_out_of_order(spark, scope)
    misplaced = find_misplaced(spark, scope, None if last is None else ledger.window_of(last.run), before)
    findings = compare([*judged.findings, *overtakings, *misplaced], before)
    return _conclude(spark, options, ledger, _Run(run, folder, window, look, late, findings, judged, last), tell)


def _read_tables(
    spark: SparkSession, options: Options, folder: Path, last: Path | None, tell: Tell
) -> ProducerTables | None:
    """The producers' tables, read before the window is chosen; None if there are none to compare."""
    if not options.databases:
        return None
    tables = ProducerTables(spark, options.databases, folder, last)
    tables.read_first(tell)
    return tables


@dataclass(frozen=True, slots=True)
class _Run:
    number: int
    folder: Path
    window: Window
    look: totals.PartitionStats
    late: Late
    findings: Sequence[Finding]
    judged: Judged
    last: Run | None


def _conclude(spark: SparkSession, options: Options, ledger: RunIndex, run: _Run, tell: Tell) -> RunOutcome:
    """Files, then the ledger's line that makes them count."""
    tell("judged; adding up")
    measured = _measure(spark, run)
    wrong = [row for row in measured.partitions if not row["is_right"]]
    if wrong:
        place = f"{wrong[0]['topic']}-{wrong[0]['partition']}"
        raise Indeterminate(f"{place} was not read as its offsets say", "Run it again.")
    by_findings = decide_exit(run.findings, options.thresholds, is_strict=options.strict)
    closing = None if run.last is None else run.last.closing
    summary = make_summary(run.window, measured, run.findings, by_findings, closing)
    if options.by_receipts:
        summary["sentence"] += _BY_RECEIPTS
    total, standing = summary["books"]["total"], summary["findings"]["total"]
    begins = run.number if run.last is None else run.last.begins
    entry = Run(
        run.number,
        begins,
        summary["window"]["taken_at"],
        total["prepared"],
        total["committed"],
        total["open"],
        standing,
        count_unfinished(summary),
        (summary["times"]["prepared_to_visible"] or {}).get("p95"),
    )
    _write_tables(spark, run, entry)
    tell("tables written; writing the report")
    drift = [asdict(one) for one in (*ledger.entries, entry)] if run.last is not None else []
    write_report(run.folder, run.window, summary, run.findings, repairs=run.judged.repairs, drift=drift)
    tell("report written")
    ledger.add(entry)
    return RunOutcome(summary["exit_code"], run.folder, summary["sentence"])


def _choose_window(options: Options, ledger: RunIndex, last: Run | None) -> tuple[Window, Sequence[Path]]:
    """The window, and where it was landed before; nowhere, if it is to be read from Kafka."""
    known = None if last is None else ledger.window_of(last.run)
    before = ledger.last_window() if known is None else known
    since = {} if known is None else {place: extent.end for place, extent in known.extents.items()}
    if options.window or options.landed:
        window, units = _find_window(options, since)
        if known is not None:
            check_goes_on(known, window)
        if options.landed is None:
            _check_uncompacted(window)
    else:
        window, units = take_window(options.kafka, options.internal, options.topics, known), []
    return (window if before is None or options.window else window.after(before)), units


def _check_uncompacted(window: Window) -> None:
    """Raises BadUsage where op messages may have been compacted away for later ones, behind the end."""
    if time.time_ns() // 1_000_000 - window.taken_ms > _COMPACTION_LAG_MS:
        raise BadUsage(
            "the window was noted more than a day ago: compaction may have removed op messages of it since",
            "Read what its run has landed: --landed with the folder of that run.",
        )


def _find_window(options: Options, since: Mapping[QueuePlace, int]) -> tuple[Window, Sequence[Path]]:
    """The window that was noted before, by another run or by landings."""
    window = _read_window(options.window, since) if options.window else None
    if options.landed is None:
        assert window is not None
        return window, []
    landed = find_landed(options.landed, since, window=window)
    return landed.window, landed.units


def _read_window(path: Path, since: Mapping[QueuePlace, int]) -> Window:
    try:
        window = read_window(path)
    except OSError as error:
        raise BadUsage(f"cannot read {path}: {error.strerror}") from error
    for place, extent in window.extents.items():
        if extent.start != since.get(place, extent.start):
            raise BadUsage(f"{path} reads {place.topic}-{place.part} from {extent.start}, not from {since[place]}")
    return window


def _make_scope(window: Window, options: Options, ledger: RunIndex, last: Run | None) -> Scope:
    """What this run and those before it can prove together."""
    scope = replace(window.make_scope(options.groups, Tolerances()), by_receipts=options.by_receipts)
    if last is None:
        return scope
    origins: dict[QueuePlace, OffsetRange] = {}
    for run in ledger.chain_of(last):
        origins = {**ledger.window_of(run).make_origins(), **origins}
        if origins.keys() >= window.extents.keys():  # nearly always the first run has read all partitions
            break
    extents = {
        place: replace(
            extent,
            start=first.start,
            is_whole=first.is_whole,
            first_ms=first.first_ms,
            given_up=max(first.given_up, extent.given_up),
        )
        if (first := origins.get(place)) is not None
        else extent
        for place, extent in window.extents.items()
    }
    return replace(scope, extents=extents)


def _fold(spark: SparkSession, scope: Scope, landed: IngestedEvents) -> Late:
    shortest_ms = min([times.max_lifetime_ms for times in (*scope.groups.values(), scope.other_groups)])
    stale_before_ms = scope.now_ms - shortest_ms - scope.graces.stale_ms
    return fold_events(spark, landed, partial(fold_sql, stale_before_ms))


def _measure(spark: SparkSession, run: _Run) -> Measured:
    booked = totals.open_books(spark, run.window, run.late.was_open)
    tally = totals.tally(spark, run.window.taken_ms)
    return Measured(
        booked.count_groups(),
        booked.count_topics(),
        run.look.count_partitions(run.window),
        tally.compare_fingerprints(),
        {**totals.measure_times(spark), "buckets": tally.count_buckets()},
        tally.count_checks(),
        tally.count_ages(),
    )


def _write_tables(spark: SparkSession, run: _Run, entry: Run) -> None:
    """Parquet: `findings/`, `transactions/` with verdicts, `windows/`; `carry/` for the next run."""
    found = spark.createDataFrame(pa.Table.from_pylist(as_rows(run.findings), _FINDING))
    found.createOrReplaceTempView("findings")
    found.coalesce(1).write.parquet(str(run.folder / "findings"))
    verdicts = spark.sql(f"""SELECT transactions.*, COALESCE(verdict, 'OK') AS verdict FROM transactions LEFT JOIN
(SELECT transaction_id, MIN(kind) AS verdict FROM findings WHERE state <> '{CLEARED}' GROUP BY transaction_id)
ON tx = transaction_id""")
    verdicts.write.parquet(str(run.folder / TRANSACTIONS))
    members = {
        name: [getattr(entry, name)] for name in ("run", "taken_at", "prepared", "committed", "open", "findings")
    }
    spark.createDataFrame(pa.table(members)).coalesce(1).write.parquet(str(run.folder / "windows"))
    standing = {finding.transaction_id for finding in run.findings if finding.state != CLEARED}
    write_carry(spark, run.folder, run.window, sorted(standing.union(run.judged.related)))


def run_command(act: Callable[[Tell], int]) -> int:
    """Runs one command, with progress on standard error; expected errors are one line and an exit code."""
    started = time.monotonic()

    def tell(text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - started:6.1f} s] {text}\n")
        sys.stderr.flush()

    try:
        return act(tell)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what was begun does not count\n")
        return _INTERRUPTED
    except ReconcileError as error:
        sys.stderr.write(f"error: {error.reason}\n" + (f"what to do: {error.remedy}\n" if error.remedy else ""))
        return error.exit_code
    except Exception:  # noqa: BLE001 - Python's own exit code would say that there are findings
        # no "error: ", which would be the reason: the command shows the last words of a job that has none
        sys.stderr.write(f"{traceback.format_exc()}a defect of this job; nothing can be said\n")
        return ReconcileError.exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 pass, 1 findings over a threshold, 2 usage, 3 indeterminate, 4 warnings with --strict."""
    return run_command(lambda tell: _reconcile(sys.argv[1:] if arguments is None else arguments, tell))


def _reconcile(arguments: Sequence[str], tell: Tell) -> int:
    options = parse_options(arguments)
    with explained():  # what cannot be is refused before Spark starts, which takes its time
        ledger = RunIndex.open(options.out)
        window, _ = _choose_window(options, ledger, ledger.last if options.since_last else None)
        if options.window is not None and options.landed is None:
            look_for_topics(options.kafka, sorted({place.topic for place in window.extents}))
    cores, memory_mb, is_brief = options.cores, options.memory_mb, window.offsets <= BRIEF_OFFSETS
    with running_session(options.jars, cores=cores, memory_mb=memory_mb, is_brief=is_brief) as spark:
        tell("Spark has started")
        outcome = reconcile(spark, options, tell)
    sys.stdout.write(f"{outcome.sentence}\n{outcome.folder / 'report.html'}\n")
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
