"""One queue held by this process: recover it, read, decide, write what follows, let go."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from bridge.core.errors import (
    BatchAborted,
    BatchOutcomeUnknown,
    HaltKind,
    MalformedRecord,
    QueueHalted,
    StoreFenced,
    StoreTimeout,
)
from bridge.core.message import MessageQueue, Receipt
from bridge.core.op_message import Position
from bridge.core.properties import count_stored_bytes
from bridge.core.queue_state import QueueState, changed_by
from bridge.core.record import EndRecord
from bridge.core.transaction import BODY_EXPIRED, SPLIT, Transaction
from bridge.core.transition import Effect
from bridge.fault_points import FaultPoint, reach
from bridge.settler.batch import (
    BatchTarget,
    Commit,
    Portion,
    QueueBatch,
    choose_fitting,
    cut,
    decode_portion,
    find_commits,
    is_awaited,
)
from bridge.settler.bodies import Loaded, LoadedHalves
from bridge.settler.ports import QueueEnd, QueueOwner, SettlerConfig, SettlerPorts
from bridge.settler.recovery import look_around, read_back
from bridge.settler.retry import Retry
from bridge.settler.writer import QueueCounts, QueueMemory, QueueWriter
from bridge.store.message_store import BatchKind, GetResult, LoadedHalf, QueueReader
from bridge.store.op_topic import WatchedReader

_LOG = structlog.get_logger()
_MOST_TOLD = 10  # of one batch
_BELIEVED_MS = 10_000


class SettleResult(NamedTuple):
    """What one run did."""

    records: int
    effects: int


class _Batch(NamedTuple):
    """Records to be decided, with all that must be known before: bodies, and why commits cannot be published now."""

    portion: Portion
    bodies: LoadedHalves
    obstacles: Mapping[str, str]


class OwnedQueue(QueueOwner):
    """The owner of one queue. After an error that is not a clean abort it is closed and made anew."""

    def __init__(
        self, target: BatchTarget, ports: SettlerPorts, config: SettlerConfig, memory: QueueMemory, counts: QueueCounts
    ) -> None:
        self._ports = ports
        self._config = config
        self._memory = memory
        self.counts = counts
        self._queue = MessageQueue(target.topics.half, target.queue_id)
        self._writer = QueueWriter(target, ports, config, memory, counts)
        self._retry = Retry(self._writer, ports, config, memory, counts)
        self._reader: QueueReader | None = None
        self._left: Portion | None = None  # was read, and needs more bodies than one Kafka transaction may hold
        self._end = QueueEnd(ports.store, self._queue, self._writer.time, ports.stable_offsets)

    # --- QueueOwner, for the checker ---

    @property
    def queue_id(self) -> int:
        return self._queue.queue_id

    def now_ms(self) -> int:
        return self._writer.time.now_ms()

    def note_end(self) -> None:
        self._end.ask()

    def read_through_ms(self) -> int:
        return self._end.read_through_ms

    async def get_bodies(self, transactions: Sequence[Transaction], max_bytes: int) -> Loaded:
        return await self._writer.bodies.load(transactions, max_bytes)

    def park(self, reasons: Mapping[str, str]) -> None:
        self._retry.park(reasons)

    # --- for the settler ---

    @property
    def state(self) -> QueueState:
        """The state machine; read only."""
        return self._writer.state

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies in memory, about."""
        return self._writer.bodies.held_bytes

    async def recover(self) -> None:
        """Fences the last owner, reads back, writes the position. Raises StoreError, QueueHalted."""
        ports, writer = self._ports, self._writer
        doubted_ms, self._memory.doubted_ms = self._memory.doubted_ms, None
        await ports.log.check_halts(self.queue_id)
        await writer.fence()
        reach(FaultPoint.TAKE_OVER_FENCED)
        seen = await look_around(ports.log, self._memory, self.queue_id)
        op_queue = MessageQueue(writer.target.topics.op, self.queue_id)
        op = await ports.store.get_offsets(op_queue)
        ports.stable_offsets.note([self._op_place(op.maximum - 1)])  # it has to be read to its end
        try:
            recovery = await read_back(ports, writer.target.topics, self.queue_id, seen, op)
            writer.target = replace(writer.target, log=seen.log)
            writer.recover(recovery.restored)
            self.state.pass_time(await recovery.read_halves(writer.recover_half))
            if recovery.missing:
                await self._check_missing(recovery.restored.position)
        except QueueHalted as halted:  # frozen meanwhile, what was left may be gone by right
            if (await ports.store.get_offsets(op_queue)).maximum != op.maximum:
                raise StoreFenced("another owner has written meanwhile") from halted
            self._check_believed(halted, doubted_ms)
            raise
        await ports.mark.check([self.queue_id])
        await self._retry.recover()
        self._reader = WatchedReader(ports.owners, ports.store, ports.clock, self._queue, self.state.s)
        reach(FaultPoint.TAKE_OVER_READ_JOURNAL)
        await writer.write_position(BatchKind.TAKE_OVER)
        if not self.now_ms():  # written, but Kafka could not say when: the journal's time is too early at most
            writer.time.observe(self.state.journal_ms)
        ports.observer.queue_taken(self, self.state.prepared(), self.state.rows)

    def _check_believed(self, halted: QueueHalted, doubted_ms: int | None) -> None:
        """A halt is for an operator, and a broker that was frozen tells its log as it was, until it knows that another
        one leads. Raises StoreTimeout until each take-over has found it since `doubted_ms`, and for long."""
        now_ms = self._ports.clock.monotonic_ms()
        self._memory.doubted_ms = now_ms if doubted_ms is None else doubted_ms
        if now_ms - self._memory.doubted_ms < _BELIEVED_MS:
            raise StoreTimeout(f"{halted}; this is looked at once more before it is believed") from halted

    async def _check_missing(self, position: Position) -> None:
        """Raises QueueHalted where half messages that were to be read back are gone, as from a compacted journal.

        From L on, whatever else became of one has an op message behind O.
        """
        state = self.state
        pending = await self._ports.log.find_pending(self.queue_id, position.l, position.s)
        if lost := [i for i in pending if not state.is_live(i) and i not in state.ended]:
            what = f"{len(lost)} pending transactions have no half message in the journal any more: {lost[0]}"
            raise QueueHalted(f"{what}, ...; was it compacted?", HaltKind.JOURNAL_GAP)

    async def run_once(self) -> SettleResult:
        """Settles one bounded read in one Kafka transaction, then what timers want.

        Raises StoreError, UnknownRecordVersion: take the queue over anew.
        """
        self._ports.log.check(self.queue_id, self._writer.target.log)
        read = self._left or await self._read()
        seen_at_ms = self._ports.clock.monotonic_ms()
        batch = await self._look_up(read)
        effects = self._decide(batch, seen_at_ms)
        await self._settle(effects, batch.bodies, seen_at_ms)
        portion = batch.portion
        ends_ms = [place.stored_ms for place, record, _ in portion.records if type(record) is EndRecord]
        self._ports.times.settle.add_since(ends_ms, self.now_ms())
        self._keep_bodies(portion.bodies)
        await self._retry.run_once(seen_at_ms)
        self._follow_end(is_idle=not portion.last_ms)
        self.counts.records += len(portion.records)
        if portion.halted is not None:
            if self._writer.is_ahead:
                await self._writer.write_position()
            raise portion.halted.error
        return SettleResult(len(portion.records), len(effects))

    async def close(self) -> None:
        """Lets the queue go; its successor ends what is open."""
        self._ports.observer.queue_released(self.queue_id)
        self._end.close()
        if self._reader is not None:
            await self._reader.close()
        await self._writer.close()

    # --- reading ---

    async def _read(self) -> Portion:
        """What comes next in the journal; the log's client holds few bytes, so it gives no more."""
        assert self._reader is not None
        await self._gather()
        read = await self._reader.get(self._config.max_batch_records, self._wait_ms())
        if read.messages:
            if self._writer.commits and not self._writer.is_awaited:
                read = await self._gather_unawaited(read)
            reach(FaultPoint.SETTLE_READ)
        if (missing := read.next_begin_offset - self.state.s - len(read.messages)) > 0:
            self.counts.missing += missing
            _LOG.error("journal_records_missing", queue=self.queue_id, offsets=missing, begin=self.state.s)
        return decode_portion(read.messages, read.next_begin_offset, self._quarantine)

    async def _gather(self) -> None:
        """After a Kafka transaction of many commits waits a little: the next one is fuller, and costs hardly more."""
        config, clock = self._config, self._ports.clock
        if self._writer.commits >= config.many_commits:
            left_ms = self._writer.began_at_ms + config.gather_ms - clock.monotonic_ms()
            if left_ms > 0:
                await clock.sleep_ms(left_ms)

    async def _gather_unawaited(self, read: GetResult) -> GetResult:
        """After one of which no caller waited to hear goes on reading for a while, until there is one who waits.

        Of large records nothing is gathered: what one read gives is bounded in bytes, several would not be.
        """
        assert self._reader is not None
        config, clock = self._config, self._ports.clock
        until_ms = self._writer.began_at_ms + config.unawaited_gather_ms
        more, messages, size = read, [*read.messages], 0
        while not any(map(is_awaited, more.messages)) and len(messages) < config.max_batch_records:
            size += sum(map(count_stored_bytes, more.messages))
            left_ms = until_ms - clock.monotonic_ms()
            if size >= config.gather_bytes or left_ms <= 0:
                break
            await clock.sleep_ms(min(left_ms, config.gather_ms))
            more = await self._reader.get(config.max_batch_records - len(messages), 0)
            messages += more.messages
        return more._replace(messages=messages)

    def _wait_ms(self) -> int:
        if self._retry.is_asked or self._end.is_asked:
            return 10
        return self._config.position_delay_ms // 2 if self._writer.is_ahead else self._config.idle_wait_ms

    def _quarantine(self, offset: int, error: MalformedRecord) -> None:
        self.counts.quarantined += 1
        _LOG.error("record_quarantined", queue=self.queue_id, offset=offset, reason=str(error))

    async def _look_up(self, read: Portion) -> _Batch:
        """The first records whose bodies fit one Kafka transaction, with all that has to be known of their commits.

        The rest waits for the next run: the position may pass only what is written.
        """
        writer, live = self._writer, self.state.live
        if self.state.rows.count:
            self.state.recall([record.transaction_id for _, record, _ in read.records])
        commits = find_commits(read, live)
        wanted = [t for c in commits if (t := live.get(c.transaction_id)) is not None and _is_elsewhere(t, read)]
        found, asked = await writer.bodies.load(wanted)
        if len(found) < asked:
            await self._check_expired([t for t in wanted[:asked] if t.transaction_id not in found])
        bodies = read.bodies | found
        unread = {t.transaction_id for t in wanted[asked:]}
        fitting = choose_fitting(commits, bodies, unread, self._config.max_batch_bytes)
        portion, self._left = read, None
        if fitting < len(commits):
            portion, self._left = cut(read, commits[fitting].at)
        writer.time.observe(portion.last_ms)
        obstacles = await self._find_obstacles(commits[:fitting], bodies)
        return _Batch(portion, bodies, obstacles)

    async def _check_expired(self, missing: Sequence[Transaction]) -> None:
        """Raises StoreTimeout if the journal is said to end before what was read of it: by a broker that was frozen, or
        because it was cut, which a take-over finds out."""
        end = (await self._ports.store.get_offsets(self._queue)).maximum
        if any(end <= t.half < self.state.s for t in missing):
            raise StoreTimeout(f"the journal is said to end at {end}, and was read up to {self.state.s}")

    async def _find_obstacles(self, commits: Sequence[Commit], bodies: LoadedHalves) -> dict[str, str]:
        """Why some of these cannot be published now, as far as the logs, the cluster and earlier tries say."""
        if not self.state.blocked_queues:
            self._memory.schedule.clear()
        known = [bodies[c.transaction_id] for c in commits if c.transaction_id in bodies]
        if known:
            await self._writer.describe(known)
        obstacles: dict[str, str] = {}
        rooms: dict[str, int] = {}
        is_doubtful = self._memory.schedule.is_any_failing or self._memory.split_before > self.state.s
        for commit in commits:
            loaded = bodies.get(commit.transaction_id)
            topic = None if loaded is None or is_doubtful else loaded.plain_topic
            if loaded is not None and topic is not None:
                room = rooms.get(topic)
                if room is None:
                    room = rooms[topic] = self._ports.destinations.roomy_bytes(topic)
                if loaded.size <= room:
                    continue
            reason = self._find_obstacle(loaded, commit.offset) if loaded else BODY_EXPIRED
            if reason is not None:
                obstacles[commit.transaction_id] = reason
        return obstacles

    def _find_obstacle(self, loaded: LoadedHalf, end: int) -> str | None:
        if end < self._memory.split_before:
            return SPLIT
        schedule = self._memory.schedule
        reason = schedule.failing_reason(loaded.topics) if schedule.is_any_failing else None
        return reason or self._writer.find_obstacle(loaded)

    def _keep_bodies(self, came_with: LoadedHalves) -> None:
        """Keeps the bodies of what this batch left pending, and none of a repeat."""
        half_of, keep = self.state.half_of, self._writer.bodies.keep
        for transaction_id, loaded in came_with.items():
            if half_of(transaction_id) == loaded.stored.queue_offset:
                keep(loaded)

    def _follow_end(self, *, is_idle: bool) -> None:
        """Keeps journal time going while nothing is appended, or O would stay behind until retention passes it."""
        self._end.follow(self.state.s)
        self.state.pass_time(self._end.read_through_ms)
        if is_idle and not self._end.is_asked and self.now_ms() - self.state.journal_ms > self._config.idle_note_ms:
            self._end.ask()
            self._ports.stable_offsets.note([self._op_place(self.state.op_start - 1)])
        # what somebody deletes of the op topic, its owner alone still knows: no successor could go on
        state = self.state
        begin = self._ports.stable_offsets.begins.get((self._writer.target.topics.op, self.queue_id), 0)
        if begin > state.op_needed and not state.is_cut:
            _LOG.error("op_records_deleted", queue=self.queue_id, op_begins=begin, needed=state.op_needed)
        if begin:
            state.note_op_begin(begin)

    def _op_place(self, offset: int) -> Receipt:
        return Receipt(self._writer.target.topics.op, self.queue_id, offset)

    # --- deciding and writing ---

    def _decide(self, batch: _Batch, seen_at_ms: int) -> list[Effect]:
        """Applies the records; each commit is published or blocked from then on."""
        state, portion, obstacles = self.state, batch.portion, batch.obstacles
        state.keep_time(seen_at_ms)
        effects: list[Effect] = []
        apply = state.apply
        for place, record, ordering_hash in portion.records:
            obstacle = obstacles.get(record.transaction_id) if obstacles else None
            effects += apply(place, record, ordering_hash, obstacle)
        state.advance(portion.next_offset, portion.last_ms)
        if state.overruled:
            self._tell_overruled()
        return effects

    def _tell_overruled(self) -> None:
        """A check that finds otherwise than what was recorded looks in the wrong place, or at the wrong time."""
        overruled = self.state.overruled
        self.counts.overruled += len(overruled)
        for record in overruled[:_MOST_TOLD]:
            _LOG.warning(
                "end_overruled",
                queue=self.queue_id,
                transaction=record.transaction_id,
                group=record.group,
                source=record.source.name,
                resolution=record.resolution.name,
            )
        overruled.clear()

    async def _settle(self, effects: Sequence[Effect], bodies: LoadedHalves, seen_at_ms: int) -> None:
        """Writes what follows from the records, and what holds L or O back."""
        carried = self._retry.carry_forward()
        batch = QueueBatch([*carried, *effects], BatchKind.CARRY_FORWARD if carried else BatchKind.SETTLE)
        if batch.is_empty:
            await self._writer.write_position_if_due()
        else:
            reach(FaultPoint.SETTLE_DECIDED)
            try:
                await self._writer.write(batch, bodies)
            except BatchAborted as error:
                effects = await self._defer(batch, effects, bodies, error)
                await self._writer.write(QueueBatch([*carried, *effects], BatchKind.BLOCK), bodies)
            except BatchOutcomeUnknown:
                self._note_unknown(batch, bodies)
                raise
            self.counts.carried += len(carried)
        changed = changed_by(effects)
        self._retry.follow(changed, bodies)
        self._writer.notify(changed, seen_at_ms)

    async def _defer(
        self, batch: QueueBatch, effects: Sequence[Effect], bodies: LoadedHalves, error: BatchAborted
    ) -> Sequence[Effect]:
        """What follows after a clean abort: the same, decided unpublished. Raises `error` if nothing was published."""
        if not batch.publishes:
            raise error
        reach(FaultPoint.ABORT_CLEAN)
        _LOG.warning("batch_aborted", queue=self.queue_id, reason=error.reason, topic=error.topic)
        self._memory.schedule.doubt()
        await self._writer.describe([bodies[i] for i in batch.publishes], is_forced=True)

        def reason_of(t: Transaction) -> str:
            assert t.end is not None
            return self._find_obstacle(bodies[t.transaction_id], t.end) or SPLIT

        return self.state.defer(effects, reason_of)

    def _note_unknown(self, batch: QueueBatch, bodies: LoadedHalves) -> None:
        """Its commits are decided apart from being published, should they be read again."""
        if batch.publishes:
            self._memory.split_before = self.state.s
            self._memory.schedule.doubt()
            topics = {topic for i in batch.publishes for topic in bodies[i].topics}
            self._ports.destinations.doubt(topics)


def _is_elsewhere(t: Transaction, read: Portion) -> bool:
    """Whether its half message was read before: one that comes now is a repeat, and may name another trace."""
    loaded = read.bodies.get(t.transaction_id)
    return loaded is None or loaded.stored.queue_offset != t.half
