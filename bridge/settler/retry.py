"""What an owner writes besides what the journal says: blocked commits tried again, parks, copies of old bodies."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import structlog

from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, StoreError
from bridge.core.queue_state import changed_by
from bridge.core.transaction import BODY_EXPIRED, PREPARED, SPLIT, Transaction
from bridge.core.transition import Effect, Park, WriteOp, carry_forward
from bridge.settler.batch import QueueBatch, parked_copy
from bridge.settler.blocked import LONGEST_BACKOFF_MS, LONGEST_SPLIT_MS, NOWHERE, DestinationSet, Try
from bridge.settler.bodies import UNKNOWN_TOPIC, LoadedHalves
from bridge.settler.ports import SettlerConfig, SettlerPorts
from bridge.settler.writer import QueueCounts, QueueMemory, QueueWriter
from bridge.store.message_store import BatchKind, LoadedHalf

_LOG = structlog.get_logger()

_REST = 4  # times as long as a look at blocked commits took that found none to try: most of the time is others'


class Retry:
    """Each in Kafka transactions of their own, since each concerns destinations that can fail."""

    def __init__(
        self, writer: QueueWriter, ports: SettlerPorts, config: SettlerConfig, memory: QueueMemory, counts: QueueCounts
    ) -> None:
        self._writer = writer
        self._ports = ports
        self._config = config
        self._memory = memory
        self._counts = counts
        self._parks: dict[str, str] = {}
        self._copies: set[str] = set()  # those whose body is to be in the parked topic
        self._blocked_to: dict[str, DestinationSet] = {}  # destinations of blocked commits
        self._retry_at_ms = 0
        self._rest_until_ms = 0

    @property
    def is_asked(self) -> bool:
        """Whether parks are to be written now."""
        return bool(self._parks) and self._ports.clock.monotonic_ms() >= self._memory.park_not_before_ms

    def park(self, reasons: Mapping[str, str]) -> None:
        """Asks for transactions to be parked: id -> why."""
        self._parks |= reasons

    async def recover(self) -> None:
        """Looks up the destinations of blocked commits. Raises StoreError."""
        live, blocked_queues = self._writer.state.live, self._writer.state.blocked_queues
        blocked = [live[i] for waiting in blocked_queues.values() for i in waiting]
        while blocked:
            found, asked = await self._writer.bodies.load(blocked[: self._config.max_batch_records])
            self._blocked_to |= {t.transaction_id: _destinations(found.get(t.transaction_id)) for t in blocked[:asked]}
            blocked = blocked[asked:]

    def carry_forward(self) -> list[Effect]:
        """What holds L or O back; copies for the parked topic follow apart, since that topic can fail."""
        effects = self._writer.state.carry_forward(self._config.max_carried)
        self._copies.update(e.transaction.transaction_id for e in effects if isinstance(e, Park))
        return [WriteOp(e.transaction) if isinstance(e, Park) else e for e in effects]

    def follow(self, changed: Mapping[str, Transaction], bodies: LoadedHalves) -> None:
        """A batch was written: tries soon the commits that it blocked, and no more those that were given up."""
        for transaction_id, t in changed.items():
            if t.blocked:
                self._add(t, bodies[transaction_id].topics)
            elif t.abandoned:
                self._forget(transaction_id)

    async def run_once(self, seen_at_ms: int) -> None:
        """Does what is due. Raises StoreError."""
        if self._parks:
            await self._settle_parks(seen_at_ms)
        if self._copies:
            await self._settle_copies()
        if self._writer.state.blocked_queues:
            await self._retry_blocked(seen_at_ms)

    def _add(self, t: Transaction, destinations: DestinationSet) -> None:
        schedule = self._memory.schedule
        self._retry_at_ms = 0
        self._blocked_to[t.transaction_id] = destinations
        if t.reason == UNKNOWN_TOPIC and schedule.failing_reason(destinations) is None:
            schedule.note_refused(destinations, UNKNOWN_TOPIC, self._ports.clock.monotonic_ms())

    def _forget(self, transaction_id: str) -> None:
        """The next of its ordering key is tried at once."""
        self._blocked_to.pop(transaction_id, None)
        self._retry_at_ms = 0
        self._counts.abandoned += 1
        self._memory.schedule.forget([transaction_id])

    # --- parks and copies ---

    async def _settle_parks(self, seen_at_ms: int) -> None:
        """Parks apart from everything else; while the parked topic refuses, others go on and it is tried later."""
        now_ms = self._ports.clock.monotonic_ms()
        if now_ms < self._memory.park_not_before_ms:
            return
        state = self._writer.state
        reasons = {i: self._parks.pop(i) for i in list(islice(self._parks, self._config.max_parks))}
        state.recall(reasons)
        known = [t for t in map(state.live.get, reasons) if t is not None and t.state is PREPARED]
        bodies, asked = await self._writer.bodies.load(known)
        self._parks |= {t.transaction_id: reasons[t.transaction_id] for t in known[asked:]}
        for t in known[:asked]:
            if t.transaction_id not in bodies:
                _LOG.error("body_expired", queue=self._writer.target.queue_id, transaction_id=t.transaction_id)
        possible, refused = await self._find_copyable(known[:asked], bodies)
        effects = [effect for t in possible for effect in state.park(t.transaction_id, reasons[t.transaction_id])]
        if effects and not await self._try_parks(effects, possible, bodies):
            refused += possible
        elif effects:
            self._writer.notify(changed_by(effects), seen_at_ms)
        if refused:
            self._parks |= {t.transaction_id: reasons[t.transaction_id] for t in refused}
            self._memory.park_not_before_ms = now_ms + self._config.park_backoff_ms

    async def _find_copyable(
        self, wanted: Sequence[Transaction], bodies: LoadedHalves
    ) -> tuple[list[Transaction], list[Transaction]]:
        """Those with a body whose copies the parked topic takes, as far as the cluster says, and the others.

        A try that fails for want of a leader would cost the queue seconds and a take-over, one for a copy too large
        all others of its batch. Raises StoreError.
        """
        target, destinations = self._writer.target, self._ports.destinations
        there = [t for t in wanted if t.transaction_id in bodies]
        if not there:
            return [], []
        await destinations.refresh([target.topics.parked])
        now_ms, reasons = self._writer.time.now_ms(), dict[str, str]()
        for t in there:
            copy = parked_copy(bodies[t.transaction_id], t, target)
            reason = destinations.find_reason(t.transaction_id, [copy], now_ms, has_id_header=False)
            if reason is not None:
                reasons[t.transaction_id] = reason
        if reasons:
            first, reason = next(iter(reasons.items()))
            _LOG.error("not_copied", queue=target.queue_id, count=len(reasons), transaction_id=first, reason=reason)
        return [t for t in there if t.transaction_id not in reasons], [t for t in there if t.transaction_id in reasons]

    async def _try_parks(self, effects: Sequence[Effect], before: Sequence[Transaction], bodies: LoadedHalves) -> bool:
        """False if the parked topic refused: then their state is what it was, and is written so. Raises StoreError."""
        try:
            await self._writer.write(QueueBatch(effects, BatchKind.PARK), bodies)
        except StoreError as error:
            self._memory.park_not_before_ms = self._ports.clock.monotonic_ms() + self._config.park_backoff_ms
            self._ports.destinations.doubt([self._writer.target.topics.parked])
            if not isinstance(error, BatchAborted):
                raise
            _LOG.error("not_parked", queue=self._writer.target.queue_id, reason=error.reason, topic=error.topic)
            again = [effect for t in before for effect in carry_forward(t, is_old=False).effects]
            await self._writer.write(QueueBatch(again, BatchKind.CARRY_FORWARD), {})
            return False
        return True

    async def _settle_copies(self) -> None:
        """Copies what grows old to the parked topic; when that refuses, others go on and it is tried later."""
        now_ms, memory = self._ports.clock.monotonic_ms(), self._memory
        if now_ms < memory.copy_not_before_ms:
            return
        state = self._writer.state
        ids = [self._copies.pop() for _ in range(min(len(self._copies), self._config.max_parks))]
        state.recall(ids)
        old = [t for t in map(state.live.get, ids) if t is not None and t.parked is None]
        bodies, asked = await self._writer.bodies.load(old)
        self._copies.update(t.transaction_id for t in old[asked:])
        copied, refused = await self._find_copyable(old[:asked], bodies)
        self._copies.update(t.transaction_id for t in refused)
        next_ms = now_ms + LONGEST_BACKOFF_MS if refused else 0
        if not copied:
            memory.copy_not_before_ms = next_ms
            return
        memory.copy_not_before_ms = now_ms + LONGEST_BACKOFF_MS
        try:
            await self._writer.write(QueueBatch([Park(t) for t in copied], BatchKind.PARK), bodies)
        except BatchAborted as error:
            _LOG.error("body_not_copied", queue=self._writer.target.queue_id, reason=error.reason, topic=error.topic)
            self._copies.update(t.transaction_id for t in copied)
            await self._writer.write(QueueBatch([WriteOp(t) for t in copied], BatchKind.CARRY_FORWARD), {})
        else:
            memory.copy_not_before_ms = next_ms

    # --- blocked commits ---

    async def _retry_blocked(self, seen_at_ms: int) -> None:
        """Tries one set of destinations. What was in vain is followed by a rest, however many wait to be tried."""
        now_ms = self._ports.clock.monotonic_ms()
        if now_ms < max(self._retry_at_ms, self._rest_until_ms):
            return
        if not await self._try_due(now_ms, seen_at_ms):
            ended_ms = self._ports.clock.monotonic_ms()
            self._rest_until_ms = ended_ms + min(_REST * (ended_ms - now_ms), LONGEST_SPLIT_MS)

    async def _try_due(self, now_ms: int, seen_at_ms: int) -> bool:
        """One set, in a Kafka transaction of its own; whether any of it could be tried."""
        schedule, live, blocked_queues = (
            self._memory.schedule,
            self._writer.state.live,
            self._writer.state.blocked_queues,
        )
        attempt = schedule.choose_try(live, blocked_queues, self._blocked_to, now_ms)
        split_before_ms = None if attempt is None else self._writer.time.now_ms() - LONGEST_SPLIT_MS
        await self._explain(schedule.explain_split(live, blocked_queues, self._blocked_to, split_before_ms))
        if attempt is None:
            self._retry_at_ms = schedule.next_due_ms(now_ms)
            return False
        bodies, asked = await self._writer.bodies.load(attempt.transactions)
        attempt = attempt._replace(transactions=attempt.transactions[:asked])
        reasons = await self._find_reasons(attempt, bodies)
        possible = attempt.without(reasons.keys() | self._find_again(bodies), blocked_queues)
        schedule.suspend([i for i, reason in reasons.items() if reason != UNKNOWN_TOPIC], now_ms)
        for destinations in {self._blocked_to[i] for i, reason in reasons.items() if reason == UNKNOWN_TOPIC}:
            schedule.note_refused(destinations, UNKNOWN_TOPIC, now_ms)
        await self._explain(reasons)
        if possible.transactions:
            await self._try_blocked(possible, bodies, seen_at_ms)
        return bool(possible.transactions)

    def _find_again(self, bodies: LoadedHalves) -> Collection[str]:
        """Blocked ones whose body no log had and one has now: tried from the next time on with their like."""
        found = {i: h.topics for i, h in bodies.items() if self._blocked_to.get(i) == NOWHERE}
        self._blocked_to |= found
        return found.keys()

    async def _find_reasons(self, attempt: Try, bodies: LoadedHalves) -> dict[str, str]:
        """Why some of these cannot be published now, as far as the logs and the cluster say."""
        ids = [t.transaction_id for t in attempt.transactions]
        await self._writer.describe([bodies[i] for i in ids if i in bodies], is_forced=not attempt.is_joint)
        reasons: dict[str, str] = {}
        for i in ids:
            reason = self._writer.find_obstacle(bodies[i]) if i in bodies else BODY_EXPIRED
            if reason is not None:
                reasons[i] = reason
        return reasons

    async def _try_blocked(self, attempt: Try, bodies: LoadedHalves, seen_at_ms: int) -> None:
        state = self._writer.state
        effects: Sequence[Effect] = [e for t in attempt.transactions for e in state.unblock(t.transaction_id)]
        now_ms = self._ports.clock.monotonic_ms()
        try:
            await self._writer.write(QueueBatch(effects, BatchKind.RETRY), bodies)
        except BatchAborted as error:
            self._memory.schedule.note_failure(attempt, error.reason, now_ms)
            reason = SPLIT if attempt.is_joint else error.reason
            effects = state.defer(effects, lambda _: reason)
            await self._writer.write(QueueBatch(effects, BatchKind.BLOCK), bodies)
        except BatchOutcomeUnknown:
            self._memory.schedule.note_failure(attempt, "NO_ANSWER", now_ms)
            self._ports.destinations.doubt(attempt.destinations)
            raise
        else:
            self._memory.schedule.note_success(attempt)
            for t in attempt.transactions:
                self._blocked_to.pop(t.transaction_id, None)
        self._writer.notify(changed_by(effects), seen_at_ms)

    async def _explain(self, reasons: Mapping[str, str]) -> None:
        effects = [effect for i, reason in reasons.items() for effect in self._explain_one(i, reason)]
        for start in range(0, len(effects), self._config.max_batch_records):
            await self._writer.write(
                QueueBatch(effects[start : start + self._config.max_batch_records], BatchKind.BLOCK), {}
            )

    def _explain_one(self, transaction_id: str, reason: str) -> Sequence[Effect]:
        t = self._writer.state.live.get(transaction_id)
        effects = self._writer.state.block_again(transaction_id, reason) if t is not None and t.blocked else ()
        if effects and reason == BODY_EXPIRED:
            _LOG.error("body_expired", queue=self._writer.target.queue_id, transaction_id=transaction_id)
        return effects


def _destinations(held: LoadedHalf | None) -> DestinationSet:
    return NOWHERE if held is None else held.topics
