"""Messages in JSON answers and check calls."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.message import JsonText, Message, read_json_text, show_message, write_json, write_message

SCALARS = st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.text()
JSON_VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def shown_bytes(member: str, shown: dict[str, object]) -> bytes | None:
    """What a reader of the JSON makes of a member: the reverse of showing it."""
    if f"{member}_base64" in shown:
        return base64.b64decode(str(shown[f"{member}_base64"]))
    text = shown[member]
    return None if text is None else str(text).encode()


def test_shows_only_what_was_asked_for() -> None:
    """The example of the contract."""
    message = Message("orders", b"42", b'{"n":1}', [("source", b"shop"), ("source", None)])
    assert write_json(show_message(message)) == (
        '{"topic":"orders","key":"42","value":{"n":1},"headers":[["source","shop"],["source",null]]}'
    )
    asked = show_message(Message("t", None, b"", queue_id=3, timestamp_ms=7))
    assert asked == {"topic": "t", "key": None, "value": "", "headers": [], "partition": 3, "timestamp_ms": 7}


def test_null_is_not_empty() -> None:
    """A tombstone is null, an empty value an empty string."""
    assert show_message(Message("t", None, None))["value"] is None
    assert show_message(Message("t", b"", b""))["value"] == ""
    assert show_message(Message("t", b"", b""))["key"] == ""


def test_bytes_that_are_no_text_are_base64() -> None:
    """One form for a whole header list, so that order and repeats stay readable."""
    shown = show_message(Message("t", b"\xff", b"\x80\x81", [("a", b"text"), ("b", b"\xfe"), ("a", None)]))
    assert shown["key_base64"] == "/w=="
    assert shown["value_base64"] == "gIE="
    assert shown["headers_base64"] == [["a", "dGV4dA=="], ["b", "/g=="], ["a", None]]
    assert not {"key", "value", "headers"} & set(shown)


@pytest.mark.parametrize(
    "text",
    [
        '{"big":123456789012345678901234567890,"price":1.10,"tiny":1e-7}',
        '[1,2.50,{"b":1,"a":2}]',
        '{"text":"caf\u00e9 \\u00e9 \\ud83d\\ude00"}',
        "{}",
    ],
)
def test_objects_and_arrays_stand_as_they_are(text: str) -> None:
    """Big integers, decimals, escapes and the order of members are not changed."""
    value = show_message(Message("t", None, text.encode()))["value"]
    assert isinstance(value, JsonText)
    assert write_json({"value": value}) == '{"value":' + text + "}"


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "true",
        "null",
        '"quoted"',
        '{"a":1,"a":2}',
        '{"a":NaN}',
        "[-Infinity]",
        "[1e999]",
        "[" + "9" * 401 + "]",
        '["\\ud800"]',
        '{"\\udc00":1}',
        "{'a':1}",
        '{"a":1} x',
        "[" * 33 + "]" * 33,
        "[" * 100_000,
        "\ufeff{}",
        "[1,]",
    ],
)
def test_other_texts_are_strings(text: str) -> None:
    """What parsers disagree about would spoil the whole call: it is shown as text, and loses nothing."""
    value = show_message(Message("t", None, text.encode()))["value"]
    assert value == text
    assert not isinstance(value, JsonText)
    assert json.loads(write_json(value)) == text


def test_depth_at_the_limit_is_embedded() -> None:
    """32 levels are what the bridge takes."""
    assert isinstance(read_json_text(b"[" * 32 + b"]" * 32), JsonText)


def test_number_at_the_limit_is_embedded() -> None:
    """400 characters; one more is shown as text."""
    number = "0." + "7" * 398
    assert isinstance(read_json_text(f"[{number}]".encode()), JsonText)
    assert not isinstance(read_json_text(f"[{number}7]".encode()), JsonText)


def test_json_over_several_lines_is_shown_on_one() -> None:
    """A line of NDJSON stays a line."""
    written = write_json({"value": read_json_text(b' {\r\n "a": [1,\n2]}\n')})
    assert "\n" not in written
    assert "\r" not in written
    assert json.loads(written) == {"value": {"a": [1, 2]}}


@given(JSON_VALUES)
def test_embedded_json_means_what_it_meant(value: object) -> None:
    """Any JSON value comes back from the document as it went in."""
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    shown = write_json(show_message(Message("t", None, raw)))
    member = json.loads(shown)
    if "value_base64" in member:
        assert base64.b64decode(member["value_base64"]) == raw
    elif isinstance(member["value"], str):
        assert member["value"].encode() == raw
    else:
        assert member["value"] == value


@given(st.none() | st.binary())
def test_keys_are_never_decoded_lossily(key: bytes | None) -> None:
    """Key bytes can be had back from what is shown."""
    assert shown_bytes("key", show_message(Message("t", key))) == key


@given(st.binary())
def test_any_value_gives_valid_json(value: bytes) -> None:
    """No value, however hostile, breaks the document around it."""
    shown = json.loads(write_json(show_message(Message("t", None, value))))
    assert "value" in shown or base64.b64decode(shown["value_base64"]) == value


def test_bytes_and_numbers_that_are_not_json_are_refused() -> None:
    """Writing what JSON has no form for is an error, not a guess."""
    with pytest.raises(TypeError):
        write_json({"a": b"bytes"})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json([float("nan")])


def test_message_as_text_is_what_is_shown_of_it() -> None:
    """JSON within it stands as it is."""
    message = Message("orders", b"k", b'{"total": 12.50}', [("h", b"v")])
    text = write_message(message)
    assert text == write_json(show_message(message))
    assert json.loads(text)["value"] == {"total": 12.5}
    assert '{"total": 12.50}' in text
