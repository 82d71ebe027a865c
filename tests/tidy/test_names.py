"""Names say what a thing is; the words below say nothing."""

import ast
import re

from tests.support.source_tree import PACKAGES, ROOT, functions_of, parsed, place, python_files

EMPTY_WORDS = {"manager", "helper", "helpers", "util", "utils", "common", "impl", "misc"}
EMPTY_NOUNS = EMPTY_WORDS | {"base", "data", "info"}  # as the last word, so the thing itself
EMPTY_VERBS = {"do", "handle", "manage", "process"}


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def is_empty(name: str) -> bool:
    words = words_of(name)
    return bool(words and (EMPTY_WORDS & set(words) or words[-1] in EMPTY_NOUNS))


def test_no_module_or_class_has_an_empty_name() -> None:
    """A module called util gathers everything."""
    modules = [(place(path), path.stem) for path in python_files(*PACKAGES)]
    classes = [
        (place(path, node), node.name)
        for path in python_files(*PACKAGES)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert [(where, name) for where, name in modules + classes if is_empty(name)] == []


def test_no_function_begins_with_an_empty_verb() -> None:
    """To process or to handle is not to say what is done."""
    named = [(place(path, node), node.name) for path in python_files(*PACKAGES) for node in functions_of(path)]
    assert [(where, name) for where, name in named if words_of(name)[:1] and words_of(name)[0] in EMPTY_VERBS] == []


def test_every_test_says_what_it_promises() -> None:
    """A name that is a sentence, and a docstring with the promise or the defect."""
    tests = [
        (path, function)
        for path in python_files("tests")
        for function in functions_of(path)
        if function.name.startswith("test_") and path.name.startswith("test_")
    ]
    assert [place(path, test) for path, test in tests if not ast.get_docstring(test)] == []
    assert [f"{place(path, test)} {test.name}" for path, test in tests if test.name.count("_") < 2] == []


def test_packages_are_found_where_they_should_be() -> None:
    """An `__init__.py` there would hide the installed package of that name."""
    assert [folder for folder in ("alembic", "docker", "tests") if list((ROOT / folder).rglob("__init__.py"))] == []


def test_package_files_hold_a_docstring_only() -> None:
    """Importing a module must not import its neighbours; the producer's package alone offers names."""
    files = [path for path in python_files(*PACKAGES) if path.name == "__init__.py" and path.parent != ROOT / "outbox"]
    assert [place(path) for path in files if len(parsed(path).body) != 1 or not ast.get_docstring(parsed(path))] == []
