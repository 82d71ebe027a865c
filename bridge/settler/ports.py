"""What an owner of a queue is given: bounds, ports, and what its process remembers of the queue."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.clock import Clock
from bridge.core.config import CheckTimes
from bridge.core.horizon import HorizonConfig
from bridge.settler.blocked import BlockedSchedule
from bridge.settler.destinations import Destinations
from bridge.settler.observer import SettlerObserver
from bridge.store.message_store import MessageStore, OwnerStore


@dataclass(frozen=True, slots=True)
class SettlerConfig:
    """Bounds of a settler's work, per queue unless said otherwise."""

    max_batch_records: int = 2_000
    max_batch_bytes: int = 16 * 1024 * 1024  # of bodies that one Kafka transaction needs; a larger one goes alone
    max_body_bytes: int = 64 * 1024 * 1024  # of bodies that are kept because they may be needed
    position_delay_ms: int = 100  # a batch without effects moves S at latest after this
    idle_wait_ms: int = 200  # what the checker asks for is seen at latest after this
    idle_position_ms: int = 86_400_000
    idle_note_ms: int = 60_000  # how far journal time stays behind Kafka's while nothing is appended
    max_put_backs: int = 1_000
    max_parks: int = 500
    park_backoff_ms: int = 5_000
    horizon: HorizonConfig = field(default_factory=HorizonConfig)


@dataclass(frozen=True, slots=True)
class SettlerPorts:
    """What an owner works with."""

    store: MessageStore
    owners: OwnerStore
    destinations: Destinations
    times_of: Callable[[str], CheckTimes]
    observer: SettlerObserver
    clock: Clock


@dataclass(slots=True)
class QueueMemory:
    """What this process remembers of a queue across take-overs: only how to try, never what happened."""

    schedule: BlockedSchedule = field(default_factory=BlockedSchedule)
    split_before: int = 0  # commits ending below are decided apart from being published
    park_not_before_ms: int = 0
    copy_not_before_ms: int = 0


@dataclass(slots=True)
class QueueCounts:
    """What an owner did, for metrics and health."""

    records: int = 0
    batches: int = 0
    published: int = 0
    quarantined: int = 0
    put_backs: int = 0
    parked: int = 0
