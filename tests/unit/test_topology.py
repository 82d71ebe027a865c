"""The internal topics: made where the bridge never ran, and guarded after that."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from api.web.health import _topology
from api.web.request import CheckResult
from bridge.core.errors import SqlUnavailable
from bridge.core.message import MessageQueue
from bridge.core.op_message import LogTopics
from bridge.core.topics import InternalTopics, TopicDescription
from bridge.sql.engine import InlineDatabase
from bridge.sql.tables import cluster_identity
from bridge.store.memory.process import MemoryProcess
from bridge.store.memory.store import MemoryCluster
from bridge.store.message_store import ClusterDescription
from bridge.store.op_topic import begin_queues, find_position
from bridge.topology import (
    JOURNAL_RULES,
    NEVER_OVERRIDDEN,
    OP_RULES,
    PARKED_RULES,
    FaultKind,
    TopologyConflict,
    TopologyGuard,
    choose_replicas,
    create_missing,
    judge_topic,
    migrate_topics,
    rules_of,
)
from tests.support.virtual_time import VirtualClock

T = TypeVar("T")

TOPICS = InternalTopics(queues=3)
DAY_MS = 86_400_000
HALF = TopicDescription(
    TOPICS.half, "id", 3, frozenset(), 3, JOURNAL_RULES.max_message_bytes, True, 0, 0, JOURNAL_RULES.make_config(2)
)


ALL = [TOPICS.half, TOPICS.op, TOPICS.parked, TOPICS.audit]


class DatabaseThatFails(InlineDatabase):
    """So many next reads fail."""

    fail_reads = 0

    async def read(self, work: Callable[[Connection], T]) -> T:
        if self.fail_reads:
            self.fail_reads -= 1
            raise SqlUnavailable("down")
        return await super().read(work)


class TopologyWorld:
    """An empty cluster and an empty database."""

    def __init__(self, url: str) -> None:
        self.clock = VirtualClock()
        self.cluster = MemoryCluster(self.clock)
        self.process = MemoryProcess(self.cluster, "bridge")
        self.admin = self.process.admin
        self.database = DatabaseThatFails(url)

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
    assert await world.migrate() == ALL
    assert await world.guard().run_once() == []
    assert {name: len(topic.partitions) for name, topic in world.cluster.log.topics.items()} == {
        TOPICS.half: 3, TOPICS.op: 3, TOPICS.parked: 1, TOPICS.audit: 1,
    }  # fmt: skip


async def test_migrating_again_makes_nothing(world: TopologyWorld) -> None:
    """It may be run at every start."""
    await world.migrate()
    assert await world.migrate() == []


async def test_database_of_a_bridge_with_other_topics_is_refused(world: TopologyWorld) -> None:
    """`topics.prefix` was changed, or the database is another bridge's: neither's records are the other's."""
    await world.migrate()
    others = InternalTopics("x.half", "x.op", "x.parked", "x.group", audit="x.audit", queues=3)
    await create_missing(world.admin, others)
    (fault,) = await TopologyGuard(world.admin, world.database, others, world.clock).run_once()
    assert fault.kind is FaultKind.OTHER_BRIDGE
    assert f"a bridge with {', '.join(sorted(TOPICS.names))}; set `topics.prefix` back" in str(fault)


async def test_topic_that_the_version_before_did_not_have_is_made(world: TopologyWorld) -> None:
    """An upgrade makes the audit's topic; from then on it is missed like the others."""
    await world.migrate()
    world.cluster.log.delete_topic(TOPICS.audit)
    forget = sa.delete(cluster_identity).where(cluster_identity.c.topic == TOPICS.audit)
    await world.database.run(lambda connection: connection.execute(forget))
    assert [fault.kind for fault in await world.guard().run_once()] == [FaultKind.MISSING]
    assert await world.migrate() == [TOPICS.audit]
    assert await world.guard().run_once() == []
    world.cluster.log.delete_topic(TOPICS.audit)
    with pytest.raises(TopologyConflict, match="gone"):
        await world.migrate()


