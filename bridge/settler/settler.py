"""The settler: owns queues through a consumer group and settles them, each in a task of its own."""

import asyncio
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

import structlog

from bridge.core.check_rules import Backoff
from bridge.core.errors import (
    BatchOutcomeUnknown,
    ConfigError,
    QueueHalted,
    StoreError,
    StoreFenced,
    UnknownRecordVersion,
)
from bridge.core.topics import InternalTopics
from bridge.settler.batch import BatchTarget
from bridge.settler.owner import OwnedQueue
from bridge.settler.ports import SettlerConfig, SettlerPorts, SettleTimes
from bridge.settler.writer import QueueCounts, QueueMemory
from bridge.store.message_store import GroupChange, GroupMember

_LOG = structlog.get_logger()

_FIRST_BACKOFF_MS = 100
_LONGEST_BACKOFF_MS = 5_000
_HALTED_BACKOFF_MS = 10_000
_STEADY_MS = 10_000  # a queue that was held so long, and got on, is no longer in doubt
_STORED_HALT_MS = 2_000
_CONSUME_OFFSET_MS = 5_000
_STAND_BY_MS = 10_000


class Hold(Enum):
    """How an assigned queue stands."""

    TAKING_OVER = "taking-over"
    OWNED = "owned"
    HALTED = "halted"


@dataclass(slots=True)
class QueueStatus:
    """One assigned queue, for health and metrics."""

    hold: Hold = Hold.TAKING_OVER
    reason: str | None = None
    s: int = 0
    live: int = 0
    blocked: int = 0
    held_bytes: int = 0
    is_cut: bool = False
    journal_ms: int = 0
    take_overs: int = 0
    counts: QueueCounts = field(default_factory=QueueCounts)


