"""Appends to the journal, whole or not at all, and the ends of its queues."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from bridge.clock import Clock, KafkaTime
from bridge.core.errors import StoreTimeout
from bridge.core.message import Message, MessageQueue
from bridge.core.topics import InternalTopics
from bridge.store.message_store import MessageStore, PutResult, PutStatus, Refusal
from bridge.turns import take_error


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


class EndOffsets:
    """A note answers everybody who asked before its request left, and nobody who asked after."""

    def __init__(self, store: MessageStore, topics: InternalTopics) -> None:
        self.queues = topics.queues
        self._store = store
        self._topic = topics.half
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
            return (await self._store.get_offsets(MessageQueue(self._topic, queue_id))).maximum
        finally:
            if self._running.get(queue_id) is task:
                del self._running[queue_id]


class LogState(Protocol):
    """What this process knows of the internal topics beside their records."""

    def find_refusal(self, queue_id: int) -> str | None:
        """Why nothing may be appended to a queue now."""
        ...

    def find_seen(self, queue_id: int) -> int:
        """Records are known below this journal offset."""
        ...

    def doubt(self, queue_id: int, offset: int | None = None) -> None:
        """Refuses the queue until the topics have been looked at anew. `offset`: the journal has given it out again."""
        ...


_BUSY = PutResult(PutStatus.REFUSED, refusal=Refusal.STORE_BUSY, detail="too many records in flight")
_LATE = PutResult(PutStatus.OUTCOME_UNKNOWN, detail="no answer before the deadline")
_BACKWARDS = PutResult(PutStatus.OUTCOME_UNKNOWN, detail="the journal has given out an offset again")
_PUT_OK = PutStatus.PUT_OK  # Python finds the members of an enum only slowly


class Journal:
    """Plain puts of many records at once, within a bound of records in flight, to queues that go on.

    Offsets only rise. A record whose offset is not above what was there before it was sent is in a journal that was
    recreated or truncated: it is not acknowledged, since it may be lost with that journal.
    """

    def __init__(
        self, store: MessageStore, topics: InternalTopics, kafka_time: KafkaTime, max_in_flight: int, log: LogState
    ) -> None:
        self.topics = topics
        self._log = log
        self._highest: dict[int, int] = {}  # offset acknowledged last, by queue
        self._store = store
        self._kafka_time = kafka_time
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._puts: set[asyncio.Task[list[PutResult]]] = set()

    @property
    def in_flight(self) -> int:
        """Records whose fate is not known yet."""
        return self._in_flight

    async def append(self, messages: Sequence[Message], deadline: Deadline) -> list[PutResult]:
        """One result for each record, same order. What is not known at the deadline is OUTCOME_UNKNOWN.

        A caller who is cancelled leaves the records on their way.
        """
        if not messages:
            return []
        refused = self._refuse(messages)
        if refused:
            taken = [message for place, message in enumerate(messages) if place not in refused]
            results = iter(await self._append(taken, deadline))
            return [refused[place] if place in refused else next(results) for place in range(len(messages))]
        return await self._append(messages, deadline)

    def _refuse(self, messages: Sequence[Message]) -> dict[int, PutResult]:
        """What no record may be added to now, by place: a queue that halts would never decide it."""
        reasons = {
            queue_id: self._log.find_refusal(queue_id) for queue_id in {message.queue_id for message in messages}
        }
        if not any(reasons.values()):
            return {}
        return {
            place: PutResult(PutStatus.REFUSED, refusal=Refusal.HALTED, detail=reason)
            for place, message in enumerate(messages)
            if (reason := reasons[message.queue_id])
        }

    async def _append(self, messages: Sequence[Message], deadline: Deadline) -> list[PutResult]:
        if not messages:
            return []
        if self._in_flight + len(messages) > self._max_in_flight:
            return [_BUSY] * len(messages)
        self._in_flight += len(messages)
        task = asyncio.ensure_future(self._put(messages))
        self._puts.add(task)
        task.add_done_callback(self._puts.discard)
        task.add_done_callback(take_error)
        return task.result() if await deadline.wait(task) else [_LATE] * len(messages)

    async def _put(self, messages: Sequence[Message]) -> list[PutResult]:
        floors = {queue_id: self._find_floor(queue_id) for queue_id in {message.queue_id for message in messages}}
        try:
            results = await self._store.put_many(messages)
        finally:
            self._in_flight -= len(messages)
        if results[-1].stored_ms > 0:
            self._kafka_time.observe(results[-1].stored_ms)
        return [self._judge(m.queue_id, result, floors) for m, result in zip(messages, results, strict=True)]

    def _find_floor(self, queue_id: int) -> int:
        """Everything sent from now on is above it."""
        return max(self._highest.get(queue_id, -1), self._log.find_seen(queue_id) - 1)

    def _judge(self, queue_id: int, result: PutResult, floors: Mapping[int, int]) -> PutResult:
        offset = result.queue_offset
        if offset < 0 or result.status is not _PUT_OK:  # a retried put may not know its offset
            return result
        if offset <= floors[queue_id]:
            self._highest[queue_id] = offset
            self._log.doubt(queue_id, offset)
            return _BACKWARDS
        if offset > self._highest.get(queue_id, -1):
            self._highest[queue_id] = offset
        return result