async def test_queues_begin_with_the_topics_that_were_recorded(world: TopologyWorld) -> None:
    """A later owner sees by them that the log is still that one; again where a first migration got no further."""
    topics = world.cluster.log.topics
    assert await world.migrate()
    first = await find_position(world.process.store, world.process.owners, TOPICS, 2)
    begun: list[LogTopics] = []

    async def begin(log: LogTopics) -> None:
        begun.append(log)

    await migrate_topics(world.admin, world.database, TOPICS, 1, begin)
    ids = LogTopics(*[topics[name].topic_id for name in (TOPICS.half, TOPICS.op, TOPICS.parked)])
    assert begun == [ids]
    assert first is not None
    assert first.topics == ids


async def test_bridge_that_never_ran_is_not_ready(world: TopologyWorld) -> None:
    """Nothing is ever "nothing pending" by accident."""
    faults = await world.guard("missing", "not-migrated").run_once()
    assert [(fault.kind, fault.topic) for fault in faults] == [
        (FaultKind.NOT_MIGRATED, TOPICS.half),
        *[(FaultKind.MISSING, topic) for topic in ALL],
    ]
    assert {fault.remedy for fault in faults} == {"run `outbox-bridge migrate`"}
    assert [fault.detail for fault in faults] == [
        "this database knows no internal topics", *["the topic is missing"] * 4,
    ]  # fmt: skip


async def test_topic_gone_after_the_bridge_ran_is_not_made_again(world: TopologyWorld) -> None:
    """An empty journal in its place would forget what was acknowledged (53)."""
    await world.migrate()
    world.cluster.log.delete_topic(TOPICS.op)
    with pytest.raises(TopologyConflict, match=f"^{TOPICS.op}: the topic is gone; restore it, or .*--accept-identity"):
        await world.migrate()
    assert TOPICS.op not in world.cluster.log.topics
    assert [fault.kind for fault in await world.guard().run_once()] == [FaultKind.MISSING]


async def test_recreated_topic_is_found_by_its_id_until_it_is_accepted(world: TopologyWorld) -> None:
    """Same name, other log; only an operator may say that this is meant (62)."""
    await world.migrate()
    before = world.cluster.log.topics[TOPICS.half]
    world.cluster.log.delete_topic(TOPICS.half)
    after = world.cluster.log.create_topic(TOPICS.half, 3, before.config)
    guard = world.guard()
    (fault,) = await guard.run_once()
    assert (fault.kind, fault.topic) == (FaultKind.OTHER_TOPIC, TOPICS.half)
    assert fault.detail.startswith(f"topic id {after.topic_id}, recorded was {before.topic_id}:")
    with pytest.raises(TopologyConflict, match=r"; check the addresses; .*--accept"):
        await world.migrate()


async def test_other_cluster_is_refused(world: TopologyWorld) -> None:
    """An address that leads to another cluster must not look like an empty bridge (62)."""
    await world.migrate()
    world.cluster.cluster_id = "another"
    faults = await world.guard().run_once()
    assert [(fault.kind, fault.topic) for fault in faults] == [(FaultKind.OTHER_CLUSTER, topic) for topic in ALL]
    with pytest.raises(TopologyConflict, match=f"; {TOPICS.op}: cluster another, recorded was memory-cluster; check "):
        await world.migrate()