class Settler:
    """All queues of this process. `run_forever` ends when `stop` was called and everything has been let go."""

    def __init__(
        self,
        topics: InternalTopics,
        owner: str,
        ports: SettlerPorts,
        config: SettlerConfig,
        *,
        has_id_header: bool = True,
    ) -> None:
        self._topics = topics
        self._owner = owner
        self._ports = ports
        self._config = config
        self._has_id_header = has_id_header
        self._memories: dict[int, QueueMemory] = {}
        self._held: dict[int, _Held] = {}
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self.status: dict[int, QueueStatus] = {}
        self._joined_at_ms: int | None = None
        self._marked: set[int] = set()
        self._refusal: ConfigError | None = None

    @property
    def times(self) -> SettleTimes:
        """How long the queues of this process took."""
        return self._ports.times

    @property
    def is_placed(self) -> bool:
        """Whether it has queues, or has been a member for so long that it stands by."""
        joined_at_ms = self._joined_at_ms
        if self.status or joined_at_ms is None:
            return bool(self.status)
        return self._ports.clock.monotonic_ms() - joined_at_ms > _STAND_BY_MS

    def stop(self) -> None:
        """Lets all queues go and ends `run_forever`."""
        self._stop.set()

    async def run_forever(self) -> None:
        """Joins the group, settles what it is given, joins again when membership is lost.

        Raises ConfigError where it must not settle at all.
        """
        backoff = Backoff(_FIRST_BACKOFF_MS, _LONGEST_BACKOFF_MS)
        noting = asyncio.create_task(self._put_consume_offsets())
        try:
            await self._run(backoff)
        finally:
            noting.cancel()
        if self._refusal is not None:
            raise self._refusal

    async def _run(self, backoff: Backoff) -> None:
        while not self._stop.is_set():
            member = self._ports.owners.join_group(self._topics.group, self._topics.half)
            self._joined_at_ms = self._ports.clock.monotonic_ms()
            try:
                await self._serve(member, backoff.reset)
            except StoreError as error:
                _LOG.warning("membership_lost", reason=str(error))
                await self._pause(_choose_pause_ms(backoff))
            finally:
                self._joined_at_ms = None
                self._release(member, list(self._held))
                await asyncio.gather(*self._leaving.values())
                await member.close()

    async def _put_consume_offsets(self) -> None:
        """Shows Kafka's lag tools how far the queues are; of the offsets nothing depends on it."""
        while True:
            await self._ports.clock.sleep_ms(_CONSUME_OFFSET_MS)
            for queue_id, status in list(self.status.items()):
                if status.hold is Hold.OWNED:
                    with suppress(StoreError):
                        await self._ports.mark.note(queue_id, status.s)

    async def _serve(self, member: GroupMember, on_change: Callable[[], None]) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                change = asyncio.create_task(member.next_change())
                await asyncio.wait({change, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not change.done():
                    change.cancel()
                    await asyncio.wait({change})
                    return
                self._follow(member, change.result())
                on_change()
        finally:
            stopped.cancel()

    def _follow(self, member: GroupMember, change: GroupChange) -> None:
        """Never waits: a queue that is stuck holds up no other."""
        self._release(member, [*change.revoked, *change.lost])
        for queue_id in change.gained:
            _LOG.info("queue_gained", queue=queue_id)
            held = self._held[queue_id] = _Held(queue_id, self._leaving.get(queue_id))
            self.status[queue_id] = held.status
            held.task = asyncio.create_task(self._hold(held, member), name=f"queue-{queue_id}")

    def _release(self, member: GroupMember, queue_ids: Collection[int]) -> None:
        for queue_id in queue_ids:
            held = self._held.pop(queue_id, None)
            if held is not None:
                held.let_go.set()
                self._leaving[queue_id] = asyncio.create_task(self._leave(held, member))
            elif queue_id not in self._leaving:
                member.release([queue_id])

    async def _leave(self, held: "_Held", member: GroupMember) -> None:
        """Waits until the queue has been let go, and says so."""
        queue_id = held.queue_id
        if held.task is not None:
            await asyncio.wait([held.task])
        if self.status.get(queue_id) is held.status:
            del self.status[queue_id]
        if self._leaving.get(queue_id) is asyncio.current_task():
            del self._leaving[queue_id]
        _LOG.info("queue_let_go", queue=queue_id)
        member.release([queue_id])

    async def _hold(self, held: "_Held", member: GroupMember) -> None:
        """Owns the queue until it is to be let go; after each doubt takes it over anew."""
        backoff = Backoff(_FIRST_BACKOFF_MS, _LONGEST_BACKOFF_MS)
        queue_id, let_go, status = held.queue_id, held.let_go, held.status
        if held.earlier is not None:
            await asyncio.wait([held.earlier])
        self._memories.setdefault(queue_id, QueueMemory()).doubted_ms = None  # another owner may have had it since
        while not let_go.is_set():
            try:
                await self._own(held, member, backoff)
                pause_ms = 0
            except (QueueHalted, UnknownRecordVersion) as error:
                status.hold, status.reason = Hold.HALTED, str(error)
                pause_ms = await self._note_halt(queue_id, error, backoff)
            except ConfigError as error:
                status.hold, status.reason = Hold.HALTED, str(error)
                self._refusal = error
                self.stop()
                return
            except StoreError as error:
                status.hold, status.reason = Hold.TAKING_OVER, str(error)
                _LOG.warning("queue_dropped", queue=queue_id, error=type(error).__name__, reason=str(error))
                is_slow = not isinstance(error, BatchOutcomeUnknown) or isinstance(error, StoreFenced)
                pause_ms = _choose_pause_ms(backoff, is_slow=is_slow)
            except Exception:  # noqa: BLE001 - a bug in one queue must not stop the others
                status.hold, status.reason = Hold.TAKING_OVER, "internal error"
                _LOG.exception("queue_failed", queue=queue_id)
                pause_ms = _choose_pause_ms(backoff)
            if pause_ms:
                await self._pause(pause_ms, let_go)

    async def _note_halt(self, queue_id: int, error: QueueHalted | UnknownRecordVersion, backoff: Backoff) -> int:
        """How long to pause. What the log lacks is stored; a reader's surprise is looked at anew soon."""
        _LOG.critical("queue_halted", queue=queue_id, reason=str(error))
        if isinstance(error, UnknownRecordVersion):
            return _HALTED_BACKOFF_MS
        if error.kind is None:
            return _choose_pause_ms(backoff)
        await self._ports.log.store_halt(queue_id, error)
        return _STORED_HALT_MS

    async def _own(self, held: "_Held", member: GroupMember, backoff: Backoff) -> None:
        queue_id, status, let_go = held.queue_id, held.status, held.let_go
        memory = self._memories[queue_id]
        target = BatchTarget(self._topics, queue_id, self._owner, self._has_id_header)
        queue = OwnedQueue(target, self._ports, self._config, memory, status.counts)
        try:
            if not member.is_owned(queue_id):
                await self._pause(_FIRST_BACKOFF_MS, let_go)
                return
            await queue.recover()
            if queue_id not in self._marked and self._ports.mark.is_on:
                await self._ports.mark.note(queue_id, queue.state.s)
                self._marked.add(queue_id)
            status.take_overs += 1
            status.hold, status.reason = Hold.OWNED, None
            owned_at_ms = self._ports.clock.monotonic_ms()
            _LOG.info("queue_taken_over", queue=queue_id, s=queue.state.s, live=queue.state.live_count)
            while not let_go.is_set():
                result = await queue.run_once()
                self._note(status, queue)
                if result.records and self._ports.clock.monotonic_ms() - owned_at_ms >= _STEADY_MS:
                    backoff.reset()
        finally:
            self._note(status, queue)
            await queue.close()

    @staticmethod
    def _note(status: QueueStatus, queue: OwnedQueue) -> None:
        state = queue.state
        status.s, status.journal_ms, status.live = state.s, state.journal_ms, state.live_count
        status.blocked = sum(map(len, state.blocked_queues.values()))
        status.held_bytes, status.is_cut = queue.held_bytes, state.is_cut

    async def _pause(self, duration_ms: int, until: asyncio.Event | None = None) -> None:
        waits = {asyncio.create_task(self._ports.clock.sleep_ms(duration_ms)), asyncio.create_task(self._stop.wait())}
        if until is not None:
            waits.add(asyncio.create_task(until.wait()))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


@dataclass(slots=True, eq=False)
class _Held:
    """A queue that was given to this process. `earlier`: it came back before it was let go, so that comes first."""

    queue_id: int
    earlier: "asyncio.Task[None] | None"
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    status: QueueStatus = field(default_factory=QueueStatus)
    task: "asyncio.Task[None] | None" = None


def _choose_pause_ms(backoff: Backoff, *, is_slow: bool = True) -> int:
    """With jitter, so that two settlers do not fence each other in step; `is_slow` not: the first nearly at once."""
    pause_ms = backoff.next_ms()
    if not is_slow and pause_ms == _FIRST_BACKOFF_MS:
        return pause_ms // 4
    return random.randint(pause_ms // 2, pause_ms)  # noqa: S311 - no secret
