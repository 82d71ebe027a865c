"""Requests of RocketMQ's clients as values: sends, ends, keys, headers, and what is refused with which words."""

import struct

import pytest

from api.remoting.frame import RemotingCommand
from api.remoting.message import (
    EndRequest,
    InnerMessage,
    KeyRule,
    RequestCode,
    SendRequest,
    UnreadableMessage,
    make_prepare,
    parse_end,
    parse_send,
    read_heartbeat,
)
from bridge.core.properties import write_properties
from bridge.core.record import Resolution

_HALF = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "7F01", "WAIT": "true"}


def send_of(topic: str = "orders", **properties: str) -> SendRequest:
    """A half message with these properties besides."""
    all_of_them = {**_HALF, **properties}
    inner = InnerMessage(0, b"paid", write_properties(all_of_them))
    return SendRequest("a-group", topic, 2, all_of_them, [inner], False)


@pytest.mark.parametrize(("code", "names"), [
    (RequestCode.SEND_MESSAGE_V2, {"a": "shop", "b": "orders", "e": "3", "f": "4", "i": "TRAN_MSG\x01true\x02"}),
    (RequestCode.SEND_MESSAGE, {"producerGroup": "shop", "topic": "orders", "queueId": "3", "sysFlag": "4",
                                "properties": "TRAN_MSG\x01true"}),
])  # fmt: skip
def test_long_and_short_names_say_the_same(code: RequestCode, names: dict[str, str]) -> None:
    """Old clients send the long ones, and no end of the last property."""
    send = parse_send(RemotingCommand(code, fields=names, body=b"paid"), 100)
    assert (send.group, send.topic, send.queue_id, send.is_transactional) == ("shop", "orders", 3, True)
    assert send.messages[0].body == b"paid"


def test_a_half_message_is_a_keyed_prepare() -> None:
    """RocketMQ's own properties stay out of the headers; UNIQ_KEY makes a repeat known."""
    call = make_prepare(send_of(KEYS="42 43", TAGS="new", shop="one"), KeyRule())
    (message,) = call.messages
    assert (call.group, call.idempotency_key, call.is_published) == ("a-group", "7F01", False)
    assert (message.topic, message.key, message.value) == ("orders", b"42", b"paid")
    assert dict(message.headers) == {"UNIQ_KEY": b"7F01", "KEYS": b"42 43", "TAGS": b"new", "shop": b"one"}


def test_the_rule_chooses_key_and_headers() -> None:
    """A sharding key comes first; what is dropped is no header."""
    assert make_prepare(send_of(KEYS="42", __SHARDINGKEY="c7"), KeyRule()).messages[0].key == b"c7"
    call = make_prepare(send_of(shop="one", KEYS="42"), KeyRule(("shop",), frozenset({"UNIQ_KEY", "shop"})))
    assert call.messages[0].key == b"one"
    assert dict(call.messages[0].headers) == {"KEYS": b"42"}
    assert make_prepare(send_of(), KeyRule()).messages[0].key is None


def test_order_of_properties_means_nothing() -> None:
    """It is chance in clients whose maps have none: a resend would be told that its key has other content."""
    assert make_prepare(send_of(a="1", b="2"), KeyRule()) == make_prepare(send_of(b="2", a="1"), KeyRule())


@pytest.mark.parametrize(("text", "seconds"), [("-1", None), ("0", 0), ("60", 60)])
def test_the_immunity_time_is_kept(text: str, seconds: int | None) -> None:
    """-1 is the default."""
    assert make_prepare(send_of(CHECK_IMMUNITY_TIME_IN_SECONDS=text), KeyRule()).immunity_s == seconds


@pytest.mark.parametrize(("topic", "properties", "reason"), [
    ("NS%orders", {}, "namespace"),
    ("orders", {"DELAY": "3"}, "delivery at a later time"),
    ("orders", {"TIMER_DELIVER_MS": "1"}, "delivery at a later time"),
    ("orders", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, "CHECK_IMMUNITY_TIME_IN_SECONDS is soon"),
    ("orders", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "604801"}, "0 to 604800"),
])  # fmt: skip
def test_what_has_no_meaning_here_is_refused_with_a_sentence(
    topic: str, properties: dict[str, str], reason: str
) -> None:
    """Never dropped in silence."""
    with pytest.raises(UnreadableMessage, match=reason):
        make_prepare(send_of(topic, **properties), KeyRule())


