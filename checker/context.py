"""What the loops of all groups share: the board of due checks, the recorder of rounds without an answer."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import structlog

from bridge.clock import Clock
from bridge.core.keyring import Keyring
from bridge.core.topics import InternalTopics
from bridge.core.transaction import Transaction
from bridge.directory import LEASE_SLACK_MS, ProducerDirectory, PullCheck, PullCheckStore, UnansweredRound
from bridge.fault_points import FaultPoint, reach
from bridge.settler.ports import QueueOwner
from bridge.store.message_store import MessageStore
from bridge.turns import take_error
from checker.call import CheckCaller, CheckCounts, CheckerConfig, Nonces
from checker.concurrency import ConcurrencyLimiter
from checker.queue_schedule import QueueTime
from checker.scheduler import CheckScheduler

# --- keeps the board of due checks for the queues of this process: its ticks, and what is to be taken away again ---

_LOG = structlog.get_logger()
_BOARD_INTERVAL_MS = 250
_TICK_MS = 1_000
_BOARD_BACKOFF_MS = 2_000
_MAX_BATCH = 1_000


@dataclass(slots=True)
class _OwnershipEpoch:
    """A queue whose checks this process puts on the board. `tick_ms` was written at `ticked_ms` of our monotonic
    clock."""

    queue_id: int
    owner: str
    tick_ms: int
    ticked_ms: int
    lying: dict[str, PullCheck] = field(default_factory=dict)
    stale: dict[str, PullCheck] = field(default_factory=dict)

    def next_tick_ms(self, monotonic_ms: int) -> int:
        """Never far beyond the last one: a check lease that was taken while we stood still is not over at once."""
        return self.tick_ms + min(monotonic_ms - self.ticked_ms, LEASE_SLACK_MS)

    def set_tick(self, tick_ms: int, monotonic_ms: int) -> None:
        if tick_ms > self.tick_ms:
            self.tick_ms, self.ticked_ms = tick_ms, monotonic_ms


class PullCheckPublisher:
    """What is said to it takes effect within a moment; what cannot be written is kept and tried again."""

    def __init__(self, board: PullCheckStore, clock: Clock, counts: CheckCounts, make_owner: Callable[[], str]) -> None:
        self._board = board
        self._clock = clock
        self._counts = counts
        self._make_owner = make_owner
        self.epochs: dict[int, _OwnershipEpoch] = {}  # of queues with checks on the board
        self._taking: dict[int, asyncio.Task[_OwnershipEpoch]] = {}
        self._leaving: list[_OwnershipEpoch] = []
        self._lying: Counter[str] = Counter()  # by group
        self._is_closing = False

    # --- what the settler says; never blocks ---

    def prepared(self, queue_id: int, transactions: Iterable[Transaction]) -> None:
        """Removes checks whose answers were counted."""
        tenure = self.epochs.get(queue_id)
        for transaction in transactions if tenure and tenure.lying else ():
            assert tenure is not None
            check = tenure.lying.get(transaction.transaction_id)
            if check is not None and check.check_number != transaction.check_times + 1:
                self._forget(tenure, transaction.transaction_id)

    def ended(self, queue_id: int, transaction_ids: Iterable[str]) -> None:
        """Nobody is asked about these any more."""
        tenure = self.epochs.get(queue_id)
        for transaction_id in transaction_ids if tenure and tenure.lying else ():
            assert tenure is not None
            self._forget(tenure, transaction_id)

    def queue_released(self, queue_id: int) -> None:
        """The queue is not ours any more."""
        tenure = self.epochs.get(queue_id)
        if tenure is not None:
            self._drop(tenure)
            self._leaving.append(tenure)

    # --- laying ---

    def count_lying(self, group: str) -> int:
        """How many checks of the group are on the board."""
        return self._lying[group]

    def find(self, queue_id: int, check: PullCheck) -> PullCheck | None:
        """The same check as it was put there, with the claims known then."""
        tenure = self.epochs.get(queue_id)
        found = tenure.lying.get(check.transaction_id) if tenure else None
        return found if found is not None and found.check_number == check.check_number else None

    async def lay(self, queue_id: int, checks: Sequence[PullCheck]) -> Mapping[str, int] | None:
        """How often each check was claimed by now. None: nothing was put, the queue seems to be another's.

        Raises SqlUnavailable.
        """
        tenure = self.epochs.get(queue_id) or await self._take(queue_id)
        monotonic_ms = self._clock.monotonic_ms()
        tick_ms = tenure.next_tick_ms(monotonic_ms)
        claims = await self._board.put(queue_id, tenure.owner, tick_ms, checks)
        if claims is None:
            self._drop(tenure)
        elif self.epochs.get(queue_id) is tenure:  # not let go meanwhile
            tenure.set_tick(tick_ms, monotonic_ms)
            for check in checks:
                self._note(tenure, check._replace(claims=claims[check.transaction_id]))
        return claims

    async def _take(self, queue_id: int) -> _OwnershipEpoch:
        """All groups with checks of the queue wait for one SQL transaction."""
        taking = self._taking.get(queue_id)
        if taking is None:
            taking = self._taking[queue_id] = asyncio.create_task(self._make_tenure(queue_id))
            taking.add_done_callback(lambda _: self._taking.pop(queue_id))
            taking.add_done_callback(take_error)
        return await asyncio.shield(taking)

    async def _make_tenure(self, queue_id: int) -> _OwnershipEpoch:
        owner = self._make_owner()
        tick_ms = await self._board.take_queue(queue_id, owner)
        tenure = self.epochs[queue_id] = _OwnershipEpoch(queue_id, owner, tick_ms, self._clock.monotonic_ms())
        return tenure

    def _note(self, tenure: _OwnershipEpoch, check: PullCheck) -> None:
        tenure.stale.pop(check.transaction_id, None)
        self._lying[check.group] += check.transaction_id not in tenure.lying
        tenure.lying[check.transaction_id] = check

    def _forget(self, tenure: _OwnershipEpoch, transaction_id: str) -> None:
        """Its check is on the board in vain."""
        check = tenure.lying.pop(transaction_id, None)
        if check is not None:
            self._lying[check.group] -= 1
            tenure.stale[transaction_id] = check

    def _drop(self, tenure: _OwnershipEpoch) -> None:
        """Not ours any more; if our settler still holds the queue, the next laying takes it again."""
        if self.epochs.get(tenure.queue_id) is tenure:
            del self.epochs[tenure.queue_id]
            self._lying.subtract(check.group for check in tenure.lying.values())
            self._lying = +self._lying

    # --- loop ---

    async def run_once(self) -> int:
        """Takes away a bounded number of checks, lets queues go, moves ticks on. How many were taken away.

        Raises SqlUnavailable.
        """
        removed = 0
        while self._leaving:
            await self._board.leave_queue(self._leaving[0].queue_id, self._leaving[0].owner)
            self._leaving.pop(0)
        for tenure in list(self.epochs.values()):
            removed += await self._remove_stale(tenure)
            monotonic_ms = self._clock.monotonic_ms()
            if tenure.lying and monotonic_ms - tenure.ticked_ms >= _TICK_MS:
                tick_ms = tenure.next_tick_ms(monotonic_ms)
                if not await self._board.tick(tenure.queue_id, tenure.owner, tick_ms):
                    self._drop(tenure)
                else:
                    tenure.set_tick(tick_ms, monotonic_ms)
        return removed

    async def run_forever(self) -> None:
        """Until closed; then the queues are let go, if that is possible at once."""
        while True:
            is_last = self._is_closing
            if is_last:
                for queue_id in list(self.epochs):
                    self.queue_released(queue_id)
            pause_ms = _BOARD_INTERVAL_MS
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001 - the board's own errors; the loop goes on
                self._counts.errors += 1
                _LOG.warning("check_board_not_kept", error=type(error).__name__)
                pause_ms = _BOARD_BACKOFF_MS
            if is_last:
                return
            await self._pause(pause_ms)

    def close(self) -> None:
        """Lets `run_forever` end."""
        self._is_closing = True

    async def _remove_stale(self, tenure: _OwnershipEpoch) -> int:
        batch = list(islice(tenure.stale.values(), _MAX_BATCH))
        if batch:
            await self._board.remove(batch)
            for check in batch:
                if tenure.stale.get(check.transaction_id) == check:
                    del tenure.stale[check.transaction_id]
        return len(batch)

    async def _pause(self, pause_ms: int) -> None:
        for _ in range(pause_ms // _BOARD_INTERVAL_MS):
            if self._is_closing:
                return
            await self._clock.sleep_ms(_BOARD_INTERVAL_MS)


# --- what the loops of all groups share, and the recorder of rounds without an answer ---


class ConcurrencyGate:
    """One waiter for each group at a time."""

    def __init__(self, total: int) -> None:
        self.slots = ConcurrencyLimiter(total)
        self._waiters: dict[str, asyncio.Future[bool]] = {}
        self._is_closed = False

    async def take(self, group: str, most: int) -> bool:
        """Waits for a slot of the group; False when the gate was closed meanwhile."""
        if self._is_closed:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[group] = waiter
        self.slots.want(group, most)
        self._let_in()
        try:
            return await waiter
        except asyncio.CancelledError:
            self._leave(group, waiter)
            raise

    def give_back(self, group: str, *, was_answered: bool | None) -> None:
        """A round is over; see `ConcurrencyLimiter.give_back`."""
        self.slots.give_back(group, was_answered=was_answered)
        self._let_in()

    def close(self) -> None:
        """Nobody is let in any more."""
        self._is_closed = True
        for group, waiter in self._waiters.items():
            self.slots.withdraw(group)
            if not waiter.done():
                waiter.set_result(False)
        self._waiters.clear()

    def _let_in(self) -> None:
        while granted := self.slots.grant():
            for group in granted:
                waiter = self._waiters.pop(group)
                if waiter.done():  # cancelled in this very step
                    self.slots.give_back(group, was_answered=None)
                else:
                    waiter.set_result(True)

    def _leave(self, group: str, waiter: asyncio.Future[bool]) -> None:
        if waiter.done() and not waiter.cancelled():
            if waiter.result():
                self.give_back(group, was_answered=None)
        elif self._waiters.get(group) is waiter:
            del self._waiters[group]
            self.slots.withdraw(group)


class LargeCalls:
    """One call of a group, `most` of all, and one of those to groups whose last one got no answer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: set[str] = set()
        self._silent: set[str] = set()

    def take(self, group: str) -> bool:
        """Whether the group may make one now; to be given back."""
        is_silent_full = group in self._silent and not self._silent.isdisjoint(self._under_way)
        if group in self._under_way or len(self._under_way) >= self._most or is_silent_full:
            return False
        self._under_way.add(group)
        return True

    def give_back(self, group: str, *, was_answered: bool) -> None:
        """The call is over."""
        self._under_way.discard(group)
        if was_answered:
            self._silent.discard(group)
        else:
            self._silent.add(group)


