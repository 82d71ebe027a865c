"""The summary and the metrics, from numbers made by hand."""

import pytest

from spark.judge.findings import CLEARED, FINDINGS, NEW, PASS, STILL, WARNINGS, Finding
from spark.judge.totals import BOOK_COLUMNS
from spark.read.envelope import OffsetRange, QueuePlace
from spark.read.window import Window
from spark.report.files import Measured, make_metrics, make_summary

WINDOW = Window("half", "op", "parked", 0, {QueuePlace("orders", 0): OffsetRange(0, 9, 9)})
BOOK = {**dict.fromkeys(BOOK_COLUMNS, 0), "prepared": 3, "committed": 2, "open": 1}
TIMES = {"prepared_to_ended": None, "ended_to_visible": None, "prepared_to_visible": None, "buckets": []}
FINGERPRINT = {"prepared": 2, "visible": 2, "is_equal": True}


def measure(group: str = "shop", **book: int) -> Measured:
    return Measured({group: {**BOOK, **book}}, [], [], FINGERPRINT, TIMES, [], [[60, 0], [None, 0]])


def test_books_that_do_not_balance_are_told() -> None:
    """Open before + prepared must be what became of them."""
    assert make_summary(WINDOW, measure(), [], 0)["books"]["total"]["is_balanced"] is True
    assert make_summary(WINDOW, measure(committed=3), [], 0)["books"]["total"]["is_balanced"] is False


def test_what_the_last_run_left_is_compared() -> None:
    """A transaction that got lost between two windows shows in neither of them alone."""
    left = make_summary(WINDOW, measure(opening=4, open=5), [], PASS, 4)["books"]["carried_over"]
    lost = make_summary(WINDOW, measure(opening=3, open=4), [], PASS, 4)["books"]["carried_over"]
    assert (left, lost) == ({"closing": 4, "is_right": True}, {"closing": 4, "is_right": False})
    assert make_summary(WINDOW, measure(), [], PASS)["books"]["carried_over"] is None


@pytest.mark.parametrize(("kinds", "exit_code"), [("", PASS), ("UNPROVABLE", WARNINGS)])
def test_books_that_do_not_carry_over_are_no_pass(kinds: str, exit_code: int) -> None:
    """What became of the transaction that got lost nobody knows: the exit code and the first sentence say so."""
    findings = [find(kind) for kind in kinds.split()]
    summary = make_summary(WINDOW, measure(opening=3, open=4), findings, exit_code, 4)
    assert summary["exit_code"] == FINDINGS
    lost = "The books do not carry over: the last run left 4 transactions not final, this one began with 3."
    assert summary["sentence"].startswith(lost)
    assert "Everything" not in summary["sentence"]
    assert make_summary(WINDOW, measure(opening=4, open=5), findings, exit_code, 4)["exit_code"] == exit_code


def find(kind: str, state: str = NEW) -> Finding:
    return Finding(f"{kind}-{state}", kind, "detail", "shop", "orders", [], "then", state)


@pytest.mark.parametrize(
    ("kinds", "exit_code", "sentence"),
    [
        ("", PASS, "Everything that was committed is what consumers can read: 3 transactions were judged, nothing is"),
        ("MISSING", FINDINGS, "1 finding in 3 transactions, over the threshold: 1 MISSING."),
        ("STALE", PASS, "1 finding in 3 transactions, within the thresholds: 1 STALE."),
        ("UNPROVABLE", PASS, "1 finding in 3 transactions, warnings only: 1 UNPROVABLE."),
        ("UNPROVABLE", WARNINGS, "1 finding in 3 transactions, warnings only: 1 UNPROVABLE."),
        (
            "STALE MISSING PARTIAL CORRUPT ORPHAN",
            FINDINGS,
            "5 findings in 3 transactions, over the threshold: 1 MISSING, 1 PARTIAL, 1 ORPHAN and 2 other kinds.",
        ),
    ],
)
def test_verdict_is_one_sentence(kinds: str, exit_code: int, sentence: str) -> None:
    """The worst first, and never more than a line; warnings are not called findings let pass."""
    findings = [find(kind) for kind in kinds.split()]
    assert make_summary(WINDOW, measure(), findings, exit_code)["sentence"].startswith(sentence)


def test_empty_window_proves_nothing_and_says_so() -> None:
    """That everything is readable would be true of nothing."""
    empty = measure(prepared=0, committed=0, open=0)
    assert "nothing is proved" in make_summary(WINDOW, empty, [], PASS)["sentence"]


def test_findings_are_counted_by_what_is_new() -> None:
    """Who is paged wants to know what has come since the last time."""
    found = [find("MISSING"), find("STALE", STILL), find("STALE", CLEARED)]
    counts = make_summary(WINDOW, measure(), found, FINDINGS)["findings"]
    assert (counts["total"], counts["new"], counts["still"], counts["cleared"]) == (2, 1, 1, 1)


def test_metrics_name_every_kind() -> None:
    """An alert on a kind that was never found must find its series."""
    metrics = make_metrics(make_summary(WINDOW, measure(), [], 0))
    assert 'outbox_bridge_report_findings{kind="MISSING"} 0\n' in metrics
    assert 'outbox_bridge_report_transactions{state="committed"} 2\n' in metrics
