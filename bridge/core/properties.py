"""RocketMQ's property map in RocketMQ's own encoding."""

import re
from collections.abc import Mapping

from bridge.core.errors import MalformedRecord

NUL = "\x00"  # ends a text for C libraries, librdkafka's header names too, and PostgreSQL has no text with it
NAME_END = "\x01"
PROPERTY_END = "\x02"
_PAIR = re.compile("([^\x01\x02]*)\x01([^\x01\x02]*)\x02")

# Header names that clients may not set: they would be taken for the bridge's own.
PROPERTIES_HEADER = "properties"
TRANSACTION_ID_HEADER = "transaction-id"
RESERVED_HEADERS = frozenset({PROPERTIES_HEADER, TRANSACTION_ID_HEADER})


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Name 0x01 value 0x02, repeated. Texts are free of both bytes (`is_property_text`)."""
    return write_properties(properties).encode()


def write_properties(properties: Mapping[str, str]) -> str:
    """The same as text, to be put behind other properties."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def decode_properties(raw: bytes) -> dict[str, str]:
    """Name 0x01 value 0x02, repeated. Raises MalformedRecord. Source: RocketMQ MessageDecoder, strict."""
    try:
        text = raw.decode()
    except ValueError as error:
        raise MalformedRecord("properties are not UTF-8") from error
    pairs = _PAIR.findall(text)
    properties = dict(pairs)
    count = len(pairs)
    # every separator belongs to a pair, and nothing is left behind the last one
    if text.count(NAME_END) != count or text.count(PROPERTY_END) != count or (text and text[-1] != PROPERTY_END):
        raise MalformedRecord("properties are not pairs, or have an open end")
    if len(properties) != count:
        raise MalformedRecord("a property is repeated")
    return properties


def is_property_text(text: str) -> bool:
    """Whether a text can stand in a property, and be kept: no 0x00, 0x01, 0x02, encodable as UTF-8."""
    if NUL in text or NAME_END in text or PROPERTY_END in text:
        return False
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)
