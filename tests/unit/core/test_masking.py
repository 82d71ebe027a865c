"""What rules let nobody see who may only read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.grants import MASK, MaskRule, Masks
from bridge.core.message import Message

SECRET = "DE02120300000000202051"


def shown(value: bytes | None, *paths: str) -> bytes | None:
    (message,) = Masks([MaskRule("orders", (), paths)]).apply([Message("orders", value=value)])
    return message.value


@pytest.mark.parametrize(
    ("value", "path", "expected"),
    [
        (b'{"a": {"iban": "x", "n": 1.10}, "b": 12345678901234567890123}', "a.iban",
         b'{"a":{"iban":"***","n":1.10},"b":12345678901234567890123}'),
        (b'[{"iban": 1}, {"iban": [2]}, {"name": "x"}]', "iban", b'[{"iban":"***"},{"iban":"***"},{"name":"x"}]'),
        (b'{"lines": [{"iban": "x"}, 7]}', "lines.iban", b'{"lines":[{"iban":"***"},7]}'),
        (b'{"a": {"x": 1}, "b": {"x": 2}, "c": 3}', "*.x", b'{"a":{"x":"***"},"b":{"x":"***"},"c":3}'),
        (b'{"ib\\u0061n": "x"}', "iban", b'{"iban":"***"}'),
        (b'{"iban": "x", "iban": "y"}', "iban", b"***"),
        (b'{"other": 1}', "iban", b'{"other":1}'),
        (b"\x00\xff", "iban", b"***"),
        (b"iban=x", "iban", b"***"),
        (b'"x"', "iban", b"***"),
        (b'{"iban": "x"', "iban", b"***"),
        (b'{"a":' * 100_000, "a.a", b"***"),
        (None, "iban", None),
        (b"", "iban", b""),
    ],
)  # fmt: skip
def test_members_are_masked_and_the_rest_stays_as_it_is(value: bytes | None, path: str, expected: bytes | None) -> None:
    """Digit by digit; of what is no JSON object or array nothing is shown."""
    assert shown(value, path) == expected


def test_headers_are_masked_in_any_case() -> None:
    """All of a name; null stays null."""
    message = Message("orders", headers=[("X-User", b"ada"), ("x-user", b"\xff"), ("X-USER", None), ("trace", b"1")])
    (masked,) = Masks([MaskRule("ord*", ["x-user"])]).apply([message])
    assert list(masked.headers) == [("X-User", b"***"), ("x-user", b"***"), ("X-USER", None), ("trace", b"1")]


def test_rules_are_for_their_topics_and_add_up() -> None:
    """A message is shown as all that fit its topic let it."""
    masks = Masks([MaskRule("orders", (), ["a"]), MaskRule("or*", (), ["b"]), MaskRule("mails", (), ["c"])])
    (masked,) = masks.apply([Message("orders", value=b'{"a":1,"b":2,"c":3}')])
    assert json.loads(masked.value or b"") == {"a": MASK, "b": MASK, "c": 3}
    other = Message("stock", value=b"{}")
    assert (masks.concern([other]), masks.apply([other])) == (False, [other])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["iban", "a", "b"]) | st.text(), inner),
)


@given(JSON, st.sampled_from(["iban", "a.iban", "*.iban"]), st.booleans())
def test_no_secret_comes_through(document: Any, path: str, is_ascii: bool) -> None:
    """Wherever the path leads; and what is shown is JSON still."""
    value = {"iban": SECRET, "a": [{"iban": {"x": SECRET}}, document], "b": {"iban": [SECRET]}}
    raw = json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    masked = shown(raw, path) or b""
    found = json.loads(masked) if masked != b"***" else {}
    if "iban" in found and path == "iban":
        assert found["iban"] == MASK
    if "a" in found and path != "iban":
        assert found["a"][0]["iban"] == MASK
