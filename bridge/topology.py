"""The internal topics: what they must be, made where this bridge never ran, and guarded while it runs; the key that
seals op records, and from where on they need a seal: made by `migrate`, read once by every process that starts.

An unexpected internal topic is never "nothing pending": the bridge is not ready until an operator has
decided (design section 4).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import structlog

from bridge.clock import Clock
from bridge.core.errors import BridgeError, ConfigError, SqlUnavailable, StoreError
from bridge.core.keyring import OpSeals
from bridge.core.message import MessageQueue
from bridge.core.op_message import LogTopics
from bridge.core.topics import InternalTopics, TopicDescription
from bridge.fault_points import FaultPoint, reach
from bridge.sql.engine import Database
from bridge.sql.identity import TopicIdentity, begin_seals, read_beliefs, read_identity, read_keys, record_identity
from bridge.store.message_store import ClusterDescription, MessageStore, TopicAdmin

_LOG = structlog.get_logger()
_DAY_MS = 86_400_000
_BODY_BYTES = 8 * 1024 * 1024
_MARGIN_BYTES = 64 * 1024
_TRANSACTION_STATE, _GROUPS = "__transaction_state", "__consumer_offsets"

MARGIN_AFTER_LIFE_MS = 7 * _DAY_MS
GUARD_INTERVAL_MS = 30_000  # sooner than Kafka deletes by a retention that somebody changed: every five minutes
_AGAIN_MS = 5_000  # while something is wrong, or cannot be asked


class FaultKind(StrEnum):
    """What can be wrong; the value is the name by which it is overridden."""

    NOT_MIGRATED = "not-migrated"
    MISSING = "missing"
    QUEUE_COUNT = "queue-count"
    CLEANUP_POLICY = "cleanup-policy"
    RETENTION = "retention"
    COMPACTION_LAG = "compaction-lag"
    TIMESTAMPS = "timestamps"
    MESSAGE_SIZE = "message-size"
    UNCLEAN_ELECTION = "unclean-election"
    REPLICAS = "replicas"
    NO_LEADER = "no-leader"
    OTHER_CLUSTER = "other-cluster"
    OTHER_TOPIC = "other-topic"
    OTHER_BRIDGE = "other-bridge"
    UNREACHABLE = "unreachable"


# Without these nothing can be decided, whatever anybody says.
NEVER_OVERRIDDEN = frozenset(
    {
        FaultKind.NOT_MIGRATED,
        FaultKind.MISSING,
        FaultKind.QUEUE_COUNT,
        FaultKind.TIMESTAMPS,
        FaultKind.NO_LEADER,
        FaultKind.OTHER_CLUSTER,
        FaultKind.OTHER_TOPIC,
        FaultKind.OTHER_BRIDGE,
        FaultKind.UNREACHABLE,
    }
)


class TopologyConflict(BridgeError):
    """The internal topics cannot be made or recorded safely; an operator must decide."""

    def __init__(self, faults: Sequence["TopologyFault"]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))


@dataclass(frozen=True, slots=True)
class TopologyFault:
    """One thing that is not as it must be, and what to do about it."""

    kind: FaultKind
    topic: str
    detail: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.detail}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What an internal topic must be. `is_first_used`: queues beside the first hold nothing, so there may be some."""

    cleanup_policy: frozenset[str]
    retention_ms: int
    max_message_bytes: int
    min_compaction_lag_ms: int = 0
    queues: int = 1
    is_first_used: bool = False

    def make_config(self, min_insync_replicas: int) -> dict[str, str]:
        """Kafka's settings for a new topic."""
        config = {
            "cleanup.policy": ",".join(sorted(self.cleanup_policy)),
            "message.timestamp.type": "LogAppendTime",
            "retention.ms": str(self.retention_ms),
            "retention.bytes": "-1",
            "max.message.bytes": str(self.max_message_bytes),
            "unclean.leader.election.enable": "false",
            "min.insync.replicas": str(min_insync_replicas),
        }
        if self.min_compaction_lag_ms:
            config["min.compaction.lag.ms"] = str(self.min_compaction_lag_ms)
        return config


