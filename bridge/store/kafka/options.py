"""Options of the Kafka clients: what the user may choose, and what the bridge's promises rest on."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, ThrottleEvent

from bridge.core.errors import ConfigError

_LOG = structlog.get_logger()
OptionValue = str | int | float | bool
ProducerFactory = Callable[[dict[str, Any]], Producer]

CLIENT_LOG = logging.getLogger(__name__)
CLIENT_LOG.addHandler(logging.NullHandler())  # a command that sets no logging up says itself what failed
POLL_S = 0.05  # no call into a client waits longer for something that may never come

_EVERY_CLIENT: Mapping[str, OptionValue] = {
    "connections.max.idle.ms": 540_000,  # below the broker's 10 minutes, so that we are the one to close
    "log.connection.close": False,
    "reconnect.backoff.max.ms": 1_000,  # default: 10 s; the broker is to be found again soon
    # Default: 30 s, for which a client that tries a dead address of a name reaches none of its others. A lost SYN is
    # repeated after 1 s and 3 s.
    "socket.connection.setup.timeout.ms": 4_000,
    "allow.auto.create.topics": False,
    # Connect to all brokers at once. Otherwise the first request of a client waits until the suppression of
    # further connections ends: 1 s with a reconnect back-off of 4 s, and a take-over makes two such clients.
    "enable.sparse.connections": False,
}


_HELD_BACK_S = 60.0


class HeldBack:
    """How long brokers hold back requests of a process, as they do by a quota: nothing else tells of one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until = 0.0
        self._ms = 0

    def find_ms(self) -> int:
        """Milliseconds of the last request that was; 0 if none was for a minute."""
        return self._ms if self._now() < self._until else 0

    def note(self, event: ThrottleEvent) -> None:
        """librdkafka's `throttle_cb`; called in the threads that poll."""
        if event.throttle_time <= 0:
            return
        is_new, self._ms = not self.find_ms(), max(1, round(event.throttle_time * 1_000))
        self._until = self._now() + _HELD_BACK_S
        if is_new:
            _LOG.warning("kafka_quota_reached", broker=event.broker_name, held_back_ms=self._ms)


class OptionFiles:
    """The files that options name. A client reads them when it is made, and many live as long as the process."""

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        paths = [Path(str(value)) for name, value in options.items() if name.endswith(".location")]
        self._written = {path: _find_written(path) for path in paths}

    def find_renewed(self) -> list[str]:
        """Paths of those that were written since the process began."""
        return [str(path) for path, written in self._written.items() if _find_written(path) not in {written, None}]


