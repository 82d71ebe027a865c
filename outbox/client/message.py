"""A message as its producer sees it, and its form in requests: strict, compact JSON with the caller's trace. Pure."""

import binascii
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final, TypeAlias
from uuid import UUID

from outbox.client.errors import InvalidMessage, Misuse

# --- values as JSON: strict and compact, with forms for what services hold ---

Encoder: TypeAlias = Callable[[Any], object]
_FORMS = "JSON's own types, datetime, date, time, UUID, Decimal, Enum, a dataclass or a Pydantic model"


def write_json(value: object, encoder: Encoder | None = None) -> str:
    """One document. Raises InvalidMessage for what JSON has no form for.

    A Decimal keeps its digits. An Enum counts as its value, a dataclass as its fields, a UUID as its text, a datetime,
    date or time as that of ISO 8601. A Pydantic model writes itself. `encoder` is asked for what is left: it gives what
    has a form.
    """
    try:
        return _Writer(encoder).write(value)
    except RecursionError:
        raise InvalidMessage("nested too deep, or in itself") from None


def quote(text: str) -> str:
    """A text as JSON, in quotes; only what must be escaped is."""
    return encode_basestring(text)


class _Writer:
    def __init__(self, encoder: Encoder | None) -> None:
        self._encoder = encoder

    def write(self, value: object) -> str:
        if isinstance(value, str):
            return encode_basestring(value)
        if value is None or isinstance(value, bool):
            return "null" if value is None else "true" if value else "false"
        if isinstance(value, int | float | Decimal):
            return _write_number(value)
        if isinstance(value, Mapping):
            members = [f"{_write_name(name)}:{self.write(member)}" for name, member in value.items()]
            return "{" + ",".join(members) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join([self.write(item) for item in value]) + "]"
        return self._write_object(value)

    def _write_object(self, value: object) -> str:
        if isinstance(value, datetime | date | time | UUID):
            return f'"{value if isinstance(value, UUID) else value.isoformat()}"'
        if isinstance(value, Enum):
            return self.write(value.value)
        if is_dataclass(value) and not isinstance(value, type):
            return self.write({field.name: getattr(value, field.name) for field in fields(value)})
        write_itself = getattr(type(value), "model_dump_json", None)
        if callable(write_itself):
            _load_fields(value)
            return str(write_itself(value))
        if self._encoder is not None:
            return self.write(self._encoder(value))
        raise InvalidMessage(f"{type(value).__name__} has no form in JSON: give {_FORMS}, or an encoder")


def _load_fields(model: object) -> None:
    """A model of SQLModel writes only what is loaded, nothing at all after a commit: SQLAlchemy loads at each look."""
    if hasattr(type(model), "_sa_class_manager"):
        for name in getattr(type(model), "model_fields", ()):
            getattr(model, name)


def _write_number(value: float | Decimal) -> str:
    if isinstance(value, int):
        try:
            return int.__repr__(value)
        except ValueError:
            raise InvalidMessage("an integer with too many digits") from None
    if not isfinite(value):
        raise InvalidMessage("NaN and infinity are not JSON")
    return float.__repr__(value) if isinstance(value, float) else str(value)


def _write_name(name: object) -> str:
    """Others' writers turn 1 into "1", and then two names can be one."""
    if not isinstance(name, str):
        raise InvalidMessage(f"a member's name must be str, not {type(name).__name__}")
    return encode_basestring(name)


# --- the trace that the caller is in, put into the headers of his messages ---

TraceHeaders = tuple[tuple[str, bytes | None], ...]
_PARENT, _STATE = "traceparent", "tracestate"


