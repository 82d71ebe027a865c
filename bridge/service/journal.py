"""Appends to the journal, whole or not at all, and the ends of its queues."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from bridge.clock import Clock, KafkaTime
from bridge.core.errors import StoreTimeout
from bridge.core.message import Message, MessageQueue
from bridge.core.topics import InternalTopics
from bridge.log_watch import LogWatch
from bridge.service.contract import RefusalCode, Refused, refuse_unknown
from bridge.store.message_store import MessageStore, PutResult, PutStatus, Refusal
from bridge.turns import take_error

_LOG = structlog.get_logger()
T = TypeVar("T")


class Deadline(NamedTuple):
    """A moment of the monotonic clock after which nobody waits any more."""

    clock: Clock
    at_ms: int

    @classmethod
    def after(cls, clock: Clock, duration_ms: int) -> "Deadline":
        """The moment `duration_ms` from now."""
        return cls(clock, clock.monotonic_ms() + duration_ms)

    def left_ms(self) -> int:
        """What is left, never negative."""
        return max(0, self.at_ms - self.clock.monotonic_ms())

    def sooner(self, duration_ms: int) -> "Deadline":
        """This one, or `duration_ms` from now if that is earlier."""
        return self._replace(at_ms=min(self.at_ms, self.clock.monotonic_ms() + duration_ms))

    async def until(self, awaited: "asyncio.Future[T]", late: T) -> T:
        """What the future gives, which nobody else awaits: it is given `late` at the deadline."""
        if awaited.done():
            return awaited.result()
        timer = self.clock.call_later(self.left_ms(), partial(_give, awaited, late))
        try:
            return await awaited
        finally:
            timer.cancel()

    async def given(self, begin: Callable[[Callable[[T], None]], None], late: T) -> T:
        """What is given to the callback with which `begin` is called, or `late` at the deadline."""
        awaited: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        begin(partial(_give, awaited))
        return await self.until(awaited, late)

    async def wait(self, future: "asyncio.Future[Any]") -> bool:
        """Whether `future` is done in time. The task is never cancelled: not by the deadline, nor with the caller."""
        if future.done():
            return True
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(_: object = None) -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.clock.call_later(self.left_ms(), wake)
        future.add_done_callback(wake)
        try:
            await woken
        finally:
            timer.cancel()
            future.remove_done_callback(wake)
        return future.done()


def _give(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)


class LoneCall(ABC, Generic[T]):
    """A call that nobody awaits: its answer is given by whoever brings it, once."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Callable[[T], None]) -> None:
        self._answer: Callable[[T], None] | None = answer

    @property
    def is_over(self) -> bool:
        """Whether it has its answer."""
        return self._answer is None

    def give(self, answer: T) -> None:
        """The answer, unless there is one already."""
        if (give := self._answer) is not None:
            self._answer = None
            give(answer)

    @abstractmethod
    def give_up(self) -> None:
        """The deadline has come: gives an answer."""


