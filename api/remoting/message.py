"""RocketMQ's messages on the wire: properties, message ids, bodies, MessageExt. Source: its MessageDecoder."""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import IntFlag
from functools import lru_cache
from importlib import import_module
from ipaddress import IPv4Address
from types import ModuleType
from typing import NamedTuple

from bridge.core.properties import NAME_END, PROPERTY_END

MAX_PROPERTY_CHARS = 32_767
_MAGIC = -626843481  # 0xDAA320A7
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">h")
_HEAD = struct.Struct(">iiiiiqqiq")  # size, magic, crc, queue, flag, two offsets, system flag, born
_ID = struct.Struct(">4siq")
_NOWHERE = bytes(4)


class SystemFlag(IntFlag):
    """Bits of a message's system flag. Source: MessageSysFlag."""

    COMPRESSED = 0x1
    PREPARED = 0x4
    KIND = 0x700  # of the compression; 0 is what old clients write for zlib


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


def parse_properties(text: str) -> dict[str, str]:
    """Lenient, as RocketMQ's own: the last pair may lack its end, what is no pair is passed over, the last one wins."""
    found = dict[str, str]()
    for pair in text.split(PROPERTY_END):
        name, mark, value = pair.partition(NAME_END)
        if mark and name:
            found[name] = value
    return found


def make_message_id(place: OffsetMessageId) -> str:
    """32 hexadecimal digits; an address that is none counts as 0.0.0.0."""
    return _ID.pack(_pack_host(place.host), place.port, place.offset).hex().upper()


def parse_message_id(text: str) -> OffsetMessageId:
    """Raises ValueError."""
    try:
        host, port, offset = _ID.unpack(bytes.fromhex(text))
    except struct.error as error:
        raise ValueError("not 32 hexadecimal digits") from error
    return OffsetMessageId(str(IPv4Address(host)), port, offset)


@lru_cache(maxsize=16)
def _pack_host(host: str) -> bytes:
    try:
        return IPv4Address(host).packed
    except ValueError:
        return _NOWHERE


def read_body(body: bytes, system_flag: int, max_bytes: int) -> bytes:
    """What was sent, inflated if need be, never beyond the limit. Raises UnreadableMessage."""
    if not system_flag & SystemFlag.COMPRESSED:
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
        return list(_split(body))
    except (struct.error, UnicodeDecodeError) as error:
        raise UnreadableMessage("the batch ends early, or has properties that are not text") from error


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
