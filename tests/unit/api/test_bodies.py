"""Request bodies become calls byte for byte, or problems."""

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.parse import NoncedEnd, parse_end, parse_prepare, parse_prepare_batch, parse_resolution, parse_resolutions
from api.web.problems import Problem, Rejected
from bridge.core.message import BY_KEY, Message
from bridge.core.record import Resolution
from bridge.service.contract import EndCall, PrepareCall

MAX_HEADERS = 64
ID = "00" + "7" * 25 + "0"


def parse_message(member: str) -> Message:
    """The one message of a prepare with this member, as it stands."""
    raw = '{"producer_group":"g","messages":[{"topic":"t"' + (f",{member}" if member else "") + "}]}"
    (message,) = parse_prepare(raw.encode(), MAX_HEADERS).messages
    return message


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("", None),
        ('"value":null', None),
        ('"value":""', b""),
        ('"value":"text"', b"text"),
        ('"value":"a\\"b\\\\\\u00e9\\n"', 'a"b\\é\n'.encode()),
        ('"value":"é"', "é".encode()),
        (
            '"value":{ "b" : 1.10, "a" : [ 1e400, 12345678901234567890123 ] }',
            b'{"b":1.10,"a":[1e400,12345678901234567890123]}',
        ),
        ('"value":1.10', b"1.10"),
        ('"value":-0', b"-0"),
        ('"value":true', b"true"),
        ('"value":[]', b"[]"),
        ('"value_base64":""', b""),
        ('"value_base64":"/wA="', b"\xff\x00"),
    ],
)
def test_value_becomes_bytes(member: str, value: bytes | None) -> None:
    """A text is UTF-8, JSON is compact and exactly as sent, null is a tombstone, empty is not null."""
    assert parse_message(member).value == value


@pytest.mark.parametrize(
    ("member", "key"),
    [
        ("", None),
        ('"key":null', None),
        ('"key":""', b""),
        ('"key":"é"', "é".encode()),
        ('"key_base64":"AAE="', b"\x00\x01"),
    ],
)
def test_key_becomes_bytes(member: str, key: bytes | None) -> None:
    """Null is not empty."""
    assert parse_message(member).key == key


@pytest.mark.parametrize(
    ("member", "headers"),
    [
        ("", []),
        ('"headers":[]', []),
        ('"headers":[["b","1"],["a",null],["b",""]]', [("b", b"1"), ("a", None), ("b", b"")]),
        ('"headers":{"b":"1","a":null}', [("b", b"1"), ("a", None)]),
        ('"headers_base64":[["a","/w=="],["a",null]]', [("a", b"\xff"), ("a", None)]),
        ('"headers_base64":{"":""}', [("", b"")]),
        ('"headers":[],"headers_base64":[["a","AA=="]]', [("a", b"\0")]),  # as code made by OpenAPI Generator sends it
        ('"headers":[["a","b"]],"headers_base64":[]', [("a", b"b")]),
    ],
)
def test_headers_keep_order_and_repeats(member: str, headers: list[tuple[str, bytes | None]]) -> None:
    """Pairs stay pairs; null is not empty."""
    assert list(parse_message(member).headers) == headers


def test_place_and_time_are_taken_as_asked() -> None:
    """What is left out is chosen by the bridge."""
    asked, left = parse_message('"partition":3,"timestamp_ms":1'), parse_message("")
    assert (asked.queue_id, asked.timestamp_ms) == (3, 1)
    assert (left.queue_id, left.timestamp_ms) == (BY_KEY, None)


def json_number(text: str) -> str:
    """A decimal as JSON writes it."""
    mantissa, _, exponent = text.upper().partition("E")
    return f"{mantissa}E{exponent}" if exponent else mantissa


@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False).map(str).map(json_number))
def test_numbers_keep_every_digit(number: object) -> None:
    """Big integers and decimals are never rounded."""
    text = str(number)
    assert parse_message(f'"value":{{"n":{text}}}').value == f'{{"n":{text}}}'.encode()


@given(
    st.binary(max_size=50) | st.none(),
    st.binary(max_size=50),
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0\1\2"), max_size=5),
            st.binary(max_size=9) | st.none(),
        ),
        max_size=5,
    ),
)
def test_any_bytes_survive_base64(value: bytes | None, key: bytes, headers: list[tuple[str, bytes | None]]) -> None:
    """Integrity: what was sent is what is stored."""
    kept = [(name, text) for name, text in headers if name not in {"properties", "transaction-id"}]
    shown: dict[str, Any] = {"topic": "t", "key_base64": encode(key)}
    shown["headers_base64"] = [[name, None if text is None else encode(text)] for name, text in kept]
    if value is not None:
        shown["value_base64"] = encode(value)
    raw = json.dumps({"producer_group": "g", "messages": [shown]}).encode()
    (message,) = parse_prepare(raw, MAX_HEADERS).messages
    assert (message.key, message.value, list(message.headers)) == (key, value, kept)