@pytest.mark.parametrize(
    ("topic", "config", "kind", "detail"),
    [
        (TOPICS.half, {"cleanup.policy": "compact,delete"}, FaultKind.CLEANUP_POLICY, "policy 'compact,delete'"),
        (TOPICS.op, {"cleanup.policy": "delete"}, FaultKind.CLEANUP_POLICY, "cleanup.policy 'delete'"),
        (TOPICS.half, {"retention.ms": str(13 * DAY_MS)}, FaultKind.RETENTION, "1123200000, at least 1209600000"),
        (TOPICS.op, {"retention.ms": "0"}, FaultKind.RETENTION, "retention.ms 0, at least 2592000000 is needed"),
        (TOPICS.parked, {"retention.bytes": "1000000"}, FaultKind.RETENTION, "retention.bytes 1000000"),
        (TOPICS.op, {"min.compaction.lag.ms": "0"}, FaultKind.COMPACTION_LAG, "min.compaction.lag.ms 0"),
        (TOPICS.half, {"message.timestamp.type": "CreateTime"}, FaultKind.TIMESTAMPS, "timestamps are not the"),
        (TOPICS.half, {"max.message.bytes": str(8 * 2**20)}, FaultKind.MESSAGE_SIZE, "max.message.bytes 8388608"),
        (TOPICS.op, {"max.message.bytes": str(8 * 2**20 + 65536)}, FaultKind.MESSAGE_SIZE, "bytes 8454144"),
        (TOPICS.op, {"unclean.leader.election.enable": "true"}, FaultKind.UNCLEAN_ELECTION, "unclean leader el"),
        (TOPICS.half, {"min.insync.replicas": "2"}, FaultKind.REPLICAS, "replicas 2 with 1 replicas: nothing can"),
    ],
)
async def test_unsafe_setting_is_found_and_healed_by_its_remedy(
    world: TopologyWorld, topic: str, config: Mapping[str, str], kind: FaultKind, detail: str
) -> None:
    """Somebody changed a topic while the bridge runs: not ready, until an operator does what he is told (54)."""
    await world.migrate()
    world.cluster.log.topics[topic].alter(config)
    guard = world.guard()
    (fault,) = await guard.run_once()
    assert (fault.kind, fault.topic) == (kind, topic)
    assert str(fault) == f"{topic}: {fault.detail}; {fault.remedy}"
    assert detail in fault.detail
    remedy = re.match(r"set (\S+)=(\S+) on it [^,]*(?:, or override `(\S+)`.*)?$", fault.remedy)
    assert remedy is not None
    assert remedy[3] == (None if kind in NEVER_OVERRIDDEN else kind.value)
    world.cluster.log.topics[topic].alter({remedy[1]: remedy[2]})
    assert await guard.run_once() == []


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
    (fault,) = await guard.run_once()
    assert (fault.kind, fault.topic) == (FaultKind.RETENTION, TOPICS.half)
    assert f"set retention.ms={14 * DAY_MS + 1} on it" in fault.remedy
    world.cluster.log.topics[TOPICS.half].alter({"retention.ms": "1000"})
    (same,) = await guard.run_once()
    assert same.remedy == fault.remedy


async def test_added_queues_are_found(world: TopologyWorld) -> None:
    """Transactions would be looked for in other queues than they are in."""
    await world.migrate()
    world.cluster.log.add_queues(TOPICS.half, 4)
    (fault,) = await world.guard().run_once()
    assert fault.kind is FaultKind.QUEUE_COUNT
    assert str(fault).startswith(f"{TOPICS.half}: 4 queues, 3 are configured; journal and op topic must both have")


async def test_queues_that_nobody_uses_are_no_fault(world: TopologyWorld) -> None:
    """No partition can be taken away again: parked topic and audit's have one for the bridge, whatever is beside it."""
    await world.migrate()
    world.cluster.log.add_queues(TOPICS.parked, 3)
    world.cluster.log.add_queues(TOPICS.audit, 2)
    assert await world.guard().run_once() == []


async def test_fault_can_be_overridden_by_name_but_not_the_ones_that_matter_most(world: TopologyWorld) -> None:
    """An operator may run with a small retention; nobody may run without the op topic (54)."""
    await world.migrate()
    world.cluster.log.topics[TOPICS.half].alter({"retention.ms": "1000"})
    assert await world.guard("retention").run_once() == []
    world.cluster.log.delete_topic(TOPICS.op)
    assert [fault.kind for fault in await world.guard("retention", "missing").run_once()] == [FaultKind.MISSING]


