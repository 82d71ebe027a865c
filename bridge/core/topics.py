"""The internal topics, names that clients may use, queues of messages, what a topic takes, and the least rights."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from struct import unpack_from
from typing import NamedTuple
from zlib import crc32

from bridge.core.errors import ConfigError
from bridge.core.message import BY_KEY, Message
from bridge.core.properties import ID_HEADER_BYTES, count_record_bytes, measure_published

# --- the internal topics, which names clients may use, and which queue a message belongs to ---

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
AUDIT_TOPIC = "RMQ_SYS_TRANS_AUDIT_TOPIC"  # not one of RocketMQ's, but named so that no bridge lets clients write it
INTERNAL_GROUP = "CID_RMQ_SYS_TRANS"
PARKED_QUEUE = 0  # the parked topic has one queue, as RocketMQ's discard topic
MAX_QUEUES = 1024  # two base32hex digits of a transaction id

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# Kafka's and its companions' own, and whatever a bridge with any prefix may use: several can share a cluster.
_RESERVED = re.compile(
    r"__.*|connect-.*|_schemas.*|_confluent.*|RMQ_SYS_.*"
    rf"|.*RMQ_SYS_TRANS_.*|.*{PARKED_TOPIC}|.*{INTERNAL_GROUP}"
)


@dataclass(frozen=True, slots=True)
class InternalTopics:
    """Names of the internal topics, their group, and the number of queues of journal and op topic."""

    half: str = HALF_TOPIC
    op: str = OP_TOPIC
    parked: str = PARKED_TOPIC
    group: str = INTERNAL_GROUP
    transactional_prefix: str = "outbox-bridge"
    queues: int = 4
    audit: str = AUDIT_TOPIC

    def __post_init__(self) -> None:
        if not 1 <= self.queues <= MAX_QUEUES:
            raise ConfigError(f"queues must be 1..{MAX_QUEUES}")
        if len(set(self.names)) != len(self.names) or not all(map(is_legal_topic, self.names)):
            raise ConfigError("the four internal topics need four legal names")

    @property
    def names(self) -> tuple[str, ...]:
        """Of all internal topics."""
        return self.half, self.op, self.parked, self.audit

    def transactional_id(self, queue_id: int, turn: int) -> str:
        """The transactional id of one of the two producers of a queue (`turn` 0 or 1)."""
        return f"{self.transactional_prefix}-{queue_id}-{turn}"


def with_prefix(prefix: str, queues: int = 4) -> InternalTopics:
    """Internal topics whose names, group and transactional ids all begin with `prefix`."""
    if not prefix:
        return InternalTopics(queues=queues)
    return InternalTopics(
        prefix + HALF_TOPIC, prefix + OP_TOPIC, prefix + PARKED_TOPIC, prefix + INTERNAL_GROUP,
        prefix + "outbox-bridge", queues, prefix + AUDIT_TOPIC,
    )  # fmt: skip


def is_legal_topic(name: str) -> bool:
    """Kafka's own rule for topic names."""
    return _LEGAL.fullmatch(name) is not None and name not in {".", ".."}


def is_reserved_topic(name: str, internal: InternalTopics) -> bool:
    """Whether clients may not write to the topic: any bridge's, Kafka's and its companions' own."""
    return name in internal.names or _RESERVED.fullmatch(name) is not None


_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SHORT = 64  # bytes of a key whose hashes are remembered: orders of one customer come again

_remember = lru_cache(maxsize=16_384)


def hash_ordering_key(ordering_key: bytes) -> int:
    """64 bits; chooses the half queue, and stands for the effective ordering key in records."""
    return _known_hash(ordering_key) if len(ordering_key) <= _SHORT else _hash(ordering_key)


def _hash(ordering_key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(ordering_key, digest_size=8).digest())


_known_hash = _remember(_hash)


def choose_placing_key(ordering_key: str | None, first_message_key: bytes | None, fallback: bytes) -> bytes:
    """The ordering key if given, else the first message's key, else `fallback` (what makes the id unique).

    What the queue is chosen by: part of every id, so frozen. The hash is the effective ordering key of half messages
    that record no other.
    """
    if ordering_key is not None:
        return ordering_key.encode()
    return fallback if first_message_key is None else first_message_key