def encode(raw: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(raw).decode()


def test_settings_of_a_prepare_are_taken() -> None:
    """Every member has its place in the call."""
    raw = (
        b'{"producer_group":"g","messages":[{"topic":"t"},{"topic":"u"}],"ordering_key":"o","idempotency_key":"k",'
        b'"check_immunity_seconds":7,"max_checks":3,"max_lifetime_seconds":60}'
    )
    call = parse_prepare(raw, MAX_HEADERS, is_published=True)
    assert call == PrepareCall("g", [Message("t"), Message("u")], "o", "k", 7, 3, 60, is_published=True)


def test_immunity_of_minus_one_is_the_default() -> None:
    """As RocketMQ's clients send it."""
    raw = b'{"producer_group":"g","messages":[{"topic":"t"}],"check_immunity_seconds":%d}'
    assert parse_prepare(raw % -1, MAX_HEADERS).immunity_s is None
    with pytest.raises(Rejected):
        parse_prepare(raw % -2, MAX_HEADERS)


@pytest.mark.parametrize(("in_body", "in_header"), [("k", None), (None, "k"), ("k", "k")])
def test_idempotency_key_comes_from_body_or_header(in_body: str | None, in_header: str | None) -> None:
    """Both are fine if they agree."""
    body = {"producer_group": "g", "messages": [{"topic": "t"}], "idempotency_key": in_body}
    assert parse_prepare(json.dumps(body).encode(), MAX_HEADERS, header_key=in_header).idempotency_key == "k"


def test_a_bad_item_does_not_spoil_its_batch() -> None:
    """Each transaction is decided on its own, and named by its place."""
    good = b'{"producer_group":"g","messages":[{"topic":"t"}]}'
    bad = b'{"producer_group":"g","messages":[{"topic":"t"},{"topic":1}]}'
    first, second, third = parse_prepare_batch(b'{"transactions":[%b,%b,7]}' % (good, bad), MAX_HEADERS)
    assert isinstance(first, PrepareCall)
    assert isinstance(second, Problem)
    assert isinstance(third, Problem)
    assert [error[0] for error in (*second.errors, *third.errors)] == [
        "/transactions/1/messages/1/topic",
        "/transactions/2",
    ]


@pytest.mark.parametrize(
    ("word", "resolution"),
    [
        ('"COMMIT"', Resolution.COMMIT),
        ('"ROLLBACK"', Resolution.ROLLBACK),
        ('"UNKNOWN"', Resolution.UNKNOWN),
        ("8", Resolution.COMMIT),
        ("12", Resolution.ROLLBACK),
        ("0", Resolution.UNKNOWN),
    ],
)
def test_words_and_numbers_are_resolutions(word: str, resolution: Resolution) -> None:
    """RocketMQ's numbers mean what they mean there."""
    raw = f'{{"transaction_id":"{ID}","resolution":{word},"producer_group":"g"}}'.encode()
    assert parse_resolution(raw) == EndCall(ID, resolution, "g")


def test_a_nonce_makes_an_end_the_answer_to_a_check() -> None:
    """It is kept beside, to be looked at."""
    raw = f'{{"resolutions":[{{"transaction_id":"{ID}","resolution":0,"nonce":"n"}},{{}}]}}'.encode()
    answer, refused = parse_resolutions(raw)
    assert answer == NoncedEnd(EndCall(ID, Resolution.UNKNOWN), "n")
    assert isinstance(refused, Problem)


@pytest.mark.parametrize("remark", ["no stock", 'a "quoted": one', "x" * 512])
def test_remark_of_an_end_is_kept(remark: str) -> None:
    """In every form of an end."""
    body = {"resolution": "ROLLBACK", "transaction_id": ID, "remark": remark}
    call = EndCall(ID, Resolution.ROLLBACK, remark=remark)
    assert parse_resolution(json.dumps(body).encode()) == call
    assert parse_resolutions(json.dumps({"resolutions": [body]}).encode()) == [call]
    assert parse_end(json.dumps({"remark": remark}).encode(), ID, Resolution.ROLLBACK) == call


@pytest.mark.parametrize("remark", ["x" * 513, "a\x01b", 7])
def test_remark_that_cannot_be_kept_is_refused(remark: object) -> None:
    """With its place."""
    with pytest.raises(Rejected) as refused:
        parse_end(json.dumps({"remark": remark}).encode(), ID, Resolution.ROLLBACK)
    assert [where for where, _ in refused.value.problem.errors] == ["/remark"]


@pytest.mark.parametrize(
    ("raw", "group"), [(b"", None), (b"{}", None), (b'{"producer_group":null}', None), (b'{"producer_group":"g"}', "g")]
)
def test_an_end_may_have_no_body(raw: bytes, group: str | None) -> None:
    """Left out: the group is not compared."""
    assert parse_end(raw, ID, Resolution.COMMIT) == EndCall(ID, Resolution.COMMIT, group)


PARSERS: list[Callable[[bytes], object]] = [
    lambda raw: parse_prepare(raw, MAX_HEADERS),
    lambda raw: parse_prepare_batch(raw, MAX_HEADERS),
    lambda raw: parse_end(raw, ID, Resolution.COMMIT),
    parse_resolution,
    parse_resolutions,
]
_SCRAPS = st.sampled_from(
    ['{"', '":', '"', "{", "}", "[", "]", ",", "null", "1", "-", "1e999", "\\ud800", "\\", "topic", "messages", "value",
     "producer_group", "transactions", "resolutions", "transaction_id", ID, "headers", "key_base64", "\x00", "NaN", " "]
)  # fmt: skip


@given(st.binary(max_size=300) | st.lists(_SCRAPS, max_size=40).map("".join).map(str.encode), st.sampled_from(PARSERS))
def test_any_bytes_are_a_call_or_rejected(raw: bytes, parse: Callable[[bytes], object]) -> None:
    """A hostile body never becomes anything but a problem."""
    with suppress(Rejected):
        parse(raw)
