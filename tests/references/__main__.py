"""Writes the pages of docs/ that are made from the code: python -m tests.references"""

from tests.references.pages import PAGES
from tests.support.source_tree import ROOT

for name, make in PAGES.items():
    (ROOT / "docs" / name).write_text(make())
