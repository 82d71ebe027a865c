"""One class name has one meaning in the whole product."""

import ast
from collections import defaultdict

from tests.support.source_tree import PACKAGES, parsed, place, python_files

SDK = "outbox/"  # its classes are the same things seen by a producer
IN_THE_DOCUMENT = {"Message"}  # the name of a component of the OpenAPI document, and of RocketMQ's message


def test_no_two_public_classes_have_one_name() -> None:
    """Whoever reads a name knows which class is meant, wherever it stands."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in python_files(*PACKAGES):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not place(path).startswith(SDK):
                places[node.name].append(place(path, node))
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in IN_THE_DOCUMENT} == {}
