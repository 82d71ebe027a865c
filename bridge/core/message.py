"""Messages as RocketMQ's store speaks of them, on Kafka's terms (null is not empty, headers are a list).

The value of a text that is a JSON object or array is a `JsonText`: `write_json` puts it into the document as
it is, so that big integers, decimals and the order of members stay what they were; any other JSON writer
makes a string of it, which loses nothing either.
"""

import base64
import json
import math
import re
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring_ascii
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

Header = tuple[str, bytes | None]
Count = Annotated[int, Meta(ge=-999_999_999, le=999_999_999)]
"""What records of internal topics say of a number of something, or a queue: at most 9 digits."""
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A time or an offset there: what SQL and Kafka take."""

BY_KEY = -1  # RocketMQ writes an unset queue id so


class MessageQueue(NamedTuple):
    """One totally ordered queue of a topic; Kafka calls it a partition."""

    topic: str
    queue_id: int


class Message(Struct, frozen=True, gc=False):
    """A message to be put. `queue_id` BY_KEY: the writer chooses as Java clients do."""

    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
    queue_id: int = BY_KEY
    timestamp_ms: int | None = None


class StoredMessage(Struct, frozen=True, gc=False):
    """A message as the log holds it. `stored_ms`: its timestamp; the append time where the topic says so."""

    queue_offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    stored_ms: int


class Receipt(Struct, frozen=True, gc=False, array_like=True):
    """The place of a published message; `queue_offset` None where the log does not know it any more."""

    topic: str
    queue_id: Count
    queue_offset: Int64 | None


MAX_DEPTH = 32  # what the bridge itself takes; deeper JSON is shown as text
_MAX_NUMBER = 400
_BOUNDARY = re.compile(r"\s*[\[{]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LINE_ENDS = {10: " ", 13: " "}


class JsonText(str):
    """A text that is one JSON object or array, readable by any strict parser, on one line."""

    __slots__ = ()


def show_message(message: Message) -> dict[str, object]:
    """A message's members as answers show them; `partition` and `timestamp_ms` only if they were asked for."""
    shown = {"topic": message.topic, **_show_key(message.key), **_show_value(message.value)}
    shown |= _show_headers(message.headers)
    if message.queue_id != BY_KEY:
        shown["partition"] = message.queue_id
    if message.timestamp_ms is not None:
        shown["timestamp_ms"] = message.timestamp_ms
    return shown


def write_message(message: Message) -> JsonText:
    """The same as text; written out for most messages, in a third of the time."""
    key, value, quote = message.key, message.value, encode_basestring_ascii
    text = None if value is None or message.headers else read_json_text(value)
    try:
        shown_key = "null" if key is None else quote(key.decode())
    except UnicodeDecodeError:
        text = None
    if text is None or message.queue_id != BY_KEY or message.timestamp_ms is not None:
        return JsonText(write_json(show_message(message)))
    shown = text if isinstance(text, JsonText) else quote(text)
    return JsonText(f'{{"topic":{quote(message.topic)},"key":{shown_key},"value":{shown},"headers":[]}}')


def write_json(value: object) -> str:
    """Compact JSON on one line, of dictionaries, lists, tuples and scalars; a JsonText stands in it as it is."""
    if isinstance(value, str):
        return str(value) if isinstance(value, JsonText) else encode_basestring_ascii(value)
    if value is None:
        return "null"
    if isinstance(value, dict):
        members = [f"{encode_basestring_ascii(name)}:{write_json(member)}" for name, member in value.items()]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([write_json(item) for item in value]) + "]"
    return json.dumps(value, allow_nan=False)


def read_json_text(raw: bytes) -> JsonText | str | None:
    """The bytes as JSON object or array, else as text; None where they are not UTF-8."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if _BOUNDARY.match(text) and _is_strict_json(text):
        return JsonText(text.strip().translate(_LINE_ENDS))
    return text


def _show_value(value: bytes | None) -> dict[str, object]:
    if value is None:
        return {"value": None}
    text = read_json_text(value)
    return {"value_base64": _to_base64(value)} if text is None else {"value": text}


def _show_key(key: bytes | None) -> dict[str, object]:
    try:
        return {"key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": _to_base64(key)}


def _show_headers(headers: Sequence[Header]) -> dict[str, object]:
    """One form for the whole list, so that order and repeats stay readable."""
    try:
        return {"headers": [[name, None if raw is None else raw.decode()] for name, raw in headers]}
    except UnicodeDecodeError:
        return {"headers_base64": [[name, _to_base64(raw)] for name, raw in headers]}


def _to_base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _is_strict_json(text: str) -> bool:
    """Whether every parser reads the text alike: no repeated names, lone surrogates, numbers out of range."""
    try:
        value = _STRICT.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return True
    return False


def unique_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For `object_pairs_hook` of strict JSON. Raises ValueError for a name that is given twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("repeated name")
    return members


def refuse_constant(word: str) -> object:
    """For `parse_constant` of strict JSON. Raises ValueError for NaN and Infinity."""
    raise ValueError(f"{word} is not JSON")


def _finite(number: str) -> float:
    if len(number) > _MAX_NUMBER or math.isinf(value := float(number)):
        raise ValueError("number out of range")
    return value


_STRICT = json.JSONDecoder(
    object_pairs_hook=unique_members, parse_constant=refuse_constant, parse_float=_finite, parse_int=_finite
)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
