"""Transaction ids: the queue in two base32hex digits, then 128 bits: a UUIDv7 or a digest of what is prepared."""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

from bridge.core.message import Message

_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = tuple(a + b for a in _DIGITS for b in _DIGITS)
_QUEUES = {pair: queue_id for queue_id, pair in enumerate(_PAIRS)}
_TRIPLES = tuple(pair + digit for pair in _PAIRS for digit in _DIGITS)
_WORD = (1 << 60) - 1
_ID = re.compile(r"[0-9a-v]{27}[048cgkos]")
_DIGEST_VERSION = b"outbox-bridge/1"  # frozen: another digest would make another transaction of a repeat

TRANSACTION_ID_LENGTH = 28


def make_transaction_id(queue_id: int, bits: int) -> str:
    """The id of a transaction in `queue_id` with these 128 bits."""
    triples = _TRIPLES
    # in words that fit a machine's: shifting all 128 bits for each step costs more than twice as much
    high, middle = bits >> 68, bits >> 8 & _WORD
    return (
        f"{_beginning(queue_id, high >> 15)}{triples[high & 32767]}"
        f"{triples[middle >> 45]}{triples[middle >> 30 & 32767]}{triples[middle >> 15 & 32767]}"
        f"{triples[middle & 32767]}{_PAIRS[bits << 2 & 1023]}"
    )


@lru_cache(maxsize=1_024)  # the time: what is prepared within 8 ms begins alike
def _beginning(queue_id: int, highest: int) -> str:
    triples = _TRIPLES
    return f"{_PAIRS[queue_id]}{triples[highest >> 30]}{triples[highest >> 15 & 32767]}{triples[highest & 32767]}"


def make_uuid7_bits(now_ms: int, random_bits: int) -> int:
    """128 bits of a UUIDv7 from the time and 74 random bits. Source: RFC 9562 section 5.7."""
    high = random_bits >> 62 & 0xFFF
    low = random_bits & (1 << 62) - 1
    return (now_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low


def is_transaction_id(text: str) -> bool:
    """Whether the text has the form of an id; says nothing of its existence."""
    return _ID.fullmatch(text) is not None


def queue_of(transaction_id: str) -> int:
    """The queue of the half topic that holds the transaction."""
    return _QUEUES[transaction_id[:2]]


def digest_bits(
    group: str, idempotency_key: str, is_published: bool, ordering_key: str | None, messages: Sequence[Message]
) -> int:
    """128 bits that name a keyed prepare: the same group, key, kind of call and bytes give the same id."""
    parts: list[bytes | None] = [
        _DIGEST_VERSION,
        group.encode(),
        idempotency_key.encode(),
        b"publish" if is_published else b"prepare",
        None if ordering_key is None else ordering_key.encode(),
    ]
    for message in messages:
        parts += [message.topic.encode(), message.key, message.value, b"%d" % message.queue_id]
        parts += [None if message.timestamp_ms is None else b"%d" % message.timestamp_ms, b"%d" % len(message.headers)]
        for name, value in message.headers:
            parts += [name.encode(), value]
    framed = b"".join([b"-;" if part is None else b"%d:%b;" % (len(part), part) for part in parts])
    return int.from_bytes(hashlib.sha256(framed).digest()[:16])