def hash_effective_key(group: str, topic: str, ordering_key: str | None, first_message_key: bytes | None) -> int | None:
    """Hash of what a transaction is in order with: an ordering key within its group, else the first message's key
    within group and topic. None: with nothing.

    Equal ones have equal placing keys, so they share a queue. (Neither name holds a 0x00, and no topic is empty.)
    """
    if ordering_key is not None:
        return hash_ordering_key(f"{group}\0\0{ordering_key}".encode())
    if first_message_key is None:
        return None
    return hash_ordering_key(f"{group}\0{topic}\0".encode() + first_message_key)


def choose_half_queue(hashed: int, queues: int) -> int:
    """The queue of the half topic for a hashed placing key."""
    return hashed % queues


def murmur2(key: bytes) -> int:
    """32-bit MurmurHash2 as Kafka's Java client computes it. Source: org.apache.kafka.common.utils.Utils."""
    return _known_murmur2(key) if len(key) <= _SHORT else _murmur2(key)


def _murmur2(key: bytes) -> int:
    length = len(key)
    h = 0x9747B28C ^ length
    words = length >> 2
    for word in unpack_from(f"<{words}I", key):
        k = word * _M & _MASK
        h = (h * _M & _MASK) ^ (((k ^ k >> 24) * _M) & _MASK)
    tail = key[words << 2 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


_known_murmur2 = _remember(_murmur2)


def choose_real_queue(key: bytes | None, transaction_id: str, queues: int) -> int:
    """The queue of a real topic: murmur2 of the key, as Java clients choose; any by the transaction id without one."""
    hashed = crc32(transaction_id.encode()) if key is None else murmur2(key)
    return (hashed & 0x7FFFFFFF) % queues


# --- a topic as the cluster describes it, and what it does not take ---


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster describes it to us. `leaderless`: queues without a leader now.

    `replication_factor`: of the queue with the fewest replicas.

    `is_writable` False: an ACL forbids us to write. See `describe_topics` for one that we may not even describe.
    """

    name: str
    topic_id: str
    queues: int
    leaderless: frozenset[int]
    replication_factor: int
    max_message_bytes: int
    is_log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    config: Mapping[str, str]
    is_writable: bool = True

    @property
    def is_key_required(self) -> bool:
        """Whether the topic is compacted: it then refuses every record without a key."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def min_insync_replicas(self) -> int:
        """So many must have what is acknowledged; 0 if it is not known."""
        return int(self.config.get("min.insync.replicas", "0"))

    @property
    def has_unclean_elections(self) -> bool:
        """Whether a leader may be elected that lacks what was acknowledged."""
        return self.config.get("unclean.leader.election.enable", "false") != "false"

    def find_weakness(self, own: "TopicDescription") -> str | None:
        """Why it may lose what the op topic `own` keeps when a disk is lost; None if it keeps as much."""
        if own.replication_factor > 1 >= self.replication_factor:
            return "replication factor 1"
        if own.min_insync_replicas > 1 >= self.min_insync_replicas:
            return "min.insync.replicas 1"
        is_worse = self.has_unclean_elections and own.replication_factor > 1
        return "unclean.leader.election.enable true" if is_worse else None


class NotTaken(StrEnum):
    """What speaks against it; the same words as for what a cluster refuses."""

    UNKNOWN_PARTITION = "UNKNOWN_PARTITION"
    KEY_REQUIRED = "KEY_REQUIRED"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"


def find_obstacle(message: Message, topic: TopicDescription, now_ms: int, *, has_id_header: bool) -> NotTaken | None:
    """Why the topic would refuse the message when it is published now, by Kafka's time; None if it takes it.

    `has_id_header`: the message is published with the transaction's id as one header more. Rights are not judged here:
    a commit that stands is tried.
    """
    if message.queue_id != BY_KEY and not 0 <= message.queue_id < topic.queues:
        return NotTaken.UNKNOWN_PARTITION
    if message.key is None and topic.is_key_required:
        return NotTaken.KEY_REQUIRED
    if message.timestamp_ms and not topic.is_log_append_time:
        oldest_ms, newest_ms = now_ms - topic.timestamp_before_max_ms, now_ms + topic.timestamp_after_max_ms
        if not oldest_ms <= message.timestamp_ms <= newest_ms:
            return NotTaken.INVALID_TIMESTAMP
    if count_record_bytes(message) + ID_HEADER_BYTES <= topic.max_message_bytes:
        return None  # the estimate is cheaper than the figure
    size = measure_published(message, has_id_header=has_id_header)
    return NotTaken.MESSAGE_TOO_LARGE if size > topic.max_message_bytes else None


# --- the least that each role must be allowed in Kafka ---

RIGHTS_REMEDY = "`outbox-bridge acl` prints what each role needs; give it that"


class Resource(StrEnum):
    """What Kafka guards."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class KafkaOperation(StrEnum):
    """What Kafka lets somebody do with it. The right to read, write or delete is one to describe too."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


@dataclass(frozen=True, slots=True, order=True)
class KafkaRight:
    """One row: an operation on a resource, or on all whose names begin so."""

    resource: Resource
    name: str
    operation: KafkaOperation
    is_prefix: bool = False

    def __str__(self) -> str:
        return f"Kafka gives no right to {self.operation} {self.resource} {self.name}{'*' if self.is_prefix else ''}"


class Role(StrEnum):
    """Whoever has a principal of its own."""

    API = "api"
    SETTLER = "settler"
    PROJECTOR = "projector"
    MIGRATE = "migrate"
    REPORT = "report"


# Read and Write are rights to Describe too, so that has a row only where neither is given.
_R, _W, _C, _D, _DC = KafkaOperation


class _Needs(NamedTuple):
    """Of one role: operations on the internal topics, on the real ones, on group and transactional ids."""

    half: tuple[KafkaOperation, ...]
    op: tuple[KafkaOperation, ...]
    parked: tuple[KafkaOperation, ...]
    audit: tuple[KafkaOperation, ...] = ()
    real: tuple[KafkaOperation, ...] = ()
    group: tuple[KafkaOperation, ...] = ()
    transactions: tuple[KafkaOperation, ...] = ()


_NEEDS = {
    Role.API: _Needs(half=(_R, _W, _DC), op=(_R, _DC), parked=(_R, _DC), audit=(_R, _W, _DC), real=(_D, _DC)),
    Role.SETTLER: _Needs(
        half=(_R, _W, _DC),
        op=(_R, _W, _DC),
        parked=(_R, _W, _DC),
        audit=(_D, _DC),
        real=(_W, _DC),
        group=(_R,),
        transactions=(_W,),
    ),
    Role.PROJECTOR: _Needs(half=(_R, _DC), op=(_R, _DC), parked=(_D, _DC), audit=(_D, _DC)),
    Role.MIGRATE: _Needs(
        half=(_C, _R, _DC),
        op=(_C, _R, _W, _DC),
        parked=(_C, _D, _DC),
        audit=(_C, _D, _DC),
        group=(_D,),
        transactions=(_W,),
    ),
    Role.REPORT: _Needs(half=(_R, _DC), op=(_R, _DC), parked=(_R, _DC), real=(_R, _DC)),
}


def least_rights(role: Role, topics: InternalTopics, real: Iterable[str]) -> list[KafkaRight]:
    """All that a role needs and nothing else. `real`: topics that messages go to; one that ends in `*` stands for all
    that begin so."""
    needs = _NEEDS[role]
    rows = [
        (Resource.TOPIC, topics.half, needs.half),
        (Resource.TOPIC, topics.op, needs.op),
        (Resource.TOPIC, topics.parked, needs.parked),
        (Resource.TOPIC, topics.audit, needs.audit),
        *[(Resource.TOPIC, name, needs.real) for name in real],
        (Resource.GROUP, topics.group, needs.group),
        (Resource.TRANSACTIONAL_ID, f"{topics.transactional_prefix}-*", needs.transactions),
    ]
    return [
        KafkaRight(resource, name.removesuffix("*") or "*", operation, name.endswith("*") and name != "*")
        for resource, name, operations in rows
        for operation in operations
    ]
