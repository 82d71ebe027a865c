"""GroupMember: queues shared among the members of a group, handed over, lost."""

import asyncio

import pytest

from bridge.core.errors import StoreError
from bridge.core.message import MessageQueue
from bridge.store.message_store import Consumed, GroupMember
from tests.contract.world import DEADLINE_S, ContractWorld, fresh_name, gain, hand_over, make_topic

SHORTEST_SESSION_S = 6


def owned(member: GroupMember, queues: int) -> set[int]:
    """What the member owns as far as it knows."""
    return {queue_id for queue_id in range(queues) if member.is_owned(queue_id)}


async def test_single_member_gets_every_queue(world: ContractWorld) -> None:
    """One member owns all queues of the topic."""
    member = world.process.owners.join_group(fresh_name("group"), await make_topic(world, 4))
    await gain(member, {0, 1, 2, 3})
    await member.close()


async def test_queues_are_handed_over(world: ContractWorld) -> None:
    """A second member gets half; what it gains is what the first one has let go, and nobody has a queue twice."""
    topic, group = await make_topic(world, 4), fresh_name("group")
    first = world.process.owners.join_group(group, topic)
    await gain(first, {0, 1, 2, 3})
    second = (await world.start_process("second")).owners.join_group(group, topic)
    revoked, gained = await hand_over(first, second)
    assert revoked == gained
    assert len(revoked) == 2
    assert owned(first, 4) | owned(second, 4) == {0, 1, 2, 3}
    assert not owned(first, 4) & owned(second, 4)
    await second.close()
    await first.close()


async def test_nobody_gains_before_the_release(world: ContractWorld) -> None:
    """While the first member still works on a revoked queue, the second does not have it."""
    topic, group = await make_topic(world, 2), fresh_name("group")
    first = world.process.owners.join_group(group, topic)
    await gain(first, {0, 1})
    second = (await world.start_process("second")).owners.join_group(group, topic)
    waiting = asyncio.create_task(second.next_change())
    async with asyncio.timeout(DEADLINE_S):
        while not (change := await first.next_change()).revoked:
            pass
    for _ in range(5):
        await world.sweep()
    assert not owned(second, 2) & change.revoked
    first.release(change.revoked)
    async with asyncio.timeout(DEADLINE_S):
        gained = (await waiting).gained
        while not gained:
            gained = (await second.next_change()).gained
    assert gained == change.revoked
    await second.close()
    await first.close()


async def test_closing_hands_over_at_once(world: ContractWorld) -> None:
    """Who leaves does not make others wait for a session to run out (T)."""
    topic, group = await make_topic(world, 2), fresh_name("group")
    first = world.process.owners.join_group(group, topic)
    await gain(first, {0, 1})
    second = (await world.start_process("second")).owners.join_group(group, topic)
    await hand_over(first, second)
    await first.close()
    async with asyncio.timeout(SHORTEST_SESSION_S):
        await gain(second, {0, 1})
    await second.close()


async def test_closed_member_is_told(world: ContractWorld) -> None:
    """Nobody waits for ever for a change that cannot come."""
    member = world.process.owners.join_group(fresh_name("group"), await make_topic(world, 1))
    await gain(member, {0})
    await member.close()
    with pytest.raises(StoreError):
        await _follow(member)


async def test_members_process_commits_plainly(world: ContractWorld) -> None:
    """While a group has members, their process can still commit consume offsets plainly, with a note."""
    topic, group = await make_topic(world, 1), fresh_name("group")
    member = world.process.owners.join_group(group, topic)
    await gain(member, {0})
    queue = MessageQueue(topic, 0)
    await world.process.store.put_consume_offset(group, queue, 3, "note")
    assert await world.process.store.get_consume_offsets(group, [queue]) == {queue: Consumed(3, "note")}
    await member.close()


async def test_groups_do_not_share(world: ContractWorld) -> None:
    """Two groups each get all queues."""
    topic = await make_topic(world, 2)
    members = [world.process.owners.join_group(fresh_name("group"), topic) for _ in range(2)]
    for member in members:
        await gain(member, {0, 1})
        await member.close()


async def _follow(member: GroupMember) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await member.next_change()
