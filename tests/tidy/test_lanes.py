"""Lanes that no gate runs: they must at least begin."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT, place, python_files

PEERS = ROOT / "benchmarks" / "peers"  # each of them needs packages of its own
FILES = [path for path in python_files("tests/kills", "tests/traffic", "benchmarks") if not path.is_relative_to(PEERS)]


@pytest.mark.parametrize("path", FILES, ids=place)
def test_module_of_a_lane_can_be_imported(path: Path) -> None:
    """What nobody starts for weeks breaks with the first change of what it uses."""
    import_module(place(path).removesuffix(".py").replace("/", "."))
