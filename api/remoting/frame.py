"""Frames of RocketMQ's remoting protocol, with both encodings of their header. Source: its RemotingCommand,
RocketMQSerializable and SerializeType.

A frame: int32 length of the rest, int32 (encoding << 24 | length of the header), header, body.
"""

import struct
from collections.abc import Generator
from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 256 * 1024  # properties have at most 32,767 characters, each of which JSON may write as \uXXXX
_MAX_FIELDS = 256
_RESPONSE, ONE_WAY = 1, 2
_OTHER = 7  # of LanguageCode
_BEGINNING = struct.Struct(">ii")
_FIXED = struct.Struct(">hbhiii")  # code, language, version, opaque, flag, length of the remark
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">h")


class BadFrame(Exception):
    """Bytes that are no frame: the connection is of no use any more."""


class HeaderType(IntEnum):
    """How a header is written."""

    JSON = 0
    ROCKETMQ = 1


_JSON, _ROCKETMQ = HeaderType.JSON, HeaderType.ROCKETMQ  # Python finds the members of an enum only slowly


_Int32 = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]


class _Header(Struct, gc=False):
    """What all headers begin with. Names are those of JSON."""

    code: _Int32
    opaque: _Int32 = 0
    flag: _Int32 = 0
    version: _Int32 = 0
    remark: str | None = None


class RemotingCommand(_Header, gc=False):
    """A request, or the answer to one, which has its `opaque` and its kind of header."""

    fields: dict[str, str] = field(default_factory=dict, name="extFields")
    body: bytes = b""
    header_type: HeaderType = HeaderType.JSON

    @property
    def is_response(self) -> bool:
        """Whether it answers one of ours."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.flag & ONE_WAY)

    def answer(
        self, code: int, remark: str | None = None, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> bytes:
        """The frame that answers this request. Clients read fields of it without looking whether there are any."""
        return encode_frame(
            RemotingCommand(code, self.opaque, _RESPONSE, self.version, remark, fields or {}, body, self.header_type)
        )


class _LooseHeader(_Header, gc=False):
    """Clients in C++ write numbers, which RocketMQ reads as their text."""

    fields: dict[str, str | int | bool | None] | None = field(default=None, name="extFields")


_read_json, _read_loosely = msgspec.json.Decoder(RemotingCommand).decode, msgspec.json.Decoder(_LooseHeader).decode
_write_json = msgspec.json.Encoder().encode


_STRANGE = "what it says is not RocketMQ's; a balancer must pass it on as it is, without PROXY protocol before it"


class FrameBuffer:
    """What has come of a connection's frames. Holds at most one frame that is not whole, within its limit."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._held: bytes | bytearray = b""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, data: bytes) -> None:
        """More bytes. Where nothing was held they are kept as they came: most reads end with a frame."""
        if not self._held:
            self._held = data
            return
        if type(self._held) is bytes:
            self._held = bytearray(self._held)
        self._held += data

    def clear(self) -> None:
        """Nothing of it is wanted any more."""
        self._held = b""

    def take(self) -> Generator[RemotingCommand]:
        """The frames that are whole, in their order. Raises BadFrame."""
        held, whole, start = self._held, len(self._held), 0
        try:
            while whole - start >= 4:
                (size,) = _INT.unpack_from(held, start)
                if not 4 <= size <= self._max_frame_bytes:
                    told = f"a frame of {size} bytes; at most {self._max_frame_bytes} are taken"
                    raise BadFrame(_STRANGE if held[start] else told)
                begin, end = start, start + 4 + size
                if end > whole:
                    break
                start = end
                yield decode_frame(held, begin, end)
        finally:
            if start:
                self._held = held[start:]


def decode_frame(held: bytes | bytearray, start: int = 0, end: int | None = None) -> RemotingCommand:
    """One whole frame of what is held. Raises BadFrame."""
    end = len(held) if end is None else end
    if end - start < 8:
        raise BadFrame("a frame without a header")
    size, marked = _BEGINNING.unpack_from(held, start)
    kind, length = marked >> 24 & 0xFF, marked & 0xFFFFFF
    if size != end - start - 4 or length > size - 4 or length > MAX_HEADER_BYTES:
        raise BadFrame("lengths that do not fit together")
    if kind > 1:
        raise BadFrame(f"no header is written in the way {kind}")
    middle = start + 8 + length
    header, body = bytes(held[start + 8 : middle]), bytes(held[middle:end])
    return _decode_binary(header, body) if kind else _decode_json(header, body)


def encode_frame(command: RemotingCommand) -> bytes:
    """The frame of a command."""
    is_json, body = command.header_type is _JSON, command.body
    header = _encode_json(command) if is_json else _encode_binary(command)
    kind = 0 if is_json else 1 << 24
    return b"".join((_BEGINNING.pack(4 + len(header) + len(body), kind | len(header)), header, body))