async def test_guard_is_not_ready_before_it_has_looked(world: TopologyWorld) -> None:
    """Between start and first look nothing is known."""
    (fault,) = world.guard().faults
    assert (fault.kind, str(fault)) == (FaultKind.UNREACHABLE, f"{TOPICS.half}: not looked at yet; wait")


async def test_guard_looks_again_while_the_bridge_runs(world: TopologyWorld) -> None:
    """Every half a minute, every 5 seconds while something is wrong or cannot be asked, and at once when told to."""
    await world.migrate()
    guard, topic = world.guard(), world.cluster.log.topics[TOPICS.half]

    async def look_after(ms: int, *, is_due: bool = False) -> list[FaultKind]:
        await world.clock.advance(ms)
        await guard.run_if_due(is_due=is_due)
        return [fault.kind for fault in guard.faults]

    await guard.run_if_due(is_due=False)
    topic.alter({"retention.ms": "1000"})
    assert await look_after(29_999) == []
    assert await look_after(1) == [FaultKind.RETENTION]
    topic.alter({"retention.ms": "-1"})
    assert await look_after(4_999) == [FaultKind.RETENTION]
    assert await look_after(1) == []
    topic.alter({"retention.ms": "1000"})
    world.database.fail_reads = 1
    assert await look_after(29_999, is_due=True) == []
    assert await look_after(4_999) == []
    assert await look_after(1) == [FaultKind.RETENTION]


@pytest.mark.parametrize(("brokers", "expected"), [(1, (1, 1)), (2, (3, 2)), (3, (3, 2))])
def test_replicas_follow_the_size_of_the_cluster(brokers: int, expected: tuple[int, int]) -> None:
    """One broker: one replica; else what survives a lost disk."""
    assert choose_replicas(ClusterDescription("c", [f"broker:{n}" for n in range(brokers)])) == expected


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync", "detail", "remedy"),
    [
        (
            3,
            3,
            1,
            "min.insync.replicas 1 with 3 replicas: one lost disk loses what was acknowledged",
            "replicas=2 on it",
        ),
        (
            3,
            2,
            1,
            "min.insync.replicas 1 with 2 replicas: one lost disk loses what was acknowledged",
            "replicas=2 on it",
        ),
        (3, 3, 4, "min.insync.replicas 4 with 3 replicas: nothing can be written", "replicas=2 on it"),
        (1, 1, 2, "min.insync.replicas 2 with 1 replicas: nothing can be written", "replicas=1 on it"),
        (2, 1, 1, "1 replica on 2 brokers: one lost disk loses what was acknowledged", "give it three"),
        *[(3, replicas, in_sync, "", "") for replicas, in_sync in ((2, 2), (3, 2), (3, 3))],
        (1, 1, 1, "", ""),
    ],
)
def test_what_is_acknowledged_is_on_two_disks(
    brokers: int, replicas: int, in_sync: int, detail: str, remedy: str
) -> None:
    """As many as there are, up to two; and a topic that needs more than it has takes nothing."""
    topic = replace(HALF, replication_factor=replicas, config=JOURNAL_RULES.make_config(in_sync))
    faults = judge_topic(topic, rules_of(TOPICS)[TOPICS.half], brokers)
    assert [(fault.kind, fault.detail) for fault in faults] == ([(FaultKind.REPLICAS, detail)] if detail else [])
    assert all(remedy in fault.remedy for fault in faults)


