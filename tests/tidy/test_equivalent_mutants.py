"""tests/mutation: what is changed and tried is there; a list of exceptions never outlives what it excepts."""

import ast
from functools import cache

import pytest

from tests.mutation.__main__ import PARTS, Part
from tests.mutation.mutants import read_equivalent
from tests.support.source_tree import PACKAGES, ROOT, parsed, place, python_files


@cache
def functions_by_name() -> dict[str, str]:
    """Functions and methods as they are listed -> their code, lines joined."""
    found = {}
    for path in python_files(*PACKAGES):
        module = place(path).removesuffix(".py").replace("/", ".")
        for outer in parsed(path).body:
            members = outer.body if isinstance(outer, ast.ClassDef) else [outer]
            prefix = f"{module}.{outer.name}" if isinstance(outer, ast.ClassDef) else module
            for node in members:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = ast.unparse(node).splitlines()
                    found[f"{prefix}.{node.name}"] = " / ".join(line.strip() for line in lines)
    return found


@pytest.mark.parametrize("change", sorted(read_equivalent()), ids=lambda change: f"{change[0]} {change[2]}"[:90])
def test_every_equivalent_mutant_is_one_of_the_code_as_it_is(change: tuple[str, str, str]) -> None:
    """What was excepted for other code must be looked at again."""
    function, before, after = change
    assert before in functions_by_name()[function]
    assert before != after


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_module_of_a_part_is_there(part: Part) -> None:
    """A module that has moved would be left out, and nobody would miss it."""
    assert len(set(part.modules)) == len(part.modules)
    assert [path for path in (*part.modules, *part.tests) if not (ROOT / path).exists()] == []
