"""The fixed texts that pages of the console can show, read from the code that makes them.

A text is what a constructor of problems, refusals, checks, judgements, findings or errors is given: directly, by a
name, by the parameter of a helper, or as what a helper returns. `{}` is what varies, or comes from elsewhere.
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from tests.support.source_tree import ROOT, Function, functions_of, parsed, place, python_files

MAKERS: Mapping[str, Mapping[int, str]] = {
    "Problem": {1: "detail"},
    "Refused": {1: "detail"},
    "CheckResult": {1: "detail"},
    "Judgement": {1: "found", 2: "remedy"},
    "Diagnosis": {2: "found", 3: "remedy"},
    "TopologyFault": {2: "detail", 3: "remedy"},
    "QueueHalted": {0: "detail"},
    "PutResult": {4: "detail"},
    "refuse_right": {1: "what"},
    "SqlUnavailable": {0: "reason"},
    "SecretUnreadable": {0: "reason", 1: "remedy"},
    "SecretDamaged": {0: "reason", 1: "remedy"},
}
"""Which arguments of a constructor are shown, by place and name."""

_HOMONYMS = 8  # functions of one name, of which any may be meant
_MOST = 40  # texts of one expression
_Seen = tuple[ast.expr, Function | None]  # an expression, and the function that it stands in

_INSIDE: Mapping[type[ast.expr], Callable[[Any], Iterable[ast.expr]]] = {
    ast.IfExp: lambda node: (node.body, node.orelse),
    ast.BoolOp: lambda node: node.values,
    ast.Dict: lambda node: node.values,
    ast.List: lambda node: node.elts,
    ast.Tuple: lambda node: node.elts,
    ast.ListComp: lambda node: (node.elt,),
    ast.GeneratorExp: lambda node: (node.elt,),
    ast.Await: lambda node: (node.value,),
    ast.NamedExpr: lambda node: (node.value,),
    ast.Starred: lambda node: (node.value,),
    ast.Subscript: lambda node: (node.value,) if isinstance(node.value, ast.Name) else (),
}
"""What an expression may be."""


def read_shown_texts() -> Mapping[str, str]:
    """Each text that a page can show, and where it stands: of the console, what it imports, and all below that."""
    web = [ROOT / "api" / "web" / f"{name}.py" for name in ("health", "request", "road")]
    pages = [*python_files("api/console"), *web]
    nodes = [node for page in pages for node in ast.walk(parsed(page)) if isinstance(node, ast.ImportFrom)]
    named = [ROOT / f"{(node.module or '').replace('.', '/')}.py" for node in nodes]
    inner = [path for path in python_files("bridge", "checker") if not {"broker", "memory"} & {*path.parts}]
    return ShownTexts({path for path in [*pages, *named, *inner] if path.is_file()}).found


class ShownTexts:
    """The texts of some files. `found`: where each one stands."""

    def __init__(self, paths: Collection[Path]) -> None:
        self._functions: dict[str, list[Function]] = defaultdict(list)
        self._values: dict[str, list[ast.expr]] = defaultdict(list)  # of constants and of attributes, by name
        self._makers = {name: dict(shown) for name, shown in MAKERS.items()}
        self._within: set[str] = set()
        self._known: dict[tuple[int, int], list[str]] = {}
        self.found: dict[str, str] = {}
        for path in paths:
            self._note_definitions(parsed(path))
        calls = [(path, *seen) for path in sorted(paths) for seen in _calls_of(path)]
        for _ in range(3):  # helpers of helpers
            for path, call, function in calls:
                self._read_call(path, call, function)

    def _note_definitions(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, Function):
                self._functions[node.name].append(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value and not _is_nothing(node.value):
                for target in _targets(node):
                    if isinstance(target, ast.Attribute) or node in tree.body:
                        self._values[_name_of(target)].append(node.value)

    def _read_call(self, path: Path, call: ast.Call, function: Function | None) -> None:
        for number, word in self._makers.get(_name_of(call.func), {}).items():
            given = next((one.value for one in call.keywords if one.arg == word), None)
            given = call.args[number] if given is None and len(call.args) > number else given
            if given is not None:
                self._note_helper(function, given)
                self._within.clear()
                for text in {*self._read(given, function), *self._within}:
                    if " " in text.strip(" {}"):  # else it is a code, or a value
                        self.found.setdefault(text, place(path, call))

    def _note_helper(self, function: Function | None, given: ast.expr) -> None:
        """A function whose parameter is shown makes texts too."""
        if function is None or not isinstance(given, ast.Name):
            return
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args) if one.arg not in {"self", "cls"}]
        if given.id in names:
            self._makers.setdefault(function.name, {})[names.index(given.id)] = given.id

    def _read(self, node: ast.expr, function: Function | None) -> list[str]:
        where = id(node), id(function)
        if where not in self._known:
            self._known[where] = []  # as long as it is being read
            self._known[where] = self._find(node, function)
        return self._known[where]

    def _find(self, node: ast.expr, function: Function | None) -> list[str]:
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        if isinstance(node, ast.JoinedStr):
            return self._join(node.values, function)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._join((node.left, node.right), function)
        texts = dict.fromkeys(text for one, within in self._follow(node, function) for text in self._read(one, within))
        return [text for text in texts if text or not isinstance(node, ast.Attribute)]  # nothing is wrong

    def _join(self, nodes: Iterable[ast.expr], function: Function | None) -> list[str]:
        """Texts made of parts. What another object says, or a list, is a text of its own in the midst of it."""
        parts = []
        for node in nodes:
            value = node.value if isinstance(node, ast.FormattedValue) else node
            texts = self._read(value, function)
            if isinstance(value, ast.Call | ast.Attribute):
                self._within.update(text for text in texts if " " in text)
                texts = []
            parts.append(texts or ["{}"])
        return ["".join(pieces) for pieces in product(*parts)][:_MOST]

    def _follow(self, node: ast.expr, function: Function | None) -> Iterator[_Seen]:
        """What an expression may be, by its names."""
        if isinstance(node, ast.Call):
            yield from self._follow_call(node, function)
        elif isinstance(node, ast.Attribute):
            yield from self._returned(node.attr)
        else:
            inside = _INSIDE.get(type(node), lambda _: ())(node)
            yield from ((one, function) for one in inside)
        if isinstance(node, ast.Name) and function is not None:
            yield from ((one, function) for one in _assigned(function).get(node.id, ()))
        if isinstance(node, ast.Name | ast.Attribute):
            yield from ((one, None) for one in self._values.get(_name_of(node), ()))

    def _follow_call(self, call: ast.Call, function: Function | None) -> Iterator[_Seen]:
        name = _name_of(call.func)
        if name == "join":
            yield from ((one, function) for one in call.args)
        elif name == "get" and isinstance(call.func, ast.Attribute):
            yield from ((one, function) for one in (call.func.value, *call.args[1:]))
        else:
            yield from self._returned(name)

    def _returned(self, name: str) -> Iterator[_Seen]:
        functions = self._functions.get(name, ())
        for function in functions if len(functions) <= _HOMONYMS else ():
            for node in ast.walk(function):
                if isinstance(node, ast.Return | ast.Yield) and node.value and not _is_nothing(node.value):
                    yield node.value, function


def _calls_of(path: Path) -> list[tuple[ast.Call, Function | None]]:
    """Each with the innermost function that it stands in: it comes last."""
    inside = {call: function for function in functions_of(path) for call in ast.walk(function)}
    return [(call, inside.get(call)) for call in ast.walk(parsed(path)) if isinstance(call, ast.Call)]


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_nothing(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


@cache
def _assigned(function: Function) -> Mapping[str, list[ast.expr]]:
    """What local names are given, or lists of these names get."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
            for target in _targets(node):
                found[ast.unparse(target)].append(node.value)
        elif isinstance(node, ast.Call) and _name_of(node.func) == "append":
            found[ast.unparse(node.func).removesuffix(".append")] += node.args
    return found
