"""RocketMQ's property map in RocketMQ's own encoding."""

from collections.abc import Mapping

from bridge.core.errors import MalformedRecord

NAME_END = "\x01"
PROPERTY_END = "\x02"

# Header names that clients may not set: they would be taken for the bridge's own.
PROPERTIES_HEADER = "properties"
TRANSACTION_ID_HEADER = "transaction-id"
RESERVED_HEADERS = frozenset({PROPERTIES_HEADER, TRANSACTION_ID_HEADER})


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Name 0x01 value 0x02, repeated. Texts are free of both bytes (`is_property_text`)."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()


def decode_properties(raw: bytes) -> dict[str, str]:
    """Name 0x01 value 0x02, repeated. Raises MalformedRecord. Source: RocketMQ MessageDecoder, strict."""
    try:
        *parts, rest = raw.decode().split(PROPERTY_END)
        properties = dict([part.split(NAME_END) for part in parts])
    except ValueError as error:
        raise MalformedRecord("properties are not UTF-8 or not pairs") from error
    if rest or len(properties) != len(parts):
        raise MalformedRecord("properties have an open end or a repeated name")
    return properties


def is_property_text(text: str) -> bool:
    """Whether a text can stand in a property: no 0x01, no 0x02, encodable as UTF-8."""
    return NAME_END not in text and PROPERTY_END not in text and not any("\ud800" <= c <= "\udfff" for c in text)
