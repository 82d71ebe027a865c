"""What clients of RocketMQ send and get: requests, messages, properties. Source: MessageDecoder, RequestCode."""

import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
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
from bridge.core.message import Header, Message
from bridge.core.properties import is_property_text
from bridge.core.record import MAX_REMARK_CHARS, Resolution
from bridge.service.contract import PrepareCall

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


class OffsetMessageId(NamedTuple):
    """What RocketMQ calls the offset message id: where a broker has the message."""

    host: str
    port: int
    offset: int


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


def make_message_id(place: OffsetMessageId) -> str:
    """32 hexadecimal digits; an address that is none counts as 0.0.0.0."""
    host, port, offset = place
    return f"{_write_place(host, port)}{offset:016X}"


@lru_cache(maxsize=16)
def _write_place(host: str, port: int) -> str:
    try:
        return f"{int(IPv4Address(host)):08X}{port:08X}"
    except ValueError:
        return f"{0:08X}{port:08X}"


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
_SHORT_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "properties": "i",
    "batch": "m",
}
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


class SendRequest(NamedTuple):
    """A send. `messages`: one, but for a batch; their properties are theirs, `properties` those of the whole."""

    group: str
    topic: str
    queue_id: int
    properties: Mapping[str, str]
    messages: Sequence[InnerMessage]
    is_batch: bool
    born_ms: int = 0
    system_flag: int = 0

    @property
    def is_transactional(self) -> bool:
        """Whether it is a half message: for RocketMQ whatever says so is none that anybody may see yet."""
        return bool(self.system_flag & _PREPARED) or _says_half(self.properties)


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
    if command.code == _LONG_SEND:
        fields = {short: fields[name] for name, short in _SHORT_NAMES.items() if name in fields}
    get = fields.get
    text, topic, body = get("i", ""), get("b"), command.body
    _check_properties(text)
    if not topic:
        raise UnreadableMessage("the request names no topic")
    properties, flag = parse_properties(text), _number(get("f", ""))
    is_batch = get("m") == "true" or command.code == _BATCH_SEND
    if flag & _COMPRESSED:
        body = read_body(body, flag, max_bytes)
    messages = split_batch(body) if is_batch else (InnerMessage(0, body, text),)
    group = properties.get(GROUP) or get("a", "")
    return SendRequest(group, topic, _number(get("e", "")), properties, messages, is_batch, _number(get("g", "")), flag)


def _says_half(properties: Mapping[str, str]) -> bool:
    """As RocketMQ reads it: without regard to case."""
    return properties.get(TRANSACTIONAL, "").lower() == "true"


def count_held_bytes(request: RemotingCommand, send: SendRequest) -> int:
    """What is held of a send: the frame, and its messages where they are not the frame's own bytes."""
    held = len(request.body) + sum(map(len, request.fields.values()))
    if send.is_batch or send.messages[0].body is not request.body:
        held += sum([len(message.body) for message in send.messages])
    return held


_RESOLUTIONS = {str(int(resolution)): resolution for resolution in Resolution}


def parse_end(command: RemotingCommand) -> EndRequest | None:
    """None for one that names no transaction of ours, or no resolution."""
    fields = command.fields
    transaction_id, dot, nonce = fields.get("transactionId", "").partition(".")
    resolution = _RESOLUTIONS.get(fields.get("commitOrRollback", ""))
    if resolution is None or not transaction_id:
        return None
    remark = _trim_remark(command.remark) if command.remark else None
    return EndRequest(transaction_id, resolution, fields.get("producerGroup") or None, nonce if dot else None, remark)


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
    messages, is_half = [], send.is_transactional
    for inner in send.messages:
        properties = send.properties
        if send.is_batch:
            properties = parse_properties(inner.properties)
            if is_half or _says_half(properties):
                raise UnreadableMessage("a batch is published at once, and has half messages: send them one by one")
        if not _DELAYS.isdisjoint(properties):
            _refuse_delays(properties)
        messages.append(_make_message(send.topic, inner.body, properties, rule))
    return PrepareCall(
        send.group,
        messages,
        idempotency_key=send.properties.get(UNIQUE_KEY) or None,
        immunity_s=_find_immunity(send.properties),
        is_published=not is_half,
    )


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
    text = properties.get(_IMMUNITY)
    if text is None or text == "-1":
        return None
    seconds = _number(text, -1)
    if not 0 <= seconds <= _MOST_IMMUNITY_S:
        raise UnreadableMessage(f"{_IMMUNITY} is {text}; it is -1, or 0 to {_MOST_IMMUNITY_S}")
    return seconds


def _number(text: str, otherwise: int = 0) -> int:
    is_usual = len(text) <= _USUAL_DIGITS and text.isascii() and text.isdigit()
    return int(text) if is_usual or _NUMBER.fullmatch(text) else otherwise
