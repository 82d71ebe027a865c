"""Which queue: of the half topic by ordering key, of a real topic as Java clients choose."""

import hashlib
from functools import lru_cache
from struct import unpack_from

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SHORT = 64  # bytes of a key whose hashes are remembered: orders of one customer come again

_remember = lru_cache(maxsize=16_384)


def hash_ordering_key(ordering_key: bytes) -> int:
    """64 bits; chooses the half queue, and stands for the effective ordering key in records."""
    return _known_hash(ordering_key) if len(ordering_key) <= _SHORT else _hash(ordering_key)


def _hash(ordering_key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(ordering_key, digest_size=8).digest())


_known_hash = _remember(_hash)


def choose_placing_key(ordering_key: str | None, first_message_key: bytes | None, fallback: bytes) -> bytes:
    """The ordering key if given, else the first message's key, else `fallback` (what makes the id unique).

    What the queue is chosen by: part of every id, so frozen. It is the effective ordering key of half messages that
    record no other.
    """
    if ordering_key is not None:
        return ordering_key.encode()
    return fallback if first_message_key is None else first_message_key


def hash_effective_key(group: str, topic: str, ordering_key: str | None, first_message_key: bytes | None) -> int | None:
    """Hash of what a transaction is in order with: an ordering key within its group, else the first message's key
    within group and topic. None: with nothing.

    Equal ones have equal placing keys, so they share a queue. (Neither name holds a 0x00, and no topic is empty.)
    """
    if ordering_key is not None:
        return hash_ordering_key(f"{group}\0\0{ordering_key}".encode())
    if first_message_key is None:
        return None
    return hash_ordering_key(f"{group}\0{topic}\0".encode() + first_message_key)


def choose_half_queue(hashed: int, queues: int) -> int:
    """The queue of the half topic for a hashed placing key."""
    return hashed % queues


def murmur2(key: bytes) -> int:
    """32-bit MurmurHash2 as Kafka's Java client computes it. Source: org.apache.kafka.common.utils.Utils."""
    return _known_murmur2(key) if len(key) <= _SHORT else _murmur2(key)


def _murmur2(key: bytes) -> int:
    length = len(key)
    h = 0x9747B28C ^ length
    words = length >> 2
    for word in unpack_from(f"<{words}I", key):
        k = word * _M & _MASK
        h = (h * _M & _MASK) ^ (((k ^ k >> 24) * _M) & _MASK)
    tail = key[words << 2 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


_known_murmur2 = _remember(_murmur2)


def choose_real_queue(key: bytes | None, transaction_id: str, queues: int) -> int:
    """The queue of a real topic: murmur2 of the key; of the transaction id where there is no key."""
    return (murmur2(transaction_id.encode() if key is None else key) & 0x7FFFFFFF) % queues