def test_properties_have_rocketmqs_own_limit() -> None:
    """In bytes."""
    fields = {"a": "g", "b": "orders", "i": "x\x01" + "é" * 16_384}
    with pytest.raises(UnreadableMessage, match="at most 32767"):
        parse_send(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields=fields), 100)


def test_an_end_names_transaction_and_nonce() -> None:
    """The answer to a check has both."""
    fields = {"transactionId": "0006k8.1-abc", "commitOrRollback": "8", "producerGroup": "shop"}
    assert parse_end(RemotingCommand(37, fields=fields, remark="boom")) == EndRequest(
        "0006k8", Resolution.COMMIT, "shop", "1-abc", "boom"
    )


@pytest.mark.parametrize(("text", "kept"), [
    ("boom", "boom"), ("", None), ("a\x00\x01b\x02", "ab"), ("x" * 600, "x" * 512), ("\ud800", None),
])  # fmt: skip
def test_a_remark_is_trimmed_and_never_costs_the_end(text: str, kept: str | None) -> None:
    """What the journal could not keep is left out."""
    end = parse_end(RemotingCommand(37, fields={"transactionId": "x", "commitOrRollback": "0"}, remark=text))
    assert end is not None
    assert end.remark == kept


@pytest.mark.parametrize("fields", [{}, {"transactionId": "x"}, {"transactionId": "x", "commitOrRollback": "9"},
                                    {"transactionId": "", "commitOrRollback": "8"}])  # fmt: skip
def test_an_end_without_transaction_or_resolution_is_none(fields: dict[str, str]) -> None:
    """Nothing is guessed."""
    assert parse_end(RemotingCommand(37, fields=fields)) is None


def test_heartbeats_name_groups() -> None:
    """Every client has an inner producer besides."""
    raw = b'{"clientID":"c","producerDataSet":[{"groupName":"shop"},{"groupName":"CLIENT_INNER_PRODUCER"}]}'
    assert read_heartbeat(raw).groups == ["shop"]


@pytest.mark.parametrize(("flag", "properties", "is_half"), [
    ("4", "TRAN_MSG\x01True\x02", True),
    ("4", "TRAN_MSG\x01TRUE\x02", True),
    ("4", "", True),
    ("0", "TRAN_MSG\x01false\x02", False),
    ("12", "", True),
    ("8", "", False),
])  # fmt: skip
def test_whatever_says_so_is_a_half_message(flag: str, properties: str, is_half: bool) -> None:
    """RocketMQ reads the property without regard to case, and shows nobody what the flag alone says is prepared."""
    send = parse_send(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields={"b": "o", "f": flag, "i": properties}), 100)
    assert make_prepare(send, KeyRule()).is_published is not is_half


@pytest.mark.parametrize(("flag", "outer", "inner"), [
    ("4", "", b""), ("0", "TRAN_MSG\x01true\x02", b""), ("0", "", b"TRAN_MSG\x01true\x02"),
])  # fmt: skip
def test_batch_of_half_messages_is_refused(flag: str, outer: str, inner: bytes) -> None:
    """A batch is published at once, which is not what its sender meant."""
    body = struct.pack(">iiiii", 24 + len(inner), 0, 0, 0, 2) + b"ok" + struct.pack(">h", len(inner)) + inner
    fields = {"b": "orders", "f": flag, "i": outer, "m": "true"}
    with pytest.raises(UnreadableMessage, match="batch"):
        make_prepare(
            parse_send(RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, fields=fields, body=body), 100), KeyRule()
        )


def test_a_message_has_no_more_headers_than_over_http() -> None:
    """Thousands of them fit into the properties. What becomes no header does not count."""
    named = {f"p{number}": "" for number in range(63)}
    rule = KeyRule(dropped=frozenset({"TAGS"}), most_headers=64)
    assert len(make_prepare(send_of(TAGS="a", **named), rule).messages[0].headers) == 64
    with pytest.raises(UnreadableMessage, match="65 properties, of which 64"):
        make_prepare(send_of(more="", **named), rule)
