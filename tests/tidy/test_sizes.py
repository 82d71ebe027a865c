"""Code stays in pieces that fit on a screen. There is no list of exceptions, and there should be none."""

import statistics

from tests.support.source_tree import PACKAGES, functions_of, place, python_files

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def test_no_file_is_too_long() -> None:
    """Above 500 lines a file has more than one reason to change."""
    lengths = {place(path): len(path.read_text().splitlines()) for path in python_files(*PACKAGES, "tests", "alembic")}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    """None above 60 lines, nine of ten at most 40, half of them at most 10."""
    lengths = {
        f"{place(path, function)} {function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in python_files(*PACKAGES)
        for function in functions_of(path)
    }
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}
    assert statistics.median(lengths.values()) <= 10
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 40
