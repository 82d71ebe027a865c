"""Packed bodies are what they were, whatever came and went before."""

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.message import Message, StoredMessage
from bridge.core.record import HalfMessage
from bridge.core.record_codec import encode_half
from bridge.core.topics import InternalTopics
from bridge.core.transaction import Transaction, make_transaction_id
from bridge.settler.bodies import Bodies, PackedBodies
from bridge.store.message_store import LoadedHalf
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world

_TEXT = st.text("abc", max_size=3)
_HALVES = st.builds(
    lambda n, group, topic, born_ms, okey, keyed: HalfMessage(
        make_transaction_id(0, n * 7919), group, 1, born_ms, topic, ordering_hash=okey, idempotency_key=keyed
    ),
    st.integers(0, 30), st.sampled_from(["a", "bb"]), st.sampled_from(["x", "yy"]), st.integers(0, 10**13),
    st.none() | st.integers(0, 2**64 - 1), st.none() | _TEXT.filter(bool),
)  # fmt: skip
_MESSAGES = st.builds(
    lambda key, value, headers: Message("t", key, value, headers),
    st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=50),
    st.lists(st.tuples(_TEXT, st.none() | st.binary(max_size=3)), max_size=2),
)  # fmt: skip


def store(offset: int, half: HalfMessage, message: Message) -> StoredMessage:
    """As the journal has it."""
    raw = encode_half(half, [message], "half", 0)
    return StoredMessage(offset, raw.key, raw.value, list(raw.headers), offset * 3)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), _HALVES, _MESSAGES), max_size=80))
def test_packed_bodies_are_what_was_put_in(steps: list[tuple[bool, int, HalfMessage, Message]]) -> None:
    """Byte for byte, with the bytes that they take."""
    packed, model, sizes = PackedBodies(), dict[int, tuple[str, StoredMessage]](), dict[int, int]()
    last = -1
    for is_put, step, half, message in steps:
        if is_put:
            stored = store(last + step, half, message)
            size = packed.put(half.transaction_id, stored)
            assert (size > 0) == (step > 0)
            if size:
                last += step
                model[last], sizes[last] = (half.transaction_id, stored), size
        else:
            offset = last - step
            assert packed.drop(offset) == sizes.pop(offset, 0)
            model.pop(offset, None)
            assert packed.get(half.transaction_id, offset) is None
        assert all(packed.get(i, offset) == stored for offset, (i, stored) in model.items())


def test_what_cannot_be_packed_is_not_taken() -> None:
    """Large ones, and what the bridge has not written."""
    packed, half = PackedBodies(), HalfMessage(make_transaction_id(0, 1), "g", 1, 0, "t")
    assert packed.put(half.transaction_id, store(1, half, Message("t", b"k", b"x" * 16_385))) == 0
    assert packed.put(half.transaction_id, StoredMessage(2, b"k", b"v", [], 0)) == 0
    assert packed.put(half.transaction_id, StoredMessage(2, b"k", b"v", [("properties", b"a\x01\x00\x02")], 0)) == 0
    assert packed.put(half.transaction_id, store(3, half, Message("t", b"k", b"x" * 16_384))) > 16_384


def test_chunks_that_have_ended_are_given_back() -> None:
    """And those of which little is left shrink."""
    packed, halves = PackedBodies(), [HalfMessage(make_transaction_id(0, n), "g", 1, n, "t") for n in range(600)]
    for offset, half in enumerate(halves):
        assert packed.put(half.transaction_id, store(offset, half, Message("t", b"k", b"v" * 100))) < 170
    for offset in range(500):
        assert packed.drop(offset) > 0
    assert [len(chunk.offsets) for chunk in packed._chunks] == [15, 88]
    for offset in range(500, 600):
        assert packed.get(halves[offset].transaction_id, offset) is not None


@in_world(make_settler_world)
async def test_packed_bodies_count_less_and_are_loaded_as_before(world: SettlerWorld) -> None:
    """Of hundreds the oldest are packed; all are given out from memory, and make room when they are dropped."""
    memory = world.memory
    bodies = Bodies(memory.store, InternalTopics(queues=1), 0, 10**9, 10**9, 20)
    count = 200
    halves = [HalfMessage(make_transaction_id(0, n), "g", 1, n, "t") for n in range(count)]
    loaded = [LoadedHalf.decode(half, store(n, half, Message("t", b"k", b"v%d" % n))) for n, half in enumerate(halves)]
    for body in loaded:
        bodies.keep(body)
    assert bodies.held_bytes < sum(body.size for body in loaded) // 2
    transactions = [Transaction(half.transaction_id, "g", n, n, 0) for n, half in enumerate(halves)]
    found, asked = await bodies.load(transactions)
    assert (asked, found) == (count, {body.half.transaction_id: body for body in loaded})
    bodies.drop(transactions)
    assert bodies.held_bytes == 0
