"""MessageStore over the in-memory log."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.record_size import count_stored_bytes
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.errors import BrokerError, NoAnswerError, make_refused_put, make_store_error
from bridge.store.memory.link import Link, Step, StepKind
from bridge.store.memory.partition import Appended
from bridge.store.memory.reader import get_from
from bridge.store.results import GetResult, PutResult, PutStatus, QueueOffsets

T = TypeVar("T")

PUT_TIMEOUT_MS = 10_000
READ_TIMEOUT_MS = 5_000


class MemoryStore:
    """Plain puts through one idempotent producer, and look-ups, of one client process."""

    def __init__(self, cluster: MemoryCluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link

    async def put(self, queue: MessageQueue, message: Message) -> PutResult:
        return (await self._put_to(queue, [message]))[0]

    async def put_many(self, messages: Sequence[Message]) -> list[PutResult]:
        by_queue: dict[MessageQueue, list[int]] = {}
        for place, message in enumerate(messages):
            by_queue.setdefault(MessageQueue(message.topic, message.queue_id), []).append(place)
        async with asyncio.TaskGroup() as puts:
            tasks = {
                queue: puts.create_task(self._put_to(queue, [messages[place] for place in places]))
                for queue, places in by_queue.items()
            }
        found: dict[int, PutResult] = {}
        for queue, places in by_queue.items():
            found.update(zip(places, tasks[queue].result(), strict=True))
        return [found[place] for place in range(len(messages))]

    async def get(self, queue: MessageQueue, offset: int, max_count: int) -> GetResult:
        return await self._read(queue, lambda: get_from(self._cluster.log.find(queue), offset, max_count))

    async def get_each(
        self, queue: MessageQueue, offsets: Collection[int], max_bytes: int | None = None
    ) -> dict[int, StoredMessage]:
        def look_up() -> dict[int, StoredMessage]:
            partition = self._cluster.log.find(queue)
            partition.check_leader()
            found: dict[int, StoredMessage] = {}
            size = 0
            for offset in sorted(offsets):
                message = partition.read_one(offset)
                if message is not None:
                    found[offset] = message
                    size += count_stored_bytes(message)
                if max_bytes is not None and size >= max_bytes:
                    break
            return found

        return await self._read(queue, look_up)

    async def get_offsets(self, queue: MessageQueue) -> QueueOffsets:
        return await self._read(queue, lambda: self._cluster.log.find(queue).get_offsets())

    async def get_offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        def look_up() -> int:
            partition = self._cluster.log.find(queue)
            partition.check_leader()
            return partition.find_by_time(timestamp_ms)

        return await self._read(queue, look_up)

    async def get_consume_offset(self, group: str, queue: MessageQueue) -> int:
        return await self._read(queue, lambda: self._cluster.groups.get_offset(group, queue))

    async def put_consume_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        step = Step(StepKind.CONSUME_OFFSET, self._link.client, group, queue)
        groups, client = self._cluster.groups, self._link.client
        await self._ask(step, lambda: groups.put_offset(group, queue, offset, client))

    async def _put_to(self, queue: MessageQueue, messages: Sequence[Message]) -> list[PutResult]:
        """One request; a repeat of it, hidden in the client, appends nothing twice (idempotent producer)."""
        results: list[PutResult] = []

        def append_once() -> list[PutResult]:
            if not results:
                results.extend(self._append(queue, message) for message in messages)
            return results

        step = Step(StepKind.PUT, self._link.client, queue.topic, queue)
        try:
            return list(await self._link.call(step, append_once, PUT_TIMEOUT_MS, lane=queue))
        except NoAnswerError as error:
            return [make_refused_put(error)] * len(messages)

    def _append(self, queue: MessageQueue, message: Message) -> PutResult:
        try:
            partition = self._cluster.log.find_writable(queue)
            appended: Appended = partition.append([message], None, self._cluster.agenda.now_ms())[0]
        except BrokerError as error:
            return make_refused_put(error)
        return PutResult(PutStatus.PUT_OK, appended.queue_offset, appended.stored_ms)

    async def _read(self, queue: MessageQueue, look_up: Callable[[], T]) -> T:
        return await self._ask(Step(StepKind.GET, self._link.client, queue.topic, queue), look_up)

    async def _ask(self, step: Step, request: Callable[[], T]) -> T:
        try:
            return await self._link.call(step, request, READ_TIMEOUT_MS)
        except (BrokerError, NoAnswerError) as error:
            raise make_store_error(error) from error
