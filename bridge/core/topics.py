"""The internal topics and which names clients may use."""

import re
from dataclasses import dataclass

from bridge.core.errors import ConfigError

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
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

    def __post_init__(self) -> None:
        if not 1 <= self.queues <= MAX_QUEUES:
            raise ConfigError(f"queues must be 1..{MAX_QUEUES}")
        if len({self.half, self.op, self.parked}) != 3 or not all(
            is_legal_topic(name) for name in (self.half, self.op, self.parked)
        ):
            raise ConfigError("the three internal topics need three legal names")

    def transactional_id(self, queue_id: int, turn: int) -> str:
        """The transactional id of one of the two producers of a queue (`turn` 0 or 1)."""
        return f"{self.transactional_prefix}-{queue_id}-{turn}"


def with_prefix(prefix: str, queues: int = 4) -> InternalTopics:
    """Internal topics whose names, group and transactional ids all begin with `prefix`."""
    if not prefix:
        return InternalTopics(queues=queues)
    return InternalTopics(
        prefix + HALF_TOPIC, prefix + OP_TOPIC, prefix + PARKED_TOPIC, prefix + INTERNAL_GROUP,
        prefix + "outbox-bridge", queues,
    )  # fmt: skip


def is_legal_topic(name: str) -> bool:
    """Kafka's own rule for topic names."""
    return _LEGAL.fullmatch(name) is not None and name not in {".", ".."}


def is_reserved_topic(name: str, internal: InternalTopics) -> bool:
    """Whether clients may not write to the topic: any bridge's, Kafka's and its companions' own."""
    return name in {internal.half, internal.op, internal.parked} or _RESERVED.fullmatch(name) is not None
