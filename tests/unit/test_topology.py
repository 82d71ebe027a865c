"""The internal topics: made where the bridge never ran, and guarded after that."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import pytest

from bridge.core.topics import InternalTopics
from bridge.sql.engine import InlineDatabase
from bridge.sql.identity import TopicIdentity
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.process import MemoryProcess
from bridge.store.message_store import ClusterDescription, TopicDescription
from bridge.store.positions import begin_queues
from bridge.topology import (
    JOURNAL_RULES,
    OP_RULES,
    PARKED_RULES,
    FaultKind,
    TopologyConflict,
    TopologyGuard,
    choose_replicas,
    examine,
    find_faults,
    judge_topic,
    migrate_topics,
    rules_of,
)
from tests.support.virtual_time import VirtualClock

pytest_plugins = ["tests.support.postgres"]

TOPICS = InternalTopics(queues=3)
DAY_MS = 86_400_000


class TopologyWorld:
    """An empty cluster and an empty database."""

    def __init__(self, url: str) -> None:
        self.clock = VirtualClock()
        self.cluster = MemoryCluster(self.clock)
        self.process = MemoryProcess(self.cluster, "bridge")
        self.admin = self.process.admin
        self.database = InlineDatabase(url)

    async def migrate(self) -> list[str]:
        begin = partial(begin_queues, self.process.store, self.process.owners, TOPICS)
        return await migrate_topics(self.admin, self.database, TOPICS, 1, begin)

    def guard(self, *overridden: str) -> TopologyGuard:
        return TopologyGuard(self.admin, self.database, TOPICS, self.clock, overridden=overridden)


@pytest.fixture
def world(make_sqlite_url: Callable[[], str]) -> TopologyWorld:
    """A bridge that never ran."""
    return TopologyWorld(make_sqlite_url())


async def test_migrated_topics_have_no_fault(world: TopologyWorld) -> None:
    """What `migrate` makes is what the guard wants."""
    assert await world.migrate() == [TOPICS.half, TOPICS.op, TOPICS.parked]
    assert await world.guard().run_once() == []
    assert {name: len(topic.partitions) for name, topic in world.cluster.log.topics.items()} == {
        TOPICS.half: 3, TOPICS.op: 3, TOPICS.parked: 1,
    }  # fmt: skip


async def test_migrating_again_makes_nothing(world: TopologyWorld) -> None:
    """It may be run at every start."""
    await world.migrate()
    assert await world.migrate() == []


async def test_bridge_that_never_ran_is_not_ready(world: TopologyWorld) -> None:
    """Nothing is ever "nothing pending" by accident."""
    kinds = [fault.kind for fault in await world.guard("missing", "not-migrated").run_once()]
    assert kinds == [FaultKind.NOT_MIGRATED] + [FaultKind.MISSING] * 3


async def test_topic_gone_after_the_bridge_ran_is_not_made_again(world: TopologyWorld) -> None:
    """An empty journal in its place would forget what was acknowledged (53)."""
    await world.migrate()
    world.cluster.log.delete_topic(TOPICS.op)
    with pytest.raises(TopologyConflict, match="gone"):
        await world.migrate()
    assert TOPICS.op not in world.cluster.log.topics
    assert [fault.kind for fault in await world.guard().run_once()] == [FaultKind.MISSING]


async def test_recreated_topic_is_found_by_its_id_until_it_is_accepted(world: TopologyWorld) -> None:
    """Same name, other log; only an operator may say that this is meant (62)."""
    await world.migrate()
    config = world.cluster.log.topics[TOPICS.half].config
    world.cluster.log.delete_topic(TOPICS.half)
    world.cluster.log.create_topic(TOPICS.half, 3, config)
    guard = world.guard()
    assert [fault.kind for fault in await guard.run_once()] == [FaultKind.OTHER_TOPIC]
    with pytest.raises(TopologyConflict, match="--accept"):
        await world.migrate()


async def test_other_cluster_is_refused(world: TopologyWorld) -> None:
    """An address that leads to another cluster must not look like an empty bridge (62)."""
    await world.migrate()
    world.cluster.cluster_id = "another"
    kinds = {fault.kind for fault in await world.guard().run_once()}
    assert kinds == {FaultKind.OTHER_CLUSTER}
    with pytest.raises(TopologyConflict, match="another"):
        await world.migrate()


@pytest.mark.parametrize(
    ("topic", "config", "kind"),
    [
        (TOPICS.half, {"cleanup.policy": "compact,delete"}, FaultKind.CLEANUP_POLICY),
        (TOPICS.op, {"cleanup.policy": "delete"}, FaultKind.CLEANUP_POLICY),
        (TOPICS.half, {"retention.ms": str(13 * DAY_MS)}, FaultKind.RETENTION),
        (TOPICS.parked, {"retention.bytes": "1000000"}, FaultKind.RETENTION),
        (TOPICS.op, {"min.compaction.lag.ms": "0"}, FaultKind.COMPACTION_LAG),
        (TOPICS.half, {"message.timestamp.type": "CreateTime"}, FaultKind.TIMESTAMPS),
        (TOPICS.half, {"max.message.bytes": str(8 * 2**20)}, FaultKind.MESSAGE_SIZE),
        (TOPICS.op, {"max.message.bytes": str(8 * 2**20 + 65536)}, FaultKind.MESSAGE_SIZE),
        (TOPICS.op, {"unclean.leader.election.enable": "true"}, FaultKind.UNCLEAN_ELECTION),
        (TOPICS.half, {"min.insync.replicas": "2"}, FaultKind.REPLICAS),
    ],
)
async def test_unsafe_setting_is_found_and_says_what_to_do(
    world: TopologyWorld, topic: str, config: Mapping[str, str], kind: FaultKind
) -> None:
    """Somebody changed a topic while the bridge runs: not ready, with the remedy (54)."""
    await world.migrate()
    world.cluster.log.topics[topic].alter(config)
    (fault,) = await world.guard().run_once()
    assert (fault.kind, fault.topic) == (kind, topic)
    assert f"set {next(iter(config))}=" in fault.remedy


async def test_unlimited_retention_is_enough(world: TopologyWorld) -> None:
    """-1 keeps everything."""
    await world.migrate()
    world.cluster.log.topics[TOPICS.half].alter({"retention.ms": "-1"})
    assert await world.guard().run_once() == []


async def test_retention_follows_the_longest_life_of_any_group(world: TopologyWorld) -> None:
    """A transaction that may live seven days needs its body for fourteen (54)."""
    await world.migrate()
    lives = [7 * DAY_MS]
    guard = TopologyGuard(world.admin, world.database, TOPICS, world.clock, longest_life_of=lambda: max(lives))
    assert await guard.run_once() == []
    lives.append(7 * DAY_MS + 1)
    assert [fault.kind for fault in await guard.run_once()] == [FaultKind.RETENTION]


async def test_added_queues_are_found(world: TopologyWorld) -> None:
    """Transactions would be looked for in other queues than they are in."""
    await world.migrate()
    world.cluster.log.add_queues(TOPICS.half, 4)
    (fault,) = await world.guard().run_once()
    assert fault.kind is FaultKind.QUEUE_COUNT
    assert "4 queues, 3 are configured" in str(fault)


async def test_fault_can_be_overridden_by_name_but_not_the_ones_that_matter_most(world: TopologyWorld) -> None:
    """An operator may run with a small retention; nobody may run without the op topic (54)."""
    await world.migrate()
    world.cluster.log.topics[TOPICS.half].alter({"retention.ms": "1000"})
    assert await world.guard("retention").run_once() == []
    world.cluster.log.delete_topic(TOPICS.op)
    assert [fault.kind for fault in await world.guard("retention", "missing").run_once()] == [FaultKind.MISSING]


async def test_guard_is_not_ready_before_it_has_looked(world: TopologyWorld) -> None:
    """Between start and first look nothing is known."""
    assert [fault.kind for fault in world.guard().faults] == [FaultKind.UNREACHABLE]


async def test_guard_looks_again_while_the_bridge_runs(world: TopologyWorld) -> None:
    """Every 5 minutes, and soon again while something is wrong."""
    await world.migrate()
    guard = world.guard()

    async def story() -> None:
        world.cluster.log.topics[TOPICS.half].alter({"retention.ms": "1000"})
        while not any(fault.kind is FaultKind.RETENTION for fault in guard.faults):
            await world.clock.sleep_ms(1_000)
        world.cluster.log.topics[TOPICS.half].alter({"retention.ms": "-1"})
        while guard.faults:
            await world.clock.sleep_ms(100)
        assert world.clock.monotonic_ms() < 320_000

    await world.clock.drive(run_beside(guard, story()))


async def run_beside(guard: TopologyGuard, story: Coroutine[Any, Any, None]) -> None:
    async def look() -> None:
        while True:
            await guard.run_if_due()
            await guard._clock.sleep_ms(1_500)

    task = asyncio.ensure_future(look())
    try:
        await story
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(("brokers", "wanted", "expected"), [(1, None, (1, 1)), (3, None, (3, 2)), (5, 2, (2, 2))])
def test_replicas_follow_the_size_of_the_cluster(brokers: int, wanted: int | None, expected: tuple[int, int]) -> None:
    """One broker: one replica; else what survives a lost disk."""
    cluster = ClusterDescription("c", [f"broker:{n}" for n in range(brokers)])
    assert choose_replicas(cluster, wanted) == expected


def test_one_insync_replica_of_three_is_a_fault() -> None:
    """What is acknowledged would be on one disk only."""
    config = JOURNAL_RULES.make_config(1)
    topic = TopicDescription("t", "id", 3, frozenset(), 3, JOURNAL_RULES.max_message_bytes, True, 0, 0, config)
    assert [fault.kind for fault in judge_topic(topic, rules_of(TOPICS)[TOPICS.half])] == [FaultKind.REPLICAS]


def test_op_and_parked_records_may_be_larger_than_the_journals() -> None:
    """A half message of the largest size still fits with what is added to it."""
    assert OP_RULES.max_message_bytes == PARKED_RULES.max_message_bytes == JOURNAL_RULES.max_message_bytes + 65_536
    assert set(rules_of(TOPICS)) == {TOPICS.half, TOPICS.op, TOPICS.parked}


async def test_faults_can_be_found_without_a_recorded_identity(world: TopologyWorld) -> None:
    """`doctor` looks at topics alone, where it has no database."""
    await world.migrate()
    found = await world.admin.describe_topics([TOPICS.half, TOPICS.op, TOPICS.parked])
    assert find_faults(TOPICS, found) == []
    assert [fault.kind for fault in find_faults(TOPICS, {})] == [FaultKind.MISSING] * 3
    recorded = {TOPICS.half: TopicIdentity("memory-cluster", "another")}
    assert [fault.kind for fault in await examine(world.admin, TOPICS, recorded)] == [FaultKind.OTHER_TOPIC]
