"""A small world in memory: a cluster on a virtual clock, one process's stores, internal and real topics.

    world = make_memory_world({"orders": 3, "credits": 1})
    await world.store.put(MessageQueue("orders", 0), Message("orders", b"k", b"v"))
    other = world.start_process("settler-2")            # more processes on the same cluster
    assert world.visible("orders") == [b"v"]            # what committed readers find, all queues
    await world.clock.advance(6_000)                    # time moves only so, or by clock.drive(...)

Faults: `tests.support.memory_faults.ScriptedFaults`, or any object with the methods of
`bridge.store.memory.link.Faults`; `process.freeze()`, `.thaw()`, `.kill()`. From outside
`world.cluster.log` has delete_topic, create_topic, set_leader, add_queues, topics[name].alter({...})
and topics[name].is_denied; `bridge.store.memory.log.clean(world.cluster.log)` runs the cleaner.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.core.keyring import OpSeals
from bridge.core.message import Message, StoredMessage
from bridge.core.op_message import LogTopics
from bridge.core.topics import InternalTopics
from bridge.store.memory.link import Faults
from bridge.store.memory.process import MemoryOwnerStore, MemoryProcess
from bridge.store.memory.store import MemoryCluster, MemoryStore, MemoryTopicAdmin
from bridge.store.op_topic import make_first_position, make_position_message
from tests.support.virtual_time import VirtualClock

_DAY_MS = 86_400_000
_BODY_BYTES = 8 * 1024 * 1024
_MARGIN_BYTES = 64 * 1024

HALF_CONFIG = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": str(14 * _DAY_MS),
    "max.message.bytes": str(_BODY_BYTES + _MARGIN_BYTES),
}
OP_CONFIG = {
    "cleanup.policy": "compact,delete",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": str(30 * _DAY_MS),
    "min.compaction.lag.ms": str(_DAY_MS),
    "max.message.bytes": str(_BODY_BYTES + 2 * _MARGIN_BYTES),
}
AUDIT_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "315360000000",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": "65536",
}
PARKED_CONFIG = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": str(90 * _DAY_MS),
    "max.message.bytes": str(_BODY_BYTES + 2 * _MARGIN_BYTES),
}


class SoundLog:
    """A LogWatch where nothing is ever wrong."""

    def find_refusal(self, queue_id: int) -> str | None:
        return None

    def find_seen(self, queue_id: int) -> int:
        return 0

    def doubt(self, queue_id: int, offset: int | None = None) -> None:
        return None


@dataclass(slots=True)
class MemoryWorld:
    """`store`, `owners` and `admin` are those of the process "main"."""

    clock: VirtualClock
    cluster: MemoryCluster
    process: MemoryProcess
    topics: InternalTopics

    @property
    def store(self) -> MemoryStore:
        return self.process.store

    @property
    def owners(self) -> MemoryOwnerStore:
        return self.process.owners

    @property
    def admin(self) -> MemoryTopicAdmin:
        return self.process.admin

    def start_process(self, client: str) -> MemoryProcess:
        """One more process on the same cluster; names are not shared."""
        return MemoryProcess(self.cluster, client)

    def read_visible(self, topic: str) -> list[StoredMessage]:
        """What a committed reader finds in the topic now, queue by queue."""
        self.cluster.agenda.run_due()
        partitions = self.cluster.log.topics[topic].partitions
        return [message for p in partitions for message in p.read(p.minimum, len(p.records))[0]]

    def visible(self, topic: str) -> list[bytes | None]:
        """The values of `read_visible`."""
        return [message.value for message in self.read_visible(topic)]


def make_memory_world(
    real_topics: Mapping[str, int] | None = None,
    *,
    topics: InternalTopics | None = None,
    clock: VirtualClock | None = None,
    faults: Faults | None = None,
) -> MemoryWorld:
    """`real_topics`: name to number of queues; by default `orders` with 3 queues and `credits` with 1."""
    clock = clock or VirtualClock()
    topics = topics or InternalTopics()
    cluster = MemoryCluster(clock, faults)
    create_internal_topics(cluster, topics)
    for name, queues in (real_topics or {"orders": 3, "credits": 1}).items():
        cluster.log.create_topic(name, queues)
    return MemoryWorld(clock, cluster, MemoryProcess(cluster, "main"), topics)


def make_cluster(clock: Clock, topics: InternalTopics | None = None) -> MemoryCluster:
    """A cluster with the internal topics on any clock, for tests that live in real time."""
    cluster = MemoryCluster(clock)
    create_internal_topics(cluster, topics or InternalTopics())
    return cluster


def create_internal_topics(cluster: MemoryCluster, topics: InternalTopics) -> None:
    """Journal, op topic, parked topic and that of the audit with the policies the bridge expects."""
    cluster.log.create_topic(topics.half, topics.queues, HALF_CONFIG)
    cluster.log.create_topic(topics.op, topics.queues, OP_CONFIG)
    cluster.log.create_topic(topics.parked, 1, PARKED_CONFIG)
    cluster.log.create_topic(topics.audit, 1, AUDIT_CONFIG)
    append_first_positions(cluster, topics)


def append_first_positions(cluster: MemoryCluster, topics: InternalTopics, seals: OpSeals | None = None) -> None:
    """What `migrate` writes, at no cost in time and without markers."""
    made = cluster.log.topics
    log = LogTopics(made[topics.half].topic_id, made[topics.op].topic_id, made[topics.parked].topic_id)
    for partition in made[topics.op].partitions:
        message = make_position_message(topics, partition.queue.queue_id, make_first_position(log))
        if seals is not None and message.key is not None and message.value is not None:
            value = seals.seal(partition.queue.queue_id, message.key, message.value)
            message = Message(message.topic, message.key, value, (), message.queue_id)
        partition.append([message], None, cluster.agenda.now_ms())
