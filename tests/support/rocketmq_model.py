"""RocketMQ's transactional messages in miniature, on a virtual clock: one broker, its store, its check loop.

Modelled as rocketmq-semantics describes it: a commit puts the final message, then an op record that waits in memory;
the half is found by its position, its end is never looked at; a put back raises the counter before anybody is chosen;
the discard's put result is ignored; a write that is not flushed counts as success. Where the model is simpler it is
kinder than the original: cursors are always on disk, op records are all read again in each round, checks are
answered at once. Times have the proportions of the original's defaults, scaled to a timeout of one second.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD = "TRANS_CHECK_MAX_TIME_TOPIC"
STEP_MS = 100


class PutStatus(Enum):
    """The store's answers that matter here."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"


class Response(Enum):
    """What an end request is answered; NONE: the broker died."""

    SUCCESS = "SUCCESS"
    ILLEGAL_OPERATION = "ILLEGAL_OPERATION"
    SYSTEM_ERROR = "SYSTEM_ERROR"
    NONE = "NONE"


class Resolution(Enum):
    """commitOrRollback."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


@dataclass(frozen=True)
class Stored:
    """One message. `prepared_at`: TRAN_PREPARED_QUEUE_OFFSET, the original's offset in a copy made in immunity."""

    body: str
    real_topic: str = ""
    group: str = ""
    born_ms: int = 0
    check_times: int = 0
    immunity_ms: int | None = None
    prepared_at: int | None = None


class Entry(NamedTuple):
    """A place in the commit log."""

    topic: str
    message: Stored


@dataclass
class CommitLog:
    """All topics of a broker in one log; a loss of power takes what was not flushed."""

    entries: list[Entry] = field(default_factory=list)
    flushed: int = 0
    is_flushing: bool = True
    refusing: set[str] = field(default_factory=set)

    def put(self, topic: str, message: Stored) -> PutStatus:
        """Appends; tells whether it was flushed in time."""
        if topic in self.refusing:
            return PutStatus.SERVICE_NOT_AVAILABLE
        self.entries.append(Entry(topic, message))
        if not self.is_flushing:
            return PutStatus.FLUSH_DISK_TIMEOUT
        self.flushed = len(self.entries)
        return PutStatus.PUT_OK

    def queue(self, topic: str) -> list[Stored]:
        """The one queue of a topic."""
        return [entry.message for entry in self.entries if entry.topic == topic]

    def lose_power(self) -> None:
        """What was only in the page cache is gone."""
        del self.entries[self.flushed :]
        self.is_flushing = True


@dataclass(frozen=True)
class RocketSettings:
    """BrokerConfig, scaled: defaults are 6 s, 30 s, 15, 3 s."""

    timeout_ms: int = 1_000
    interval_ms: int = 1_000
    check_max: int = 15
    op_interval_ms: int = 500


class Half(NamedTuple):
    """Where a half message lies; an end request carries it, and nothing else is looked at."""

    offset: int
    body: str


Listener = Callable[[str], Resolution]