JOURNAL_RULES = TopicRules(frozenset({"delete"}), 14 * _DAY_MS, _BODY_BYTES + _MARGIN_BYTES)
OP_RULES = TopicRules(frozenset({"compact", "delete"}), 30 * _DAY_MS, _BODY_BYTES + 2 * _MARGIN_BYTES, _DAY_MS)
PARKED_RULES = TopicRules(frozenset({"delete"}), 90 * _DAY_MS, _BODY_BYTES + 2 * _MARGIN_BYTES, is_first_used=True)
AUDIT_RULES = TopicRules(frozenset({"delete"}), 3_650 * _DAY_MS, _MARGIN_BYTES, is_first_used=True)


def rules_of(internal: InternalTopics, longest_life_ms: int = _DAY_MS) -> dict[str, TopicRules]:
    """The rules by topic name: journal and op topic have the same queues, the others one.

    The journal keeps a body for seven days beyond the longest life of a transaction.
    """
    queues = internal.queues
    retention_ms = max(JOURNAL_RULES.retention_ms, longest_life_ms + MARGIN_AFTER_LIFE_MS)
    return {
        internal.half: replace(JOURNAL_RULES, queues=queues, retention_ms=retention_ms),
        internal.op: replace(OP_RULES, queues=queues),
        internal.parked: PARKED_RULES,
        internal.audit: AUDIT_RULES,
    }


def choose_replicas(cluster: ClusterDescription) -> tuple[int, int]:
    """Replication factor and minimum in-sync replicas of new topics: 1 and 1 on a single broker, else 3 and 2."""
    return (1, 1) if len(cluster.brokers) == 1 else (3, 2)


async def examine(
    admin: TopicAdmin, internal: InternalTopics, recorded: Mapping[str, TopicIdentity], longest_life_ms: int = _DAY_MS
) -> list[TopologyFault]:
    """Everything that is not as it must be in the cluster now. Raises StoreError."""
    cluster = await admin.describe_cluster()
    brokers, rules = len(cluster.brokers), rules_of(internal, longest_life_ms)
    found = await admin.describe_topics(list(rules))
    faults = _judge_bridge(internal, recorded)
    for name, rule in rules.items():
        topic, known = found[name], recorded.get(name)
        if topic is None:
            faults.append(_missing(name, is_known=known is not None))
            continue
        faults += judge_topic(topic, rule, brokers)
        faults += _judge_identity(topic, cluster.cluster_id, known)
    return faults


async def judge_topics_of_kafka(admin: TopicAdmin) -> list[TopologyFault] | None:
    """Where Kafka keeps which Kafka transactions are committed: what forgets one tears it, or has it written again.

    Without a leader there, or where it keeps its groups, queues have no owners. None where we may not look. There is
    none before the first Kafka transaction. Raises StoreError.
    """
    found = await admin.describe_topics([_TRANSACTION_STATE, _GROUPS], with_denied=True)
    state, groups = found[_TRANSACTION_STATE], found[_GROUPS]
    if state is not None and not state.queues:
        return None
    judged = [] if groups is None else [_judge_leaders(groups)]
    if state is not None:
        judged += [_judge_replicas(state, len((await admin.describe_cluster()).brokers)), _judge_leaders(state)]
        judged += [_judge_election(state)] if state.replication_factor > 1 else []  # of one replica there is no choice
    return [fault for fault in judged if fault is not None]


def judge_topic(topic: TopicDescription, rules: TopicRules, brokers: int) -> list[TopologyFault]:
    """What of a topic's settings is not as it must be, on so many brokers."""
    judged = [
        None if rules.is_first_used else _judge_queues(topic, rules.queues),
        _judge_policy(topic, rules),
        _judge_retention(topic, rules),
        _judge_lag(topic, rules),
        _judge_timestamps(topic),
        _judge_size(topic, rules),
        _judge_election(topic),
        _judge_replicas(topic, brokers),
        _judge_leaders(topic),
    ]
    return [fault for fault in judged if fault is not None]


async def create_missing(admin: TopicAdmin, internal: InternalTopics, known: Collection[str] = ()) -> list[str]:
    """Creates the internal topics that are not there; which. `known`: those this bridge has had, which are left alone.
    Raises StoreError."""
    factor, min_insync = choose_replicas(await admin.describe_cluster())
    rules = rules_of(internal)
    found = await admin.describe_topics(list(rules))
    created = []
    for name, rule in rules.items():
        if (
            name not in known
            and found[name] is None
            and await admin.create_topic(name, rule.queues, factor, rule.make_config(min_insync))
        ):
            created.append(name)
            reach(FaultPoint.MIGRATE_TOPIC_CREATED)
    return created


