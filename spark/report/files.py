"""What a run leaves behind: files for programs, one page for people. The same input gives the same bytes."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark.judge import findings as found
from spark.judge.findings import CLEARED, FINDINGS_FILE, NEW, Finding, encode_findings, encode_lines, show_time
from spark.judge.rules import FindingKind
from spark.judge.totals import BOOK_COLUMNS
from spark.read.window import WINDOW_FILE, Window, encode_window
from spark.report.page import make_page, show_counted

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
    """`summary.json`; its schema is `templates/summary.schema.json`. `closing`: what the last run left not final."""
    groups = {name: _balance(book) for name, book in measured.books.items()}
    total = _balance({name: sum(book[name] for book in measured.books.values()) for name in BOOK_COLUMNS})
    standing = [finding for finding in findings if finding.state != CLEARED]
    by_place = Counter((finding.kind, finding.topic or "") for finding in standing)
    return {
        "v": 1,
        "exit_code": exit_code,
        "sentence": _tell(total, standing, exit_code),
        "window": {"taken_at": show_time(window.taken_ms), "first_at": _first_at(window), "topics": window.real},
        "books": {
            "groups": groups,
            "topics": [{**row, **_balance(row)} for row in measured.topics],
            "total": total,
            "carried_over": None if closing is None else {"closing": closing, "is_right": closing == total["opening"]},
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
