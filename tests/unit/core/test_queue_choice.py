"""Which queue a message goes to."""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core import topics
from bridge.core.topics import (
    choose_half_queue,
    choose_placing_key,
    choose_real_queue,
    hash_effective_key,
    hash_ordering_key,
    murmur2,
)
from bridge.core.transaction import make_transaction_id


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    """A hash that was remembered before would hide that it is another now."""
    topics._known_hash.cache_clear()
    topics._known_murmur2.cache_clear()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
        (b"0123456789" * 7, 844030277),
    ],
)
def test_murmur2_is_javas(key: bytes, expected: int) -> None:
    """The values of Kafka's own UtilsTest, as signed 32-bit numbers; keys of all lengths."""
    assert murmur2(key) == expected & 0xFFFFFFFF


@given(st.none() | st.binary(), st.integers(1, 1000))
def test_real_queue_exists(key: bytes | None, queues: int) -> None:
    """Any key, or none, finds a queue of the topic."""
    assert 0 <= choose_real_queue(key, "0" * 28, queues) < queues


def test_real_queue_is_javas() -> None:
    """The hash without its sign, by the number of queues. An empty key is a key."""
    assert [choose_real_queue(b"21", "?", queues) for queues in (1, 4, 7, 1000)] == [0, 0, 3, 340]
    assert (
        choose_real_queue(b"", "21", 1000) == choose_real_queue(b"", "?", 1000) != choose_real_queue(b"21", "?", 1000)
    )


def test_messages_without_a_key_are_spread_over_all_queues() -> None:
    """Those of one transaction stay together."""
    ids = [make_transaction_id(0, n) for n in range(4_000)]
    counts = Counter(choose_real_queue(None, i, 4) for i in ids)
    assert all(900 < counts[queue] < 1_100 for queue in range(4)), counts
    assert choose_real_queue(None, ids[0], 1000) == choose_real_queue(None, ids[0], 1000)


def test_half_queue_is_the_rest_of_the_hash() -> None:
    """All messages of a key go into one queue."""
    assert [choose_half_queue(11, queues) for queues in (1, 4, 16)] == [0, 3, 11]


def test_placing_key() -> None:
    """The ordering key, else the first message's key (empty is a key), else the id."""
    assert choose_placing_key("o", b"k", b"id") == b"o"
    assert choose_placing_key("", b"k", b"id") == b""
    assert choose_placing_key(None, b"", b"id") == b""
    assert choose_placing_key(None, None, b"id") == b"id"


def test_effective_ordering_key() -> None:
    """An ordering key orders within its group, a message key within group and topic; nothing is read twice."""
    made = [
        hash_effective_key(group, topic, ordering_key, key)
        for group in ("g", "h")
        for topic in ("t", "u")
        for ordering_key, key in ((None, b"k"), (None, b""), ("k", b"k"), ("", None), ("t", b"k"), ("k", None))
    ]
    by_group = [made[:12], made[12:]]
    for of_t, of_u in ((each[:6], each[6:]) for each in by_group):
        assert of_t[2:] == of_u[2:]  # an ordering key spans topics
        assert of_t[2] == of_t[5]  # whatever the message key is
        assert len({*of_t, *of_u[:2]}) == 7
    assert not set(by_group[0]) & set(by_group[1])
    assert hash_effective_key("g", "t", None, None) is None


def test_hash_of_the_effective_key_is_frozen() -> None:
    """It lies in half messages and op messages."""
    assert hash_effective_key("shop", "orders", None, b"42") == hash_ordering_key(b"shop\0orders\x0042")
    assert hash_effective_key("shop", "orders", "42", b"7") == hash_ordering_key(b"shop\0\x0042")


def test_hash_of_the_ordering_key_is_frozen() -> None:
    """It lies in op messages and chooses the queue: it must never change."""
    assert hash_ordering_key(b"42") == 0x57B43CF02666687A
    for key in (b"x" * 64, b"x" * 65):
        assert hash_ordering_key(key) == int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())


@pytest.mark.parametrize(
    ("hash_of", "known"), [(hash_ordering_key, topics._known_hash), (murmur2, topics._known_murmur2)]
)
def test_only_short_keys_are_remembered(hash_of: Callable[[bytes], int], known: Any) -> None:
    """Up to 64 bytes: what is remembered stays small whatever keys are sent."""
    hash_of(b"x" * 64)
    hash_of(b"x" * 64)
    assert (known.cache_info().currsize, known.cache_info().hits) == (1, 1)
    hash_of(b"x" * 65)
    assert known.cache_info().currsize == 1
