"""One queue held by this process: take over, decide, write what follows, let go."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from bridge.clock import KafkaTime
from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, HaltKind, MalformedRecord, QueueHalted, StoreError
from bridge.core.message import Message, MessageQueue
from bridge.core.queue_state import QueueState, touched_by
from bridge.core.record import HalfMessage
from bridge.core.transaction import BODY_EXPIRED, PREPARED, SPLIT, Transaction
from bridge.core.transition import Effect, Park, WriteOp
from bridge.fault_points import FaultPoint, reach
from bridge.settler.batch import BatchTarget, LoadedHalf, Plan, RealTopics, make_batch, make_plan
from bridge.settler.bodies import Bodies
from bridge.settler.known_topics import UNKNOWN_TOPIC, topics_of
from bridge.settler.portion import Portion, ReadRecord, decode_portion, divide, find_commits
from bridge.settler.ports import (
    BodiesRead,
    HalfBody,
    QueueCounts,
    QueueEnd,
    QueueMemory,
    QueueOwner,
    SettlerConfig,
    SettlerPorts,
)
from bridge.settler.recovery import Recovery, look_around, read_back
from bridge.settler.retry import LONGEST_BACKOFF_MS, LONGEST_SPLIT_MS, NOWHERE, DestinationSet, Try
from bridge.store.message_store import BatchKind, BatchWriter, QueueReader

_LOG = structlog.get_logger()


class SettleResult(NamedTuple):
    """What one run did."""

    records: int
    effects: int


class OwnedQueue(QueueOwner):
    """The owner of one queue. After an error that is not a clean abort it is closed and made anew."""

    def __init__(
        self, target: BatchTarget, ports: SettlerPorts, config: SettlerConfig, memory: QueueMemory, counts: QueueCounts
    ) -> None:
        self._target = target
        self._ports = ports
        self._config = config
        self._memory = memory
        self.counts = counts
        self._time = KafkaTime(ports.clock)
        self._bodies = Bodies(
            ports.store, target.topics, target.queue_id, config.max_body_bytes, config.max_batch_bytes
        )
        self._state = QueueState(ports.times_of, config.horizon)
        self._writer: BatchWriter | None = None
        self._reader: QueueReader | None = None
        self._left: Portion | None = None  # was read, and needs more bodies than one Kafka transaction may hold
        self._parks: dict[str, str] = {}
        self._copies: set[str] = set()  # blocked ones whose body is to be in the parked topic
        self._batch_bodies: dict[str, LoadedHalf] = {}  # of the batch being made
        self._blocked_to: dict[str, DestinationSet] = {}  # destinations of blocked commits
        self._retry_at_ms = 0
        self._written_s = -1
        self._written_at_ms = 0
        self._moved_at_ms: int | None = None  # since when S is ahead of what is written
        self._end = QueueEnd(ports.store, MessageQueue(target.topics.half, target.queue_id), self._time)

    # --- QueueOwner, for the checker ---

    @property
    def queue_id(self) -> int:
        return self._target.queue_id

    def now_ms(self) -> int:
        return self._time.now_ms()

    def note_end(self) -> None:
        self._end.ask()

    def read_through_ms(self) -> int:
        return self._end.read_through_ms

    async def get_bodies(self, transactions: Sequence[Transaction], max_bytes: int) -> BodiesRead:
        loaded = await self._bodies.load(transactions, max_bytes)
        found = {transaction_id: HalfBody(h.half, h.messages) for transaction_id, h in loaded.found.items()}
        return BodiesRead(found, loaded.asked)

    def park(self, whys: Mapping[str, str]) -> None:
        self._parks |= whys

    # --- for the settler ---

    @property
    def state(self) -> QueueState:
        """The state machine; read only."""
        return self._state

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies in memory, about."""
        return self._bodies.held_bytes

    async def take_over(self) -> None:
        """Fences the last owner, reads back, writes the position. Raises StoreError, QueueHalted."""
        ports, target = self._ports, self._target
        ids = (target.topics.transactional_id(self.queue_id, 0), target.topics.transactional_id(self.queue_id, 1))
        await ports.log.check_halts(self.queue_id)
        self._writer = ports.owners.open_writer(ids)
        reach(FaultPoint.TAKE_OVER_BEGUN)
        await self._writer.fence()
        reach(FaultPoint.TAKE_OVER_FENCED)
        seen = await look_around(ports.log, self._memory, self.queue_id)
        taken = await read_back(ports.store, ports.owners, target.topics, self.queue_id, ports.clock, seen)
        self._target = replace(target, log=seen.log)
        await self._restore(taken)
        self._reader = ports.owners.open_reader(MessageQueue(target.topics.half, self.queue_id), self._state.s)
        reach(FaultPoint.TAKE_OVER_READ_JOURNAL)
        await self._write([], BatchKind.TAKE_OVER)
        ports.observer.queue_taken(self, list(self._state.prepared()))

    async def run_once(self) -> SettleResult:
        """Settles one bounded read in one Kafka transaction, then what timers want.

        Raises StoreError, UnknownRecordVersion: take the queue over anew.
        """
        self._ports.log.check(self.queue_id, self._target.log)
        read = self._left or await self._read()
        seen_at_ms = self._ports.clock.monotonic_ms()
        self._state.keep_time(seen_at_ms)
        portion, expired = await self._take_what_fits(read)
        effects: list[Effect] = []
        for place, record, okey in portion.records:
            effects += self._state.apply(place, record, okey, expired)
        self._state.advance(portion.next_offset, portion.last_ms)
        self._time.observe(portion.last_ms)
        await self._settle(effects, seen_at_ms)
        self._keep_bodies(portion.records)
        await self._settle_parks(seen_at_ms)
        await self._settle_copies()
        await self._retry_blocked(seen_at_ms)
        self._batch_bodies = {}
        self._follow_end(is_idle=not portion.last_ms)
        self.counts.records += len(portion.records)
        if portion.halted is not None:
            if self._state.s != self._written_s:
                await self._write([], BatchKind.POSITION)
            raise portion.halted.error
        return SettleResult(len(portion.records), len(effects))

    async def close(self) -> None:
        """Lets the queue go; its successor ends what is open."""
        self._ports.observer.queue_released(self.queue_id)
        self._end.close()
        if self._reader is not None:
            await self._reader.close()
        if self._writer is not None:
            await self._writer.close()

    def _follow_end(self, *, is_idle: bool) -> None:
        """Keeps journal time going while nothing is appended, or O would stay behind until retention passes it."""
        self._end.follow(self._state.s)
        self._state.pass_time(self._end.read_through_ms)
        if is_idle and self._time.now_ms() - self._state.journal_ms > self._config.idle_note_ms:
            self._end.ask()

    # --- reading ---

    async def _restore(self, taken: Recovery) -> None:
        ports, monotonic_ms = self._ports, self._ports.clock.monotonic_ms()
        self._state = QueueState.restore(taken.restored, ports.times_of, self._config.horizon, monotonic_ms)
        for held in taken.held:
            if held.half.transaction_id in self._state.live:
                self._bodies.keep(held.half, held.stored)
        blocked = [self._state.live[i] for chain in self._state.chains.values() for i in chain]
        while blocked:
            found, asked = await self._bodies.load(blocked[: self._config.max_batch_records])
            self._blocked_to |= {t.transaction_id: _destinations(found.get(t.transaction_id)) for t in blocked[:asked]}
            blocked = blocked[asked:]

    def _wait_ms(self) -> int:
        if self._parks or self._end.is_asked:
            return 10
        is_moved = self._state.s != self._written_s
        return self._config.position_delay_ms // 2 if is_moved else self._config.idle_wait_ms

    async def _read(self) -> Portion:
        """What comes next in the journal; the log's client holds few bytes, so it gives no more."""
        assert self._reader is not None
        read = await self._reader.get(self._config.max_batch_records, self._wait_ms())
        if read.messages:
            reach(FaultPoint.SETTLE_READ)
        return decode_portion(read.messages, read.next_begin_offset, self._quarantine)

    def _quarantine(self, offset: int, error: MalformedRecord) -> None:
        self.counts.quarantined += 1
        _LOG.error("record_quarantined", queue=self.queue_id, offset=offset, reason=str(error))

    def _keep_bodies(self, records: Sequence[ReadRecord]) -> None:
        """Keeps the bodies of what this batch left pending."""
        live = self._state.live
        for _, record, _ in records:
            if isinstance(record, HalfMessage) and record.transaction_id in live:
                self._bodies.keep(record, self._batch_bodies[record.transaction_id].stored)

    async def _take_what_fits(self, read: Portion) -> tuple[Portion, Collection[str]]:
        """The first records whose bodies fit one Kafka transaction, and the ids whose body no log has.

        The rest waits for the next run: the position may pass only what is written.
        """
        commits = find_commits(read, self._state.live)
        wanted = [t.transaction_id for t in commits]
        found, asked = await self._bodies.load(commits)
        self._batch_bodies = read.bodies | found
        portion, self._left = divide(
            read, self._state.live, self._batch_bodies, set(wanted[asked:]), self._config.max_batch_bytes
        )
        return portion, {i for i in wanted[:asked] if i not in found}

    # --- writing ---

    async def _settle(self, effects: Sequence[Effect], seen_at_ms: int) -> None:
        plan = make_plan(effects)
        if plan.publishes:
            publishes = plan.publishes.values()
            await self._describe(publishes)
            reasons = {t.transaction_id: why for t in publishes if (why := self._reason_of(t)) is not None}
            if reasons or self._state.chains:
                effects = self._state.withhold(effects, lambda t: reasons.get(t.transaction_id))
                self._note_blocked(effects)
                plan = make_plan(effects)
        put_backs = self._put_back()
        if put_backs:
            plan = make_plan([*put_backs, *effects])
        if plan.is_empty:
            await self._write_position_if_due()
        else:
            reach(FaultPoint.SETTLE_DECIDED)
            effects = await self._write_or_withhold(plan, effects, put_backs)
            self.counts.put_backs += len(put_backs)
        self._tell(effects, seen_at_ms)

    def _put_back(self) -> list[Effect]:
        """What holds L or O back; copies for the parked topic follow apart, since that topic can fail."""
        effects = self._state.put_back(self._config.max_put_backs)
        self._copies.update(e.transaction.transaction_id for e in effects if isinstance(e, Park))
        return [WriteOp(e.transaction) if isinstance(e, Park) else e for e in effects]

    async def _write_or_withhold(
        self, plan: Plan, effects: Sequence[Effect], put_backs: Sequence[Effect]
    ) -> Sequence[Effect]:
        """Writes the batch; after a clean abort without what the cluster refuses, then decided unpublished."""
        publishes = plan.publishes.values()
        try:
            await self._write_plan(plan, BatchKind.PUT_BACK if put_backs else BatchKind.SETTLE)
        except BatchAborted as error:
            if not publishes:
                raise
            reach(FaultPoint.ABORT_CLEAN)
            _LOG.warning("batch_aborted", queue=self.queue_id, reason=error.reason, topic=error.topic)
            self._memory.schedule.doubt()
            await self._describe(publishes, is_forced=True)
            effects = self._state.withhold(effects, lambda t: self._reason_of(t) or SPLIT)
            self._note_blocked(effects)
            await self._write([*put_backs, *effects], BatchKind.BLOCK)
        except BatchOutcomeUnknown:
            if publishes:
                self._memory.split_before = self._state.s
                self._memory.schedule.doubt()
                self._ports.destinations.doubt(self._topics_of(publishes))
            raise
        return effects

    async def _write(self, effects: Sequence[Effect], kind: BatchKind) -> None:
        """One Kafka transaction: all of `effects` and the position. Raises StoreError."""
        await self._write_plan(make_plan(effects), kind)

    async def _write_plan(self, plan: Plan, kind: BatchKind) -> None:
        assert self._writer is not None
        missing = [plan.ops[i] for i in plan.body_ids() if i not in self._batch_bodies]
        if missing:
            self._batch_bodies |= (await self._bodies.load(missing)).found
        destinations = self._ports.destinations
        real = RealTopics(destinations.queues_of, partial(destinations.stamp, now_ms=self._time.now_ms()))
        made = make_batch(plan, kind, self._state, self._batch_bodies, real, self._target)
        result = await self._writer.put_all(made.batch)
        self._check_op_offset(result.last_offset)
        self._state.confirm(made.sealed, result.last_offset)
        self._memory.confirm(self._state.s, self._target.log, self._state.log_start, self._state.op_start)
        self._bodies.drop([i for i in plan.ops if i not in self._state.live or i in plan.parks])
        self._time.observe(result.last_stored_ms)
        self._written_s, self._written_at_ms = self._state.s, self._ports.clock.monotonic_ms()
        self._moved_at_ms = None
        self.counts.batches += 1
        self.counts.published += len(plan.publishes)
        self.counts.parked += len(plan.parks)

    def _check_op_offset(self, last_offset: int | None) -> None:
        """Offsets only rise: else what this queue's op messages said is gone, and a successor would not know it."""
        if last_offset is not None and last_offset < self._state.op_start:
            detail = (
                f"op offset {last_offset} was given out again, although all below {self._state.op_start} was written"
            )
            raise QueueHalted(detail, HaltKind.OP_LOST)

    async def _write_position_if_due(self) -> None:
        now_ms = self._ports.clock.monotonic_ms()
        if self._state.s != self._written_s:
            self._moved_at_ms = now_ms if self._moved_at_ms is None else self._moved_at_ms
            is_due = now_ms - self._moved_at_ms >= self._config.position_delay_ms
        else:
            is_due = now_ms - self._written_at_ms >= self._config.idle_position_ms
        if is_due:
            await self._write([], BatchKind.POSITION)

    async def _describe(self, transactions: Collection[Transaction], *, is_forced: bool = False) -> None:
        missing = [t for t in transactions if t.transaction_id not in self._batch_bodies]
        if missing:
            self._batch_bodies |= (await self._bodies.load(missing)).found
        await self._ports.destinations.refresh(self._topics_of(transactions), is_forced=is_forced)

    def _topics_of(self, transactions: Iterable[Transaction]) -> set[str]:
        return {m.topic for t in transactions for m in self._batch_bodies[t.transaction_id].messages}

    def _reason_of(self, t: Transaction) -> str | None:
        if t.end is not None and t.end < self._memory.split_before:
            return SPLIT
        schedule, messages = self._memory.schedule, self._batch_bodies[t.transaction_id].messages
        why = schedule.failing_reason(topics_of(messages)) if schedule.is_any_failing else None
        if why is None:
            why = self._find_reason(t, messages)
            if why == UNKNOWN_TOPIC:
                schedule.note_refused(topics_of(messages), why, self._ports.clock.monotonic_ms())
        return why

    def _find_reason(self, t: Transaction, messages: Sequence[Message]) -> str | None:
        now_ms, has_id = self._time.now_ms(), self._target.has_id_header
        return self._ports.destinations.find_reason(t.transaction_id, messages, now_ms, has_id_header=has_id)

    def _note_blocked(self, effects: Sequence[Effect]) -> None:
        for transaction_id, t in touched_by(effects).items():
            if t.blocked and transaction_id in self._batch_bodies:
                self._retry_at_ms = 0
                self._blocked_to[transaction_id] = topics_of(self._batch_bodies[transaction_id].messages)

    def _tell(self, effects: Sequence[Effect], seen_at_ms: int) -> None:
        touched = touched_by(effects)
        if not touched:
            return
        prepared = [t for t in touched.values() if t.state is PREPARED]
        ended = [i for i, t in touched.items() if t.state is not PREPARED]
        if self._blocked_to:
            self._forget_abandoned([i for i in ended if touched[i].abandoned])
        if prepared:
            self._ports.observer.prepared(self.queue_id, prepared, seen_at_ms)
        if ended:
            self._ports.observer.ended(self.queue_id, ended)

    def _forget_abandoned(self, transaction_ids: Collection[str]) -> None:
        """They are tried no more, and whoever was behind them is tried at once."""
        for transaction_id in transaction_ids:
            self._blocked_to.pop(transaction_id, None)
            self._copies.discard(transaction_id)
            self._retry_at_ms = 0
            self.counts.abandoned += 1
        self._memory.schedule.forget(transaction_ids)

    # --- what timers want ---

    async def _settle_parks(self, seen_at_ms: int) -> None:
        """Parks apart from everything else: the parked topic is a destination that can fail."""
        now_ms = self._ports.clock.monotonic_ms()
        if not self._parks or now_ms < self._memory.park_not_before_ms:
            return
        whys = dict([self._parks.popitem() for _ in range(min(len(self._parks), self._config.max_parks))])
        known = [self._state.live[i] for i in whys if i in self._state.live]
        self._batch_bodies, asked = await self._bodies.load(known)
        self._parks |= {t.transaction_id: whys[t.transaction_id] for t in known[asked:]}
        effects: list[Effect] = []
        for t in known[:asked]:
            if t.transaction_id in self._batch_bodies:
                effects += self._state.park(t.transaction_id, whys[t.transaction_id])
            else:
                _LOG.error("body_expired", queue=self.queue_id, transaction_id=t.transaction_id)
        if not effects:
            return
        try:
            await self._write(effects, BatchKind.PARK)
        except StoreError:
            self._memory.park_not_before_ms = now_ms + self._config.park_backoff_ms
            raise
        self._tell(effects, seen_at_ms)

    async def _settle_copies(self) -> None:
        """Copies what is blocked to the parked topic; when that refuses, others go on and it is tried later."""
        now_ms, memory = self._ports.clock.monotonic_ms(), self._memory
        if not self._copies or now_ms < memory.copy_not_before_ms:
            return
        ids = [self._copies.pop() for _ in range(min(len(self._copies), self._config.max_parks))]
        blocked = [t for t in map(self._state.live.get, ids) if t is not None and t.blocked and t.parked is None]
        self._batch_bodies, asked = await self._bodies.load(blocked)
        self._copies.update(t.transaction_id for t in blocked[asked:])
        copied = [t for t in blocked if t.transaction_id in self._batch_bodies]
        if not copied:
            return
        memory.copy_not_before_ms = now_ms + LONGEST_BACKOFF_MS
        try:
            await self._write([Park(t) for t in copied], BatchKind.PARK)
        except BatchAborted as error:
            _LOG.error("body_not_copied", queue=self.queue_id, reason=error.reason, topic=error.topic)
            self._copies.update(t.transaction_id for t in copied)
            await self._write([WriteOp(t) for t in copied], BatchKind.PUT_BACK)
        else:
            memory.copy_not_before_ms = 0

    async def _retry_blocked(self, seen_at_ms: int) -> None:
        """Tries one set of destinations, in a Kafka transaction of its own."""
        now_ms = self._ports.clock.monotonic_ms()
        if not self._state.chains or now_ms < self._retry_at_ms:
            return
        schedule, live, chains = self._memory.schedule, self._state.live, self._state.chains
        attempt = schedule.choose_try(live, chains, self._blocked_to, now_ms)
        split_before_ms = None if attempt is None else self._time.now_ms() - LONGEST_SPLIT_MS
        await self._explain(schedule.explain_split(live, chains, self._blocked_to, split_before_ms))
        if attempt is None:
            self._retry_at_ms = schedule.next_due_ms(now_ms)
            return
        self._batch_bodies, asked = await self._bodies.load(attempt.transactions)
        attempt = attempt._replace(transactions=attempt.transactions[:asked])
        reasons = await self._find_reasons(attempt)
        possible = attempt.without(reasons.keys() | self._find_again(), chains)
        schedule.suspend([i for i, why in reasons.items() if why != UNKNOWN_TOPIC], now_ms)
        for destinations in {self._blocked_to[i] for i, why in reasons.items() if why == UNKNOWN_TOPIC}:
            schedule.note_refused(destinations, UNKNOWN_TOPIC, now_ms)
        await self._explain(reasons)
        if possible.transactions:
            await self._try_blocked(possible, seen_at_ms)

    def _find_again(self) -> Collection[str]:
        """Blocked ones whose body no log had and one has now: tried from the next time on with their like."""
        found = {i: topics_of(h.messages) for i, h in self._batch_bodies.items() if self._blocked_to.get(i) == NOWHERE}
        self._blocked_to |= found
        return found.keys()

    async def _find_reasons(self, attempt: Try) -> dict[str, str]:
        """Why some of these cannot be published now, as far as the logs and the cluster say."""
        bodies = self._batch_bodies
        known = [t for t in attempt.transactions if t.transaction_id in bodies]
        await self._describe(known, is_forced=not attempt.is_joint)
        reasons: dict[str, str] = {}
        for t in attempt.transactions:
            held = bodies.get(t.transaction_id)
            why = self._find_reason(t, held.messages) if held else BODY_EXPIRED
            if why is not None:
                reasons[t.transaction_id] = why
        return reasons

    async def _try_blocked(self, attempt: Try, seen_at_ms: int) -> None:
        effects: list[Effect] = []
        for t in attempt.transactions:
            effects += self._state.unblock(t.transaction_id)
        now_ms = self._ports.clock.monotonic_ms()
        try:
            await self._write(effects, BatchKind.RETRY)
        except BatchAborted as error:
            self._memory.schedule.note_failure(attempt, error.reason, now_ms)
            why = SPLIT if attempt.is_joint else error.reason
            effects = self._state.withhold(effects, lambda _: why)
            await self._write(effects, BatchKind.BLOCK)
        except BatchOutcomeUnknown:
            self._memory.schedule.note_failure(attempt, "NO_ANSWER", now_ms)
            self._ports.destinations.doubt(attempt.destinations)
            raise
        else:
            self._memory.schedule.note_success(attempt)
            for t in attempt.transactions:
                self._blocked_to.pop(t.transaction_id, None)
        self._tell(effects, seen_at_ms)

    async def _explain(self, reasons: Mapping[str, str]) -> None:
        effects = [effect for i, why in reasons.items() for effect in self._explain_one(i, why)]
        for start in range(0, len(effects), self._config.max_batch_records):
            await self._write(effects[start : start + self._config.max_batch_records], BatchKind.BLOCK)

    def _explain_one(self, transaction_id: str, why: str) -> Sequence[Effect]:
        t = self._state.live.get(transaction_id)
        effects = self._state.block_again(transaction_id, why) if t is not None and t.blocked else ()
        if effects and why == BODY_EXPIRED:
            _LOG.error("body_expired", queue=self.queue_id, transaction_id=transaction_id)
        return effects


def _destinations(held: LoadedHalf | None) -> DestinationSet:
    return NOWHERE if held is None else topics_of(held.messages)