@pytest.mark.parametrize(
    ("in_sync", "unclean", "queues", "fault"),
    [
        ("1", "false", 50, FaultKind.REPLICAS), ("2", "false", 50, None), ("1", "false", 0, None),
        ("2", "true", 50, FaultKind.UNCLEAN_ELECTION),
    ],
)  # fmt: skip
async def test_what_kafka_transactions_are_committed_is_on_two_disks_too(
    world: TopologyWorld,
    monkeypatch: pytest.MonkeyPatch,
    in_sync: str,
    unclean: str,
    queues: int,
    fault: FaultKind | None,
) -> None:
    """Kafka's own topic: who loses it, or elects a leader that has not all of it, commits half of a batch, and the
    batch again. One that may not be looked at has no queues; nothing is said of it."""
    await world.migrate()
    described = world.admin.describe_topics
    name, config = "__transaction_state", {"min.insync.replicas": in_sync, "unclean.leader.election.enable": unclean}

    async def describe_topics(
        names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        found = await described(names, with_denied=with_denied)
        return {**found, name: replace(HALF, name=name, queues=queues, config=config)} if with_denied else found

    monkeypatch.setattr(world.admin, "describe_topics", describe_topics)
    faults = await world.guard().run_once()
    assert [(found.topic, found.kind) for found in faults] == ([(name, fault)] if fault else [])
    assert await world.guard("replicas", "unclean-election").run_once() == []


async def test_queue_without_a_leader_is_told_and_refuses_nothing_of_others(world: TopologyWorld) -> None:
    """Whoever asks it learns that nobody answers; what other queues take goes on, and so does `migrate` (A, B)."""
    await world.migrate()
    guard = world.guard()
    world.cluster.log.set_leader(MessageQueue(TOPICS.half, 1), has_leader=False)
    await guard.run_if_due(is_due=False)
    assert guard.faults == []
    (away,) = guard.away
    assert str(away).startswith(f"{TOPICS.half}: no leader of partition 1; bring back a broker, or the disk")
    assert await _topology(guard) == CheckResult(is_ok=False, is_degraded=True, detail=str(away))
    world.cluster.log.set_leader(MessageQueue(TOPICS.half, 1), has_leader=True)
    await world.clock.advance(5_000)
    await guard.run_if_due(is_due=False)
    assert await _topology(guard) == CheckResult(is_ok=True, is_degraded=True)


@pytest.mark.parametrize("name", ["__transaction_state", "__consumer_offsets"])
async def test_topic_of_kafka_without_a_leader_is_told(
    world: TopologyWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Settlers that get no queue look like ones that stand by, and those that cannot begin like slow ones."""
    await world.migrate()
    described = world.admin.describe_topics
    away = replace(HALF, name=name, config=JOURNAL_RULES.make_config(2), leaderless=frozenset({3}))

    async def describe_topics(
        names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        found = await described(names, with_denied=with_denied)
        return {**found, name: away} if with_denied else found

    monkeypatch.setattr(world.admin, "describe_topics", describe_topics)
    guard = world.guard()
    assert await guard.run_once() == []
    assert [(fault.topic, fault.detail) for fault in guard.away] == [(name, "no leader of partition 3")]


def test_setting_that_the_cluster_does_not_tell_is_as_kafka_has_it() -> None:
    """No limit in bytes and no unclean election, but nothing that keeps records longer."""
    faults = judge_topic(replace(HALF, config={"min.insync.replicas": "2"}), OP_RULES, 3)
    assert [fault.kind for fault in faults if fault.kind is not FaultKind.QUEUE_COUNT] == [
        FaultKind.CLEANUP_POLICY, FaultKind.RETENTION, FaultKind.COMPACTION_LAG, FaultKind.MESSAGE_SIZE,
    ]  # fmt: skip
    assert "cleanup.policy ''" in str(faults[1])


def test_op_and_parked_records_may_be_larger_than_the_journals() -> None:
    """A half message of the largest size still fits with what is added to it."""
    assert OP_RULES.max_message_bytes == PARKED_RULES.max_message_bytes == JOURNAL_RULES.max_message_bytes + 65_536
    assert set(rules_of(TOPICS)) == set(ALL)
