"""Group members on a real broker, beyond the contract."""

import asyncio

import pytest

from bridge.core.errors import ConfigError, StoreError, StoreUnavailable
from bridge.core.message import MessageQueue
from bridge.store.kafka.groups import KafkaGroupMember
from bridge.store.kafka.options import KafkaConfig
from tests.contract.kafka_world import KafkaContractWorld
from tests.contract.world import DEADLINE_S, fresh_name, gain, make_topic, next_change


async def test_member_with_a_name_hands_over_at_once(world: KafkaContractWorld, kafka: str) -> None:
    """A `group.instance.id` keeps queues over a restart; a member that leaves on purpose gives them up (T)."""
    topic, group = await make_topic(world, 2), fresh_name("group")
    named = KafkaConfig({"bootstrap.servers": kafka}, instance_id="first", session_timeout_ms=45_000)
    first = KafkaGroupMember(named, group, topic)
    await gain(first, {0, 1})
    await first.close()
    second = world.process.owners.join_group(group, topic)
    await gain(second, {0, 1})
    await second.close()


async def test_rebalance_waits_only_so_long(world: KafkaContractWorld, kafka: str) -> None:
    """A member that never lets go holds the others up to its bound, not for ever (T)."""
    topic, group = await make_topic(world, 2), fresh_name("group")
    stubborn = KafkaGroupMember(KafkaConfig({"bootstrap.servers": kafka}, release_timeout_ms=300), group, topic)
    await gain(stubborn, {0, 1})
    second = world.process.owners.join_group(group, topic)
    while not (await next_change(second)).gained:
        pass
    assert sum(stubborn.is_owned(queue_id) for queue_id in (0, 1)) == 1
    await second.close()
    await stubborn.close()


async def test_rebalance_waits_for_nobody_who_waits_for_it(world: KafkaContractWorld, kafka: str) -> None:
    """An owner that notes how far its queue is lets go after that: what is taken away is not noted any more, and what
    stays is noted when Kafka takes it again (T)."""
    topic, group = await make_topic(world, 2), fresh_name("group")
    patient = KafkaConfig({"bootstrap.servers": kafka}, release_timeout_ms=60_000, read_timeout_ms=30_000)
    first = KafkaGroupMember(patient, group, topic)
    await gain(first, {0, 1})

    async def note(queue_id: int) -> None:
        while True:
            await first.put_consume_offset(MessageQueue(topic, queue_id), 0)

    noting = [asyncio.create_task(note(queue_id)) for queue_id in (0, 1)]
    second = world.process.owners.join_group(group, topic)
    (taken,) = (await next_change(first)).revoked
    with pytest.raises(StoreUnavailable):
        await noting[taken]
    first.release([taken])
    await gain(second, {taken})
    await first.put_consume_offset(MessageQueue(topic, 1 - taken), 0)
    assert not noting[1 - taken].done()
    noting[1 - taken].cancel()
    await second.close()
    await first.close()


async def test_name_taken_by_another_ends_the_membership(world: KafkaContractWorld, kafka: str) -> None:
    """Two processes with one instance id: the older one is told that it has lost everything, with the reason."""
    topic, group = await make_topic(world, 2), fresh_name("group")
    named = KafkaConfig({"bootstrap.servers": kafka}, instance_id="twin")
    first = KafkaGroupMember(named, group, topic)
    await gain(first, {0, 1})
    second = KafkaGroupMember(named, group, topic)
    lost = await next_change(first)
    assert lost.lost == {0, 1}
    assert not first.is_owned(0)
    with pytest.raises(StoreError, match="fenced"):
        await next_change(first)
    await gain(second, {0, 1})
    await first.close()
    await second.close()


async def test_session_that_brokers_refuse_is_a_wrong_setting(world: KafkaContractWorld, kafka: str) -> None:
    """Such a member never gets a queue: whoever waits for one is told which setting keeps it out."""
    topic = await make_topic(world, 1)
    hasty = KafkaConfig({"bootstrap.servers": kafka}, session_timeout_ms=1_000)
    member = KafkaGroupMember(hasty, fresh_name("group"), topic)
    with pytest.raises(ConfigError, match=r"settler\.session_ms = 1000 .* group\.min\.session\.timeout\.ms"):
        await next_change(member)
    await member.close()


async def test_members_queues_survive_quiet_minutes(world: KafkaContractWorld, kafka: str) -> None:
    """A member that nobody asks anything keeps its queues beyond a session: it polls by itself."""
    topic = await make_topic(world, 1)
    member = KafkaGroupMember(
        KafkaConfig({"bootstrap.servers": kafka}, session_timeout_ms=6_000), fresh_name("group"), topic
    )
    await gain(member, {0})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(7):
            await member.next_change()
    assert member.is_owned(0)
    assert DEADLINE_S > 7
    await member.close()
