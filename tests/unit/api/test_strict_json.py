"""Strict JSON: what passes, and what its bytes become."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.json import MAX_DEPTH, read_strict
from api.web.problems import Rejected

_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


def nest(depth: int) -> bytes:
    """Arrays within arrays."""
    return b"[" * depth + b"]" * depth


@given(_DOCUMENTS, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_every_strict_document_passes(document: object, indent: int | str | None, ascii_only: bool) -> None:
    """Nothing that is right is refused, however it is written."""
    read_strict(json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode())


@given(_DOCUMENTS, st.sampled_from([None, 2, "\r\n\t"]))
def test_compact_text_is_what_a_compact_writer_writes(document: object, indent: int | str | None) -> None:
    """Only white space between tokens is taken away."""
    spaced = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    assert read_strict(spaced) == json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("spaced", "compact"),
    [
        (b'{ "a" : 1.10 }', b'{"a":1.10}'),
        (b"[ 1e400 , -0.0 , 1E+2 ]", b"[1e400,-0.0,1E+2]"),
        (b"123456789012345678901234567890.000", b"123456789012345678901234567890.000"),
        (b'{"b": 1, "a": "x \\" y \\\\", "c\\\\": " "}', b'{"b":1,"a":"x \\" y \\\\","c\\\\":" "}'),
        (b'["\\u00e9 \\/ \\ud83d\\ude00"]', b'["\\u00e9 \\/ \\ud83d\\ude00"]'),
    ],
)
def test_tokens_keep_their_bytes(spaced: bytes, compact: bytes) -> None:
    """Numbers are never read and written again, escapes stay, order stays."""
    assert read_strict(spaced) == compact


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 10_000])
def test_depth_has_a_limit(depth: int) -> None:
    """32 levels pass, one more does not, and thousands cost no stack."""
    if depth <= MAX_DEPTH:
        read_strict(nest(depth))
    else:
        with pytest.raises(Rejected):
            read_strict(nest(depth))


def test_many_brackets_side_by_side_are_not_deep() -> None:
    """Breadth is not depth; brackets in texts do not count."""
    read_strict(b"[" + b",".join([b'{"[[[[":["}}}}\\"]]]]"]}'] * 1_000) + b"]")


def test_valid_surrogate_pairs_pass() -> None:
    """Only lone ones cannot be written as UTF-8."""
    read_strict(b'"\\ud83d\\ude00 \\\\ud800"')


def test_a_huge_number_costs_no_time() -> None:
    """Converting a million digits would take seconds; they are never converted."""
    read_strict(b"1" * 1_000_000)
    assert math.isinf(float("1" * 1_000))


@given(st.binary(max_size=200))
def test_any_bytes_pass_or_are_rejected(raw: bytes) -> None:
    """No other exception leaves."""
    try:
        read_strict(raw)
    except Rejected:
        return
    json.loads(raw)