class Patience:
    """Gives up what has waited for too long, with one timer for all calls of a process that wait for as long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[int, deque[tuple[int, LoneCall[Any]]]] = {}  # by wait; calls that are over stay for a while

    def add(self, call: LoneCall[Any], wait_ms: int) -> None:
        """The call is given up unless it is over by then."""
        waiting = self._waiting.get(wait_ms)
        if waiting is None:
            waiting = self._waiting[wait_ms] = deque()
            self._clock.call_later(wait_ms, partial(self._look, wait_ms))
        while waiting and waiting[0][1].is_over:
            waiting.popleft()
        waiting.append((self._clock.monotonic_ms() + wait_ms, call))

    def _look(self, wait_ms: int) -> None:
        waiting, now = self._waiting[wait_ms], self._clock.monotonic_ms()
        while waiting and (waiting[0][1].is_over or waiting[0][0] <= now):
            waiting.popleft()[1].give_up()
        if waiting:
            self._clock.call_later(waiting[0][0] - now, partial(self._look, wait_ms))
        else:
            del self._waiting[wait_ms]


class EndOffsets:
    """A note answers everybody who asked before its request left, and nobody who asked after.

    `find_s`: what is decided lies below the end, too: a broker that was frozen tells that as it was, for a moment.
    """

    def __init__(
        self, store: MessageStore, topics: InternalTopics, find_s: Callable[[int], int | None] = lambda _: None
    ) -> None:
        self.queues = topics.queues
        self._store = store
        self._topic = topics.half
        self._find_s = find_s
        self._running: dict[int, asyncio.Task[int]] = {}
        self._queued: dict[int, asyncio.Task[int]] = {}

    async def note(self, queue_id: int, deadline: Deadline) -> int:
        """An offset above all records appended before this call. Raises StoreError."""
        task = self._queued.get(queue_id)
        if task is None:
            task = asyncio.ensure_future(self._ask(queue_id, self._running.get(queue_id)))
            task.add_done_callback(take_error)
            self._queued[queue_id] = task
        if not await deadline.wait(task):
            raise StoreTimeout(f"no end of journal queue {queue_id} in time")
        return task.result()

    async def _ask(self, queue_id: int, earlier: "asyncio.Task[int] | None") -> int:
        if earlier is not None:
            await asyncio.wait((earlier,))
        task = self._running[queue_id] = self._queued.pop(queue_id)
        try:
            end = (await self._store.get_offsets(MessageQueue(self._topic, queue_id))).maximum
            return max(end, self._find_s(queue_id) or 0)
        finally:
            if self._running.get(queue_id) is task:
                del self._running[queue_id]


_REFUSED_MS = 60_000
_BUSY = PutResult(PutStatus.REFUSED, refusal=Refusal.STORE_BUSY, detail="too many records in flight")
LATE = PutResult(PutStatus.OUTCOME_UNKNOWN, detail="no answer before the deadline")
_BACKWARDS = PutResult(PutStatus.OUTCOME_UNKNOWN, detail="the journal has given out an offset again")
Give = Callable[[list[PutResult]], None]
_PUT_OK = PutStatus.PUT_OK  # Python finds the members of an enum only slowly


class Journal:
    """Plain puts of many records at once, within a bound of records in flight, to queues that go on.

    Offsets only rise. A record whose offset is not above what was there before it was sent is in a journal that was
    recreated or truncated: it is not acknowledged, since it may be lost with that journal.
    """

    def __init__(
        self, store: MessageStore, topics: InternalTopics, kafka_time: KafkaTime, max_in_flight: int, log: LogWatch
    ) -> None:
        self.topics = topics
        self.patience = Patience(kafka_time.clock)  # of those who wait for what becomes of their records
        self._log = log
        self._highest: dict[int, int] = {}  # offset acknowledged last, by queue
        self._store = store
        self._kafka_time = kafka_time
        self._max_in_flight = max_in_flight
        self.in_flight = 0  # records whose fate is not known yet
        self._refusals: dict[int, tuple[str, int]] = {}  # why the last record of a queue was, and when

    def describe_refusals(self) -> str:
        """For operators; nothing where none was for a minute. Callers are only told to come again."""
        now_ms = self._kafka_time.clock.monotonic_ms()
        lately = sorted((q, why) for q, (why, at_ms) in self._refusals.items() if now_ms - at_ms < _REFUSED_MS)
        return "; ".join(f"{self.topics.half}[{queue_id}] takes no records: {why}" for queue_id, why in lately)

    async def append(self, messages: Sequence[Message], deadline: Deadline) -> list[PutResult]:
        """One result for each record, same order. What is not known at the deadline is OUTCOME_UNKNOWN.

        A caller who is cancelled leaves the records on their way.
        """
        return await deadline.given(partial(self.put, messages), [LATE] * len(messages))

    def put(self, messages: Sequence[Message], give: Give) -> None:
        """The same without a deadline: the results are given when all are known, perhaps at once, perhaps never."""
        floors, reasons = dict[int, int](), dict[int, str]()
        for queue_id in {message.queue_id for message in messages}:
            if reason := self._log.find_refusal(queue_id):
                reasons[queue_id] = reason
            else:  # everything sent from now on is above it
                floors[queue_id] = max(self._highest.get(queue_id, -1), self._log.find_seen(queue_id) - 1)
        if not reasons:
            self._put(messages, floors, give)
            return
        # a queue that halts would never decide what is added to it
        refused = {q: PutResult(PutStatus.REFUSED, refusal=Refusal.HALTED, detail=why) for q, why in reasons.items()}

        def merge(found: list[PutResult]) -> None:
            results = iter(found)
            give([refused.get(message.queue_id) or next(results) for message in messages])

        self._put([message for message in messages if message.queue_id not in reasons], floors, merge)

    def _put(self, messages: Sequence[Message], floors: Mapping[int, int], give: Give) -> None:
        count = len(messages)
        if not count or self.in_flight + count > self._max_in_flight:
            give([_BUSY] * count)
            return

        def land(results: list[PutResult]) -> None:
            self.in_flight -= count
            try:
                results = self._judge(messages, results, floors)
            except Exception:  # noqa: BLE001 - nobody can say what was written
                _LOG.exception("results_of_puts_not_understood")
                results = [LATE] * count
            give(results)

        self.in_flight += count
        try:
            self._store.put_then(messages, land)
        except BaseException:
            self.in_flight -= count  # none was taken
            raise

    def _judge(
        self, messages: Sequence[Message], results: list[PutResult], floors: Mapping[int, int]
    ) -> list[PutResult]:
        if results[-1].stored_ms > 0:
            self._kafka_time.observe(results[-1].stored_ms)
        highest = self._highest
        for place, result in enumerate(results):
            offset, queue_id = result.queue_offset, messages[place].queue_id
            if offset < 0 or result.status is not _PUT_OK:  # a retried put may not know its offset
                if result.refusal is not None:
                    self._note_refusal(queue_id, result)
                continue
            if self._refusals:
                self._refusals.pop(queue_id, None)
            if offset <= floors[queue_id]:
                highest[queue_id] = offset
                self._log.doubt(queue_id, offset)
                results[place] = _BACKWARDS
            elif offset > highest.get(queue_id, -1):
                highest[queue_id] = offset
        return results

    def _note_refusal(self, queue_id: int, result: PutResult) -> None:
        """Once in the log for as long as it lasts. A record that is too large is its caller's own affair."""
        if result.refusal is Refusal.MESSAGE_TOO_LARGE:
            return
        why = result.detail or str(result.refusal)
        if self._refusals.get(queue_id, ("", 0))[0] != why:
            _LOG.error("journal_refused", queue=queue_id, reason=why)
        self._refusals[queue_id] = why, self._kafka_time.clock.monotonic_ms()


# --- what callers are told of a put ---


def refuse_put(result: PutResult, transaction_id: str) -> Refused | None:
    """The refusal of a put that is certainly not, or perhaps, written; None if it is."""
    if result.status is _PUT_OK:
        return None
    if result.status is PutStatus.OUTCOME_UNKNOWN:
        return refuse_unknown(transaction_id)
    if result.refusal is Refusal.MESSAGE_TOO_LARGE:
        return Refused(RefusalCode.MESSAGE_TOO_LARGE, "the transaction is larger than the journal takes")
    if result.refusal is Refusal.HALTED:
        return Refused(RefusalCode.UNAVAILABLE, result.detail, transaction_id=transaction_id, retry_after_s=10)
    return Refused(RefusalCode.UNAVAILABLE, "the journal does not take records now", retry_after_s=1)
