"""What a run leaves behind: its folder, files for programs, one page for people. Same input, same bytes."""

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark.errors import BadUsage, Indeterminate, ReconcileError
from spark.judge import findings as found
from spark.judge.findings import CLEARED, FINDINGS_FILE, NEW, Finding, encode_findings, encode_lines, show_time
from spark.judge.rules import FindingKind
from spark.judge.totals import BOOK_COLUMNS
from spark.read.window import WINDOW_FILE, Window, by_number, encode_window, read_window
from spark.report.page import make_page, show_counted

# --- the folders of runs: each run has one of its own, and counts only when the ledger names it ---
# OUT/ledger.json         runs that are complete, oldest first; replaced in one step
#     OUT/000001/             the report, and for later runs: window.json, events/, carry/
#
#     OUT/.lock               held by the run that is at work; the system frees it when that is killed
#
# A run that was killed is in no ledger: the next one takes its number and begins at the same offsets.

_NAME = "ledger.json"
_MAY_LACK = ("closing", "p95_ms")
_ANEW = "Restore it, or begin with a new folder."


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keeps others out of a folder of runs, which is made if need be. Raises Indeterminate."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise Indeterminate(f"{folder} cannot be written to: {error.strerror}", "Choose another folder.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Indeterminate(f"another run is at work in {folder}", "Wait for its end.") from error
        yield


def write_durably(path: Path, text: str) -> None:
    """In one step: whoever reads it finds all of it, or what was there before."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@dataclass(frozen=True, slots=True)
class Run:
    """A complete run. `begins`: the number of the run its chain of windows began with."""

    run: int
    begins: int
    taken_at: str
    prepared: int
    committed: int
    open: int
    findings: int
    closing: int | None = None  # transactions that were not final
    p95_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunIndex:
    """Complete runs in `folder`."""

    folder: Path
    entries: Sequence[Run]

    @classmethod
    def open(cls, folder: Path) -> "RunIndex":
        """Raises BadUsage, Indeterminate."""
        try:
            path = folder / _NAME
            runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
            return cls(folder, [_read_entry(entry) for entry in runs])
        except OSError as error:
            raise Indeterminate(f"{folder} cannot be used: {error.strerror}", "Choose another folder.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BadUsage(f"{folder / _NAME} cannot be read: {error!r}", _ANEW) from error

    @property
    def last(self) -> Run | None:
        """The newest run."""
        return self.entries[-1] if self.entries else None

    def folder_of(self, run: int) -> Path:
        """Where a run's files are."""
        return self.folder / f"{run:06d}"

    def make_folder(self) -> tuple[int, Path]:
        """Number and empty folder of the next run; what a killed one left there is removed. Raises BadUsage."""
        run = 1 if self.last is None else self.last.run + 1
        names = [path.name for path in self.folder.glob("[0-9]*")]
        later = sorted(name for name in names if by_number(name) > by_number(f"{run:06d}"))
        if later:
            raise BadUsage(f"{self.folder} holds run {later[0]}, of which {_NAME} knows nothing", _ANEW)
        path = self.folder_of(run)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return run, path

    def window_of(self, run: int) -> Window:
        """What a run has read. Raises BadUsage, Indeterminate."""
        try:
            return read_window(self.folder_of(run) / WINDOW_FILE)
        except OSError as error:
            raise Indeterminate(f"run {run} has lost its {WINDOW_FILE}: {error.strerror}", _ANEW) from error

    def last_window(self) -> Window | None:
        """What the newest run has read, if that can still be told: a new beginning does not need it."""
        try:
            return None if self.last is None else self.window_of(self.last.run)
        except ReconcileError:
            return None

    def chain_of(self, entry: Run) -> list[int]:
        """The runs whose windows follow each other, up to this one."""
        return [known.run for known in self.entries if entry.begins <= known.run <= entry.run]

    def add(self, entry: Run) -> None:
        """From now on the run counts; so its files may not get lost with the machine's power any more."""
        os.sync()
        document: Mapping[str, Any] = {"v": 1, "runs": [asdict(known) for known in (*self.entries, entry)]}
        write_durably(self.folder / _NAME, json.dumps(document, indent=1) + "\n")


def _read_entry(members: Mapping[str, Any]) -> Run:
    """Raises ValueError, TypeError."""
    entry = Run(**members)
    known = {name: value for name, value in members.items() if value is not None or name not in _MAY_LACK}
    if not all(isinstance(value, int) for name, value in known.items() if name != "taken_at"):
        raise ValueError(f"run {entry.run} is no entry")
    return entry


# --- what a run leaves behind: files for programs, one page for people. The same input gives the same bytes ---

MANIFEST, SUMMARY, REPAIR = "manifest.json", "summary.json", "repair.jsonl"

_NAMED = 4  # kinds in the sentence


@dataclass(frozen=True, slots=True)
class Measured:
    """What the SQL of `spark.judge.totals` returned, by the names of the summary."""

    books: Mapping[str, Mapping[str, int]]
    topics: Sequence[Mapping[str, Any]]
    partitions: Sequence[Mapping[str, Any]]
    fingerprint: Mapping[str, Any]
    times: Mapping[str, Any]
    checks: Sequence[Sequence[int]]
    ages: Sequence[Sequence[int | None]]


