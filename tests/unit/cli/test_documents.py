"""What README and guides name must exist."""

import re
from pathlib import Path

import pytest

from api.cli.main import app
from tests.support.source_tree import ROOT

DOCUMENTS = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("check-endpoint.md", "operating.md", "outbox.md", "producers.md")),
]


def command_names() -> set[str]:
    own = {info.name or (info.callback.__name__ if info.callback else "") for info in app.registered_commands}
    own = {name.replace("_", "-") for name in own}
    return own | {str(group.name) for group in app.registered_groups}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Files of the project, seen from the document's folder."""
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_those_that_exist(document: Path) -> None:
    """A newcomer copies them."""
    named = set(re.findall(r"outbox-bridge ([a-z]+(?:-[a-z]+)*)", document.read_text()))
    assert named <= command_names()


def test_exit_codes_are_those_of_the_code() -> None:
    """The table in the operators' guide."""
    table = (ROOT / "docs" / "operating.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d) \|", table, re.MULTILINE)] == [0, 1, 2, 3, 4, 5]
