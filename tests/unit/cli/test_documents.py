"""What README and guides name must exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from api.cli.main import app
from bridge.core import explanation
from tests.support.pages import PAGES, read_steps
from tests.support.source_tree import ROOT

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "examples" / "README.md"]
DOCUMENTS = [*TEXTS, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """To files of the project, seen from the document's folder, and to headings in them."""
    links = re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)", document.read_text())
    targets = [(document.parent / path if path else document, anchor) for path, anchor in links]
    assert [str(path) for path, _ in targets if not path.exists()] == []
    assert [f"{path}#{anchor}" for path, anchor in targets if anchor and anchor not in anchors_of(path)] == []


def anchors_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def commands_in(text: str) -> Iterator[list[str]]:
    """Every command line of ours, in blocks and between backquotes, without what the shell does with it."""
    for code in re.findall(r"^```.*?^```|`[^`\n]+`", text, re.DOTALL | re.MULTILINE):
        for line in code.strip("`").replace("\\\n", " ").splitlines():
            for found in re.findall(r"(?:^|[ (;])outbox-bridge ([a-z][^;|)>]*)", line):
                yield shlex.split(found.partition(" #")[0].replace("'", "").replace('"', ""))


def names_of(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_those_that_exist_with_their_options(document: Path) -> None:
    """A newcomer copies them."""
    for words in commands_in(document.read_text()):
        known: Any = typer.main.get_command(app)
        rest = list(words)
        while rest and (inner := getattr(known, "commands", {})) and rest[0] in inner:
            known = inner[rest.pop(0)]
        assert known.name != "outbox-bridge", f"there is no command {words}"
        options = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert options <= {name for parameter in known.params for name in names_of(parameter)} | {"--help"}, words


PROGRAMS = "outbox-bridge curl docker export helm kubectl make pip python python3 rm spark-submit sqlite3 uvicorn"
COMMAND = rf"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:{PROGRAMS.replace(' ', '|')}) "
MARK = r"<!-- (?:run|run (?:in|until): \S.*|not run: (?P<reason>\S.*\S)) -->"


def blocks_of_commands(page: Path) -> Iterator[tuple[str, str]]:
    """The line above each block that holds a command, and the block's first line."""
    lines = page.read_text().splitlines()
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    for begin, end in zip(fences[::2], fences[1::2], strict=True):
        if lines[begin] in {"```", "```bash", "```sh", "```console"} and any(
            re.match(COMMAND, line) for line in lines[begin + 1 : end]
        ):
            yield lines[begin - 1], lines[begin + 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_page_are_run_or_say_why_not(page: Path) -> None:
    """A block of commands has a mark above it; a reason that names a test or a script names one that exists."""
    marks = [(re.fullmatch(MARK, above), first) for above, first in blocks_of_commands(page)]
    assert [first for mark, first in marks if mark is None] == []
    named = [name for mark, _ in marks if mark for name in re.findall(r"[\w.]+/[\w./]+\w", mark["reason"] or "")]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_marks_are_understood(page: Path) -> None:
    """Each `run` has its block; what is run on another page stands there, too."""
    steps = [step for step in read_steps(page) if step.kind.startswith("run")]
    assert len(steps) == len(re.findall("^<!-- run", page.read_text(), re.MULTILINE))
    assert [step for step in steps if not step.block] == []
    for step in steps:
        if step.kind == "run in":
            assert step.commands, page
            there = [other for other in read_steps(ROOT / step.text) if other.kind in {"run", "run until"}]
            assert {*step.commands} <= {command for other in there for command in other.commands}


def test_exit_codes_are_those_of_the_code() -> None:
    """The table in the operators' guide."""
    table = (ROOT / "docs" / "operating.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d) \|", table, re.MULTILINE)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("reasons", ["_SILENT", "_PARKED", "_BLOCKED"])
def test_every_reason_of_an_explanation_has_its_remedy(reasons: str) -> None:
    """What a command says is found on the page as it stands."""
    page = (ROOT / "docs" / "stuck.md").read_text()
    assert [text for text in getattr(explanation, reasons).values() if f"| {text} |" not in page] == []
