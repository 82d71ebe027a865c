"""Requests of RocketMQ's clients as values: sends, ends, keys, headers, and what is refused with which words."""

import struct

import pytest

from api.remoting.frame import RemotingCommand
from api.remoting.message import KeyRule, RequestCode, UnreadableMessage, read_end, read_heartbeat, read_send
from bridge.core.message import Message
from bridge.core.properties import write_properties
from bridge.core.record import Resolution, Source
from bridge.core.transaction import make_transaction_id
from bridge.service.contract import EndCall, PrepareCall

_HALF = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "7F01", "WAIT": "true"}
_RULE = KeyRule()


def read(request: RemotingCommand, rule: KeyRule = _RULE) -> PrepareCall:
    """What it asks of the bridge."""
    call = read_send(request, rule, 100).call
    assert call is not None
    return call


def call_of(topic: str = "orders", rule: KeyRule = _RULE, **properties: str) -> PrepareCall:
    """A half message with these properties besides."""
    fields = {"a": "a-group", "b": topic, "e": "2", "i": write_properties({**_HALF, **properties})}
    return read(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"paid"), rule)


@pytest.mark.parametrize(("code", "names"), [
    (RequestCode.SEND_MESSAGE_V2, {"a": "shop", "b": "orders", "e": "3", "f": "4", "i": "TRAN_MSG\x01true\x02"}),
    (RequestCode.SEND_MESSAGE, {"producerGroup": "shop", "topic": "orders", "queueId": "3", "sysFlag": "4",
                                "properties": "TRAN_MSG\x01true"}),
])  # fmt: skip
def test_long_and_short_names_say_the_same(code: RequestCode, names: dict[str, str]) -> None:
    """Old clients send the long ones, and no end of the last property."""
    send = read_send(RemotingCommand(code, fields=names, body=b"paid"), KeyRule(), 100)
    assert send.call == PrepareCall("shop", [Message("orders", None, b"paid", [])])
    assert send.queue_id == 3


def test_a_half_message_is_a_keyed_prepare() -> None:
    """RocketMQ's own properties stay out of the headers; UNIQ_KEY makes a repeat known."""
    call = call_of(KEYS="42 43", TAGS="new", shop="one")
    (message,) = call.messages
    assert (call.group, call.idempotency_key, call.is_published) == ("shop", "7F01", False)
    assert (message.topic, message.key, message.value) == ("orders", b"42", b"paid")
    assert dict(message.headers) == {"UNIQ_KEY": b"7F01", "KEYS": b"42 43", "TAGS": b"new", "shop": b"one"}


def test_the_rule_chooses_key_and_headers() -> None:
    """A sharding key comes first; what is dropped is no header."""
    assert call_of(KEYS="42", __SHARDINGKEY="c7").messages[0].key == b"c7"
    call = call_of(rule=KeyRule(("shop",), frozenset({"UNIQ_KEY", "shop"})), shop="one", KEYS="42")
    assert call.messages[0].key == b"one"
    assert dict(call.messages[0].headers) == {"KEYS": b"42"}
    assert call_of().messages[0].key is None


def test_order_of_properties_means_nothing() -> None:
    """It is chance in clients whose maps have none: a resend would be told that its key has other content."""
    assert call_of(a="1", b="2") == call_of(b="2", a="1")


@pytest.mark.parametrize(("text", "seconds"), [("-1", None), ("0", 0), ("60", 60)])
def test_the_immunity_time_is_kept(text: str, seconds: int | None) -> None:
    """-1 is the default."""
    assert call_of(CHECK_IMMUNITY_TIME_IN_SECONDS=text).immunity_s == seconds


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
        call_of(topic, **properties)


def test_properties_have_rocketmqs_own_limit() -> None:
    """In bytes."""
    fields = {"a": "g", "b": "orders", "i": "x\x01" + "é" * 16_384}
    with pytest.raises(UnreadableMessage, match="at most 32767"):
        read(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields=fields))


_ID = make_transaction_id(0, 1)


def end_of(remark: str | None = None, **fields: str) -> EndCall | None:
    """Its answer to check 3, if there is a nonce."""
    said = {"transactionId": _ID, "commitOrRollback": "8", **fields}
    return read_end(RemotingCommand(37, fields=said, remark=remark), lambda nonce, _: 3 if nonce == "1-abc" else None)


def test_an_end_names_transaction_and_nonce() -> None:
    """The answer to a check has both."""
    assert end_of(producerGroup="shop") == EndCall(_ID, Resolution.COMMIT, "shop")
    answer = EndCall(_ID, Resolution.COMMIT, "shop", Source.CHECK, 3, remark="boom")
    assert end_of("boom", transactionId=f"{_ID}.1-abc", producerGroup="shop") == answer


@pytest.mark.parametrize(("text", "kept"), [
    ("boom", "boom"), ("", None), ("a\x00\x01b\x02", "ab"), ("x" * 600, "x" * 512), ("\ud800", None),
])  # fmt: skip
def test_a_remark_is_trimmed_and_never_costs_the_end(text: str, kept: str | None) -> None:
    """What the journal could not keep is left out."""
    assert end_of(text, commitOrRollback="0") == EndCall(_ID, Resolution.UNKNOWN, remark=kept)


@pytest.mark.parametrize("fields", [
    {"transactionId": ""}, {"transactionId": "x"}, {"transactionId": f"{_ID}.1-xyz"}, {"commitOrRollback": ""},
    {"commitOrRollback": "9"}, {"producerGroup": "a group"},
])  # fmt: skip
def test_an_end_without_transaction_or_resolution_is_none(fields: dict[str, str]) -> None:
    """Nothing is guessed."""
    assert end_of(**fields) is None


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
    call = read(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields={"b": "o", "f": flag, "i": properties}))
    assert call.is_published is not is_half


@pytest.mark.parametrize(("flag", "outer", "inner"), [
    ("4", "", b""), ("0", "TRAN_MSG\x01true\x02", b""), ("0", "", b"TRAN_MSG\x01true\x02"),
])  # fmt: skip
def test_batch_of_half_messages_is_refused(flag: str, outer: str, inner: bytes) -> None:
    """A batch is published at once, which is not what its sender meant."""
    body = struct.pack(">iiiii", 24 + len(inner), 0, 0, 0, 2) + b"ok" + struct.pack(">h", len(inner)) + inner
    fields = {"b": "orders", "f": flag, "i": outer, "m": "true"}
    with pytest.raises(UnreadableMessage, match="batch"):
        read(RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, fields=fields, body=body))


def test_a_message_has_no_more_headers_than_over_http() -> None:
    """Thousands of them fit into the properties. What becomes no header does not count."""
    named = {f"p{number}": "" for number in range(63)}
    rule = KeyRule(dropped=frozenset({"TAGS"}), most_headers=64)
    assert len(call_of(rule=rule, TAGS="a", **named).messages[0].headers) == 64
    with pytest.raises(UnreadableMessage, match="65 properties, of which 64"):
        call_of(rule=rule, more="", **named)
