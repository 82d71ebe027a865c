"""The reader of ordinary bodies takes nothing that the strict one would refuse or read differently."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.bodies import Prepare
from api.web.json import MAX_DEPTH, read_strict
from api.web.parse import read_plain_prepare, read_plain_prepares, read_plain_resolutions

ID = "00" + "7" * 25 + "0"
GOOD = '{"producer_group":"g","messages":[{"topic":"t","key":"k","value":"v: {[,"}]}'
_SCRAPS = st.sampled_from(
    ['{"topic":"t"}', ",", ":", '"value"', '"a":1', '{"a":1,"a":2}', "[", "]", "{", "}", " ", "null", '"é"', "01",
     "NaN", '"key":null', '"topic":"t"', "\x01", '"\\u0061":1', '"headers":[["a","b"]]', '"headers":{"a":"b","a":"c"}']
)  # fmt: skip


def as_values(body: Prepare) -> Any:
    """A prepare as plain values, raw ones as bytes."""
    return msgspec.to_builtins(body, enc_hook=bytes)


@given(st.lists(_SCRAPS, max_size=8).map("".join), st.lists(_SCRAPS, max_size=6).map("".join))
def test_whatever_it_takes_the_strict_reader_reads_alike(value: str, more: str) -> None:
    """Names given twice, bad UTF-8, depth and values with spaces are where they could differ."""
    raw = f'{{"producer_group":"g","messages":[{{"topic":"t","value":{value}}}{more}]}}'.encode()
    plain = read_plain_prepare(raw)
    if plain is not None:
        strict = msgspec.json.decode(read_strict(raw), type=Prepare)
        assert as_values(plain) == as_values(strict)


@pytest.mark.parametrize(
    "raw",
    [
        GOOD.replace('"topic":"t"', '"topic":"t","topic":"u"'),
        GOOD.replace('"v: {[,"', '{"a":1,"a":2}'),
        GOOD.replace('"v: {[,"', '{"a":1,"\\u0061":2}'),
        GOOD.replace('"v: {[,"', "[" * MAX_DEPTH + "]" * MAX_DEPTH),
        GOOD.replace('"v: {[,"', "NaN"),
        GOOD.replace("}]}", "}]}{}"),
        GOOD.replace("k", "\x01"),
        GOOD.replace('"k"', '1,"key_base64":"YQ=="'),
        "\ufeff" + GOOD,
    ],
)
def test_what_is_not_plain_is_left_to_the_strict_reader(raw: str) -> None:
    """Alone and in a batch."""
    assert read_plain_prepare(raw.encode()) is None
    assert read_plain_prepares(f'{{"transactions":[{GOOD},{raw}]}}'.encode()) is None


def test_bytes_that_are_not_utf8_are_not_plain() -> None:
    """Also inside a value, which the parser hands on unread."""
    assert read_plain_prepare(GOOD.encode().replace(b"v:", b"\xff:")) is None


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_ordinary_bodies_are_plain(separators: tuple[str, str]) -> None:
    """Texts and objects as values, with every member: an object is made compact."""
    message = {"topic": "t", "key": None, "value": {"a": [1, {"b": "c: d"}]}, "headers": [["h", "x"]], "partition": 1}
    body = {"producer_group": "g", "messages": [message, {"topic": "u", "timestamp_ms": 5}], "ordering_key": "o"}
    plain = read_plain_prepare(json.dumps(body, separators=separators).encode())
    assert plain is not None
    assert plain.messages[0].value == msgspec.Raw(b'{"a":[1,{"b":"c: d"}]}')
    ends = {"resolutions": [{"transaction_id": ID, "resolution": 8}, {"transaction_id": ID, "resolution": "COMMIT"}]}
    assert len(read_plain_resolutions(json.dumps(ends, separators=separators).encode()) or ()) == 2
