"""RocketMQ's property map in RocketMQ's own encoding, and the size of a message as a Kafka record."""

import re
from collections.abc import Iterable, Mapping, Sequence

from bridge.core.errors import MalformedRecord
from bridge.core.message import Header, Message, StoredMessage
from bridge.core.transaction import TRANSACTION_ID_LENGTH

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
    if NUL in text:
        raise MalformedRecord("a property has a 0x00")
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


# A batch of one record: 61 bytes of batch header, then at most 5 of length, 3 of attributes and deltas, 2 times 5
# of lengths of key and value, 3 of the number of headers. Some bytes more, so that no other estimate is stricter.
_RECORD_OVERHEAD_BYTES = 90
_HEADER_OVERHEAD_BYTES = 8
_OBJECTS_BYTES = 600  # tuples, header list and property strings around a small body
ID_HEADER_BYTES = _HEADER_OVERHEAD_BYTES + len(TRANSACTION_ID_HEADER) + TRANSACTION_ID_LENGTH
BATCH_HEADER_BYTES = 61
_FIXED_BYTES = 3  # attributes, and the distances in time and offset from the batch's first record
_ID_HEADER: Header = (TRANSACTION_ID_HEADER, bytes(TRANSACTION_ID_LENGTH))


def find_bad_header(headers: Iterable[tuple[str, object]]) -> str | None:
    """What is wrong with the first header that no message may have; None if there is no such header."""
    for name, _ in headers:
        if name in RESERVED_HEADERS:
            return f"the header name {name} is reserved"
        if NUL in name:  # it would arrive cut off, and could be a reserved one then
            return "the byte 0x00 is not allowed in a header name"
        if not (name.isascii() or is_property_text(name)):
            return f"header name {name!r} cannot be used"
    return None


def count_body_bytes(message: Message) -> int:
    """Key, value and headers as they were given."""
    size = len(message.key or b"") + len(message.value or b"")
    return size + _count_headers(message.headers, 0) if message.headers else size


def count_stored_bytes(stored: StoredMessage) -> int:
    """What a message of the log takes in memory, about."""
    key, value = stored.key, stored.value
    size = _OBJECTS_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    return size + _count_headers(stored.headers, 0)


def count_record_bytes(message: Message) -> int:
    """The record alone in its batch, uncompressed."""
    size = _RECORD_OVERHEAD_BYTES + len(message.key or b"") + len(message.value or b"")
    return size + _count_headers(message.headers, _HEADER_OVERHEAD_BYTES) if message.headers else size


def measure_published(message: Message, *, has_id_header: bool) -> int:
    """What a broker counts against `max.message.bytes` when this is published, alone in its batch and uncompressed."""
    headers = (*message.headers, _ID_HEADER) if has_id_header else message.headers
    return BATCH_HEADER_BYTES + measure_record(message.key, message.value, headers)


def measure_record(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Exact bytes of a record that is the first of its batch, without the batch's own."""
    size = _FIXED_BYTES + _measure_bytes(key) + _measure_bytes(value) + _measure_varint(len(headers))
    for name, header in headers:
        size += _measure_bytes(name.encode()) + _measure_bytes(header)
    return size + _measure_varint(size)


def _measure_bytes(value: bytes | None) -> int:
    """With the length in front; null is a length of -1."""
    return 1 if value is None else _measure_varint(len(value)) + len(value)


def _measure_varint(number: int) -> int:
    """Seven bits a byte, and one bit for the sign."""
    return ((number << 1).bit_length() + 6) // 7 or 1


def _count_headers(headers: Sequence[Header], overhead: int) -> int:
    size = overhead * len(headers)
    for name, value in headers:
        size += (len(name) if name.isascii() else len(name.encode())) + (len(value) if value else 0)
    return size
