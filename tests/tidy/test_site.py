"""docs/ as a site: `make site` follows its links."""

from typing import Any

import yaml

from tests.support.source_tree import ROOT

DOCS = ROOT / "docs"
MADE_OF_THE_README = "index.md"  # by .ci/site_hooks.py


def pages_in(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in(entry)]


def test_every_page_is_in_the_navigation_once() -> None:
    """A page without a place under `nav` in mkdocs.yml is found by nobody."""
    pages = pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(pages) == sorted([*there, MADE_OF_THE_README])