def _find_written(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def find_warning(held_back: HeldBack, files: OptionFiles) -> str:
    """What does not stop the clients yet; empty if nothing."""
    if held_ms := held_back.find_ms():
        return f"Kafka held back a request for {held_ms} ms: raise the quota of the bridge's user or client ids"
    if renewed := files.find_renewed():
        return f"{', '.join(renewed)}: renewed since this process began, which uses what was read then: restart it"
    return ""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Settings of all clients of a process. `options`: librdkafka's, such as `bootstrap.servers` and security."""

    options: Mapping[str, OptionValue]
    client_id: str = "outbox-bridge"
    linger_ms: float = 5.0  # of many records appended at once; few are sent at once
    message_timeout_ms: int = 30_000  # plain puts; callers have deadlines of their own
    max_message_bytes: int = 64 * 1024 * 1024  # topics set the limits, not this client
    read_timeout_ms: int = 5_000
    call_timeout_ms: int = 2_000  # every transactional call
    session_timeout_ms: int = 6_000
    instance_id: str | None = None
    release_timeout_ms: int = 5_000  # a rebalance waits at most so long for queues to be let go
    held_back: HeldBack = field(default_factory=HeldBack, compare=False)

    def __post_init__(self) -> None:
        if not self.options.get("bootstrap.servers"):
            raise ConfigError("bootstrap.servers is not set")
        if self.call_timeout_ms >= TRANSACTION_TIMEOUT_MS:
            raise ConfigError(f"call_timeout_ms must be below {TRANSACTION_TIMEOUT_MS}")


TRANSACTION_TIMEOUT_MS = 10_000

# What promises rest on: a value of the user's would be passed over without a word.
OWNED = frozenset({
    "acks", "auto.offset.reset", "batch.size", "delivery.timeout.ms", "enable.auto.commit", "enable.auto.offset.store",
    "enable.idempotence", "enable.partition.eof", "group.id", "group.instance.id", "group.protocol",
    "heartbeat.interval.ms", "isolation.level", "message.max.bytes", "message.timeout.ms",
    "partition.assignment.strategy", "partitioner", "request.required.acks", "session.timeout.ms",
    "transaction.timeout.ms", "transactional.id",
})  # fmt: skip


def check_user_options(options: Mapping[str, OptionValue]) -> None:
    """Raises ConfigError for what the bridge owns, and for what librdkafka does not know or cannot use."""
    owned = sorted(OWNED & options.keys())
    if owned:
        raise ConfigError(f"kafka.{owned[0]} is the bridge's own: its promises rest on it; take it out")
    tried = {name: value for name, value in options.items() if name != "bootstrap.servers"}  # connects to nobody
    try:
        Producer({**tried, "logger": CLIENT_LOG})
    except (KafkaException, TypeError, ValueError) as error:
        told = error.args[0] if error.args else error
        raise ConfigError(f"[kafka]: {told.str() if isinstance(told, KafkaError) else told}") from error


@dataclass(slots=True)
class ClientErrors:
    """What a client complained of last, for health. A client says so itself when it is lost for good: `fatal`.

    `last_error`: None again once something has worked.
    """

    last_error: str | None = None
    last_error_monotonic_ms: int = 0
    fatal: KafkaError | None = None
    codes: set[int] = field(default_factory=set)

    def note(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`; called in the thread that polls."""
        if self.last_error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - says less
            self.last_error = f"{error.name()}: {error.str()}"
        self.last_error_monotonic_ms = time.monotonic_ns() // 1_000_000
        self.codes.add(error.code())
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 - the client's public name for it
            self.fatal = error


def _merge(
    config: KafkaConfig,
    errors: ClientErrors,
    role: str,
    chosen: Mapping[str, OptionValue],
    fixed: Mapping[str, OptionValue],
) -> dict[str, Any]:
    """`chosen` gives way to the user's options, `fixed` does not."""
    named = {"client.id": f"{config.client_id}-{role}"}
    callbacks = {"error_cb": errors.note, "throttle_cb": config.held_back.note, "logger": CLIENT_LOG}
    return {**_EVERY_CLIENT, **named, **chosen, **config.options, **fixed, **callbacks}


class Manner(Enum):
    """How a producer of half messages and ends fills its requests."""

    PROMPT = "append"  # sends at once; what comes while a request is on its way goes with the next
    GATHERED = "append-gathered"  # waits a moment first: each request costs as much as dozens of messages
    BULK = "append-bulk"  # waits a little for fuller requests
    ALONE = "append-alone"  # one message a request


def append_options(config: KafkaConfig, errors: ClientErrors, manner: Manner = Manner.PROMPT) -> dict[str, Any]:
    """The idempotent producer of half messages and ends."""
    filling: Mapping[Manner, Mapping[str, OptionValue]] = {
        Manner.PROMPT: {"linger.ms": 0, "max.in.flight.requests.per.connection": 1},
        Manner.GATHERED: {"linger.ms": 2, "max.in.flight.requests.per.connection": 1},
        Manner.BULK: {"linger.ms": config.linger_ms},
        Manner.ALONE: {"linger.ms": 0, "batch.num.messages": 1},
    }
    chosen: dict[str, OptionValue] = {
        **filling[manner],
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": 262_144,
        "topic.metadata.propagation.max.ms": 3_000,  # so long an unknown topic may still be a new one
        "topic.metadata.refresh.interval.ms": 10_000,
    }
    fixed: dict[str, OptionValue] = {
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": config.message_timeout_ms,
        "message.max.bytes": config.max_message_bytes,
        "partitioner": "murmur2_random",  # Java's, should a message ever come without a queue id
    }
    return _merge(config, errors, manner.value, chosen, fixed)


def transaction_options(
    config: KafkaConfig, errors: ClientErrors, transactional_id: str, batch_bytes: int
) -> dict[str, Any]:
    """One transactional producer of a queue."""
    chosen: dict[str, OptionValue] = {
        "linger.ms": 5,  # a batch is flushed, which ends the wait; until then records gather
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": 131_072,  # far more than a batch may hold
        "topic.metadata.propagation.max.ms": 1_000,  # a missing topic is named before the call times out
        "topic.metadata.refresh.interval.ms": 10_000,
    }
    fixed: dict[str, OptionValue] = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "message.max.bytes": config.max_message_bytes,
        "batch.size": batch_bytes,
        # A retry of EndTxn that nobody sees could act on the producer's next Kafka transaction (KAFKA-17754).
        # With these, and calls that give up after 2 s, such a retry comes too late to be hidden. The reconnect
        # back-off counts from the connection's beginning: it does nothing for one that is older.
        "socket.timeout.ms": 10_000,
        "retry.backoff.ms": 4_000,
        "retry.backoff.max.ms": 4_000,
        "reconnect.backoff.ms": 4_000,
        "reconnect.backoff.max.ms": 4_000,
        "partitioner": "murmur2_random",
    }
    return _merge(config, errors, transactional_id, chosen, fixed)


_READS: Mapping[str, OptionValue] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,  # its offset is the only sign of markers at the end
}


def reader_options(config: KafkaConfig, errors: ClientErrors) -> dict[str, Any]:
    """A consumer that follows one queue."""
    chosen: dict[str, OptionValue] = {
        "group.id": f"{config.client_id}-reader",  # wanted by the client, never joined
        "fetch.wait.max.ms": 100,  # new records and moved ends of Kafka transactions answer at once
        # a pause while the local queue is full: the default, a second, starves the reader; with none the client spins
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": 8_192,
        "socket.timeout.ms": 10_000,  # default: a minute, for which a queue stands still behind a deaf connection
        "topic.metadata.propagation.max.ms": 5_000,
        "topic.metadata.refresh.interval.ms": 10_000,
    }
    return _merge(config, errors, "reader", chosen, _READS)


def look_up_options(config: KafkaConfig, errors: ClientErrors) -> dict[str, Any]:
    """A consumer for reads at any offset: 0.6 ms each, against 500 ms with defaults."""
    chosen: dict[str, OptionValue] = {
        "group.id": f"{config.client_id}-reader",
        "fetch.wait.max.ms": 1,  # it is assigned only while it is read: an end is reported at once
        "fetch.queue.backoff.ms": 0,
        "queued.min.messages": 1,
        "queued.max.messages.kbytes": 8_192,
        "max.partition.fetch.bytes": 131_072,
        "topic.metadata.propagation.max.ms": 3_000,
    }
    return _merge(config, errors, "look-up", chosen, _READS)


def member_options(config: KafkaConfig, errors: ClientErrors, group: str) -> dict[str, Any]:
    """A consumer that shares out queues and never fetches."""
    chosen: dict[str, OptionValue] = {
        "fetch.wait.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 10_000,
        "socket.timeout.ms": 10_000,  # default: a minute, for which a deaf connection keeps it out of the group
    }
    fixed: dict[str, OptionValue] = {
        "group.id": group,
        "group.protocol": "classic",  # the newer one lets the broker set the session's length, 45 s by default
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": config.session_timeout_ms,
        "heartbeat.interval.ms": max(config.session_timeout_ms // 12, 100),  # so soon a member learns of a rebalance
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }
    if config.instance_id is not None:
        fixed["group.instance.id"] = config.instance_id
    return _merge(config, errors, "member", chosen, fixed)


def group_options(config: KafkaConfig, errors: ClientErrors, group: str) -> dict[str, Any]:
    """A consumer that asks for the group's offsets and never joins it."""
    fixed: dict[str, OptionValue] = {
        "group.id": group,
        "isolation.level": "read_uncommitted",  # or an offset in an open Kafka transaction holds up the answer
        "enable.auto.commit": False,
    }
    return _merge(config, errors, "group", {}, fixed)


def admin_options(config: KafkaConfig, errors: ClientErrors) -> dict[str, Any]:
    """The client for metadata, offsets and topics."""
    return _merge(config, errors, "admin", {"socket.timeout.ms": 10_000}, {})
