"""Ports of a queue's owner, and what the checker is notified of."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bridge.clock import Clock, OwnerTime
from bridge.core.check_rules import CheckTimes
from bridge.core.errors import StoreError
from bridge.core.measures import Durations
from bridge.core.message import MessageQueue, Receipt
from bridge.core.pending_table import PendingTable
from bridge.core.position import LowWatermarkConfig
from bridge.core.transaction import Transaction
from bridge.log_watch import LogWatch, StableOffsetWatch
from bridge.settler.bodies import KnownTopics, Loaded
from bridge.store.message_store import LoadedHalf, MessageStore, OwnerStore
from bridge.store.op_topic import DatabaseMark


class _Noted(NamedTuple):
    at_ms: int
    maximum: int


class QueueEnd:
    """Notes the end of a journal queue when asked, beside the settling, and says when it has been read."""

    def __init__(
        self, store: MessageStore, queue: MessageQueue, time: OwnerTime, stable_offsets: StableOffsetWatch
    ) -> None:
        self._store = store
        self._queue = queue
        self._time = time
        self._stable_offsets = stable_offsets
        self._is_wanted = False
        self._noting: asyncio.Task[None] | None = None
        self._noted: _Noted | None = None
        self.read_through_ms = 0

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for `read_through_ms` to rise."""
        return self._is_wanted or self._noted is not None or self._noting is not None

    def ask(self) -> None:
        """Asks for the end to be noted soon."""
        self._is_wanted = True

    def follow(self, s: int) -> None:
        """All records below `s` have been decided."""
        if self._noting is not None and self._noting.done():
            self._noting = None
        if self._noted is not None and s >= self._noted.maximum:
            self.read_through_ms = max(self.read_through_ms, self._noted.at_ms)
            self._noted = None
        if self._is_wanted and self._noted is None and self._noting is None:
            self._is_wanted = False
            self._noting = asyncio.create_task(self._note())

    def close(self) -> None:
        """Stops noting."""
        if self._noting is not None:
            self._noting.cancel()

    async def _note(self) -> None:
        at_ms = self._time.now_ms()
        try:
            maximum = (await self._store.get_offsets(self._queue)).maximum
        except StoreError:
            self._is_wanted = True
            return
        self._noted = _Noted(at_ms, maximum)
        if maximum:
            self._stable_offsets.note([Receipt(*self._queue, maximum - 1)])  # nobody is told of a reader that waits


class QueueOwner(Protocol):
    """A queue held by the settler in this process, as the checker sees it."""

    @property
    def queue_id(self) -> int:
        """The queue."""
        ...

    def now_ms(self) -> int:
        """Kafka's time: newest append time seen + monotonic time since."""
        ...

    def note_end(self) -> None:
        """Asks the owner to note the queue's end, so that `read_through_ms` can pass the present moment."""
        ...

    def read_through_ms(self) -> int:
        """The queue has been read to its end as noted at this moment of Kafka's time."""
        ...

    async def get_bodies(self, transactions: Sequence[Transaction], max_bytes: int) -> Loaded:
        """Bodies from memory or re-read: of the first that weigh at most `max_bytes` together, of one at least."""
        ...

    def park(self, reasons: Mapping[str, str]) -> None:
        """Asks the owner to park transactions (id -> why); it does so if they are still PREPARED."""
        ...


class SettlerObserver(Protocol):
    """Notified after the Kafka transaction that made it a fact has been committed. Never blocks."""

    def queue_taken(self, owner: QueueOwner, prepared: Iterable[Transaction], rows: PendingTable) -> None:
        """A queue was taken over; these are its PREPARED transactions. The `rows` go on changing: copy them."""
        ...

    def prepared(self, queue_id: int, transactions: Sequence[Transaction], read_monotonic_ms: int) -> None:
        """PREPARED transactions, new or changed (counted answer, resumed, asked for); read live at that moment."""
        ...

    def ended(self, queue_id: int, transaction_ids: Sequence[str]) -> None:
        """Transactions that are no longer PREPARED."""
        ...

    def queue_released(self, queue_id: int) -> None:
        """The queue is not ours any more: forget it, let calls in flight append their answers."""
        ...


class SettleTracer(Protocol):
    """Notified of each Kafka transaction that published something. Never blocks."""

    def published(self, queue_id: int, halves: Sequence[LoadedHalf], duration_ms: int) -> None:
        """These half messages are published; the Kafka transaction took so long."""
        ...


@dataclass(frozen=True, slots=True)
class SettlerConfig:
    """Bounds of a settler's work, per queue unless said otherwise."""

    max_batch_records: int = 2_000
    max_batch_bytes: int = 16 * 1024 * 1024  # of bodies that one Kafka transaction needs; a larger one goes alone
    max_body_bytes: int = 64 * 1024 * 1024  # of bodies that are kept because they may be needed
    position_delay_ms: int = 100  # a batch without effects moves S at latest after this
    gather_ms: int = 6  # between the beginnings of two Kafka transactions of which the first had many commits
    many_commits: int = 16
    unawaited_gather_ms: int = 30  # the same, after commits of which no caller waits to hear
    gather_bytes: int = 1024 * 1024  # no more is read beside so much
    idle_wait_ms: int = 200  # what the checker asks for is seen at latest after this
    idle_position_ms: int = 86_400_000
    idle_note_ms: int = 60_000  # how far journal time stays behind Kafka's while nothing is appended
    max_carried: int = 1_000
    max_parks: int = 500
    park_backoff_ms: int = 5_000
    horizon: LowWatermarkConfig = field(default_factory=LowWatermarkConfig)


@dataclass(frozen=True, slots=True)
class SettleTimes:
    """How long the owners of a process took, by Kafka's clock. `settle`: from the append of an end record to when
    what follows from it is written; `publish`: from a commit to when its messages can be read, blocked or not."""

    settle: Durations = field(default_factory=Durations)
    publish: Durations = field(default_factory=Durations)


@dataclass(frozen=True, slots=True)
class SettlerPorts:
    """What an owner works with, and the times that all owners of a process measure together."""

    store: MessageStore
    owners: OwnerStore
    destinations: KnownTopics
    times_of: Callable[[str], CheckTimes]
    observer: SettlerObserver
    clock: Clock
    log: LogWatch
    stable_offsets: StableOffsetWatch
    mark: DatabaseMark
    times: SettleTimes = field(default_factory=SettleTimes)
    tracer: SettleTracer | None = None
