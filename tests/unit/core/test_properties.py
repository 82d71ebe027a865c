"""RocketMQ's property map on the wire."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import MalformedRecord
from bridge.core.properties import decode_properties, encode_properties, find_bad_header, is_property_text

TEXTS = st.text().filter(is_property_text)


@given(st.dictionaries(TEXTS, TEXTS))
def test_properties_come_back_as_they_went(properties: dict[str, str]) -> None:
    """Names, values and their order survive."""
    assert list(decode_properties(encode_properties(properties)).items()) == list(properties.items())


def test_encoding_is_rocketmqs() -> None:
    """Name 0x01 value 0x02, repeated."""
    assert encode_properties({"KIND": "H", "V": "1"}) == b"KIND\x01H\x02V\x011\x02"


@pytest.mark.parametrize(
    "raw",
    [b"KIND\x01H", b"KIND\x02", b"\xff\x01a\x02", b"A\x01b\x02A\x01c\x02", b"A\x01b\x01c\x02", b"A\x01b\x02rest",
     b"A\x01b\x00\x02", b"A\x00\x01b\x02"],
)  # fmt: skip
def test_malformed_properties_are_refused(raw: bytes) -> None:
    """Open ends, missing values, repeats, bytes that are not UTF-8, and 0x00, which PostgreSQL keeps in no text."""
    with pytest.raises(MalformedRecord):
        decode_properties(raw)


@given(st.binary())
def test_any_bytes_are_properties_or_malformed(raw: bytes) -> None:
    """No other error than MalformedRecord."""
    with contextlib.suppress(MalformedRecord):
        properties = decode_properties(raw)
        assert encode_properties(properties) == raw
        assert all(is_property_text(text) for pair in properties.items() for text in pair)


def test_texts_that_cannot_be_properties() -> None:
    """The separators, 0x00 and lone surrogates are refused at the door."""
    assert not any(is_property_text(text) for text in ("a\x01", "a\x02", "a\x00", "\ud800", "\udfff"))
    assert all(is_property_text(text) for text in ("ü€😀", "", "\ud7ff\ue000"))


@pytest.mark.parametrize(
    ("name", "is_bad"),
    [
        ("properties", True),
        ("transaction-id", True),
        ("properties\0x", True),
        ("ü\0", True),
        ("ü\ud800", True),
        ("ü\x01", True),
        ("trace", False),
        ("", False),
        ("ü€😀", False),
        ("a\x01", False),
    ],
)
def test_header_that_no_message_may_have_is_found_among_others(name: str, *, is_bad: bool) -> None:
    """Reserved ones, and those that no client would read back as they are."""
    for headers in ([(name, b"1")], [("a", b"1"), (name, None)]):
        assert (find_bad_header(headers) is not None) is is_bad
