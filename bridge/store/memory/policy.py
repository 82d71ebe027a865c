"""A topic's settings in Kafka's names, and the rules made of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.store.memory.errors import BrokerError, Code

_FOR_EVER = str(2**63 - 1)
DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": _FOR_EVER,
    "flush.ms": _FOR_EVER,
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": _FOR_EVER,
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": _FOR_EVER,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
_POLICIES = {"delete", "compact"}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Which records a topic takes."""

    max_message_bytes: int
    is_log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    is_key_required: bool


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What a topic forgets, and when."""

    is_compacted: bool
    is_deleted: bool
    retention_ms: int
    retention_bytes: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    segment_ms: int
    segment_bytes: int


def complete_config(config: Mapping[str, str]) -> dict[str, str]:
    """All settings of a topic. Raises BrokerError for a name or policy that Kafka does not know."""
    merged = {**DEFAULTS, **config}
    policies = set(merged["cleanup.policy"].replace(" ", "").split(","))
    if len(merged) != len(DEFAULTS) or not policies <= _POLICIES:
        raise BrokerError(Code.INVALID_CONFIG)
    return merged


def make_acceptance(config: Mapping[str, str]) -> Acceptance:
    """The rules for records, of a complete config."""
    return Acceptance(
        max_message_bytes=int(config["max.message.bytes"]),
        is_log_append_time=config["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=int(config["message.timestamp.before.max.ms"]),
        timestamp_after_max_ms=int(config["message.timestamp.after.max.ms"]),
        is_key_required="compact" in config["cleanup.policy"],
    )


def make_cleaning(config: Mapping[str, str]) -> Cleaning:
    """The rules for forgetting, of a complete config. A compacted topic's segments also end with the largest lag."""
    is_compacted = "compact" in config["cleanup.policy"]
    segment_ms = int(config["segment.ms"])
    return Cleaning(
        is_compacted=is_compacted,
        is_deleted="delete" in config["cleanup.policy"],
        retention_ms=int(config["retention.ms"]),
        retention_bytes=int(config["retention.bytes"]),
        delete_retention_ms=int(config["delete.retention.ms"]),
        min_compaction_lag_ms=int(config["min.compaction.lag.ms"]),
        segment_ms=min(segment_ms, int(config["max.compaction.lag.ms"])) if is_compacted else segment_ms,
        segment_bytes=int(config["segment.bytes"]),
    )
