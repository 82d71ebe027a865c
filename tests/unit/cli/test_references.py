"""Pages of docs/ that are made from the code."""

import pytest

from tests.references.pages import PAGES
from tests.support.source_tree import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_the_code_says(name: str) -> None:
    """A setting, command, call, problem or event that changed is documented as it is now."""
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run: python -m tests.references"