async def migrate_topics(
    admin: TopicAdmin,
    database: Database,
    internal: InternalTopics,
    now_ms: int,
    begin: Callable[[LogTopics], Awaitable[object]],
) -> list[str]:
    """Makes the internal topics where this bridge never ran, has their queues begun, and records which topics they
    are; which were made.

    Where it ran before, a missing or another topic is refused with TopologyConflict, but for one that the version
    which ran did not have. Raises StoreError and SqlUnavailable.
    """
    identity = await database.read(read_identity)
    if identity:
        added = await create_missing(admin, internal, identity)
        faults = await examine(admin, internal, identity)
        refused = [f for f in faults if f.kind in {FaultKind.MISSING, FaultKind.OTHER_CLUSTER, FaultKind.OTHER_TOPIC}]
        if refused:
            raise TopologyConflict(refused)
        await begin(_log_of(internal, identity))
        new = {name: topic for name, topic in (await identify(admin, internal)).items() if name not in identity}
        await database.run(partial(record_identity, topics=new, now_ms=now_ms))
        return added
    created = await create_missing(admin, internal)
    reach(FaultPoint.MIGRATE_TOPICS_CREATED)
    known = await identify(admin, internal)
    await begin(_log_of(internal, known))
    await database.run(partial(record_identity, topics=known, now_ms=now_ms))
    reach(FaultPoint.MIGRATE_RECORDED)
    return created


async def identify(admin: TopicAdmin, internal: InternalTopics) -> dict[str, TopicIdentity]:
    """The internal topics that there are now. Raises StoreError."""
    cluster = await admin.describe_cluster()
    found = await admin.identify_topics(list(rules_of(internal)))
    return {name: TopicIdentity(cluster.cluster_id, topic.topic_id) for name, topic in found.items() if topic}


def _log_of(internal: InternalTopics, known: Mapping[str, TopicIdentity]) -> LogTopics:
    half, op, parked = [known[name].topic_id for name in (internal.half, internal.op, internal.parked)]
    return LogTopics(half, op, parked)


class TopologyGuard:
    """Looks every half a minute, and every few seconds while something is wrong. Not ready as long as `faults` has any.

    `away`: queues without a leader, which are no reason to refuse what the others take.
    `overridden`: kinds of faults that an operator takes. `longest_life_of`: the longest life, in milliseconds,
    that a producer group gives its transactions now.
    """

    def __init__(
        self,
        admin: TopicAdmin,
        database: Database,
        internal: InternalTopics,
        clock: Clock,
        *,
        overridden: Collection[str] = (),
        longest_life_of: Callable[[], int] = lambda: _DAY_MS,
    ) -> None:
        self._admin = admin
        self._database = database
        self._internal = internal
        self._clock = clock
        self._overridden = frozenset(overridden) - NEVER_OVERRIDDEN
        self._longest_life_of = longest_life_of
        self._next_ms = 0
        self._sees_topics_of_kafka = True  # else they would be asked for, and denied, for ever
        self._told: Sequence[TopologyFault] = ()
        self.away: Sequence[TopologyFault] = ()
        self.faults: Sequence[TopologyFault] = (
            TopologyFault(FaultKind.UNREACHABLE, internal.half, "not looked at yet", "wait"),
        )

    async def run_once(self) -> Sequence[TopologyFault]:
        """Looks now. What cannot be asked is left as it was known. Raises StoreError and SqlUnavailable."""
        recorded = await self._database.read(read_identity)
        faults = await examine(self._admin, self._internal, recorded, self._longest_life_of())
        if self._sees_topics_of_kafka:
            of_kafka = await judge_topics_of_kafka(self._admin)
            self._sees_topics_of_kafka = of_kafka is not None
            faults += of_kafka or []
        for fault in faults:
            if fault not in self._told:
                _LOG.warning("topology_fault", topic=fault.topic, kind=fault.kind.value, detail=fault.detail)
        if self._told and not faults:
            _LOG.info("topology_in_order")
        self._told = faults
        self.away = [fault for fault in faults if fault.kind is FaultKind.NO_LEADER]
        self.faults = [fault for fault in faults if fault.kind not in {*self._overridden, FaultKind.NO_LEADER}]
        return self.faults

    async def run_if_due(self, *, is_due: bool) -> None:
        """Looks if the last look is too old, or if it `is_due` anyway."""
        now_ms = self._clock.monotonic_ms()
        if not is_due and now_ms < self._next_ms:
            return
        try:
            await self.run_once()
        except (StoreError, SqlUnavailable) as error:
            _LOG.warning("topology_not_checked", reason=str(error))
            self._next_ms = now_ms + _AGAIN_MS
        else:
            self._next_ms = now_ms + (_AGAIN_MS if self.faults or self.away else GUARD_INTERVAL_MS)


