"""Reports made by hand for tests of the page: every kind of finding, hostile names, nothing at all, very much."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spark.judge.findings import FINDINGS, NEW, PASS, STILL, Finding, ReportedEvidence
from spark.judge.rules import FindingKind
from spark.judge.totals import BOOK_COLUMNS
from spark.read.envelope import OffsetRange, QueuePlace
from spark.read.window import Window
from spark.report.files import Measured, make_summary
from spark.report.page import make_page

HALF, OP, PARKED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
HOSTILE = '<script>document.title="mine"</script>"\'&<img src=x onerror=alert(1)>'
REMARK = "<script>remarked()</script>\u202e\u2028" + "x" * 480
AT = "2026-11-22T18:08:55.058Z"
TAKEN_MS = 1_795_370_935_058
_SPAN = {"p50": 12, "p95": 4_000, "p99": 700_000}
_AGES = (60, 600, 3_600, 21_600, 86_400, None)


def make_window(topics: Sequence[str], parts: int, end: int) -> Window:
    """Each topic with so many partitions; `end` 0: nothing was read."""
    places = [QueuePlace(topic, part) for topic in (HALF, OP, PARKED, *topics) for part in range(parts)]
    extents = {place: OffsetRange(0, end, end, first_ms=end and TAKEN_MS - 86_400_000) for place in places}
    return Window(HALF, OP, PARKED, TAKEN_MS, extents)


def make_book(prepared: int) -> dict[str, int]:
    """A book that balances."""
    return {**dict.fromkeys(BOOK_COLUMNS, 0), "prepared": prepared, "committed": prepared}


def make_measured(window: Window, groups: Sequence[str], prepared: int) -> Measured:
    """What SQL would have returned; nothing `prepared`: an empty window."""
    topics = [
        {"topic": topic, "group": group, **make_book(prepared), "visible": prepared, "is_equal": number % 3 != 1}
        for number, topic in enumerate(window.real)
        for group in groups
    ]
    partitions = [
        {"topic": place.topic, "partition": place.part, "start": extent.start, "end": extent.end}
        | {"rows": extent.end, "holes": 0, "unreadable": 0, "foreign": 0, "is_right": True}
        for place, extent in sorted(window.extents.items())
    ]
    sums = {"prepared_sum": "6415456190888706575", "visible_sum": "6415456190888706575", "is_equal": True}
    span = _SPAN if prepared else None
    return Measured(
        {group: make_book(prepared) for group in groups} if prepared else {},
        topics if prepared else [],
        partitions,
        {"transactions": prepared, "prepared": prepared, "visible": prepared, **sums},
        {
            **dict.fromkeys(("prepared_to_ended", "ended_to_visible", "prepared_to_visible"), span),
            "buckets": [[2**power - 1, 10**6 - power] for power in range(21) if power not in {3, 7}]
            if prepared
            else [],
        },
        [[number, 1_000_000 // number] for number in range(1, 16) if prepared],
        [[seconds, 0] for seconds in _AGES],
    )


def make_finding(number: int, kind: FindingKind, group: str | None, topic: str | None) -> Finding:
    """One with three records for evidence."""
    legs = [ReportedEvidence("half", HALF, 1, 999_999_999), ReportedEvidence("op", OP, 0, number)]
    shown = [*legs, ReportedEvidence("visible", topic, 0, number)] if topic else legs
    state = NEW if number % 3 else STILL
    detail = f"1 of 1 messages, by their receipts at {topic or 'no receipt'}-0@{number}, ended by {group}"
    remark = (None, REMARK, "no such row")[number % 3]
    return Finding(f"0006h0813u19o01000000{number:08d}", kind.value, detail, group, topic, shown, AT, state, remark)


def make_drift(runs: int) -> list[dict[str, Any]]:
    """The ledger's lines."""
    known = {"begins": 1, "taken_at": AT, "prepared": 1_234_567, "committed": 1_234_000, "open": 5, "closing": 6}
    return [{"run": run, **known, "findings": run % 7, "p95_ms": 4_000 if run % 5 else None} for run in range(runs)]


def _page(
    topics: Sequence[str], groups: Sequence[str], findings: Sequence[Finding], prepared: int, runs: int = 0
) -> str:
    window = make_window(topics, 3, prepared)
    measured = make_measured(window, groups, prepared)
    if findings:
        measured.ages[0][1] = measured.ages[-1][1] = 3
        measured.books[groups[0]]["committed"] -= 6
        measured.books[groups[0]]["open"] += 6
    exit_code = FINDINGS if findings else PASS
    summary = make_summary(window, measured, findings, exit_code, 0 if runs else None)
    return make_page(window, summary, findings, make_drift(runs), len(findings))


def every_kind() -> str:
    """Two findings of each kind, by group and topic names of the longest and of the worst sort."""
    topics, groups = ["t" * 249, "orders", "a.b_c-d"], [HOSTILE, "g" * 255, "קבוצה", "turned\u202eround\x1b[31m"]
    findings = [
        make_finding(number, kind, (*groups, None)[number % 5], (*topics, None)[number % 4])
        for number, kind in enumerate([*FindingKind, *FindingKind])
    ]
    return _page(topics, groups, findings, 1_234_567, runs=3)


def nothing_wrong() -> str:
    """A clean window, the second of its chain."""
    return _page(["orders"], ["shop"], [], 100_000_000, runs=2)


def nothing_there() -> str:
    """An empty window."""
    return _page(["orders"], ["shop"], [], 0)


def very_much() -> str:
    """200 topics, 30 groups, 10,000 findings, one with 60,000 records, the last of 500 runs."""
    topics, groups = [f"orders.region-{number}.v2" for number in range(200)], [f"group-{n}" for n in range(30)]
    kinds = [*[FindingKind.MISSING] * 10, *FindingKind]
    findings = [
        make_finding(number, kinds[number % len(kinds)], groups[number % 30], topics[number % 200])
        for number in range(10_000)
    ]
    findings[0] = replace(findings[0], state=NEW, legs=[*findings[0].legs] * 20_000)
    return _page(topics, groups, findings, 1_000_000, runs=500)


PAGES = {make.__name__: make for make in (every_kind, nothing_wrong, nothing_there, very_much)}
