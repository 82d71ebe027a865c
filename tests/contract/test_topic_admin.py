"""TopicAdmin: what the cluster says of its topics."""

import pytest

from bridge.core.errors import StoreError
from bridge.core.message import MessageQueue
from tests.contract.world import ContractWorld, fresh_name, make_topic, put_values


async def test_description_says_what_puts_may_count_on(world: ContractWorld) -> None:
    """Queues, replication, size, timestamp rules and settings as the topic has them."""
    config = {
        "max.message.bytes": "123456",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.after.max.ms": "60000",
        "message.timestamp.before.max.ms": "120000",
        "cleanup.policy": "compact,delete",
        "retention.ms": "7200000",
    }
    name = await make_topic(world, 3, config)
    topic = (await world.process.admin.describe_topics([name]))[name]
    assert topic is not None
    assert (topic.name, topic.queues, topic.replication_factor, topic.leaderless) == (name, 3, 1, frozenset())
    assert (topic.max_message_bytes, topic.is_log_append_time) == (123456, True)
    assert (topic.timestamp_after_max_ms, topic.timestamp_before_max_ms) == (60_000, 120_000)
    assert {key: topic.config[key] for key in config} == config


async def test_defaults_are_described_too(world: ContractWorld) -> None:
    """Settings that nobody made are told as they are in force."""
    name = await make_topic(world)
    topic = (await world.process.admin.describe_topics([name]))[name]
    assert topic is not None
    assert (topic.max_message_bytes, topic.is_log_append_time) == (1_048_588, False)
    assert topic.timestamp_after_max_ms == 3_600_000
    expected = {"cleanup.policy": "delete", "min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
    assert {key: topic.config[key] for key in expected} == expected


async def test_missing_topic_is_none(world: ContractWorld) -> None:
    """Each name has an answer; a missing topic is not an error and does not come into being."""
    there, missing = await make_topic(world), fresh_name("missing")
    for _ in range(2):
        described = await world.process.admin.describe_topics([there, missing])
        assert (described[there] is not None, described[missing]) == (True, None)
    assert await world.process.admin.describe_topics([]) == {}


async def test_description_follows_a_change(world: ContractWorld) -> None:
    """The cluster is asked each time: a smaller limit is seen by the next description."""
    name = await make_topic(world)
    await world.alter_topic(name, {"max.message.bytes": "5000"})
    topic = (await world.process.admin.describe_topics([name]))[name]
    assert topic is not None
    assert topic.max_message_bytes == 5_000


async def test_create_says_whether_it_was_there(world: ContractWorld) -> None:
    """True for a new topic, False for one that exists, whatever its queues; that one stays as it is."""
    name = fresh_name("topic")
    assert await world.process.admin.create_topic(name, 2, 1, {})
    assert not await world.process.admin.create_topic(name, 3, 1, {})
    topic = (await world.process.admin.describe_topics([name]))[name]
    assert topic is not None
    assert topic.queues == 2


async def test_delete_says_whether_it_was_there(world: ContractWorld) -> None:
    """True once; when it has returned, the topic is gone."""
    name = await make_topic(world)
    assert await world.process.admin.delete_topic(name)
    assert (await world.process.admin.describe_topics([name]))[name] is None
    assert not await world.process.admin.delete_topic(name)


async def test_new_topic_can_be_written_at_once(world: ContractWorld) -> None:
    """When `create_topic` has returned, the next put finds the topic."""
    for _ in range(3):
        name = await make_topic(world, 2)
        await put_values(world, MessageQueue(name, 1), b"v")


async def test_impossible_topics_raise(world: ContractWorld) -> None:
    """More replicas than brokers, an illegal name, an unknown setting: StoreError, and no topic."""
    admin = world.process.admin
    name = fresh_name("topic")
    with pytest.raises(StoreError):
        await admin.create_topic(name, 1, 99, {})
    with pytest.raises(StoreError):
        await admin.create_topic("not/legal", 1, 1, {})
    with pytest.raises(StoreError):
        await admin.create_topic(name, 1, 1, {"no.such.setting": "1"})
    assert (await admin.describe_topics([name]))[name] is None


async def test_topic_made_again_has_another_id(world: ContractWorld) -> None:
    """A topic deleted and created again under its name can be told from the first one."""
    name = await make_topic(world)
    first = (await world.process.admin.describe_topics([name]))[name]
    await world.delete_topic(name)
    assert await world.process.admin.create_topic(name, 1, 1, {})
    second = (await world.process.admin.describe_topics([name]))[name]
    assert first is not None
    assert second is not None
    assert first.topic_id
    assert first.topic_id != second.topic_id
    assert tuple(await world.process.store.get_offsets(MessageQueue(name, 0))) == (0, 0, 0)


async def test_list_has_topics_but_not_kafkas_own(world: ContractWorld) -> None:
    """All topics that users and the bridge made."""
    name = await make_topic(world)
    names = await world.process.admin.list_topics()
    assert name in names
    assert [listed for listed in names if listed.startswith("__")] == []


async def test_cluster_has_an_id_and_brokers(world: ContractWorld) -> None:
    """The same id each time, from each process."""
    described = await world.process.admin.describe_cluster()
    other = await (await world.start_process("other")).admin.describe_cluster()
    assert described.cluster_id
    assert described.cluster_id == other.cluster_id
    assert all(":" in broker for broker in described.brokers)
    assert list(described.brokers)


async def test_ping_needs_nothing_but_a_broker(world: ContractWorld) -> None:
    """No topic, no right."""
    await world.process.admin.ping()
