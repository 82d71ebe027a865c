"""MessageStore: look-ups by offset and time, statuses, gaps, the last stable offset."""

import pytest

from bridge.core.errors import StoreError
from bridge.core.message import Message, MessageQueue
from bridge.store.message_store import Consumed, GetStatus
from tests.contract.world import (
    ContractWorld,
    fresh_name,
    make_queue,
    put_values,
    read_until,
    read_values,
    to,
    until_stable,
)


async def test_found_says_where_to_go_on(world: ContractWorld) -> None:
    """FOUND carries at most the count asked for, minimum, maximum, and the next begin offset."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a", b"b", b"c")
    got = await world.process.store.get(queue, 0, 2)
    assert (got.status, [m.value for m in got.messages]) == (GetStatus.FOUND, [b"a", b"b"])
    assert (got.next_begin_offset, got.min_offset, got.max_offset) == (2, 0, 3)
    rest = await world.process.store.get(queue, got.next_begin_offset, 2)
    assert [m.value for m in rest.messages] == [b"c"]


async def test_nothing_new_in_an_empty_queue(world: ContractWorld) -> None:
    """An empty queue has the offsets 0, 0, 0 and nothing new at 0."""
    queue = await make_queue(world)
    got = await world.process.store.get(queue, 0, 10)
    assert (got.status, list(got.messages), got.next_begin_offset) == (GetStatus.NO_NEW_MSG, [], 0)
    assert tuple(await world.process.store.get_offsets(queue)) == (0, 0, 0)


async def test_nothing_new_at_the_end(world: ContractWorld) -> None:
    """At the maximum there is nothing new, and the next begin offset stays."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a")
    got = await world.process.store.get(queue, 1, 10)
    assert (got.status, got.next_begin_offset, got.max_offset) == (GetStatus.NO_NEW_MSG, 1, 1)


