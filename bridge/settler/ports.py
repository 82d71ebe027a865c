"""What an owner of a queue is given: bounds, ports, and what its process remembers of the queue."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bridge.clock import Clock
from bridge.core.config import CheckTimes
from bridge.core.errors import QueueHalted
from bridge.core.horizon import HorizonConfig
from bridge.core.log_facts import Witness
from bridge.core.op_message import LogStart, LogTopics
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


class LogWatch(Protocol):
    """What this process knows of the internal topics beside their records."""

    async def identify(self) -> LogTopics:
        """The ids of the topics there are now. Raises StoreError, also where one is missing."""
        ...

    async def find_witness(self, queue_id: int) -> Witness | None:
        """What the projection has applied of the queue; None if it is not known now."""
        ...

    async def check_halts(self, queue_id: int) -> None:
        """Asks now. Raises QueueHalted for a queue whose halt is stored."""
        ...

    def check(self, queue_id: int, log: LogTopics | None) -> None:
        """As of the last look, without I/O. Raises QueueHalted for a stored halt, and where topics are not `log`."""
        ...

    async def store_halt(self, queue_id: int, halted: QueueHalted) -> None:
        """The halt stays until an operator's act, for everybody; it is kept here while the database is away."""
        ...


@dataclass(frozen=True, slots=True)
class SettlerPorts:
    """What an owner works with."""

    store: MessageStore
    owners: OwnerStore
    destinations: Destinations
    times_of: Callable[[str], CheckTimes]
    observer: SettlerObserver
    clock: Clock
    log: LogWatch


@dataclass(slots=True)
class QueueMemory:
    """What this process remembers of a queue across take-overs: only how to try, never what happened.

    `confirmed`: how far it knows the queue decided, to notice that the log has lost that.
    """

    schedule: BlockedSchedule = field(default_factory=BlockedSchedule)
    split_before: int = 0  # commits ending below are decided apart from being published
    park_not_before_ms: int = 0
    copy_not_before_ms: int = 0
    confirmed: Witness | None = None

    def confirm(self, s: int, log: LogTopics | None, start: LogStart, op_next: int) -> None:
        """A position with this S is committed; the op topic goes on behind it."""
        self.confirmed = None if log is None else Witness(s, log.half, log.op, start, op_next)


@dataclass(slots=True)
class QueueCounts:
    """What an owner did, for metrics and health."""

    records: int = 0
    batches: int = 0
    published: int = 0
    quarantined: int = 0
    put_backs: int = 0
    parked: int = 0
    abandoned: int = 0
