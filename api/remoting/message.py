"""What clients of RocketMQ send and get: requests, messages, properties. Source: MessageDecoder, RequestCode."""

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache
from importlib import import_module
from ipaddress import IPv4Address
from itertools import islice
from types import ModuleType
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from api.remoting.frame import RemotingCommand
from api.web.bodies import MAX_MESSAGES
from bridge.core.check_rules import is_group_name
from bridge.core.message import Header, Message
from bridge.core.properties import is_property_text
from bridge.core.record import MAX_REMARK_CHARS, Resolution, Source
from bridge.core.transaction import is_transaction_id
from bridge.service.contract import EndCall, PrepareCall

# --- RocketMQ's messages on the wire: properties, message ids, bodies, MessageExt ---

MAX_PROPERTY_CHARS = 32_767
_MAGIC = -626843481  # 0xDAA320A7
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">h")
_HEAD = struct.Struct(">iiiiiqqiq")  # size, magic, crc, queue, flag, two offsets, system flag, born
_NOWHERE = bytes(4)


class SystemFlag(IntFlag):
    """Bits of a message's system flag. Source: MessageSysFlag."""

    COMPRESSED = 0x1
    PREPARED = 0x4
    KIND = 0x700  # of the compression; 0 is what old clients write for zlib


_COMPRESSED, _PREPARED = int(SystemFlag.COMPRESSED), int(SystemFlag.PREPARED)  # enums count slowly


class UnreadableMessage(Exception):
    """A message that cannot be taken as it is; the text says what to do."""


class CheckedMessage(NamedTuple):
    """What a check shows of its half message."""

    topic: str
    body: bytes
    properties: Mapping[str, str]
    born_ms: int
    queue_offset: int


class InnerMessage(NamedTuple):
    """A message of a batch."""

    flag: int
    body: bytes
    properties: str


_PAIRS = re.compile("(?:\\A|\x02)([^\x01\x02]+)\x01([^\x02]*)").findall


def parse_properties(text: str) -> dict[str, str]:
    """Lenient, as RocketMQ's own: the last pair may lack its end, what is no pair is passed over, the last one wins."""
    return dict(_PAIRS(text))


@lru_cache(maxsize=16)
def write_place(address: str) -> str:
    """What ids of messages at host:port begin with, before 16 digits of the offset; a name counts as 0.0.0.0."""
    host, _, port = address.rpartition(":")
    try:
        return f"{int(IPv4Address(host)):08X}{int(port):08X}"
    except ValueError:
        return f"{0:08X}{int(port):08X}"


def make_message_id(address: str, offset: int) -> str:
    """32 hexadecimal digits."""
    return f"{write_place(address)}{offset:016X}"


def read_body(body: bytes, system_flag: int, max_bytes: int) -> bytes:
    """What was sent, inflated if need be, never beyond the limit. Raises UnreadableMessage."""
    if not system_flag & _COMPRESSED:
        return body
    inflate = {1: _inflate_lz4, 2: _inflate_zstd}.get((system_flag & SystemFlag.KIND) >> 8, _inflate_zlib)
    try:
        whole, is_whole = inflate(body, max_bytes + 1)
    except (UnreadableMessage, MemoryError):
        raise
    except Exception as error:  # each library has errors of its own
        raise UnreadableMessage("the body is flagged as compressed, but is not") from error
    if len(whole) > max_bytes:
        raise UnreadableMessage(f"message-too-large: inflated, the body has more than {max_bytes} bytes")
    if not is_whole:
        raise UnreadableMessage("the compressed body ends early")
    return whole


def _inflate_zlib(body: bytes, most: int) -> tuple[bytes, bool]:
    """At most so many bytes, and whether the stream has come to its end."""
    codec = zlib.decompressobj()
    return codec.decompress(body, most), codec.eof


def _inflate_lz4(body: bytes, most: int) -> tuple[bytes, bool]:
    codec = _load("LZ4", "lz4.frame").LZ4FrameDecompressor()
    return codec.decompress(body, most), codec.eof


def _inflate_zstd(body: bytes, most: int) -> tuple[bytes, bool]:
    """Its reader is bounded, but does not tell an end from a cut: read again by what tells, once the size is known."""
    decompressor = _load("ZSTD", "zstandard").ZstdDecompressor()
    with decompressor.stream_reader(body) as stream:
        whole = stream.read(most)
    if len(whole) == most:
        return whole, False
    codec = decompressor.decompressobj()
    return codec.decompress(body), codec.eof


