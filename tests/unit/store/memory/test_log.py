"""Topics of the in-memory log: what they take, and what is done to them from outside."""

import pytest

from bridge.core.errors import StoreTimeout, StoreUnavailable
from bridge.core.message import Message, MessageQueue
from bridge.store.memory.link import Code, LogError
from bridge.store.message_store import PutStatus, Refusal
from tests.support.memory_world import make_memory_world

ORDERS = MessageQueue("orders", 0)


@pytest.mark.parametrize("off_by_ms", [-60_001, -60_000, 60_000, 60_001])
async def test_timestamp_bounds_are_inclusive(off_by_ms: int) -> None:
    """Exactly at the bound a timestamp is taken; one millisecond more is refused."""
    world = make_memory_world()
    bounds = {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}
    world.cluster.log.topics["orders"].alter(bounds)
    asked = world.clock.now_ms() + off_by_ms
    result = await world.store.put(ORDERS, Message("orders", b"k", b"v", (), 0, asked))
    expected = None if abs(off_by_ms) == 60_000 else Refusal.INVALID_TIMESTAMP
    assert result.refusal is expected


async def test_acl_refuses_definitely() -> None:
    """A topic that may not be written to says so."""
    world = make_memory_world()
    world.cluster.log.topics["orders"].is_denied = True
    result = await world.store.put(ORDERS, Message("orders", b"k", b"v"))
    assert (result.status, result.refusal) == (PutStatus.REFUSED, Refusal.NOT_AUTHORISED)


async def test_topic_made_again_begins_at_zero() -> None:
    """Deleted and created again: another id, no record, offsets from 0."""
    world = make_memory_world()
    before = world.cluster.log.topics["orders"].topic_id
    await world.store.put(ORDERS, Message("orders", b"k", b"v"))
    world.cluster.log.delete_topic("orders")
    with pytest.raises(StoreUnavailable):
        await world.store.get(ORDERS, 0, 1)
    world.cluster.log.create_topic("orders", 1)
    assert world.cluster.log.topics["orders"].topic_id != before
    assert tuple(await world.store.get_offsets(ORDERS)) == (0, 0, 0)


async def test_queues_are_added() -> None:
    """A topic may get more queues while it is in use."""
    world = make_memory_world({"orders": 1})
    assert (await world.store.put(MessageQueue("orders", 2), Message("orders"))).status is PutStatus.REFUSED
    world.cluster.log.add_queues("orders", 3)
    assert (await world.store.put(MessageQueue("orders", 2), Message("orders"))).status is PutStatus.PUT_OK


async def test_reads_without_a_leader_time_out() -> None:
    """A queue without a leader is told apart from one that is not there, and described so."""
    world = make_memory_world()
    world.cluster.log.set_leader(ORDERS, has_leader=False)
    with pytest.raises(StoreTimeout):
        await world.store.get(ORDERS, 0, 1)
    described = await world.admin.describe_topics(["orders"])
    assert described["orders"] is not None
    assert described["orders"].leaderless == {0}


def test_settings_that_kafka_does_not_know_are_refused() -> None:
    """A typing error in a setting or policy is no topic."""
    world = make_memory_world()
    for config in ({"retention": "1"}, {"cleanup.policy": "keep"}):
        with pytest.raises(LogError) as refused:
            world.cluster.log.create_topic("new", 1, config)
        assert refused.value.code is Code.INVALID_CONFIG
