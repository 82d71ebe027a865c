"""Page cursors: only what the bridge made is read."""

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.sql.rows import MalformedCursor, decode_cursor, encode_cursor

NUMBERS = st.integers(-(2**63), 2**63 - 1)


def in_base64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@given(st.sampled_from("1a"), st.lists(NUMBERS, min_size=1, max_size=3))
def test_numbers_come_back(kind: str, numbers: list[int]) -> None:
    """In any URL, as they are."""
    cursor = encode_cursor(kind, *numbers)
    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert decode_cursor(kind, len(numbers), cursor) == numbers


def test_cursors_are_frozen() -> None:
    """A page that was open while the bridge was upgraded goes on."""
    assert encode_cursor("1", 5, 7) == "MTo1Ojc"
    assert encode_cursor("a", 7) == "YTo3"


@pytest.mark.parametrize(
    "cursor",
    [
        "", "1:5:7", "MTo1Ojc=", "MTo1Oj", "MTo1\nOjc", "MTo1!Ojc", " MTo1Ojc", "MTo1Ojd", "\uff2dTo1Ojc", "MTo1Ojc\0",
        *map(in_base64, ["2:5:7", "5:7", "1:5", "1:5:7:9", "1:5:x", "1:5:", "1: 5:7", "1:+5:7", "1:05:7", "1:5_0:7"]),
        *map(in_base64, ["1:-0:7", "1:5.0:7", "1:٣:7", f"1:{2**63}:7", f"1:5:{-(2**63) - 1}", f"1:5:{'9' * 5000}"]),
    ],
)  # fmt: skip
def test_other_texts_are_malformed(cursor: str) -> None:
    """Other kinds, other counts, numbers that no database takes, and every second spelling of a cursor."""
    with pytest.raises(MalformedCursor):
        decode_cursor("1", 2, cursor)


def test_cursor_of_one_list_is_none_of_another() -> None:
    """The audit's does not lead into the transactions."""
    with pytest.raises(MalformedCursor):
        decode_cursor("1", 1, encode_cursor("a", 7))


@given(st.text() | st.from_regex(r"[\w\n!=+/-]{1,30}") | st.text("0123456789:-+_ ").map(in_base64))
def test_any_text_is_a_cursor_or_malformed(text: str) -> None:
    """What is read is written the same again."""
    with suppress(MalformedCursor):
        assert encode_cursor("1", *decode_cursor("1", 2, text)) == text


@given(NUMBERS, NUMBERS, st.data())
def test_a_changed_cursor_is_another_place_or_malformed(born_ms: int, row_id: int, data: st.DataObject) -> None:
    """No character of it is passed over."""
    cursor = encode_cursor("1", born_ms, row_id)
    start = data.draw(st.integers(0, len(cursor)))
    end = data.draw(st.integers(start, min(len(cursor), start + 2)))
    changed = cursor[:start] + data.draw(st.text(max_size=2)) + cursor[end:]
    with suppress(MalformedCursor):
        assert (decode_cursor("1", 2, changed) == [born_ms, row_id]) == (changed == cursor)
