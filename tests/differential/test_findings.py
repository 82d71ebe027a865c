"""What programs have found, each by the shortest one that shows it."""

import pytest

from tests.differential.comparison import Comparison
from tests.differential.program import (
    Batch,
    CommitOffset,
    Compact,
    DropBelow,
    Fence,
    Get,
    Hang,
    Offsets,
    Place,
    Program,
    Put,
    Record,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

HERE, NOWHERE = Place(0, 0), Place(0, 9)


async def assert_same(comparison: Comparison, program: Program) -> None:
    """Both logs show the same at every step."""
    (difference,) = await comparison.compare([program])
    assert difference is None, str(difference)


async def test_batch_for_a_missing_queue_is_aborted(comparison: Comparison) -> None:
    """A queue that its topic does not have aborts the batch and is named; its writer goes on."""
    nowhere, here = Record(NOWHERE, b"k", b"v"), Record(HERE, b"k", b"v")
    steps = (Fence(0, 0), Batch(0, 0, (nowhere,), (here,)), Batch(0, 0, (here,), (here,)), Offsets(HERE))
    await assert_same(comparison, Program(("plain",), steps))


async def test_stable_offset_is_never_below_the_minimum(comparison: Comparison) -> None:
    """When the log forgets the beginning of an open Kafka transaction, the last stable offset moves with it."""
    record = Record(HERE, b"k", b"v")
    steps = (Hang(1, (record, record)), Put(record), DropBelow(HERE, 1), Offsets(HERE), DropBelow(HERE, 3))
    await assert_same(comparison, Program(("plain",), (*steps, Offsets(HERE))))


async def test_timestamp_zero_is_no_timestamp(comparison: Comparison) -> None:
    """The client takes 0 for "now"; it is neither kept nor refused."""
    record = Record(HERE, b"k", b"v", timestamp_ms=0)
    for kind in ("plain", "bounded"):
        steps = (Put(record), Fence(0, 0), Batch(0, 0, (record,), (record,)))
        await assert_same(comparison, Program((kind,), steps))


async def test_messages_before_a_refused_one_are_appended(comparison: Comparison) -> None:
    """In the same queue too: they are aborted, and take offsets."""
    small, large = Record(HERE, b"k", b"v"), Record(HERE, b"k", b"v", padding=3_000)
    steps = (Fence(0, 0), Batch(0, 0, (small, small, large, small), (small,)), Offsets(HERE))
    await assert_same(comparison, Program(("small",), steps))


async def test_largest_message_is_the_same(comparison: Comparison) -> None:
    """A topic takes a message up to its last byte and not one more, whatever key, null and headers take."""
    shapes = ((b"k", b"v", ()), (None, b"v", ()), (b"", b"v", (("h", None), ("h", b"1"))), (b"k" * 70, b"v", ()))
    for key, value, headers in shapes:
        puts = tuple(Put(Record(HERE, key, value, headers, padding=padding)) for padding in range(1_850, 1_935))
        await assert_same(comparison, Program(("small",), puts))


async def test_next_offset_is_behind_the_last_message(comparison: Comparison) -> None:
    """A full answer does not step over the gap that compaction has left behind its last message."""
    keys = (b"a", b"b", b"b", b"b", b"c")
    puts = tuple(Put(Record(HERE, key, b"v")) for key in keys)
    await assert_same(comparison, Program(("compacted",), (*puts, Compact(HERE), Get(HERE, 0, 1), Get(HERE, 1, 1))))


async def test_offset_of_a_missing_queue_is_refused(comparison: Comparison) -> None:
    """A group commits nothing for a queue that is not there."""
    await assert_same(comparison, Program(("plain",), (CommitOffset(0, NOWHERE, 7), CommitOffset(0, HERE, 7))))