def add_trace(headers: Sequence[tuple[str, bytes | None]]) -> TraceHeaders:
    """The headers and, where they name no trace, OpenTelemetry's present span.

    It is not imported here: who has a span has done so.
    """
    given = tuple(headers)
    api = sys.modules.get("opentelemetry.trace")
    if api is None or any(name in {_PARENT, _STATE} for name, _ in given):
        return given
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return given
    given += ((_PARENT, f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}".encode()),)
    state: str = span.trace_state.to_header()
    return (*given, (_STATE, state.encode())) if state else given


# --- a message as its producer sees it, and its form in requests: strict, compact JSON ---

Text: TypeAlias = str | bytes | None
Value: TypeAlias = object  # bytes, text, None, or what has a form in JSON
HeadersLike: TypeAlias = Mapping[str, Text] | Iterable[tuple[str, Text]]

_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_RESERVED_HEADERS = frozenset({"properties", "transaction-id"})
MAX_MESSAGES = 100
SEPARATORS = ("\x00", "\x01", "\x02")  # of the bridge's own records
_MAX_PARTITION = 2**31 - 1
_MAX_TIME_MS = 2**63 - 1


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """A message; the bytes are fixed when it is made, so changing what it was made of changes nothing.

    `value`: bytes as they are, a str as UTF-8, None as Kafka's null (a tombstone), anything else as compact JSON, as
    `write_json` has it.
    `headers`: pairs (order and repeats are kept) or a mapping. Raises InvalidMessage.
    """

    topic: str
    key: bytes | None = field(repr=False)  # what users send must not get into logs
    value: bytes | None = field(repr=False)
    headers: tuple[tuple[str, bytes | None], ...] = field(repr=False)
    partition: int | None
    timestamp_ms: int | None

    def __init__(
        self,
        topic: str,
        *,
        key: Text = None,
        value: Value = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        given: object = topic
        if isinstance(given, Message):
            raise InvalidMessage("a topic is its name; `add` takes a whole Message")
        if not isinstance(topic, str) or _TOPIC.fullmatch(topic) is None:
            raise InvalidMessage("a topic has 1..249 characters of A-Z a-z 0-9 . _ -")
        keep = object.__setattr__
        keep(self, "topic", topic)
        keep(self, "key", _to_bytes(key, "a key"))
        keep(self, "value", value_to_bytes(value))
        keep(self, "headers", _read_headers(headers))
        keep(self, "partition", _read_integer(partition, "partition", 0, _MAX_PARTITION))
        keep(self, "timestamp_ms", _read_integer(timestamp_ms, "timestamp_ms", 1, _MAX_TIME_MS))

    def json(self) -> Any:  # noqa: ANN401 - what JSON holds
        """The value read as JSON; decimals keep their digits. Raises ValueError if it is none."""
        return json.loads(self.value or b"null", parse_float=Decimal)


def encode_message(message: Message) -> str:
    """Its JSON in a request.

    A text that needs escapes goes as base64: the bridge reads that faster.
    """
    members = [f'"topic":"{message.topic}"']
    if message.key is not None:
        members.append(_encode_bytes("key", message.key))
    if message.value is not None:
        members.append(_encode_bytes("value", message.value))
    if message.headers:
        members.append(_encode_headers(message.headers))
    if message.partition is not None:
        members.append(f'"partition":{message.partition}')
    if message.timestamp_ms is not None:
        members.append(f'"timestamp_ms":{message.timestamp_ms}')
    return "{" + ",".join(members) + "}"


def with_trace(message: Message) -> Message:
    """The message with the trace that the caller is in, unless it names one."""
    headers = add_trace(message.headers)
    if len(headers) == len(message.headers):
        return message
    traced = copy(message)
    object.__setattr__(traced, "headers", headers)
    return traced


def read_message(members: Mapping[str, Any]) -> Message:
    """A message as the bridge shows it, in checks and in answers; a JSON value comes compact. Raises ValueError.

    Read the document with `parse_float=Decimal`, or decimals are rounded.
    """
    key, value, headers = (_shown(members, name) for name in ("key", "value", "headers"))
    try:
        return Message(
            members["topic"],
            key=key,
            value=value,
            headers=[(name, text) for name, text in headers or ()],
            partition=members.get("partition"),
            timestamp_ms=members.get("timestamp_ms"),
        )
    except (KeyError, TypeError) as error:
        raise ValueError("not a message as the bridge shows it") from error


def as_messages(messages: Message | Sequence[Message]) -> tuple[Message, ...]:
    """One or many, as many. Raises InvalidMessage."""
    listed = (messages,) if isinstance(messages, Message) else messages
    if not isinstance(listed, list | tuple) or not all(isinstance(one, Message) for one in listed):
        raise InvalidMessage(f"give a Message, or a list of them, not {_kind(messages)}")
    if not 1 <= len(listed) <= MAX_MESSAGES:
        raise InvalidMessage(f"a transaction has 1..{MAX_MESSAGES} messages, not {len(listed)}")
    return tuple(listed)


def _kind(given: object) -> str:
    """Of what was given in place of a message, without its content."""
    if not isinstance(given, list | tuple):
        return type(given).__name__
    return "a list with " + next(type(one).__name__ for one in given if not isinstance(one, Message))


def _shown(members: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - what JSON holds
    coded = members.get(f"{name}_base64")
    if coded is None:
        return members.get(name)
    if isinstance(coded, str):
        return binascii.a2b_base64(coded, strict_mode=True)
    return [(header, None if text is None else binascii.a2b_base64(text, strict_mode=True)) for header, text in coded]


def _to_bytes(text: Text, what: str) -> bytes | None:
    if text is None or isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise InvalidMessage(f"{what} is str, bytes or None, not {type(text).__name__}")
    return _to_utf8(text, what)


def _to_utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"{what} holds a lone surrogate, which UTF-8 has no form for") from None


def value_to_bytes(value: Value, encoder: Encoder | None = None) -> bytes | None:
    """A message's value. Raises InvalidMessage."""
    if value is None or isinstance(value, str | bytes):
        return _to_bytes(value, "a value")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return _to_utf8(write_json(value, encoder), "a value")


def _read_headers(headers: HeadersLike) -> tuple[tuple[str, bytes | None], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    read = []
    for name, text in pairs:
        if not isinstance(name, str):
            raise InvalidMessage("a header's name is str")
        if name in _RESERVED_HEADERS:
            raise InvalidMessage(f"the header name {name} is reserved")
        if any(byte in name for byte in SEPARATORS):
            raise InvalidMessage("a header's name is without 0x00, 0x01 and 0x02")
        _to_utf8(name, "a header's name")
        read.append((name, _to_bytes(text, "a header's value")))
    return tuple(read)


def _read_integer(number: int | None, name: str, least: int, most: int) -> int | None:
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise InvalidMessage(f"{name} is an integer from {least} to {most}")
    return int(number)


def _encode_bytes(name: str, raw: bytes) -> str:
    text = _as_plain_text(raw)
    return f'"{name}_base64":"{_to_base64(raw)}"' if text is None else f'"{name}":{text}'


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> str:
    texts = ["null" if raw is None else _as_plain_text(raw) for _, raw in headers]
    if None not in texts:
        pairs = [f"[{quote(name)},{text}]" for (name, _), text in zip(headers, texts, strict=True)]
        return f'"headers":[{",".join(pairs)}]'
    pairs = [f"[{quote(name)},{_quote_base64(raw)}]" for name, raw in headers]
    return f'"headers_base64":[{",".join(pairs)}]'


def _as_plain_text(raw: bytes) -> str | None:
    """The bytes as a JSON text, if they are one without escapes."""
    if b'"' in raw or b"\\" in raw:
        return None
    try:
        quoted = quote(raw.decode())
    except UnicodeDecodeError:
        return None
    return None if "\\" in quoted else quoted


def _quote_base64(raw: bytes | None) -> str:
    return "null" if raw is None else f'"{_to_base64(raw)}"'


def _to_base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


# --- what a consumer got, of any Kafka client ---

INBOX_ID_LENGTH: Final = 320  # topic 249, partition 10, offset 19, transaction id 28, and what is between them
_INBOX_ID: Final = re.compile(rf"[!-~]{{1,{INBOX_ID_LENGTH}}}")
_TRANSACTION_ID: Final = re.compile(rb"[0-9A-Za-z]{28}")


def identify(message: object) -> str:
    """The same for each delivery of a message, and never for two messages. Raises Misuse.

    Topic, partition and offset; after them the transaction's id, for a topic may be deleted and made again.
    """
    if isinstance(message, str):
        if not _INBOX_ID.fullmatch(message):
            raise Misuse(f"a message's id has 1..{INBOX_ID_LENGTH} printable ASCII characters, and no space")
        return message
    if (error := _read(message, "error")) is not None:
        raise Misuse(f"the consumer returned an error, not a message: {error}")
    topic, partition, offset = (_read(message, name) for name in ("topic", "partition", "offset"))
    if not isinstance(topic, str) or not isinstance(partition, int) or not isinstance(offset, int):
        raise Misuse(f"give a message with topic, partition and offset, or its id, not {type(message).__name__}")
    place = f"{topic}/{partition}/{offset}"
    transaction_id = _find_transaction_id(_read(message, "headers"))
    return place if transaction_id is None else f"{place}/{transaction_id}"


def _read(message: object, name: str) -> object:
    """confluent-kafka has methods; aiokafka, kafka-python and others attributes."""
    found = getattr(message, name, None)
    return found() if callable(found) and not isinstance(message, type) else found


def _find_transaction_id(headers: Any) -> str | None:  # noqa: ANN401 - as the client has them
    """The bridge writes it last. Other producers' headers of this name may hold anything."""
    pairs = headers.items() if hasattr(headers, "items") else headers or ()
    raw = next((value for name, value in reversed([*pairs]) if name == "transaction-id"), None)
    raw = raw.encode() if isinstance(raw, str) else raw
    return raw.decode() if isinstance(raw, bytes) and _TRANSACTION_ID.fullmatch(raw) else None
