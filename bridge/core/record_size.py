"""How large a message becomes as a Kafka record: an estimate that is never too low, and the exact figure."""

from collections.abc import Sequence

from bridge.core.message import Header, Message, StoredMessage
from bridge.core.properties import TRANSACTION_ID_HEADER
from bridge.core.transaction_id import TRANSACTION_ID_LENGTH

# A batch of one record: 61 bytes of batch header, then at most 5 of length, 3 of attributes and deltas, 2 times 5
# of lengths of key and value, 3 of the number of headers. Some bytes more, so that no other estimate is stricter.
_RECORD_OVERHEAD_BYTES = 90
_HEADER_OVERHEAD_BYTES = 8
_OBJECTS_BYTES = 600  # tuples, header list and property strings around a small body
ID_HEADER_BYTES = _HEADER_OVERHEAD_BYTES + len(TRANSACTION_ID_HEADER) + TRANSACTION_ID_LENGTH
BATCH_HEADER_BYTES = 61
_FIXED_BYTES = 3  # attributes, and the distances in time and offset from the batch's first record
_ID_HEADER: Header = (TRANSACTION_ID_HEADER, bytes(TRANSACTION_ID_LENGTH))


def count_body_bytes(message: Message) -> int:
    """Key, value and headers as they were given."""
    size = len(message.key or b"") + len(message.value or b"")
    return size + _count_headers(message.headers, 0) if message.headers else size


def count_stored_bytes(stored: StoredMessage) -> int:
    """What a message of the log takes in memory, about."""
    size = _OBJECTS_BYTES + len(stored.key or b"") + len(stored.value or b"")
    return size + _count_headers(stored.headers, 0) if stored.headers else size


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
    return sum([len(name.encode()) + len(value or b"") + overhead for name, value in headers])
