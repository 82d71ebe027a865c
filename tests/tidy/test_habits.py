"""Habits that ruff and mypy do not know."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.source_tree import PACKAGES, ROOT, parsed, place, python_files, text_files

# joined here so that this file does not hold what it looks for
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATHS = re.compile("|".join(("/wo" + "rk/", "/ro" + "ot/", r"/home/\w")))
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


def test_no_registry_is_named() -> None:
    """Which server packages come from is the user's setting; the ordinary clients know it."""
    assert lines_with(REGISTRIES) == []


def test_every_silenced_type_error_says_which() -> None:
    """A bare one hides the next error too."""
    assert lines_with(re.compile(r"#\s*type:\s*ignore(?!\[)")) == []


def catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in {"Exception", "BaseException"}


def swallowing_handlers(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    """Those for any exception at all that do not raise it again."""
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and catches_all(node))
    return (handler for handler in handlers if not any(isinstance(inner, ast.Raise) for inner in ast.walk(handler)))


def test_only_loops_survive_any_error() -> None:
    """A loop that runs for ever logs, counts and backs off; elsewhere a surprise must be seen."""
    found = []
    for path in python_files(*PACKAGES):
        loops = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.While)]
        in_loops = {handler for loop in loops for handler in swallowing_handlers(loop)}
        found += [place(path, each) for each in swallowing_handlers(parsed(path)) if each not in in_loops]
    assert found == []


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
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text() for path in ROOT.glob("*.md")]
    named = [name for text in texts for name in re.findall(r"`make ([a-z]+)|^make ([a-z]+)", text, re.MULTILINE)]
    assert {first or second for first, second in named} <= targets