class RocketBroker:
    """The broker. `advance` lets time pass; `die_after_publishing` and `crash` are what can happen to it."""

    def __init__(self, settings: RocketSettings) -> None:
        self.settings = settings
        self.log = CommitLog()
        self.now_ms = 0
        self.producers: dict[str, Listener] = {}
        self.asked: list[str] = []  # bodies, in the order of the checks
        self.is_alive = True
        self.die_after_publishing = False
        self._op_buffer: list[int] = []
        self._op_flush_at_ms: int | None = None
        self._half_cursor = 0
        self._round_at_ms = settings.interval_ms

    def prepare(self, group: str, topic: str, body: str, immunity_ms: int | None = None) -> Half:
        """The half message, under another topic."""
        half = Stored(body, topic, group, self.now_ms, immunity_ms=immunity_ms)
        assert self.log.put(HALF, half) is PutStatus.PUT_OK
        return Half(len(self.log.queue(HALF)) - 1, body)

    def end(self, half: Half, resolution: Resolution, *, is_from_check: bool = False) -> Response:
        """EndTransactionProcessor: final message, then op message."""
        if not self.is_alive:
            return Response.NONE
        message = self.log.queue(HALF)[half.offset]
        if not is_from_check and message.immunity_ms is not None:
            age_ms = self.now_ms - message.born_ms
            if age_ms > max(message.immunity_ms, self.settings.timeout_ms):
                return Response.ILLEGAL_OPERATION
        if resolution is Resolution.UNKNOWN:
            return Response.NONE
        if resolution is Resolution.COMMIT:
            status = self.log.put(message.real_topic, Stored(message.body))
            if status is PutStatus.SERVICE_NOT_AVAILABLE:
                return Response.SYSTEM_ERROR
            if self.die_after_publishing:
                self.is_alive = False
                return Response.NONE
        self._buffer_op(half.offset)
        return Response.SUCCESS  # also for FLUSH_DISK_TIMEOUT

    def crash(self, *, is_power_lost: bool = False) -> None:
        """Dies, whatever it was doing, and starts again: memory is gone."""
        self._op_buffer = []
        self._op_flush_at_ms = None
        self.is_alive, self.die_after_publishing = True, False
        if is_power_lost:
            self.log.lose_power()

    def advance(self, duration_ms: int) -> None:
        """Lets time pass; timers fire in their order."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + STEP_MS)
            if self._op_flush_at_ms is not None and self.now_ms >= self._op_flush_at_ms:
                self._flush_ops()
            if self.now_ms >= self._round_at_ms:
                self._check_round()
                self._round_at_ms = self.now_ms + self.settings.interval_ms

    # --- op messages ---

    def _buffer_op(self, half_offset: int) -> None:
        self._op_buffer.append(half_offset)
        if self._op_flush_at_ms is None:
            self._op_flush_at_ms = self.now_ms + self.settings.op_interval_ms

    def _flush_ops(self) -> None:
        self.log.put(OP, Stored("".join(f"{offset}," for offset in self._op_buffer)))
        self._op_buffer = []
        self._op_flush_at_ms = None

    def _closed(self) -> set[int]:
        bodies = [op.body for op in self.log.queue(OP)]
        return {int(offset) for body in bodies for offset in body.split(",") if offset}

    # --- the check loop ---

    def _check_round(self) -> None:
        """TransactionalMessageServiceImpl.check for the one queue."""
        closed, halves = self._closed(), self.log.queue(HALF)  # copies made below lie behind this round
        place = self._half_cursor
        while place < len(halves):
            half = halves[place]
            if place not in closed and half.prepared_at not in closed and not self._examine(place, half):
                break
            place += 1
        self._half_cursor = place

    def _examine(self, place: int, half: Stored) -> bool:
        """One half that is not closed; False ends the round."""
        if half.check_times >= self.settings.check_max:
            self.log.put(DISCARD, half)  # whatever the store says
            return True
        counted = replace(half, check_times=half.check_times + 1)
        age_ms = self.now_ms - half.born_ms
        if half.immunity_ms is not None:
            if age_ms < half.immunity_ms:
                prepared_at = place if half.prepared_at is None else half.prepared_at
                self.log.put(HALF, replace(counted, prepared_at=prepared_at))
                return True
        elif age_ms < self.settings.timeout_ms:
            return False
        if self.log.put(HALF, counted) is PutStatus.SERVICE_NOT_AVAILABLE:
            return False
        self._ask(Half(len(self.log.queue(HALF)) - 1, half.body), half.group)
        return True

    def _ask(self, copy: Half, group: str) -> None:
        """Any member of the group; nobody there is only a warning."""
        listener = self.producers.get(group)
        if listener is not None:
            self.asked.append(copy.body)
            self.end(copy, listener(copy.body), is_from_check=True)
