"""The canary: a transaction now and then in a topic of its own, prepared, committed and read as consumers read.

It shows that the whole way is open, and how long it takes, when nobody else uses it. One that does not arrive is
followed until it has: a topic that takes nothing gets one transaction, not one a minute.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bridge.clock import Clock
from bridge.core.check_rules import CheckCalls, CheckMode, CheckTimes, GroupSettings, WhenExhausted
from bridge.core.errors import SqlUnavailable, StoreError
from bridge.core.measures import Durations
from bridge.core.message import Message, MessageQueue, Receipt
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.service.contract import EndCall, PrepareCall, Prepared, RefusalCode, Refused
from bridge.service.transactions import TransactionService
from bridge.sql.directory import SqlDirectory
from bridge.store.message_store import MessageStore

CANARY_GROUP = "outbox-bridge-canary"
ARRIVED, FAILED = "arrived", "failed"
# Nobody is asked about one whose process died before it committed: it is rolled back after a minute.
_SETTINGS = GroupSettings(
    CheckTimes(max_lifetime_ms=60_000), CheckCalls(mode=CheckMode.PULL), WhenExhausted.ROLLBACK
)  # fmt: skip
_WAIT_MS = 10_000
_MISSED_MS = 60_000  # the longest pause after one that has not arrived: an alert is about five minutes
_LOOK_MS = 20
_OVER = frozenset({RefusalCode.ALREADY_RESOLVED, RefusalCode.UNKNOWN_TRANSACTION, RefusalCode.GIVEN_UP})


@dataclass(frozen=True, slots=True)
class CanaryConfig:
    """`topic`: one that nobody else writes to."""

    topic: str
    interval_ms: int = 60_000


class CanaryRun(NamedTuple):
    """One look. Milliseconds until it was prepared, published and read; `failure`: why it has not arrived, or None."""

    began_ms: int
    prepare_ms: int
    settle_ms: int
    read_ms: int
    failure: str | None = None

    @property
    def total_ms(self) -> int:
        """From its first call until it was read."""
        return self.prepare_ms + self.settle_ms + self.read_ms


class Canary:
    """Of this process. `last`: the newest look; `counts`: looks by what came of them; `durations`: of those arrived."""

    def __init__(
        self,
        config: CanaryConfig,
        transactions: TransactionService,
        directory: SqlDirectory,
        store: MessageStore,
        clock: Clock,
        make_text: Callable[[], str],
    ) -> None:
        self.config = config
        self.last: CanaryRun | None = None
        self.counts: Counter[str] = Counter()
        self.durations = Durations()
        self._transactions = transactions
        self._directory = directory
        self._store = store
        self._clock = clock
        self._make_text = make_text
        self._open: tuple[str, bytes] | None = None  # id and value of one that has not arrived

    async def run_forever(self) -> None:
        """Looks again and again, until it is cancelled; nothing new while an operator has switched off all prepares."""
        while True:
            if self._open is not None or self._directory.accepts_prepares:
                await self.run_once()
            else:
                self.last = None
            is_missed = self.last is not None and self.last.failure is not None
            longest_ms = _MISSED_MS if is_missed else self.config.interval_ms
            await self._clock.sleep_ms(min(longest_ms, self.config.interval_ms))

    async def run_once(self) -> CanaryRun:
        """One look, whatever comes of it."""
        began_ms, times = self._clock.now_ms(), [self._clock.monotonic_ms()]
        try:
            failure = await self._fly(times)
        except (SqlUnavailable, StoreError) as error:
            failure = str(error) or type(error).__name__
        times += [times[-1]] * (4 - len(times))
        run = CanaryRun(began_ms, times[1] - times[0], times[2] - times[1], times[3] - times[2], failure)
        self.counts[ARRIVED if failure is None else FAILED] += 1
        if failure is None:
            self.durations.add(run.total_ms)
        self.last = run
        return run

    async def _fly(self, times: list[int]) -> str | None:
        """Adds to `times` when each step was done; why it went no further."""
        if self._open is None and (failure := await self._prepare()) is not None:
            return failure
        assert self._open is not None
        transaction_id, value = self._open
        times.append(self._clock.monotonic_ms())
        [told] = await self._transactions.end([EndCall(transaction_id, Resolution.COMMIT)], wait_ms=_WAIT_MS)
        if isinstance(told, Refused):
            if told.code in _OVER:
                self._open = None
            return told.detail
        assert isinstance(told, TransactionView)
        if told.state is not TransactionState.COMMITTED or not told.receipts:
            if told.abandoned:
                self._open = None
            return told.reason or told.state.value
        times.append(self._clock.monotonic_ms())
        self._open = None
        [receipt] = told.receipts
        is_there = await self._read(receipt, value)
        times.append(self._clock.monotonic_ms())
        return None if is_there else f"not found at {receipt.topic}[{receipt.queue_id}]@{receipt.queue_offset}"

    async def _read(self, receipt: Receipt, value: bytes) -> bool:
        """Whether it can be read: brokers write the marker that ends a Kafka transaction after they have said so."""
        queue, deadline_ms = MessageQueue(receipt.topic, receipt.queue_id), self._clock.monotonic_ms() + _WAIT_MS
        while True:
            found = await self._store.get(queue, receipt.queue_offset or 0, 1)
            if found.messages or self._clock.monotonic_ms() >= deadline_ms:
                return any(message.value == value for message in found.messages)
            await self._clock.sleep_ms(_LOOK_MS)

    async def _prepare(self) -> str | None:
        await self._directory.ensure_group(CANARY_GROUP, _SETTINGS)
        value = self._make_text().encode()
        call = PrepareCall(CANARY_GROUP, [Message(self.config.topic, b"canary", value)])
        [told] = await self._transactions.prepare([call], _WAIT_MS)
        if isinstance(told, Prepared):
            self._open = (told.transaction_id, value)
            return None
        assert isinstance(told, Refused)
        return told.detail  # what is there all the same is rolled back: an end of what is not would be an orphan