def encode_stored(request: RemotingCommand, message_id: str, queue_id: int, offset: int, transaction_id: str) -> bytes:
    """Success, with the place of what was sent: the bytes that `answer` makes of these fields, in less time."""
    queue, place = str(queue_id), str(offset)
    if request.header_type is _JSON:
        header = (
            f'{{"code":0,"opaque":{request.opaque!s},"flag":1,"version":{request.version!s},"remark":null,"extFields":'
            f'{{"msgId":"{message_id}","queueId":"{queue}","queueOffset":"{place}","MSG_REGION":"DefaultRegion",'
            f'"TRACE_ON":"false","transactionId":"{transaction_id}"}},"language":"OTHER",'
            f'"serializeTypeCurrentRPC":"JSON"}}'
        ).encode()
        return _BEGINNING.pack(4 + len(header), len(header)) + header
    fields = (
        f"\0\5msgId\0\0\0 {message_id}\0\7queueId\0\0\0{chr(len(queue))}{queue}"
        f"\0\13queueOffset\0\0\0{chr(len(place))}{place}\0\12MSG_REGION\0\0\0\15DefaultRegion"
        f"\0\10TRACE_ON\0\0\0\5false\0\15transactionId\0\0\0\34{transaction_id}"
    ).encode()
    size = _FIXED.size + 4 + len(fields)
    fixed = _FIXED.pack(0, _OTHER, request.version, request.opaque, _RESPONSE, 0)
    return b"".join((_BEGINNING.pack(4 + size, 1 << 24 | size), fixed, _INT.pack(len(fields)), fields))


def _decode_json(raw: bytes, body: bytes) -> RemotingCommand:
    try:
        try:
            command = _read_json(raw)
        except msgspec.ValidationError:
            command = _loosen(_read_loosely(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame("the header is not the JSON it should be") from error
    if len(command.fields) > _MAX_FIELDS:
        raise BadFrame(f"more than {_MAX_FIELDS} fields")
    command.body, command.header_type = body, _JSON  # whatever stands there by these names
    return command


def _loosen(header: _LooseHeader) -> RemotingCommand:
    fields = {
        name: value if type(value) is str else str(value).lower()  # of True, too
        for name, value in (header.fields or {}).items()
        if value is not None
    }
    return RemotingCommand(header.code, header.opaque, header.flag, header.version, header.remark, fields)


def _encode_json(command: RemotingCommand) -> bytes:
    """Written as Java's own."""
    return _write_json({
        "code": command.code, "opaque": command.opaque, "flag": command.flag, "version": command.version,
        "remark": command.remark, "extFields": command.fields, "language": "OTHER", "serializeTypeCurrentRPC": "JSON",
    })  # fmt: skip


def _decode_binary(raw: bytes, body: bytes) -> RemotingCommand:
    try:
        code, _, version, opaque, flag, length = _FIXED.unpack_from(raw)
        at = _FIXED.size
        remark = _text(raw, at, length) if length > 0 else None
        at += max(length, 0)
        (length,) = _INT.unpack_from(raw, at)
        fields = _read_fields(raw, at + 4, length) if length > 0 else {}
    except (struct.error, UnicodeDecodeError) as error:
        raise BadFrame("the header ends early, or is not text") from error
    return RemotingCommand(code, opaque, flag, version, remark, fields, body, _ROCKETMQ)


def _read_fields(raw: bytes, at: int, length: int) -> dict[str, str]:
    end, fields = at + length, dict[str, str]()
    if end > len(raw):
        raise BadFrame("fields that end after their header")
    short, long = _SHORT.unpack_from, _INT.unpack_from
    while at < end:
        value = at + 6 + short(raw, at)[0]  # where it begins
        after = value + long(raw, value - 4)[0]
        if not at + 6 <= value <= after <= len(raw):
            raise BadFrame("a text that ends after its header")
        fields[raw[at + 2 : value - 4].decode()] = raw[value:after].decode()
        at = after
    if len(fields) > _MAX_FIELDS:
        raise BadFrame(f"more than {_MAX_FIELDS} fields")
    return fields


def _text(raw: bytes, at: int, length: int) -> str:
    if length < 0 or at + length > len(raw):
        raise BadFrame("a text that ends after its header")
    return raw[at : at + length].decode()


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode()
    pieces = list[bytes]()
    for name, text in command.fields.items():
        key, value = name.encode(), text.encode()
        pieces += (_SHORT.pack(len(key)), key, _INT.pack(len(value)), value)
    fields = b"".join(pieces)
    fixed = _FIXED.pack(command.code, _OTHER, command.version, command.opaque, command.flag, len(remark))
    return b"".join((fixed, remark, _INT.pack(len(fields)), fields))