async def test_offset_above_the_maximum_is_illegal(world: ContractWorld) -> None:
    """OFFSET_ILLEGAL points to the maximum."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a")
    got = await world.process.store.get(queue, 5, 10)
    assert (got.status, list(got.messages), got.next_begin_offset) == (GetStatus.OFFSET_ILLEGAL, [], 1)


async def test_offset_below_the_minimum_is_illegal(world: ContractWorld) -> None:
    """OFFSET_ILLEGAL points to the minimum, which retention has moved; nothing is skipped in silence."""
    queue = await make_queue(world)
    await put_values(world, queue, b"a", b"b", b"c")
    await world.drop_below(queue, 2)
    got = await world.process.store.get(queue, 1, 10)
    assert (got.status, got.next_begin_offset, got.min_offset) == (GetStatus.OFFSET_ILLEGAL, 2, 2)
    assert (await world.process.store.get_offsets(queue)).minimum == 2


async def test_only_markers_and_aborted_is_no_match(world: ContractWorld) -> None:
    """A range without visible records is NO_MATCHED_MSG with an advanced next begin offset."""
    queue = await make_queue(world)
    aborted = await world.begin(fresh_name("foreign"), [to(queue, b"never"), to(queue, b"never")])
    await aborted.end(is_commit=False)
    await until_stable(world, queue)
    got = await world.process.store.get(queue, 0, 10)
    assert (got.status, list(got.messages)) == (GetStatus.NO_MATCHED_MSG, [])
    assert (got.next_begin_offset, got.max_offset) == (3, 3)


async def test_reader_steps_over_aborted_batch(world: ContractWorld) -> None:
    """An aborted batch leaves a gap and no message (P)."""
    queue = await make_queue(world)
    await put_values(world, queue, b"first")
    aborted = await world.begin(fresh_name("foreign"), [to(queue, b"never")])
    await aborted.end(is_commit=False)
    await until_stable(world, queue)
    await put_values(world, queue, b"second")
    found = await read_until(world, queue, b"second")
    assert [(m.queue_offset, m.value) for m in found] == [(0, b"first"), (3, b"second")]


async def test_commit_marker_takes_an_offset(world: ContractWorld) -> None:
    """A committed batch is followed by its marker: offsets have gaps that nobody may count on."""
    queue = await make_queue(world)
    committed = await world.begin(fresh_name("foreign"), [to(queue, b"a"), to(queue, b"b")])
    await committed.end(is_commit=True)
    await until_stable(world, queue)
    await put_values(world, queue, b"c")
    assert [m.queue_offset for m in await read_until(world, queue, b"c")] == [0, 1, 3]


async def test_open_transaction_holds_the_stable_offset(world: ContractWorld) -> None:
    """Behind an open Kafka transaction nothing is visible, not even plain records; then all, in order."""
    queue = await make_queue(world)
    await put_values(world, queue, b"before")
    open_one = await world.begin(fresh_name("foreign"), [to(queue, b"inside")])
    await put_values(world, queue, b"behind")
    assert tuple(await world.process.store.get_offsets(queue)) == (0, 1, 3)
    got = await world.process.store.get(queue, 0, 10)
    assert [m.value for m in got.messages] == [b"before"]
    assert (await world.process.store.get(queue, 1, 10)).status is GetStatus.NO_NEW_MSG
    await open_one.end(is_commit=True)
    assert await read_values(world, queue) == [b"before", b"inside", b"behind"]


async def test_get_each_finds_exactly_what_is_there(world: ContractWorld) -> None:
    """Markers, aborted records, forgotten ones and offsets never assigned are left out."""
    queue = await make_queue(world)
    await put_values(world, queue, b"forgotten", b"kept")
    aborted = await world.begin(fresh_name("foreign"), [to(queue, b"never")])
    await aborted.end(is_commit=False)
    await until_stable(world, queue)
    await put_values(world, queue, b"last")
    await world.drop_below(queue, 1)
    found = await world.process.store.get_each(queue, [0, 1, 2, 3, 4, 99])
    assert {offset: message.value for offset, message in found.items()} == {1: b"kept", 4: b"last"}


async def test_get_each_of_many_far_apart(world: ContractWorld) -> None:
    """Any offsets in any order; each message with its own offset."""
    queue = await make_queue(world)
    await world.process.store.put_many([to(queue, str(n).encode()) for n in range(300)])
    wanted = [299, 0, 150, 151, 7]
    found = await world.process.store.get_each(queue, wanted)
    assert {offset: m.value for offset, m in found.items()} == {n: str(n).encode() for n in wanted}
    assert {m.queue_offset for m in found.values()} == set(wanted)
    assert await world.process.store.get_each(queue, []) == {}


async def test_get_each_stops_at_its_bound(world: ContractWorld) -> None:
    """Ascending, up to the first message with which the bound is reached, which may be the first of all."""
    queue = await make_queue(world)
    await world.process.store.put_many([to(queue, b"v" * 50_000) for _ in range(30)])
    store, wanted = world.process.store, [25, *range(20)]
    assert set(await store.get_each(queue, wanted, 120_000)) == {0, 1, 2}
    assert set(await store.get_each(queue, wanted, 1)) == {0}
    assert set(await store.get_each(queue, wanted, 10_000_000)) == set(wanted)


async def test_look_up_by_time(world: ContractWorld) -> None:
    """The first message not before the time asked for; the maximum when all are older."""
    queue = await make_queue(world)
    start = world.clock.now_ms() - 1_000_000
    for n in range(3):
        await world.process.store.put(queue, Message(queue.topic, b"k", b"v", (), 0, start + n * 1_000))
    looked_up = [
        await world.process.store.get_offset_by_time(queue, start + after) for after in (-5_000, 0, 1, 2_000, 2_001)
    ]
    assert looked_up == [0, 0, 1, 2, 3]


async def test_unknown_queue_raises(world: ContractWorld) -> None:
    """A read of a topic that is not there is an error, never an empty queue."""
    queue = MessageQueue(fresh_name("missing"), 0)
    with pytest.raises(StoreError):
        await world.process.store.get(queue, 0, 1)
    with pytest.raises(StoreError):
        await world.process.store.get_offsets(queue)


async def test_consume_offset_is_kept(world: ContractWorld) -> None:
    """-1 before the first commit; then what was committed last, also backwards, for each group alone."""
    queue = await make_queue(world)
    group, store = fresh_name("group"), world.process.store
    assert await store.get_consume_offsets(group, [queue]) == {queue: Consumed(-1)}
    await store.put_consume_offset(group, queue, 7)
    assert await store.get_consume_offsets(group, [queue]) == {queue: Consumed(7)}
    await store.put_consume_offset(group, queue, 3, "note")
    assert await store.get_consume_offsets(fresh_name("group"), [queue]) == {queue: Consumed(-1)}
    other = MessageQueue(queue.topic, queue.queue_id + 1)
    assert await store.get_consume_offsets(group, [other, queue]) == {other: Consumed(-1), queue: Consumed(3, "note")}
    assert group in await world.process.admin.list_groups()
