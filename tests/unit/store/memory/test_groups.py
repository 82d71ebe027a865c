"""Group coordinator: sessions, generations, cooperative hand-over."""

import asyncio

import pytest

from bridge.core.errors import StoreUnavailable
from bridge.core.message import MessageQueue
from bridge.store.memory.process import MemoryProcess
from bridge.store.memory.store import MemoryGroupMember
from bridge.store.message_store import Consumed, GroupChange
from tests.support.memory_world import MemoryWorld, make_memory_world

GROUP = "settlers"
TOPIC = "journal"
NOTHING = frozenset[int]()
SESSION_MS = 10_000


def make_world(queues: int = 4) -> MemoryWorld:
    """A world with a topic to be shared."""
    return make_memory_world({TOPIC: queues, "orders": 1})


def join(world: MemoryWorld, client: str) -> tuple[MemoryProcess, MemoryGroupMember]:
    """A member in a process of its own."""
    process = world.start_process(client)
    return process, process.owners.join_group(GROUP, TOPIC)


def owned(member: MemoryGroupMember) -> set[int]:
    return {queue_id for queue_id in range(16) if member.is_owned(queue_id)}


async def test_second_member_waits_for_the_release() -> None:
    """Queues move only when the owner has let them go."""
    world = make_world()
    _, first = join(world, "first")
    assert await first.next_change() == GroupChange(frozenset({0, 1, 2, 3}), NOTHING, NOTHING)
    _, second = join(world, "second")
    assert await first.next_change() == GroupChange(NOTHING, frozenset({2, 3}), NOTHING)
    assert (owned(first), owned(second)) == ({0, 1, 2, 3}, set())
    first.release({2})
    assert await second.next_change() == GroupChange(frozenset({2}), NOTHING, NOTHING)
    first.release({3})
    assert await second.next_change() == GroupChange(frozenset({3}), NOTHING, NOTHING)
    assert (owned(first), owned(second)) == ({0, 1}, {2, 3})


async def test_leaving_hands_over_at_once() -> None:
    """Who leaves does not make others wait for a session to run out, not even a millisecond."""
    world = make_world()
    _, first = join(world, "first")
    _, second = join(world, "second")
    await first.close()
    assert await second.next_change() == GroupChange(frozenset({0, 1, 2, 3}), NOTHING, NOTHING)
    assert world.clock.monotonic_ms() == 0


@pytest.mark.parametrize("members", [2, 3, 4, 5, 7])
async def test_queues_are_shared_evenly_whatever_the_order(members: int) -> None:
    """Every queue has one owner, and nobody has two more than another; so it stays when all but one leave."""
    world = make_world(queues=5)
    joined = [join(world, f"member-{n}")[1] for n in range(members)]
    for _ in range(members):
        for member in joined:
            member.release(range(5))
    shares = [owned(member) for member in joined]
    assert sorted(queue_id for share in shares for queue_id in share) == [0, 1, 2, 3, 4]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for member in joined[1:]:
        await member.close()
    assert owned(joined[0]) == {0, 1, 2, 3, 4}


async def test_frozen_member_keeps_its_queues_until_its_session_ends() -> None:
    """Then others get them, while it still believes to own them; when it goes on it learns that they are lost."""
    world = make_world()
    frozen, first = join(world, "frozen")
    _, second = join(world, "second")
    first.release({2, 3})
    frozen.freeze()
    await world.clock.advance(SESSION_MS - 1)
    world.cluster.agenda.run_due()
    assert owned(second) == {2, 3}
    await world.clock.advance(1)
    world.cluster.agenda.run_due()
    assert (owned(first), owned(second)) == ({0, 1}, {0, 1, 2, 3})
    frozen.thaw()
    assert owned(first) == set()
    assert await first.next_change() == GroupChange(NOTHING, NOTHING, frozenset({0, 1}))


async def test_member_that_waits_hears_of_an_expiry_by_itself() -> None:
    """A waiting member gets queues of a dead one without anybody touching the log."""
    world = make_world()
    dead, _ = join(world, "dead")
    _, second = join(world, "second")
    waiting = asyncio.create_task(second.next_change())
    dead.freeze()
    await world.clock.advance(SESSION_MS)
    assert (await waiting).gained == {0, 1, 2, 3}


async def test_short_freeze_costs_nothing() -> None:
    """A process that goes on in time keeps its queues."""
    world = make_world()
    process, member = join(world, "member")
    process.freeze()
    await world.clock.advance(SESSION_MS // 2)
    process.thaw()
    await world.clock.advance(2 * SESSION_MS)
    world.cluster.agenda.run_due()
    assert owned(member) == {0, 1, 2, 3}


async def test_expired_member_joins_anew() -> None:
    """After its session has run out a member comes back under a new id and gets its share."""
    world = make_world()
    frozen, first = join(world, "frozen")
    frozen.freeze()
    await world.clock.advance(SESSION_MS)
    _, second = join(world, "second")
    frozen.thaw()
    second.release(range(4))
    assert (len(owned(first)), len(owned(second))) == (2, 2)
    assert not owned(first) & owned(second)


async def test_member_that_never_releases_is_thrown_out() -> None:
    """The rebalance waits for a release, within a bound."""
    world = make_world()
    _, slow = join(world, "slow")
    await slow.next_change()
    _, second = join(world, "second")
    assert (await slow.next_change()).revoked == {2, 3}
    await world.clock.advance(60_000)
    world.cluster.agenda.run_due()
    assert (await slow.next_change()).lost == {0, 1, 2, 3}
    second.release(range(4))
    assert owned(slow) | owned(second) == {0, 1, 2, 3}
    assert not owned(slow) & owned(second)


async def test_strangers_cannot_commit_for_a_live_group() -> None:
    """As on Kafka: while a group has members only they commit; an empty group takes anybody's offsets."""
    world = make_world()
    queue = MessageQueue(TOPIC, 0)
    process, member = join(world, "member")
    with pytest.raises(StoreUnavailable):
        await world.store.put_consume_offset(GROUP, queue, 5)
    await process.store.put_consume_offset(GROUP, queue, 6)
    await member.close()
    await world.store.put_consume_offset(GROUP, queue, 4)
    assert await world.store.get_consume_offsets(GROUP, [queue]) == {queue: Consumed(4)}


async def test_deleted_offsets_are_gone() -> None:
    """An operator may delete a group's offsets."""
    world = make_world()
    queue = MessageQueue(TOPIC, 0)
    await world.store.put_consume_offset(GROUP, queue, 5)
    world.cluster.groups.delete_offsets(GROUP)
    assert await world.store.get_consume_offsets(GROUP, [queue]) == {queue: Consumed(-1)}