def _judge_bridge(internal: InternalTopics, recorded: Mapping[str, TopicIdentity]) -> list[TopologyFault]:
    """Whether the database is that of a bridge with these topics."""
    if not recorded:
        detail = "this database knows no internal topics"
        return [TopologyFault(FaultKind.NOT_MIGRATED, internal.half, detail, "run `outbox-bridge migrate`")]
    if internal.half in recorded:
        return []
    detail = f"this database is that of a bridge with {', '.join(sorted(recorded))}"
    remedy = "set `topics.prefix` back, or give this bridge a database of its own"
    return [TopologyFault(FaultKind.OTHER_BRIDGE, internal.half, detail, remedy)]


def _missing(name: str, *, is_known: bool) -> TopologyFault:
    if not is_known:
        return TopologyFault(FaultKind.MISSING, name, "the topic is missing", "run `outbox-bridge migrate`")
    remedy = "restore it, or give up what it held: `outbox-bridge migrate --accept-identity` shows it and asks"
    return TopologyFault(FaultKind.MISSING, name, "the topic is gone", remedy)


def _judge_identity(topic: TopicDescription, cluster_id: str, known: TopicIdentity | None) -> list[TopologyFault]:
    if known is None:
        return []
    remedy = "check the addresses; `outbox-bridge migrate --accept-identity` shows what would be given up, and asks"
    if known.cluster_id != cluster_id:
        detail = f"cluster {cluster_id}, recorded was {known.cluster_id}"
        return [TopologyFault(FaultKind.OTHER_CLUSTER, topic.name, detail, remedy)]
    if known.topic_id != topic.topic_id:
        detail = f"topic id {topic.topic_id}, recorded was {known.topic_id}: it was deleted and made again"
        return [TopologyFault(FaultKind.OTHER_TOPIC, topic.name, detail, remedy)]
    return []


def _judge_queues(topic: TopicDescription, queues: int) -> TopologyFault | None:
    if topic.queues == queues:
        return None
    detail = f"{topic.queues} queues, {queues} are configured"
    remedy = (
        "journal and op topic must both have `topics.queues` partitions; where one has grown, give the other as many, "
        "let nothing be pending, set `topics.queues` everywhere, then `outbox-bridge migrate --accept-identity`"
    )
    return TopologyFault(FaultKind.QUEUE_COUNT, topic.name, detail, remedy)


def _judge_policy(topic: TopicDescription, rules: TopicRules) -> TopologyFault | None:
    policy = topic.config.get("cleanup.policy", "")
    if {part.strip() for part in policy.split(",")} == rules.cleanup_policy:
        return None
    wanted = ",".join(sorted(rules.cleanup_policy))
    return _fault(FaultKind.CLEANUP_POLICY, topic, f"cleanup.policy {policy!r}", "cleanup.policy", wanted)


def _judge_retention(topic: TopicDescription, rules: TopicRules) -> TopologyFault | None:
    """A size limit deletes what is still pending, whatever the time."""
    if topic.config.get("retention.bytes", "-1") != "-1":
        detail = f"retention.bytes {topic.config['retention.bytes']}"
        return _fault(FaultKind.RETENTION, topic, detail, "retention.bytes", "-1")
    retention_ms = _int(topic, "retention.ms")
    if retention_ms < 0 or retention_ms >= rules.retention_ms:
        return None
    detail = f"retention.ms {retention_ms}, at least {rules.retention_ms} is needed"
    return _fault(FaultKind.RETENTION, topic, detail, "retention.ms", str(rules.retention_ms))


def _judge_lag(topic: TopicDescription, rules: TopicRules) -> TopologyFault | None:
    lag_ms = _int(topic, "min.compaction.lag.ms")
    if lag_ms >= rules.min_compaction_lag_ms:
        return None
    wanted = str(rules.min_compaction_lag_ms)
    return _fault(FaultKind.COMPACTION_LAG, topic, f"min.compaction.lag.ms {lag_ms}", "min.compaction.lag.ms", wanted)


