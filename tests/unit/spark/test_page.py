"""The page, from numbers made by hand; how it looks is seen in tests/e2e/test_report_page.py."""

from markupsafe import escape

from spark.judge.findings import ADVICE
from spark.judge.rules import FindingKind
from spark.report.page import show_duration, show_plain
from tests.support.report_pages import HOSTILE, PAGES, REMARK


def test_everything_from_users_is_escaped() -> None:
    """A group's name or a reason must not become part of the page."""
    page = PAGES["every_kind"]()
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;document.title=&#34;mine&#34;&lt;/script&gt;") > len(HOSTILE.split())


def test_remarks_of_producers_are_shown_as_text() -> None:
    """Beside what was found, whatever they hold; none where there is none."""
    page = PAGES["every_kind"]()
    shown = escape(show_plain(REMARK))
    assert "\\u202e\\u2028" in shown
    kinds = len(FindingKind)
    assert [page.count(f"remark:</span> <bdi>{text}</bdi>") for text in (shown, "no such row")] == [kinds * 2 // 3] * 2
    assert page.count("remark:") == kinds * 2 // 3 * 2
    assert not {"\u202e", "\u2028"} & set(page)


def test_empty_window_makes_a_page_without_empty_plots() -> None:
    """A sentence stands where there is nothing to draw."""
    page = PAGES["nothing_there"]()
    assert "<svg" not in page
    assert page.count("<section") == 8
    assert "nothing is proved" in page


def test_same_numbers_make_the_same_bytes() -> None:
    """Also the plots, whose ids are drawn by lot otherwise."""
    assert PAGES["every_kind"]() == PAGES["every_kind"]()


def test_no_kind_hides_another() -> None:
    """Thousands of one kind leave room for the only one of another."""
    page = PAGES["very_much"]()
    assert page.count('<tr><th scope="row" class="name"><code') == len(FindingKind) * (200 // len(FindingKind))
    assert all(f'<h3 id="{kind}">' in page for kind in FindingKind)
    assert len(page) < 2_000_000
    assert page.count(" more, in findings.jsonl") == 1


def test_every_kind_says_what_to_do() -> None:
    """Whoever is woken has read no manual."""
    assert ADVICE.keys() == set(FindingKind)
    assert all(sentence.endswith((".", "?")) for advice in ADVICE.values() for sentence in advice)


def test_signs_that_cannot_be_seen_are_written_out() -> None:
    """A text must not turn its neighbours round, nor break a line."""
    assert show_plain("a\u202eb\x1b[31m\n קבוצה") == "a\\u202eb\\x1b[31m\\n קבוצה"


def test_durations_are_said_as_people_say_them() -> None:
    """Exact where it matters, short where it does not; clocks that differ make negative ones."""
    told = [show_duration(ms) for ms in (0, 9_999, 10_000, 59_990, 90_000, 5_400_000, 200_000_000, -5, -60_000)]
    assert told == ["0 ms", "9,999 ms", "10.0 s", "60.0 s", "1.5 min", "1.5 h", "2.3 d", "-5 ms", "-1.0 min"]
