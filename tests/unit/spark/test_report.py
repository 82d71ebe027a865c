"""The page and the summary, from numbers made by hand."""

from spark.books import BOOK_COLUMNS
from spark.findings import Finding, ReportedLeg
from spark.report import Measured, make_metrics, make_page, make_summary
from spark.scope import Extent, Place
from spark.window import Window

WINDOW = Window("half", "op", "parked", 0, {Place("orders", 0): Extent(0, 9, 9)})
BOOK = {**dict.fromkeys(BOOK_COLUMNS, 0), "prepared": 3, "committed": 2, "open": 1}
TIMES = {"prepared_to_ended": None, "ended_to_visible": None, "prepared_to_visible": None, "buckets": []}
FINGERPRINT = {"prepared": 2, "visible": 2, "is_equal": True}
HOSTILE = "<script>alert(1)</script>\"'&"


def measure(group: str = "shop", **book: int) -> Measured:
    return Measured({group: {**BOOK, **book}}, [], FINGERPRINT, TIMES, [], [[60, 0], [None, 0]])


def test_everything_from_users_is_escaped() -> None:
    """A group's name or a reason must not become part of the page."""
    leg = ReportedLeg("visible", HOSTILE, 0, 1)
    finding = Finding("t", "WRONG_GROUP", HOSTILE, HOSTILE, HOSTILE, [leg], HOSTILE)
    page = make_page(WINDOW, make_summary(WINDOW, measure(HOSTILE), [finding], 1), [finding], [])
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;") == 6


def test_empty_window_makes_a_page_without_empty_plots() -> None:
    """A sentence or a row stands where there is nothing to draw."""
    nothing = Measured({}, [], FINGERPRINT, TIMES, [], [[60, 0], [None, 0]])
    page = make_page(WINDOW, make_summary(WINDOW, nothing, [], 0), [], [])
    assert "<svg" not in page
    assert "no transaction in this window" in page


def test_books_that_do_not_balance_are_told() -> None:
    """Open before + prepared must be what became of them."""
    assert make_summary(WINDOW, measure(), [], 0)["books"]["total"]["is_balanced"] is True
    assert make_summary(WINDOW, measure(committed=3), [], 0)["books"]["total"]["is_balanced"] is False


def test_metrics_name_every_kind() -> None:
    """An alert on a kind that was never found must find its series."""
    metrics = make_metrics(make_summary(WINDOW, measure(), [], 0))
    assert 'outbox_bridge_report_findings{kind="MISSING"} 0\n' in metrics
    assert 'outbox_bridge_report_transactions{state="committed"} 2\n' in metrics