_INTERVAL_MS = 500
_BACKOFF_MS = 5_000
_MAX_WAITING = 20_000  # beyond it the oldest are dropped: they are for people


class RoundRecorder:
    """Takes notes at once, writes them when it can."""

    def __init__(self, directory: ProducerDirectory, clock: Clock, counts: CheckCounts) -> None:
        self._directory = directory
        self._clock = clock
        self._counts = counts
        self._rounds: deque[UnansweredRound] = deque(maxlen=_MAX_WAITING)
        self._gone: dict[tuple[str, str], str] = {}
        self._is_closing = False

    def add(self, rounds: Iterable[UnansweredRound]) -> None:
        """Never blocks."""
        self._rounds.extend(rounds)

    def disable(self, group: str, url: str, reason: str) -> None:
        """Never blocks."""
        self._gone[group, url] = reason

    async def run_once(self) -> int:
        """Writes up to one batch; what could not be written is kept."""
        batch = [self._rounds.popleft() for _ in range(min(_MAX_BATCH, len(self._rounds)))]
        if batch:
            reach(FaultPoint.CHECK_UNANSWERED)
            try:
                await self._directory.record_rounds(batch)
            except BaseException:
                room = _MAX_WAITING - len(self._rounds)
                self._rounds.extendleft(reversed(batch[-room:] if room else []))
                raise
        for (group, url), reason in list(self._gone.items()):
            if self._directory.get(group) is not None:
                await self._directory.disable_endpoint(group, url, reason)
            self._gone.pop((group, url), None)
        return len(batch)

    async def run_forever(self) -> None:
        """Until closed; the last notes are tried once more then."""
        while True:
            is_last = self._is_closing
            pause_ms = _INTERVAL_MS
            try:
                while await self.run_once():
                    pass
            except Exception as error:  # noqa: BLE001 - the directory's own errors; the loop goes on
                self._counts.errors += 1
                _LOG.warning("rounds_not_recorded", waiting=len(self._rounds), error=type(error).__name__)
                pause_ms = _BACKOFF_MS
            if is_last:
                return
            await self._pause(pause_ms)

    def close(self) -> None:
        """Lets `run_forever` end."""
        self._is_closing = True

    async def _pause(self, pause_ms: int) -> None:
        for _ in range(pause_ms // 100):
            if self._is_closing:
                return
            await self._clock.sleep_ms(100)


@dataclass(slots=True, eq=False)
class CheckContext:
    """What a checker works with, and what its loops share.

    `random_text`: for nonces and ids; `jitter`: from [0, 1). `board`: shared with whoever lets groups claim their
    checks. `keyring`: what proves nonces to whoever takes answers over HTTP.
    """

    store: MessageStore
    topics: InternalTopics
    directory: ProducerDirectory
    caller: CheckCaller
    clock: Clock
    random_text: Callable[[], str]
    jitter: Callable[[], float]
    board: PullCheckStore
    keyring: Keyring = field(default_factory=Keyring)
    config: CheckerConfig = field(default_factory=CheckerConfig)
    counts: CheckCounts = field(init=False, default_factory=CheckCounts)
    owners: dict[int, QueueOwner] = field(init=False, default_factory=dict)
    rendering: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    """Held while bodies are read: those of one round at a time are in memory."""
    is_closing: bool = field(init=False, default=False)
    nonces: Nonces = field(init=False)
    gate: ConcurrencyGate = field(init=False)
    large_calls: LargeCalls = field(init=False)
    recorder: RoundRecorder = field(init=False)
    keeper: PullCheckPublisher = field(init=False)
    timetable: CheckScheduler = field(init=False)
    _alerts: set[tuple[str, str]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        config = self.config
        self.nonces = Nonces(self.keyring, self.random_text)
        self.gate = ConcurrencyGate(config.total_calls)
        self.large_calls = LargeCalls(config.large_calls)
        self.recorder = RoundRecorder(self.directory, self.clock, self.counts)
        self.keeper = PullCheckPublisher(self.board, self.clock, self.counts, self.random_text)
        self.timetable = CheckScheduler(
            lambda group: self.directory.settings_of(group).times,
            report_wait_ms=config.report_wait_ms,
            max_lag_ms=config.max_lag_ms,
            max_objects=config.max_objects,
        )

    def moment_of(self, queue_id: int) -> QueueTime:
        """How a queue stands now."""
        owner = self.owners.get(queue_id)
        read_through_ms = 0 if owner is None else owner.read_through_ms()
        return QueueTime(self.now_of(queue_id), read_through_ms, self.clock.monotonic_ms())

    def now_of(self, queue_id: int) -> int:
        """Kafka's time for a queue; of a queue let go meanwhile nothing needs it, so the wall clock will do."""
        owner = self.owners.get(queue_id)
        return self.clock.now_ms() if owner is None else owner.now_ms()

    def is_paused(self, group: str) -> bool:
        """Whether nobody of the group is asked, and nothing is parked, because an operator wants it so."""
        return self.directory.settings_of(group).pauses_checks

    def raise_alert(self, group: str, event: str) -> None:
        """Logs an event for people to act on, the first time until `clear_alert`."""
        if (group, event) not in self._alerts:
            self._alerts.add((group, event))
            _LOG.error(event, group=group)

    def clear_alert(self, group: str, event: str) -> None:
        """What was wrong with the group is over."""
        self._alerts.discard((group, event))