def _load(name: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        raise UnreadableMessage(
            f"bodies compressed with {name} cannot be read here: set compressType=ZLIB at the client "
            "(-Drocketmq.message.compressType=ZLIB), or install the bridge with its extra: outbox-bridge[rocketmq]"
        ) from None


def split_batch(body: bytes) -> Sequence[InnerMessage]:
    """The messages of a batch. Raises UnreadableMessage."""
    try:
        found = list(islice(_split(body), MAX_MESSAGES + 1))  # of more nobody makes anything, however many there are
    except (struct.error, UnicodeDecodeError) as error:
        raise UnreadableMessage("the batch ends early, or has properties that are not text") from error
    if len(found) > MAX_MESSAGES:
        raise UnreadableMessage(f"invalid-request: the batch has more than {MAX_MESSAGES} messages")
    return found


def _split(body: bytes) -> Iterator[InnerMessage]:
    at = 0
    while at < len(body):
        size, _, _, flag, length = struct.unpack_from(">iiiii", body, at)
        end, start = at + size, at + 20
        if length < 0 or start + length > len(body):
            raise UnreadableMessage("the batch ends early")
        (width,) = _SHORT.unpack_from(body, start + length)
        begin = start + length + 2
        if width < 0 or begin + width != end or end > len(body):
            raise UnreadableMessage("the lengths in the batch do not fit together")
        yield InnerMessage(flag, body[start : start + length], body[begin:end].decode())
        at = end


def encode_checked(message: CheckedMessage) -> bytes:
    """A MessageExt, which clients read a check's message from. Hosts are IPv4, so that no flag says otherwise."""
    topic = message.topic.encode()
    properties = "".join([f"{name}\x01{text}\x02" for name, text in message.properties.items()]).encode()
    host = _NOWHERE + bytes(4)
    size = _HEAD.size + 8 + 8 + 8 + 4 + 8 + 4 + len(message.body) + 1 + len(topic) + 2 + len(properties)
    crc = zlib.crc32(message.body) & 0x7FFFFFFF
    offset, born_ms = message.queue_offset, message.born_ms
    head = _HEAD.pack(size, _MAGIC, crc, 0, 0, offset, offset, SystemFlag.PREPARED, born_ms)
    stored = struct.pack(">q8siq", born_ms, host, 0, 0)
    return b"".join(
        (
            head,
            host,
            stored,
            _INT.pack(len(message.body)),
            message.body,
            bytes((len(topic),)),
            topic,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


# --- what clients of RocketMQ ask, as values: codes, sends, ends, heartbeats ---


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
_DELAYS = frozenset({"DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"})
_OWN = frozenset({TRANSACTIONAL, GROUP, _IMMUNITY, "WAIT", "INSTANCE_ID", "CLUSTER", "MSG_REGION", "TRACE_ON"})
_LONG_NAMES = ("producerGroup", "topic", "queueId", "sysFlag", "bornTimestamp", "properties", "batch")
_SHORT_NAMES = dict(zip(_LONG_NAMES, "abefgim", strict=True))
_BY_PRODUCER = Source.PRODUCER
_LONG_SEND, _BATCH_SEND = RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE  # enums find members slowly
_MOST_IMMUNITY_S = 604_800
_USUAL_DIGITS = 18
_NUMBER = re.compile(rf"-?[0-9]{{1,{_USUAL_DIGITS}}}")


class KeyRule(NamedTuple):
    """What becomes of properties. `key_from`: the first of these that a message has is its Kafka key; of KEYS the
    first word. `dropped`: properties that do not become headers. `most_headers`: that a message may have."""

    key_from: Sequence[str] = ("__SHARDINGKEY", KEYS)
    dropped: frozenset[str] = frozenset()
    most_headers: int = 64


class SendRequest(Struct, gc=False):
    """A send and what it asks of the bridge. `call` None: nothing, since it is a trace. `held_bytes`: the frame, and
    its messages where they are not the frame's own bytes."""

    request: RemotingCommand
    call: PrepareCall | None
    queue_id: int
    born_ms: int
    held_bytes: int


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


def read_send(request: RemotingCommand, rule: KeyRule, max_bytes: int) -> SendRequest:
    """Raises UnreadableMessage, also for what has no meaning in Kafka."""
    fields, code = request.fields, request.code
    if code == _LONG_SEND:
        fields = {short: fields[name] for name, short in _SHORT_NAMES.items() if name in fields}
    get = fields.get
    text, topic, body = get("i", ""), get("b", ""), request.body
    if len(text) > MAX_PROPERTY_CHARS or not text.isascii():
        _check_properties(text)
    held = len(body) + sum(map(len, request.fields.values()))
    queue_id, born_ms, flag = _number(get("e", "")), _number(get("g", "")), _number(get("f", ""))
    if topic == TRACE_TOPIC:
        return SendRequest(request, None, queue_id, born_ms, held)
    if not topic or "%" in topic:
        _refuse_topic(topic)
    properties = parse_properties(text)
    is_half = bool(flag & _PREPARED) or _says_half(properties)
    if flag & _COMPRESSED:
        body = read_body(body, flag, max_bytes)
    if get("m") == "true" or code == _BATCH_SEND:
        messages = _read_batch(topic, body, rule, is_half=is_half)
        held += len(body)
    else:
        messages = [_make_message(topic, body, properties, rule)]
    if body is not request.body:
        held += len(body)
    call = PrepareCall(
        properties.get(GROUP) or get("a", ""),
        messages,
        None,
        properties.get(UNIQUE_KEY) or None,
        _find_immunity(properties) if _IMMUNITY in properties else None,
        None,
        None,
        not is_half,
    )
    return SendRequest(request, call, queue_id, born_ms, held)


def _refuse_topic(topic: str) -> None:
    if not topic:
        raise UnreadableMessage("the request names no topic")
    raise UnreadableMessage(
        f"illegal-topic: {topic} has a %, as topics in a namespace do, which Kafka does not allow: set no "
        "namespace at the client"
    )


def _read_batch(topic: str, body: bytes, rule: KeyRule, *, is_half: bool) -> list[Message]:
    messages = []
    for inner in split_batch(body):
        properties = parse_properties(inner.properties)
        if is_half or _says_half(properties):
            raise UnreadableMessage("a batch is published at once, and has half messages: send them one by one")
        messages.append(_make_message(topic, inner.body, properties, rule))
    return messages


def _says_half(properties: Mapping[str, str]) -> bool:
    """As RocketMQ reads it, without regard to case: for it whatever says so is none that anybody may see yet."""
    return properties.get(TRANSACTIONAL, "").lower() == "true"


_RESOLUTIONS = {str(int(resolution)): resolution for resolution in Resolution}


def read_end(command: RemotingCommand, read_nonce: Callable[[str, str], int | None]) -> EndCall | None:
    """None for one that names no transaction there can be, or no resolution, and for an answer to a check that this
    bridge has not asked. `read_nonce`: the number of the check."""
    get = command.fields.get
    transaction_id, dot, nonce = get("transactionId", "").partition(".")
    resolution, group = _RESOLUTIONS.get(get("commitOrRollback", "")), get("producerGroup") or None
    if resolution is None or not is_transaction_id(transaction_id) or not (group is None or is_group_name(group)):
        return None
    remark = _trim_remark(command.remark) if command.remark else None
    if not dot:
        return EndCall(transaction_id, resolution, group, _BY_PRODUCER, 0, None, None, remark)
    if (number := read_nonce(nonce, transaction_id)) is None:
        return None
    return EndCall(transaction_id, resolution, group, Source.CHECK, number, remark=remark)


def _trim_remark(text: str) -> str | None:
    """As much as is kept: an end must not be lost for what is said beside it."""
    kept = "".join([c for c in text if c.isprintable() or c in "\n\t"])[:MAX_REMARK_CHARS]
    return kept if kept and is_property_text(kept) else None


def make_route(address: str) -> bytes:
    """One broker for every topic, to write to only."""
    return msgspec.json.encode(
        {
            "brokerDatas": [{"brokerAddrs": {"0": address}, "brokerName": BROKER, "cluster": CLUSTER}],
            "filterServerTable": {},
            "queueDatas": [
                {"brokerName": BROKER, "perm": 2, "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 0}
            ],
        }
    )


def _make_message(topic: str, body: bytes, properties: Mapping[str, str], rule: KeyRule) -> Message:
    if not _DELAYS.isdisjoint(properties):
        _refuse_delays(properties)
    key = None
    for name in rule.key_from:
        text = properties.get(name)
        if text and (words := text.split() if name == KEYS else [text]):
            key = words[0].encode()
            break
    dropped = rule.dropped
    # sorted: clients write them in any order, and in another one when they send again
    headers: list[Header] = [
        (name, text.encode()) for name, text in sorted(properties.items()) if name not in _OWN and name not in dropped
    ]
    if len(headers) > rule.most_headers:
        detail = f"{len(headers)} properties, of which {rule.most_headers} may become headers"
        raise UnreadableMessage(f"invalid-request: {detail}")
    return Message(topic, key, body, headers)


def _check_properties(text: str) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise UnreadableMessage("the properties are not text") from error
    if size > MAX_PROPERTY_CHARS:
        raise UnreadableMessage(f"the properties have {size} bytes; at most {MAX_PROPERTY_CHARS} are taken")


def _refuse_delays(properties: Mapping[str, str]) -> None:
    for name in sorted(_DELAYS):
        if properties.get(name, "0") != "0":
            raise UnreadableMessage(
                f"delivery at a later time ({name}) is not served: send the message when it is due, without a delay"
            )


def _find_immunity(properties: Mapping[str, str]) -> int | None:
    text = properties[_IMMUNITY]
    if text == "-1":
        return None
    seconds = _number(text, -1)
    if not 0 <= seconds <= _MOST_IMMUNITY_S:
        raise UnreadableMessage(f"{_IMMUNITY} is {text}; it is -1, or 0 to {_MOST_IMMUNITY_S}")
    return seconds


def _number(text: str, otherwise: int = 0) -> int:
    is_usual = len(text) <= _USUAL_DIGITS and text.isascii() and text.isdigit()
    return int(text) if is_usual or _NUMBER.fullmatch(text) else otherwise
