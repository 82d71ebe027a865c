"""What mutmut made of the modules, and what became of it."""

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from tests.mutation.hung import HUNG

_EQUIVALENT = Path(__file__).with_name("equivalent.txt")
_SURVIVED = 0
_FAILED = frozenset({1, 3})  # a test; pytest itself
_NOT_COVERED = 33  # mutmut's number for a function that no test enters


class Mutant(Struct, frozen=True):
    """A function with one change. `before`, `after`: the lines that differ, as `ast.unparse` writes them."""

    name: str
    module: str
    function: str
    before: str
    after: str
    exit_code: int | None
    seconds: float

    @property
    def is_untried(self) -> bool:
        """Whether the run was stopped before it or in it: so is a process that takes no end for hours."""
        return not (self.is_alive or self.is_hung or self.exit_code in _FAILED)

    @property
    def is_hung(self) -> bool:
        """Whether a test took many times its CPU time."""
        return self.exit_code == HUNG

    @property
    def is_alive(self) -> bool:
        """Whether all tests passed, or there are none."""
        return self.exit_code in {_SURVIVED, _NOT_COVERED}

    @property
    def change(self) -> tuple[str, str, str]:
        """What it is known by when its number is another."""
        return self.function, self.before, self.after


def read_equivalent() -> frozenset[tuple[str, str, str]]:
    """Changes that change nothing anybody could see: function, line before, line after, reason; an empty line."""
    blocks = [block.splitlines() for block in _EQUIVALENT.read_text().split("\n\n") if block.strip()]
    return frozenset((function, before[2:], after[2:]) for function, before, after, _ in blocks)


def read_mutants(folder: Path, modules: Sequence[str]) -> Iterator[Mutant]:
    """All mutants of these modules, in the order of the code."""
    for module in modules:
        meta = folder / "mutants" / f"{module}.meta"
        if meta.exists():
            yield from _read_module(module, json.loads(meta.read_text()), (folder / "mutants" / module).read_text())


def _read_module(module: str, meta: dict[str, dict[str, float]], code: str) -> Iterator[Mutant]:
    lines = {
        node.name: ast.unparse(node).replace(node.name, "", 1).splitlines()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name, exit_code in meta["exit_code_by_key"].items():
        short = name.rpartition(".")[2]
        mangled = short.partition("__mutmut_")[0]
        before, after = _difference(lines[f"{mangled}__mutmut_orig"], lines[short])
        function = mangled.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
        where = f"{name.rpartition('.')[0]}.{function}"
        yield Mutant(name, module, where, before, after, exit_code, meta["durations_by_key"].get(name, 0.0))


def _difference(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    """The lines between what both begin and end with; several are joined."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return tuple(" / ".join(line.strip() for line in lines[start : len(lines) - end]) for lines in (before, after))
