"""The reader of ordinary bodies takes nothing that the strict one would refuse or read differently."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.bodies import Prepare, ResolutionItem
from api.web.json import MAX_DEPTH, read_strict
from api.web.parse import (
    decode_body,
    make_call,
    make_message,
    make_resolution,
    parse_prepare,
    parse_prepare_batch,
    parse_resolutions,
    read_plain_prepare,
    read_plain_prepares,
    read_plain_resolutions,
)
from api.web.problems import Rejected
from bridge.service.contract import PrepareCall

ID = "00" + "7" * 25 + "0"
GOOD = '{"producer_group":"g","messages":[{"topic":"t","key":"k","value":"v: {[,"}]}'
_SCRAPS = st.sampled_from(
    ['{"topic":"t"}', ",", ":", '"value"', '"a":1', '{"a":1,"a":2}', "[", "]", "{", "}", " ", "null", '"é"', "01",
     "NaN", '"key":null', '"topic":"t"', "\x01", '"\\u0061":1', '"headers":[["a","b"]]', '"headers":{"a":"b","a":"c"}']
)  # fmt: skip


_ALONE = {
    "ordering_key": st.sampled_from(["o:", "\x01"]),
    "idempotency_key": st.sampled_from(["a: b", None, 7]),
    "check_immunity_seconds": st.sampled_from([-1, 60]),
    "max_checks": st.just(3),
    "max_lifetime_seconds": st.just(9),
}
_WRITTEN = {
    "topic": st.sampled_from(["t", "no topic: é"]),
    "key": st.sampled_from(["k:1", "é", "", None, 7]),
    "key_base64": st.just("AA=="),
    "value": st.sampled_from(["a: b", "", "null", None, 7, 1.5, True, {"a": [1, {"b": "c: d"}]}, [], {"a": {"": ":"}}]),
    "value_base64": st.just("AA=="),
    "headers": st.just([["h", "x:"]]),
    "headers_base64": st.just([]),
    "partition": st.just(1),
    "timestamp_ms": st.sampled_from([5, 0]),
}
_USUAL = st.fixed_dictionaries(
    {"topic": _WRITTEN["topic"]}, optional={name: _WRITTEN[name] for name in ("key", "value")}
)
_MESSAGES = st.lists(_USUAL | st.fixed_dictionaries({}, optional=_WRITTEN), min_size=1, max_size=2)
_PREPARES = st.fixed_dictionaries(
    {"producer_group": st.sampled_from(["g", "no: name"]), "messages": _MESSAGES}, optional=_ALONE
)
_SPACES = st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")])


def strictly(raw: bytes, *, is_published: bool) -> PrepareCall | None:
    """The call of a prepare, read by the strict reader and made member by member; None if it is refused."""
    try:
        body = decode_body(read_strict(raw), msgspec.json.Decoder(Prepare))
        messages = [make_message(message, 64, index) for index, message in enumerate(body.messages)]
        return make_call(body, messages, None, is_published=is_published)
    except Rejected:
        return None


@given(st.lists(_SCRAPS, max_size=8).map("".join), st.lists(_SCRAPS, max_size=6).map("".join))
def test_whatever_it_takes_the_strict_reader_reads_alike(value: str, more: str) -> None:
    """Names given twice, bad UTF-8, depth and values with spaces are where they could differ."""
    raw = f'{{"producer_group":"g","messages":[{{"topic":"t","value":{value}}}{more}]}}'.encode()
    plain = read_plain_prepare(raw, 64)
    if plain is not None:
        assert plain == strictly(raw, is_published=False)


@given(st.lists(_PREPARES, min_size=1, max_size=3), _SPACES, st.booleans(), st.booleans())
def test_calls_are_made_as_the_strict_reader_makes_them(
    bodies: list[Any], separators: tuple[str, str], is_published: bool, is_ascii: bool
) -> None:
    """The usual ones are made as they are counted, alone and in batches."""
    documents = [json.dumps(body, separators=separators, ensure_ascii=is_ascii).encode() for body in bodies]
    strict = [strictly(raw, is_published=is_published) for raw in documents]
    batch = parse_prepare_batch(b'{"transactions":[%b]}' % b",".join(documents), 64, is_published=is_published)
    assert [call if isinstance(call, PrepareCall) else None for call in batch] == strict
    for raw, call in zip(documents, strict, strict=True):
        try:
            assert parse_prepare(raw, 64, is_published=is_published) == call
        except Rejected:
            assert call is None


_ENDS = st.fixed_dictionaries(
    {"transaction_id": st.sampled_from([ID, "no id"]), "resolution": st.sampled_from(["COMMIT", "ROLLBACK", 8, "X"])},
    optional={
        "producer_group": st.sampled_from(["g", None, "no: name"]),
        "nonce": st.sampled_from([None, "n:"]),
        "remark": st.sampled_from([None, "r: s", "\x02"]),
    },
)


@given(st.lists(_ENDS, min_size=1, max_size=3), _SPACES)
def test_ends_are_made_as_the_strict_reader_makes_them(bodies: list[Any], separators: tuple[str, str]) -> None:
    """With what is wrong with each."""
    documents = [json.dumps(body, separators=separators).encode() for body in bodies]
    strict: list[object] = []
    for index, raw in enumerate(documents):
        try:
            strict.append(make_resolution(decode_body(read_strict(raw), msgspec.json.Decoder(ResolutionItem))))
        except Rejected as rejected:
            strict.append(rejected.problem.at(f"/resolutions/{index}"))
    assert parse_resolutions(b'{"resolutions":[%b]}' % b",".join(documents)) == strict


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
    assert read_plain_prepare(raw.encode(), 64) is None
    assert read_plain_prepares(f'{{"transactions":[{GOOD},{raw}]}}'.encode(), 64) is None


def test_bytes_that_are_not_utf8_are_not_plain() -> None:
    """Also inside a value, which the parser hands on unread."""
    assert read_plain_prepare(GOOD.encode().replace(b"v:", b"\xff:"), 64) is None


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_ordinary_bodies_are_plain(separators: tuple[str, str]) -> None:
    """Texts and objects as values, with every member: an object is made compact."""
    message = {"topic": "t", "key": None, "value": {"a": [1, {"b": "c: d"}]}, "headers": [["h", "x"]], "partition": 1}
    body = {"producer_group": "g", "messages": [message, {"topic": "u", "timestamp_ms": 5}], "ordering_key": "o"}
    plain = read_plain_prepare(json.dumps(body, separators=separators).encode(), 64)
    assert plain is not None
    assert plain.messages[0].value == b'{"a":[1,{"b":"c: d"}]}'
    ends = {"resolutions": [{"transaction_id": ID, "resolution": 8}, {"transaction_id": ID, "resolution": "COMMIT"}]}
    assert len(read_plain_resolutions(json.dumps(ends, separators=separators).encode()) or ()) == 2
