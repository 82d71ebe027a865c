"""Pages of docs/ that are made from the code."""

import pytest

from bridge.core.errors import SqlUnavailable
from bridge.service.contract import Outcome, RefusalCode
from bridge.service.groups import refuse_sql
from tests.references.pages import PAGES
from tests.support.source_tree import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_the_code_says(name: str) -> None:
    """A setting, command, call, problem or event that changed is documented as it is now."""
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run: python -m tests.references"


def test_page_of_unavailable_does_not_deny_what_a_broken_commit_may_have_done() -> None:
    """Unknown is never told as not applied, there neither (A)."""
    refused = refuse_sql(SqlUnavailable("lost in COMMIT", is_outcome_unknown=True))
    assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.UNKNOWN)
    section = PAGES["problems.md"]().partition("\n## unavailable\n")[2].partition("\n## ")[0]
    assert "Nothing was applied, unless its `outcome` is `unknown`" in section
