"""Appends to the journal, whole or not at all also when nobody waits for it any more."""

import asyncio
from collections.abc import Callable, Sequence

from bridge.clock import KafkaTime
from bridge.core.message import Message
from bridge.futures import take_error
from bridge.service.deadline import Deadline
from bridge.store.message_store import MessageStore
from bridge.store.results import PutResult, PutStatus, Refusal

FindRefusal = Callable[[int], str | None]
"""Why nothing may be appended to a queue now."""

_BUSY = PutResult(PutStatus.REFUSED, refusal=Refusal.STORE_BUSY, detail="too many records in flight")
_LATE = PutResult(PutStatus.OUTCOME_UNKNOWN, detail="no answer before the deadline")


class Journal:
    """Plain puts of many records at once, within a bound of records in flight, to queues that go on."""

    def __init__(
        self,
        store: MessageStore,
        kafka_time: KafkaTime,
        max_in_flight: int,
        find_refusal: FindRefusal = lambda _: None,
    ) -> None:
        self._find_refusal = find_refusal
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
        whys = {queue_id: self._find_refusal(queue_id) for queue_id in {message.queue_id for message in messages}}
        if not any(whys.values()):
            return {}
        return {
            place: PutResult(PutStatus.REFUSED, refusal=Refusal.HALTED, detail=why)
            for place, message in enumerate(messages)
            if (why := whys[message.queue_id])
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
        try:
            results = await self._store.put_many(messages)
        finally:
            self._in_flight -= len(messages)
        if results[-1].stored_ms > 0:
            self._kafka_time.observe(results[-1].stored_ms)
        return results