def make_summary(
    window: Window, measured: Measured, findings: Sequence[Finding], exit_code: int, closing: int | None = None
) -> dict[str, Any]:
    """`summary.json`; its schema is `templates/summary.schema.json`. `closing`: what the last run left not final.

    `exit_code`: by the findings alone. Where not all that was left is found again nobody knows what became of it.
    """
    groups = {name: _balance(book) for name, book in measured.books.items()}
    total = _balance({name: sum(book[name] for book in measured.books.values()) for name in BOOK_COLUMNS})
    standing = [finding for finding in findings if finding.state != CLEARED]
    by_place = Counter((finding.kind, finding.topic or "") for finding in standing)
    carried = None if closing is None else {"closing": closing, "is_right": closing == total["opening"]}
    sentence = _tell(total, standing, exit_code)
    if carried is not None and not carried["is_right"]:
        both = f"the last run left {show_counted(closing or 0, 'transaction')} not final, this one began with"
        lost = f"The books do not carry over: {both} {total['opening']:,}."
        exit_code, sentence = found.FINDINGS, f"{lost} {sentence}" if standing else lost
    return {
        "v": 1,
        "exit_code": exit_code,
        "sentence": sentence,
        "window": {"taken_at": show_time(window.taken_ms), "first_at": _first_at(window), "topics": window.real},
        "books": {
            "groups": groups,
            "topics": [{**row, **_balance(row)} for row in measured.topics],
            "total": total,
            "carried_over": carried,
        },
        "fingerprint": dict(measured.fingerprint),
        "findings": {
            "total": len(standing),
            "new": sum(one.state == NEW for one in standing),
            "still": sum(one.state != NEW for one in standing),
            "cleared": len(findings) - len(standing),
            "by_kind": {kind: count for kind in FindingKind if (count := sum(one.kind == kind for one in standing))},
            "by_kind_and_topic": [
                {"kind": kind, "topic": topic or None, "transactions": count}
                for (kind, topic), count in sorted(by_place.items())
            ],
        },
        "times": dict(measured.times),
        "checks": [list(row) for row in measured.checks],
        "ages": [list(row) for row in measured.ages],
        "partitions": [dict(row) for row in measured.partitions],
    }


def write_report(
    folder: Path,
    window: Window,
    summary: Mapping[str, Any],
    findings: Sequence[Finding],
    *,
    repairs: Sequence[Mapping[str, Any]] = (),
    drift: Sequence[Mapping[str, Any]] = (),
) -> None:
    """All files but Parquet; the manifest last, so that a folder with one is complete."""
    texts = {
        WINDOW_FILE: encode_window(window),
        SUMMARY: json.dumps(summary, indent=1, ensure_ascii=False) + "\n",
        FINDINGS_FILE: encode_findings(findings),
        REPAIR: encode_lines(repairs),
        "metrics.prom": make_metrics(summary),
        "report.html": make_page(window, summary, findings, drift, len(repairs)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(texts.items())}
    (folder / MANIFEST).write_text(json.dumps({"v": 1, "sha256": digests}, indent=1) + "\n", encoding="utf-8")


def make_metrics(summary: Mapping[str, Any]) -> str:
    """Prometheus' text format, for a node exporter's folder."""
    lines = [
        "# HELP outbox_bridge_report_transactions Transactions of the last window by state.",
        "# TYPE outbox_bridge_report_transactions gauge",
        *[
            f'outbox_bridge_report_transactions{{state="{name}"}} {summary["books"]["total"][name]}'
            for name in BOOK_COLUMNS
        ],
        "# HELP outbox_bridge_report_findings Findings that stand, by kind.",
        "# TYPE outbox_bridge_report_findings gauge",
        *[
            f'outbox_bridge_report_findings{{kind="{kind.value}"}} {summary["findings"]["by_kind"].get(kind, 0)}'
            for kind in FindingKind
        ],
        "# HELP outbox_bridge_report_exit_code How the last run ended.",
        "# TYPE outbox_bridge_report_exit_code gauge",
        f"outbox_bridge_report_exit_code {summary['exit_code']}",
    ]
    return "\n".join(lines) + "\n"


def count_unfinished(summary: Mapping[str, Any]) -> int:
    """Transactions that the next run begins with."""
    total = summary["books"]["total"]
    return int(total["blocked"] + total["parked"] + total["open"])


def _balance(book: Mapping[str, Any]) -> dict[str, Any]:
    ended = sum(book[name] for name in ("committed", "blocked", "abandoned", "rolled_back", "parked", "open"))
    return {**book, "is_balanced": book["opening"] + book["prepared"] == ended}


def _first_at(window: Window) -> str | None:
    """When the oldest journal record that was read was stored."""
    known = [extent.first_ms for extent in window.ranges_of([window.half]).values() if extent.first_ms]
    return show_time(min(known)) if known else None


def _tell(total: Mapping[str, int], standing: Sequence[Finding], exit_code: int) -> str:
    """The verdict in one sentence."""
    count = total["opening"] + total["prepared"]
    looked = show_counted(count, "transaction")
    if not standing and count:
        was = "was" if count == 1 else "were"
        return f"Everything that was committed is what consumers can read: {looked} {was} judged, nothing is wrong."
    if not standing:
        return "No transaction was in this window, so nothing could be wrong and nothing is proved."
    kinds = Counter(finding.kind for finding in standing)
    named = [f"{kinds[kind]:,} {kind.value}" for kind in FindingKind if kinds[kind]]
    more = f" and {len(named) - _NAMED + 1} other kinds" if len(named) > _NAMED else ""
    listed = ", ".join(named[: _NAMED - 1] if more else named) + more
    if exit_code == found.FINDINGS:
        weight = "over the threshold"
    else:
        weight = "warnings only" if set(kinds) == {FindingKind.UNPROVABLE} else "within the thresholds"
    return f"{show_counted(len(standing), 'finding')} in {looked}, {weight}: {listed}."


def as_rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings for Parquet."""
    return [asdict(finding) for finding in findings]
