"""Writes what an owner decides: one Kafka transaction at a time, after which its state and the log agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bridge.clock import OwnerTime
from bridge.core.errors import HaltKind, QueueHalted
from bridge.core.message import Receipt
from bridge.core.op_message import LogStart, LogTopics
from bridge.core.position import Witness
from bridge.core.queue_state import QueueState, RecoveredState
from bridge.core.transaction import PARKED, PREPARED, Transaction
from bridge.core.transition import LogPosition
from bridge.fault_points import FaultPoint, reach
from bridge.settler.batch import BatchTarget, QueueBatch
from bridge.settler.blocked import BlockedSchedule
from bridge.settler.bodies import Bodies, LoadedHalves
from bridge.settler.ports import SettlerConfig, SettlerPorts
from bridge.store.message_store import BatchKind, BatchWriter, LoadedHalf


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
    doubted_ms: int | None = None  # since when each take-over finds that the log is not what was left

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
    missing: int = 0  # journal offsets without a record: nobody has read what was there
    carried: int = 0
    parked: int = 0
    abandoned: int = 0
    overruled: int = 0


class QueueWriter:
    """The state of one queue, the bodies it needs, and the way of both into the log."""

    def __init__(
        self, target: BatchTarget, ports: SettlerPorts, config: SettlerConfig, memory: QueueMemory, counts: QueueCounts
    ) -> None:
        self.target = target
        self.time = OwnerTime(ports.clock)
        self.state = QueueState(ports.times_of, config.horizon)
        self.bodies = Bodies(
            ports.store, target.topics, target.queue_id, config.max_body_bytes, config.max_batch_bytes,
            config.horizon.max_objects,
        )  # fmt: skip
        self._ports = ports
        self._config = config
        self._memory = memory
        self._counts = counts
        self._writer: BatchWriter | None = None
        self._written_s = -1
        self._written_at_ms = 0
        self.began_at_ms = 0
        """When the last Kafka transaction began, by the monotonic clock."""
        self.commits = 0
        """How many transactions it published."""
        self.is_awaited = False
        """Whether a caller waited to hear what it decided."""
        self._moved_at_ms: int | None = None  # since when S is ahead of what is written

    @property
    def is_ahead(self) -> bool:
        """Whether S has moved since it was written."""
        return self.state.s != self._written_s

    async def fence(self) -> None:
        """Fences the last owner. Raises StoreError."""
        topics, queue_id = self.target.topics, self.target.queue_id
        ids = (topics.transactional_id(queue_id, 0), topics.transactional_id(queue_id, 1))
        self._writer = self._ports.owners.open_writer(ids)
        reach(FaultPoint.TAKE_OVER_BEGUN)
        await self._writer.fence()

    async def close(self) -> None:
        """Lets the log go; a successor ends what is open."""
        if self._writer is not None:
            await self._writer.close()

    def recover(self, recovered: RecoveredState) -> None:
        """Goes on from what the log says; `recover_half` follows."""
        clock, config = self._ports.clock, self._config
        self.state = QueueState.restore(recovered, self._ports.times_of, config.horizon, clock.monotonic_ms())

    def recover_half(self, place: LogPosition, loaded: LoadedHalf) -> None:
        """One from L to S. Raises QueueHalted."""
        self.state.restore_half(place, loaded.half, loaded.ordering_hash)
        if self.state.half_of(loaded.half.transaction_id) == place.offset:
            self.bodies.keep(loaded)

    async def describe(self, bodies: Sequence[LoadedHalf], *, is_forced: bool = False) -> None:
        """Sees to it that what is known of their destinations is fresh. Raises StoreError."""
        topics = {loaded.plain_topic or "" for loaded in bodies}
        if "" in topics:
            topics = {topic for loaded in bodies for topic in loaded.topics}
        await self._ports.destinations.refresh(topics, is_forced=is_forced)

    def find_obstacle(self, loaded: LoadedHalf) -> str | None:
        """Why its messages cannot be published now, as far as the cluster says."""
        transaction_id, now_ms, has_id = loaded.half.transaction_id, self.time.now_ms(), self.target.has_id_header
        return self._ports.destinations.find_reason(transaction_id, loaded.messages, now_ms, has_id_header=has_id)

    async def write(self, batch: QueueBatch, bodies: LoadedHalves) -> None:
        """One Kafka transaction: what is decided, and the position. `bodies`: of what is published or parked.

        Raises StoreError.
        """
        assert self._writer is not None
        self.began_at_ms, self.commits = self._ports.clock.monotonic_ms(), len(batch.publishes)
        self.is_awaited = batch.is_awaited
        state, destinations, parks = self.state, self._ports.destinations, batch.parks
        find = partial(destinations.find_destination, now_ms=self.time.now_ms())
        result = await self._writer.put_all(batch.build(state, bodies, find, self.target))
        self._check_op_offset(result.last_offset)
        op_place = Receipt(self.target.topics.op, self.target.queue_id, result.last_offset)
        self._ports.stable_offsets.note([*result.receipts, op_place])
        state.confirm(batch.written, result.last_offset)
        self._memory.confirm(state.s, self.target.log, state.log_start, state.op_start)
        is_live = state.is_live
        self.bodies.drop([t for i, t in batch.ops.items() if i in parks or not is_live(i)])
        self.time.observe(result.last_stored_ms)
        commits_ms = [t.ended_ms or t.appended_ms for t in batch.publishes.values()]
        self._ports.times.publish.add_since(commits_ms, self.time.now_ms())
        self._written_s, self._written_at_ms = state.s, self._ports.clock.monotonic_ms()
        if self._ports.tracer is not None and batch.publishes:
            halves = [bodies[i] for i in batch.publishes if i in bodies]
            self._ports.tracer.published(self.target.queue_id, halves, self._written_at_ms - self.began_at_ms)
        self._moved_at_ms = None
        self._counts.batches += 1
        self._counts.published += len(batch.publishes)
        self._counts.parked += sum([t.state is PARKED for t in batch.parks.values()])  # others are copied, no more

    async def write_position(self, kind: BatchKind = BatchKind.POSITION) -> None:
        """A Kafka transaction of nothing but the position. Raises StoreError."""
        await self.write(QueueBatch([], kind), {})

    async def write_position_if_due(self) -> None:
        """So that S moves on while nothing else is written. Raises StoreError."""
        now_ms = self._ports.clock.monotonic_ms()
        if self.is_ahead:
            self._moved_at_ms = now_ms if self._moved_at_ms is None else self._moved_at_ms
            is_due = now_ms - self._moved_at_ms >= self._config.position_delay_ms
        else:
            pause_ms = self._config.idle_note_ms if self.state.is_cut else self._config.idle_position_ms
            is_due = now_ms - self._written_at_ms >= pause_ms
        if is_due:
            await self.write_position()

    def notify(self, changed: Mapping[str, Transaction], seen_at_ms: int) -> None:
        """Shows the checker what was written."""
        prepared: list[Transaction] = []
        ended: list[str] = []
        for transaction_id, t in changed.items():
            if t.state is PREPARED:
                prepared.append(t)
            else:
                ended.append(transaction_id)
        if prepared:
            self._ports.observer.prepared(self.target.queue_id, prepared, seen_at_ms)
        if ended:
            self._ports.observer.ended(self.target.queue_id, ended)

    def _check_op_offset(self, last_offset: int | None) -> None:
        """Offsets only rise: else what this queue's op messages said is gone, and a successor would not know it."""
        if last_offset is not None and last_offset < self.state.op_start:
            detail = (
                f"op offset {last_offset} was given out again, although all below {self.state.op_start} was written"
            )
            raise QueueHalted(detail, HaltKind.OP_LOST)
