"""Habits that ruff and mypy do not know."""

import ast
import re
import tomllib
from pathlib import Path

from tests.support.source_tree import ROOT, parsed, place, python_files, text_files

# joined here so that this file does not hold what it looks for
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATHS = re.compile("|".join(("/wo" + "rk/", "/ro" + "ot/", r"/home/\w")))
SECRETS = re.compile(
    r"obk_[a-z0-9]{8}_[\w-]{43}|whsec_[A-Za-z0-9+/]{43}=|-BEGIN [A-Z ]*PRIVATE KEY-"
    r"|\bAKIA[A-Z0-9]{16}\b|\bgh[ps]_\w{36}\b"
)
REGISTRIES = re.compile(r"pypi\.\w|pythonhosted\.\w|maven\.(org|apache)|repo1\.|npmjs\.\w")


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{place(path)}:{number} {line.strip()[:80]}"
        for path in text_files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]


def test_nothing_is_left_unfinished() -> None:
    """What is not done is not announced in the code."""
    assert lines_with(UNFINISHED) == []


def test_no_path_of_one_machine_is_written_down() -> None:
    """The project runs anywhere."""
    assert lines_with(MACHINE_PATHS) == []


def test_no_secret_is_written_down() -> None:
    """Neither a key of the bridge's nor one of others: what is in the project is everybody's."""
    example = "api/web/keys.py"
    assert {line.partition(":")[0] for line in lines_with(SECRETS)} == {example}


def test_no_registry_is_named() -> None:
    """Which server packages come from is the user's setting; the ordinary clients know it."""
    assert lines_with(REGISTRIES) == []


def test_every_silenced_type_error_says_which() -> None:
    """A bare one hides the next error too."""
    assert lines_with(re.compile(r"#\s*type:\s*ignore(?!\[)")) == []


def test_every_catch_of_all_errors_says_why() -> None:
    """Only the outermost edge and loops that run for ever may survive any error; ruff finds them, this the reason."""
    assert lines_with(re.compile(r"#\s*noqa: BLE001\s*$")) == []


def test_tests_have_fakes_and_no_mocks() -> None:
    """A mock repeats the code that it replaces; a fake keeps the promises of a port."""
    importing = [
        place(path, node)
        for path in python_files("tests")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom) and "mock" in ast.unparse(node)
    ]
    assert importing == []


def test_documents_name_only_make_targets_that_exist() -> None:
    """The two commands of the README must not be a wish."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text() for path in ROOT.glob("*.md")]
    named = [name for text in texts for name in re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", text, re.MULTILINE)]
    assert {first or second for first, second in named} <= targets


def test_every_folder_of_tests_has_a_target() -> None:
    """A folder that neither `make test` nor a target of its own runs would rot."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    by_default = set(project["tool"]["pytest"]["ini_options"]["testpaths"])
    by_name = set(re.findall(r"pytest (tests/[a-z]+)", (ROOT / "Makefile").read_text()))
    folders = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders == by_default | by_name
