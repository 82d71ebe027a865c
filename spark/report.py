"""What a run leaves behind: files for programs, one page for people. The same input gives the same bytes."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark.books import BOOK_COLUMNS
from spark.findings import CLEARED, Finding, encode_findings, encode_lines, show_time
from spark.plots import bars
from spark.rules import Kind
from spark.window import Window, encode_window

MANIFEST, SUMMARY, FINDINGS, REPAIR, WINDOW = (
    "manifest.json",
    "summary.json",
    "findings.jsonl",
    "repair.jsonl",
    "window.json",
)
_LISTED = 200  # findings shown on the page
_AGES = {60: "1 min", 600: "10 min", 3_600: "1 h", 21_600: "6 h", 86_400: "1 d", None: "older"}
_SPANS = {
    "prepared → ended": "prepared_to_ended",
    "ended → visible": "ended_to_visible",
    "prepared → visible": "prepared_to_visible",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What the SQL of `spark.books` returned, by the names of the summary."""

    books: Mapping[str, Mapping[str, int]]
    partitions: Sequence[Mapping[str, Any]]
    fingerprint: Mapping[str, Any]
    times: Mapping[str, Any]
    checks: Sequence[Sequence[int]]
    ages: Sequence[Sequence[int | None]]


def make_summary(window: Window, measured: Measured, findings: Sequence[Finding], exit_code: int) -> dict[str, Any]:
    """`summary.json`; its schema is `templates/summary.schema.json`."""
    groups = {name: _balance(book) for name, book in measured.books.items()}
    total = _balance({name: sum(book[name] for book in measured.books.values()) for name in BOOK_COLUMNS})
    standing = [finding for finding in findings if finding.state != CLEARED]
    by_place = Counter((finding.kind, finding.topic or "") for finding in standing)
    return {
        "v": 1,
        "exit_code": exit_code,
        "sentence": _tell(total, standing, exit_code),
        "window": {"taken_at": show_time(window.taken_ms), "topics": window.real},
        "books": {"groups": groups, "total": total},
        "fingerprint": dict(measured.fingerprint),
        "findings": {
            "total": len(standing),
            "cleared": len(findings) - len(standing),
            "by_kind": {kind: count for kind in Kind if (count := sum(one.kind == kind for one in standing))},
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
        WINDOW: encode_window(window),
        SUMMARY: json.dumps(summary, indent=1, ensure_ascii=False) + "\n",
        FINDINGS: encode_findings(findings),
        REPAIR: encode_lines(repairs),
        "metrics.prom": make_metrics(summary),
        "report.html": make_page(window, summary, findings, drift),
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
            for kind in Kind
        ],
        "# HELP outbox_bridge_report_exit_code How the last run ended.",
        "# TYPE outbox_bridge_report_exit_code gauge",
        f"outbox_bridge_report_exit_code {summary['exit_code']}",
    ]
    return "\n".join(lines) + "\n"


def make_page(
    window: Window, summary: Mapping[str, Any], findings: Sequence[Finding], drift: Sequence[Mapping[str, Any]]
) -> str:
    """`report.html`: one file, no script; everything from users is escaped."""
    pages = Environment(
        loader=PackageLoader("spark"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    standing = [finding for finding in findings if finding.state != CLEARED]
    ends = {
        topic: {str(place.part): extent.end for place, extent in window.ranges_of([topic]).items()}
        for topic in sorted({place.topic for place in window.extents})
    }
    return pages.get_template("report.html").render(
        summary=summary,
        tone={0: "pass", 4: "warn"}.get(summary["exit_code"], "fail"),
        book_columns=BOOK_COLUMNS,
        standing=standing,
        listed=standing[:_LISTED],
        spans={label: summary["times"][name] for label, name in _SPANS.items()},
        ages=[(_AGES[seconds], count) for seconds, count in summary["ages"]],
        drift=drift,
        plots=_draw(summary, drift),
        ends=json.dumps(ends, indent=1),
    )


def _draw(summary: Mapping[str, Any], drift: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    """The plots by name; nothing where there is nothing to be seen. Their labels are numbers and times of ours."""
    buckets, checks, ages = summary["times"]["buckets"], summary["checks"], summary["ages"]
    drawings = {
        "latency": bars("latency", [str(low) for low, _ in buckets], [n for _, n in buckets], "from, ms"),
        "checks": bars("checks", [str(number) for number, _ in checks], [n for _, n in checks], "answered checks"),
        "ages": bars("ages", [_AGES[seconds] for seconds, _ in ages], [n for _, n in ages], "younger than"),
        "drift": bars("drift", [row["taken_at"][5:16] for row in drift], [row["prepared"] for row in drift], "window"),
    }
    has_any = {
        "latency": bool(buckets),
        "checks": bool(checks),
        "ages": any(count for _, count in ages),
        "drift": bool(drift),
    }
    return {name: Markup(text) if has_any[name] else Markup() for name, text in drawings.items()}  # noqa: S704 - ours


def _balance(book: Mapping[str, int]) -> dict[str, int | bool]:
    ended = sum(book[name] for name in ("committed", "blocked", "rolled_back", "parked", "open"))
    return {**book, "is_balanced": book["opening"] + book["prepared"] == ended}


def _tell(total: Mapping[str, int | bool], standing: Sequence[Finding], exit_code: int) -> str:
    """The verdict in one sentence."""
    count = int(total["opening"]) + int(total["prepared"])
    looked = f"{count:,} transactions were looked at"
    if not standing:
        return f"Everything that was committed is what consumers can read: {looked}, nothing is wrong with any."
    kinds = Counter(finding.kind for finding in standing)
    listed = ", ".join(f"{kinds[kind]:,} {kind.value}" for kind in Kind if kinds[kind])
    weight = {0: "within the thresholds", 4: "warnings only"}.get(exit_code, "over the threshold")
    return f"{looked.capitalize()}: {len(standing):,} findings, {weight} ({listed})."


def as_rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings for Parquet."""
    return [asdict(finding) for finding in findings]
