"""The ends of the journal's queues as the log knows them now, asked once for all who want to know."""

import asyncio

from bridge.core.errors import StoreTimeout
from bridge.core.message import MessageQueue
from bridge.futures import take_error
from bridge.service.deadline import Deadline
from bridge.store.message_store import MessageStore


class QueueEnds:
    """A note answers everybody who asked before its request left, and nobody who asked after."""

    def __init__(self, store: MessageStore, topic: str) -> None:
        self._store = store
        self._topic = topic
        self._running: dict[int, asyncio.Task[int]] = {}
        self._queued: dict[int, asyncio.Task[int]] = {}

    async def note(self, queue_id: int, deadline: Deadline) -> int:
        """An offset that no record appended before this call lies at or above. Raises StoreError."""
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
