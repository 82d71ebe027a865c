"""What clients of RocketMQ ask, as values: codes, sends, ends, heartbeats. Source: its RequestCode and headers."""

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from api.remoting.frame import RemotingCommand
from api.remoting.message import (
    MAX_PROPERTY_CHARS,
    InnerMessage,
    UnreadableMessage,
    parse_properties,
    read_body,
    split_batch,
)
from bridge.core.message import Header, Message
from bridge.core.properties import is_property_text
from bridge.core.record import MAX_REMARK_CHARS, Resolution
from bridge.service.contract import PrepareCall


class RequestCode(IntEnum):
    """Requests that are answered; all others are refused."""

    SEND_MESSAGE = 10
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTEINFO_BY_TOPIC = 105
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320


class ResponseCode(IntEnum):
    """Java clients try again, and keep the words to themselves, after 1, 2, 14, 16 and 17, not after 13."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    GO_AWAY = 1500


BROKER, CLUSTER = "bridge-a", "outbox-bridge"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
INNER_GROUP = "CLIENT_INNER_PRODUCER"
TRANSACTIONAL, GROUP, UNIQUE_KEY, KEYS = "TRAN_MSG", "PGROUP", "UNIQ_KEY", "KEYS"
_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_DELAYS = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
_OWN = frozenset({TRANSACTIONAL, GROUP, _IMMUNITY, "WAIT", "INSTANCE_ID", "CLUSTER", "MSG_REGION", "TRACE_ON"})
_SHORT_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "properties": "i",
    "batch": "m",
}
_MOST_IMMUNITY_S = 604_800
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class KeyRule(NamedTuple):
    """What becomes of properties. `key_from`: the first of these that a message has is its Kafka key; of KEYS the
    first word. `dropped`: properties that do not become headers."""

    key_from: Sequence[str] = ("__SHARDINGKEY", KEYS)
    dropped: frozenset[str] = frozenset()


class SendRequest(NamedTuple):
    """A send. `messages`: one, but for a batch; their properties are theirs, `properties` those of the whole."""

    group: str
    topic: str
    queue_id: int
    properties: Mapping[str, str]
    messages: Sequence[InnerMessage]
    is_batch: bool
    born_ms: int = 0

    @property
    def is_transactional(self) -> bool:
        """Whether it is a half message."""
        return not self.is_batch and self.properties.get(TRANSACTIONAL) == "true"


class EndRequest(NamedTuple):
    """An end, or the answer to a check if there is a nonce. `remark`: the text of an exception of the listener."""

    transaction_id: str
    resolution: Resolution
    group: str | None
    nonce: str | None
    remark: str | None


class _Named(Struct):
    name: str = field(name="groupName", default="")


class Heartbeat(Struct):
    """Who a connection belongs to."""

    client_id: str = field(name="clientID", default="")
    producers: list[_Named] = field(name="producerDataSet", default_factory=list)

    @property
    def groups(self) -> Sequence[str]:
        """The producer groups."""
        return [one.name for one in self.producers if one.name and one.name != INNER_GROUP]


read_heartbeat = msgspec.json.Decoder(Heartbeat).decode


def parse_send(command: RemotingCommand, max_bytes: int) -> SendRequest:
    """Raises UnreadableMessage."""
    fields = command.fields
    is_short = command.code != RequestCode.SEND_MESSAGE

    def get(name: str) -> str:
        return fields.get(_SHORT_NAMES[name] if is_short else name) or ""

    text = get("properties")
    _check_properties(text)
    properties, topic = parse_properties(text), get("topic")
    if not topic:
        raise UnreadableMessage("the request names no topic")
    is_batch = command.code == RequestCode.SEND_BATCH_MESSAGE or get("batch") == "true"
    body = read_body(command.body, _number(get("sysFlag")), max_bytes)
    messages = split_batch(body) if is_batch else [InnerMessage(0, body, text)]
    group = properties.get(GROUP) or get("producerGroup")
    return SendRequest(
        group, topic, _number(get("queueId")), properties, messages, is_batch, _number(get("bornTimestamp"))
    )


def parse_end(command: RemotingCommand) -> EndRequest | None:
    """None for one that names no transaction of ours, or no resolution."""
    fields = command.fields
    transaction_id, dot, nonce = fields.get("transactionId", "").partition(".")
    try:
        resolution = Resolution(int(fields.get("commitOrRollback", "")))
    except ValueError:
        return None
    if not transaction_id:
        return None
    return EndRequest(
        transaction_id,
        resolution,
        fields.get("producerGroup") or None,
        nonce if dot else None,
        _trim_remark(command.remark or ""),
    )


def _trim_remark(text: str) -> str | None:
    """As much as is kept: an end must not be lost for what is said beside it."""
    kept = "".join([c for c in text if c.isprintable() or c in "\n\t"])[:MAX_REMARK_CHARS]
    return kept if kept and is_property_text(kept) else None


def make_prepare(send: SendRequest, rule: KeyRule) -> PrepareCall:
    """What is asked of the bridge. Raises UnreadableMessage for what has no meaning in Kafka."""
    if "%" in send.topic:
        raise UnreadableMessage(
            f"illegal-topic: {send.topic} has a %, as topics in a namespace do, which Kafka does not allow: set no "
            "namespace at the client"
        )
    messages = []
    for inner in send.messages:
        properties = parse_properties(inner.properties)
        _refuse_delays(properties)
        messages.append(_make_message(send.topic, inner.body, properties, rule))
    return PrepareCall(
        send.group,
        messages,
        idempotency_key=send.properties.get(UNIQUE_KEY) or None,
        immunity_s=_find_immunity(send.properties),
        is_published=not send.is_transactional,
    )


def _make_message(topic: str, body: bytes, properties: Mapping[str, str], rule: KeyRule) -> Message:
    key = None
    for name in rule.key_from:
        text = properties.get(name, "")
        words = text.split() if name == KEYS else [text]
        if words and words[0]:
            key = words[0].encode()
            break
    headers: list[Header] = [
        (name, text.encode()) for name, text in properties.items() if name not in _OWN and name not in rule.dropped
    ]
    return Message(topic, key, body, headers)


def _check_properties(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UnreadableMessage("the properties are not text") from error
    if size > MAX_PROPERTY_CHARS:
        raise UnreadableMessage(f"the properties have {size} bytes; at most {MAX_PROPERTY_CHARS} are taken")


def _refuse_delays(properties: Mapping[str, str]) -> None:
    for name in _DELAYS:
        if properties.get(name, "0") != "0":
            raise UnreadableMessage(
                f"delivery at a later time ({name}) is not served: send the message when it is due, without a delay"
            )


def _find_immunity(properties: Mapping[str, str]) -> int | None:
    text = properties.get(_IMMUNITY)
    if text is None or text == "-1":
        return None
    seconds = _number(text, -1)
    if not 0 <= seconds <= _MOST_IMMUNITY_S:
        raise UnreadableMessage(f"{_IMMUNITY} is {text}; it is -1, or 0 to {_MOST_IMMUNITY_S}")
    return seconds


def _number(text: str, otherwise: int = 0) -> int:
    return int(text) if _NUMBER.fullmatch(text) else otherwise
