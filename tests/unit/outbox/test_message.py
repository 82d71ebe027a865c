"""A message: fixed bytes, whatever it was made of."""

import json
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.parse import parse_prepare
from bridge.core.message import BY_KEY
from outbox.client.calls import prepare_call
from outbox.client.errors import InvalidMessage
from outbox.client.message import Message, as_messages, encode_message, read_message
from tests.support.sdk_messages import messages

MESSAGES = messages(
    st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
    st.none() | st.integers(0, 2**31 - 1),
    st.none() | st.integers(1, 2**63 - 1),
)


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_bridge_reads_the_same_bytes(sent: list[Message]) -> None:
    """Encoded here, parsed by the bridge's own strict parser: null is not empty, repeats and order are kept."""
    call = prepare_call("shop", sent, {})
    read = parse_prepare(call.item, 64).messages
    assert [
        (m.topic, m.key, m.value, tuple(m.headers), None if m.queue_id == BY_KEY else m.queue_id, m.timestamp_ms)
        for m in read
    ] == [(m.topic, m.key, m.value, m.headers, m.partition, m.timestamp_ms) for m in sent]


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ("text", b"text"),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (None, None),
        ("", b""),
        ({"a": Decimal("1.10"), "b": [True, None]}, b'{"a":1.10,"b":[true,null]}'),
        ([], b"[]"),
        (7, b"7"),
        (False, b"false"),
        ("ü", "ü".encode()),
    ],
)
def test_value_becomes_bytes(value: Any, raw: bytes | None) -> None:
    """Text as UTF-8, None as null, all else as compact JSON."""
    assert Message("orders", value=value).value == raw


def test_headers_of_a_mapping_and_of_pairs_are_alike() -> None:
    """Pairs may repeat a name."""
    assert Message("orders", headers={"a": "1", "b": None}).headers == (("a", b"1"), ("b", None))
    assert Message("orders", headers=[("a", "1"), ("a", b"2")]).headers == (("a", b"1"), ("a", b"2"))


@pytest.mark.parametrize(
    "members",
    [
        {"topic": ""},
        {"topic": "a/b"},
        {"topic": ".."},
        {"topic": None},
        {"key": 42},
        {"key": "\ud800"},
        {"value": {"a": "\ud800"}},
        {"value": object()},
        {"headers": {"properties": "x"}},
        {"headers": {"transaction-id": "x"}},
        {"headers": {"a": 1}},
        {"headers": [("a\ud800", "x")]},
        {"headers": {"properties\x00": "x"}},
        {"headers": {"a\x02": "x"}},
        {"partition": -1},
        {"partition": True},
        {"timestamp_ms": 0},
        {"timestamp_ms": 1.5},
    ],
)
def test_impossible_message_is_refused_when_it_is_made(members: dict[str, Any]) -> None:
    """At the line that made it, and not after the local transaction's work is done."""
    with pytest.raises(InvalidMessage):
        Message(**{"topic": "orders", **members})


def test_message_does_not_show_its_bytes() -> None:
    """Whoever logs it logs no payload."""
    message = Message("orders", key="the-key", value="the-value", headers={"h": "the-header"})
    assert "the-" not in repr(message)


def test_message_can_be_copied_and_pickled() -> None:
    """It goes through queues and pools."""
    message = Message("orders", key="k", value={"a": 1}, headers={"h": "x"}, partition=1)
    assert pickle.loads(pickle.dumps(message)) == message
    assert replace(message, topic="other").value == b'{"a":1}'
    assert hash(message) == hash(replace(message))


def test_value_reads_as_json_with_its_digits() -> None:
    """A float would round it."""
    assert Message("orders", value='{"amount": 19.90}').json() == {"amount": Decimal("19.90")}


@given(MESSAGES)
def test_message_in_its_wire_form_reads_back(message: Message) -> None:
    """The members that requests have are those that checks and answers show."""
    assert read_message(json.loads(encode_message(message))) == message


def test_shown_json_value_comes_compact() -> None:
    """As checks show it: a document, not a text."""
    shown = json.loads('{"topic": "orders", "key": "k", "value": {"a": [1, 2.50]}, "headers": []}', parse_float=Decimal)
    assert read_message(shown).value == b'{"a":[1,2.50]}'


@pytest.mark.parametrize("members", [{}, {"topic": "orders", "headers": [1]}, {"topic": "orders", "key_base64": "?"}])
def test_what_is_no_message_is_refused(members: dict[str, Any]) -> None:
    """A ValueError, which a check handler answers with a refusal."""
    with pytest.raises(ValueError, match=r".+"):
        read_message(members)


def test_transaction_has_a_hundred_messages_at_most() -> None:
    """And at least one."""
    assert as_messages(Message("orders")) == (Message("orders"),)
    assert len(as_messages([Message("orders")] * 100)) == 100
    for wrong in ([], [Message("orders")] * 101):
        with pytest.raises(InvalidMessage):
            as_messages(wrong)
