"""Transaction ids."""

import random
import uuid

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.message import Message
from bridge.core.transaction import (
    IdRun,
    digest_bits,
    is_transaction_id,
    make_transaction_id,
    make_uuid7_bits,
    queue_of,
)


@given(st.integers(0, 1023), st.integers(0, 2**128 - 1))
@example(1023, 0x0123456789ABCDEFFEDCBA9876543210)
def test_id_holds_its_queue_and_is_well_formed(queue_id: int, bits: int) -> None:
    """28 characters [0-9a-v], which are base32hex; an end needs no look-up to find its queue."""
    transaction_id = make_transaction_id(queue_id, bits)
    assert int(transaction_id, 32) == queue_id << 130 | bits << 2
    assert is_transaction_id(transaction_id)
    assert len(transaction_id) == 28
    assert queue_of(transaction_id) == queue_id


@given(st.sets(st.integers(0, 2**128 - 1), min_size=2, max_size=50))
def test_ids_keep_the_order_of_their_bits(bits: set[int]) -> None:
    """Different bits give different ids, in the same order."""
    ids = [make_transaction_id(3, n) for n in sorted(bits)]
    assert ids == sorted(set(ids))


@given(st.integers(0, 2**50), st.integers(0, 2**76))
@example(2**50 - 1, 2**76 - 1)
@example(1_750_000_000_000, 0x123456789ABCDEF0123)
def test_bits_are_a_uuid7(now_ms: int, random_bits: int) -> None:
    """Version 7, RFC variant, 48 bits of time, then 74 random ones; what is too much is cut. Source: RFC 9562."""
    value = uuid.UUID(int=make_uuid7_bits(now_ms, random_bits))
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    assert value.int >> 80 == now_ms % 2**48
    assert (value.int >> 64) % 2**12 == (random_bits >> 62) % 2**12
    assert value.int % 2**62 == random_bits % 2**62


def test_random_bits_all_reach_the_uuid() -> None:
    """No two random numbers give one id."""
    made = {make_uuid7_bits(0, 1 << n) for n in range(74)}
    assert len(made) == 74


def test_digest_is_frozen() -> None:
    """Another digest would make another transaction of a repeat: these numbers must never change."""
    message = Message("orders", b"k", None, (("h", b"1"), ("h", None)), 2, 17)
    assert f"{digest_bits('g', 'key', False, None, [message]):032x}" == "92362d0ec94aad2d67ec30d32b7c1446"
    assert f"{digest_bits('g', 'key', True, 'line', [message] * 2):032x}" == "7a481e3224a132886fa830451d25673a"


def test_digest_tells_all_content_apart() -> None:
    """Null from empty, one field from its neighbour, prepare from publish."""
    base = Message("t", b"k", b"v", (("h", b"x"),), 1, 5)
    contents = [
        ("g", "i", False, None, [base]),
        ("gi", "", False, None, [base]),
        ("g", "i", True, None, [base]),
        ("g", "i", False, "", [base]),
        ("g", "i", False, None, [replace(base, key=None)]),
        ("g", "i", False, None, [replace(base, key=b"")]),
        ("g", "i", False, None, [replace(base, key=b"kv", value=b"")]),
        ("g", "i", False, None, [replace(base, value=None)]),
        ("g", "i", False, None, [replace(base, headers=())]),
        ("g", "i", False, None, [replace(base, headers=(("h", None),))]),
        ("g", "i", False, None, [replace(base, headers=(("hx", b""),))]),
        ("g", "i", False, None, [replace(base, queue_id=-1)]),
        ("g", "i", False, None, [replace(base, timestamp_ms=None)]),
        ("g", "i", False, None, [base, base]),
    ]
    assert len({digest_bits(*content) for content in contents}) == len(contents)


def test_counted_ids_are_those_that_are_made_one_by_one() -> None:
    """Up to the most that a counter counts, in any queue."""
    draw = random.Random(1)
    for _ in range(100):
        now_ms = draw.getrandbits(48)
        ids = IdRun(now_ms, draw.getrandbits(74))
        first = ids.take(now_ms, 2_000_000)
        assert first is not None
        for count in (0, 1, draw.randrange(10_000), 1_999_999):
            queue_id, bits = draw.randrange(1_024), first + count
            assert ids.make_id(queue_id, bits) == make_transaction_id(queue_id, bits)


def test_run_of_ids_ends_with_its_millisecond_and_its_counter() -> None:
    """No number is given twice."""
    ids = IdRun(5, (1 << 74) - 1)
    first = ids.take(5, 3)
    assert first is not None
    assert ids.take(5, 1) == first + 3
    assert ids.take(6, 1) is None
    assert ids.take(5, 1 << 22) is None
    assert ids.take(5, (1 << 22) - 4) == first + 4, "what is left can still be taken"
    assert ids.take(5, 1) is None


def test_numbers_of_a_run_are_those_of_its_millisecond() -> None:
    """The random number that it begins with is spent but for the bit that is left free."""
    random_bits = 0x2AAAAAAAAAAAAAAAAAA & ~(1 << 22)
    assert IdRun(7, random_bits | 1 << 22).take(7, 1) == make_uuid7_bits(7, random_bits)