def _judge_timestamps(topic: TopicDescription) -> TopologyFault | None:
    if topic.is_log_append_time:
        return None
    detail = "timestamps are not the broker's"
    return _fault(FaultKind.TIMESTAMPS, topic, detail, "message.timestamp.type", "LogAppendTime")


def _judge_size(topic: TopicDescription, rules: TopicRules) -> TopologyFault | None:
    if topic.max_message_bytes >= rules.max_message_bytes:
        return None
    detail = f"max.message.bytes {topic.max_message_bytes}"
    return _fault(FaultKind.MESSAGE_SIZE, topic, detail, "max.message.bytes", str(rules.max_message_bytes))


def _judge_election(topic: TopicDescription) -> TopologyFault | None:
    if not topic.has_unclean_elections:
        return None
    detail = "unclean leader election can forget what was acknowledged"
    return _fault(FaultKind.UNCLEAN_ELECTION, topic, detail, "unclean.leader.election.enable", "false")


def _judge_replicas(topic: TopicDescription, brokers: int) -> TopologyFault | None:
    """On a single broker there is nothing to choose; on more, two must have what is acknowledged."""
    factor, min_insync = topic.replication_factor, topic.min_insync_replicas
    if factor == 1 and brokers > 1:
        detail = f"1 replica on {brokers} brokers: one lost disk loses what was acknowledged"
        remedy = (
            "give it three (kafka-reassign-partitions.sh), then min.insync.replicas=2, "
            "or override `replicas` (setting topics.overridden)"
        )
        return TopologyFault(FaultKind.REPLICAS, topic.name, detail, remedy)
    wanted = min(2, factor)
    if wanted <= min_insync <= factor:
        return None
    harm = "nothing can be written" if min_insync > factor else "one lost disk loses what was acknowledged"
    detail = f"min.insync.replicas {min_insync} with {factor} replicas: {harm}"
    return _fault(FaultKind.REPLICAS, topic, detail, "min.insync.replicas", str(wanted))


def _judge_leaders(topic: TopicDescription) -> TopologyFault | None:
    """Nothing of such a queue can be read or written, and whoever tries learns no more than that nobody answers."""
    if not topic.leaderless:
        return None
    queues = ", ".join(map(str, sorted(topic.leaderless)))
    remedy = "bring back a broker, or the disk, that has its replica (kafka-topics.sh --describe names them)"
    return TopologyFault(FaultKind.NO_LEADER, topic.name, f"no leader of partition {queues}", remedy)


def _int(topic: TopicDescription, name: str) -> int:
    return int(topic.config.get(name, "0"))


def _fault(kind: FaultKind, topic: TopicDescription, detail: str, setting: str, wanted: str) -> TopologyFault:
    alter = f"set {setting}={wanted} on it (kafka-configs.sh --alter --add-config)"
    override = f", or override `{kind.value}` (setting topics.overridden)"
    return TopologyFault(kind, topic.name, detail, alter + ("" if kind in NEVER_OVERRIDDEN else override))


async def is_sealed(database: Database) -> bool:
    """Whether this bridge has a key. Raises SqlUnavailable."""
    return bool(await database.read(read_keys))


async def is_op_topic_empty(store: MessageStore, topics: InternalTopics) -> bool:
    """Whether no settler has ever written to it: each begins with a position. Raises StoreError."""
    return not any((await _find_ends(store, topics)).values())


async def start_seals(store: MessageStore, database: Database, topics: InternalTopics, now_ms: int) -> None:
    """Makes the first key, and believes without a seal what is in the op topic now: once, or on an operator's word.

    No settler may run meanwhile: what it writes afterwards with another key, or none, would not be believed.
    Raises StoreError and SqlUnavailable.
    """
    ends = await _find_ends(store, topics)
    await database.run(partial(begin_seals, believed=ends, now_ms=now_ms))


async def load_seals(database: Database, seals: OpSeals) -> None:
    """Fills them and their keyring from SQL. Raises ConfigError where there is no key, and SqlUnavailable."""
    keys, believed = await database.read(read_keys), await database.read(read_beliefs)
    if not keys:
        raise ConfigError("this database holds no key of the bridge: run outbox-bridge migrate")
    seals.keyring.load(keys)
    seals.believed.update(believed)


async def _find_ends(store: MessageStore, topics: InternalTopics) -> dict[int, int]:
    queues = [MessageQueue(topics.op, queue_id) for queue_id in range(topics.queues)]
    return {queue.queue_id: (await store.get_offsets(queue)).maximum for queue in queues}
