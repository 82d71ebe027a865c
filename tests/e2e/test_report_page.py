"""The report as Chromium shows it, on a phone and on a desk, by day and by night."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Tab, open_tab
from tests.support.report_pages import HOSTILE, PAGES
from tests.support.source_tree import ROOT

FLAWS = (ROOT / "tests" / "support" / "page_flaws.js").read_text()


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """One browser for all."""
    with open_tab() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each kind of report as a file."""
    folder = tmp_path_factory.mktemp("pages")
    made = {name: folder / f"{name}.html" for name in PAGES}
    for name, path in made.items():
        path.write_text(PAGES[name]())
    return made


VIEWS = [*((name, width, False) for name in PAGES for width in (360, 1440)), ("every_kind", 360, True)]


@pytest.mark.parametrize(("name", "width", "is_dark"), VIEWS)
def test_page_shows_everything_in_its_place(
    tab: Tab, pages: dict[str, Path], name: str, width: int, is_dark: bool
) -> None:
    """Nothing overlaps, sticks out, is empty, has no name or too little contrast; nothing but the file is loaded."""
    tab.show(width, is_dark=is_dark)
    tab.open(pages[name])
    assert tab.ask(FLAWS) == []
    assert tab.requested == [pages[name].as_uri()]


@pytest.mark.parametrize("name", ["every_kind", "very_much"])
def test_counts_of_findings_are_seen_on_a_phone(tab: Tab, pages: dict[str, Path], name: str) -> None:
    """Without scrolling to the side: they are what one has been woken up for."""
    tab.show(360)
    tab.open(pages[name])
    counts = "[...document.querySelectorAll('#findings td.n')]"
    assert tab.ask(f"{counts}.length") > 0
    assert tab.ask(f"{counts}.filter(one => one.getBoundingClientRect().right > innerWidth).length") == 0


def test_hostile_names_are_shown_as_they_are(tab: Tab, pages: dict[str, Path]) -> None:
    """A group called `<script>` is that text; signs that turn text round are written out."""
    tab.show(1440)
    tab.open(pages["every_kind"])
    shown = tab.ask("document.body.innerText")
    assert HOSTILE in shown
    assert "turned\\u202eround\\x1b[31m" in shown
    assert tab.ask("document.title").startswith("FINDINGS: ")


def test_places_are_marked_by_one_click(tab: Tab, pages: dict[str, Path]) -> None:
    """An offset is copied whole, without the names beside it."""
    tab.show(1440)
    tab.open(pages["every_kind"])
    places = "document.querySelectorAll('.legs .copy')"
    assert tab.ask(f"[...{places}].every(one => getComputedStyle(one).userSelect === 'all')")
    assert tab.ask(f"{places}[0].innerText") == "RMQ_SYS_TRANS_HALF_TOPIC-1@999999999"


def test_paper_shows_what_scrolls_on_a_screen(tab: Tab, pages: dict[str, Path]) -> None:
    """Two hundred topics do not end where a box on the screen does."""
    cut = "[...document.querySelectorAll('.box')].filter(one => one.scrollHeight > one.clientHeight + 1).length"
    tab.open(pages["very_much"])
    tab.show(1440)
    assert tab.ask(cut) > 0
    tab.show(800, media="print")
    assert tab.ask(cut) == 0
