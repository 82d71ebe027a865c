"""Large documents are read as small ones are, in short steps."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.web.json import Steps, read_strict, read_strict_in_steps
from api.web.problems import Rejected

DEPTH = 4
TEXTS = st.text(alphabet='ab",:[]{}\\ \u00e9\ud7ff\U0001f600\n', max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-99, 10**20) | st.floats(allow_nan=False) | TEXTS
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6), max_leaves=40
)


def run(steps: Steps[bytes]) -> tuple[bytes | None, int]:
    """What it returns, or None for a refusal, and after how many pauses."""
    pauses = 0
    try:
        while True:
            next(steps)
            pauses += 1
    except StopIteration as end:
        return end.value, pauses
    except Rejected:
        return None, pauses


def read_whole(raw: bytes) -> bytes | None:
    """What the reader of small documents says."""
    try:
        return read_strict(raw, DEPTH)
    except Rejected:
        return None


def in_steps(raw: bytes, window: int) -> bytes | None:
    """The same, in windows of so many bytes."""
    return run(read_strict_in_steps(raw, DEPTH, window_bytes=window))[0]


@given(DOCUMENTS, st.booleans(), st.sampled_from([None, 1, "\t "]), st.integers(1, 60))
def test_documents_are_read_as_small_ones_are(document: Any, escape: bool, indent: Any, window: int) -> None:
    """Wherever the windows are cut."""
    raw = json.dumps(document, ensure_ascii=escape, indent=indent).encode()
    assert in_steps(raw, window) == read_whole(raw)


@given(DOCUMENTS, st.booleans(), st.data(), st.integers(1, 40))
def test_broken_documents_are_refused_as_small_ones_are(
    document: Any, escape: bool, data: st.DataObject, window: int
) -> None:
    """Bytes are taken out, put in, or exchanged."""
    raw = bytearray(json.dumps(document, ensure_ascii=escape).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        gone = data.draw(st.integers(0, 3))
        raw[at : at + gone] = data.draw(st.sampled_from(b'"\\,:[]{}\x01\x02 1N\xff')).to_bytes() * (gone != 1)
    assert in_steps(bytes(raw), window) == read_whole(bytes(raw))


@given(st.text(alphabet='[]{}",:1 a\\', max_size=60), st.integers(1, 20))
@example('{"a":1,"b":[2,3],"a":4}', 8)
@example('{"a":{"b":1,"c":2},"b":{"b":1,"b":2}}', 8)
@example("[1,]", 2)
@example("[,1]", 2)
@example('{"a":1,}', 7)
@example("1,2", 1)
@example("[1,2", 2)
@example("[],[1]", 3)
def test_nonsense_is_refused_as_in_small_documents(text: str, window: int) -> None:
    """Above all what a window by itself would not show."""
    assert in_steps(text.encode(), window) == read_whole(text.encode())


@pytest.mark.parametrize(
    "unit",
    [b"1", b"[]", b"{}", b'""', b'"\\ud83d\\ude00"', b'{"a":[{"b":"c"}]}', b"[[[[1]]]]", b'"' + b"x" * 50 + b'"'],
)
def test_steps_are_short(unit: bytes) -> None:
    """However the document is made: a step reads a window, and what is left of a token at its end."""
    raw = b"[" + b",".join([unit] * 20_000) + b"]"
    read, pauses = run(read_strict_in_steps(raw, 8, window_bytes=1_000))
    assert read == raw
    assert pauses >= len(raw) // 1_000


@pytest.mark.parametrize("token", [b'"' + b'\\"' * 50_000 + b'"', b"1" * 100_000, b" " * 100_000 + b"1"])
def test_long_tokens_are_read(token: bytes) -> None:
    """They have no comma for long."""
    raw = b'{"a":[1,' + token + b"," + token + b'],"b":' + token + b"}"
    assert run(read_strict_in_steps(raw, 8, window_bytes=100))[0] == read_strict(raw, 8)


@pytest.mark.parametrize("raw", [b"[]" * 50_000, b'""' * 50_000, b'"' * 100_000, b"[" * 100_000, b"]" * 100_000])
def test_nonsense_without_commas_is_refused_early(raw: bytes) -> None:
    """It is not read again and again with every window."""
    read, pauses = run(read_strict_in_steps(raw, 8, window_bytes=100))
    assert read is None
    assert pauses < 40


@pytest.mark.parametrize("count", [10, 11])
@pytest.mark.parametrize("window", [1, 7, 25, 10_000])
def test_items_are_bounded_while_they_are_read(count: int, window: int) -> None:
    """In arrays of the document, and in those of their objects; what lies deeper has no bound."""

    def read(document: Any) -> bool:
        raw = json.dumps(document, separators=(",", ":")).encode()
        return run(read_strict_in_steps(raw, 8, (10, 10), window))[0] == raw

    inner = [{"c": [0] * 50} for _ in range(count)]
    assert read({"a": [1] * count}) is (count == 10)
    assert read({"a": [[0] * 50]})
    assert read({"z": 1, "a": [{"d": 1}, {"b": inner}], "y": {"x": [1] * 50}}) is (count == 10)
    assert read({"a": [{"b": inner}, {"b": [1]}]}) is (count == 10)
    assert read({"a": [{"b": [1] * 9, "c": [2] * 9}] * 10})
    assert read([1] * 50)
