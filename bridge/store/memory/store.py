"""MessageStore, QueueReader, GroupMember and TopicAdmin over the in-memory log."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from bridge.clock import Clock
from bridge.core.errors import QueueHalted, StoreUnavailable
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.core.topics import TopicDescription
from bridge.store.memory.coordinators import GroupCoordinator, Membership, TransactionCoordinator
from bridge.store.memory.link import (
    NEVER,
    Agenda,
    Code,
    Faults,
    Link,
    LogError,
    NoAnswerError,
    NoFaults,
    Step,
    StepKind,
    make_refused_put,
    make_store_error,
)
from bridge.store.memory.log import MemoryLog
from bridge.store.memory.partition import Appended, Partition
from bridge.store.message_store import (
    ClusterDescription,
    Consumed,
    GetResult,
    GetStatus,
    GroupChange,
    PutResult,
    PutStatus,
    QueueOffsets,
    TopicOutline,
)


class MemoryCluster:
    """What outlives every client process. Time is the given clock's; nothing happens in between by itself."""

    def __init__(self, clock: Clock, faults: Faults | None = None, session_timeout_ms: int = 10_000) -> None:
        self.cluster_id = "memory-cluster"
        self.faults = faults
        self.agenda = Agenda(clock)
        self.log = MemoryLog(self.agenda)
        self.groups = GroupCoordinator(self.log, session_timeout_ms)
        marker_delay_ms = (faults or NoFaults()).marker_delay_ms
        self.producers = TransactionCoordinator(self.log, marker_delay_ms)

    def connect(self, client: str) -> Link:
        """A client process's way to the cluster."""
        return Link(client, self.agenda, self.faults)


class MemoryQueueReader:
    """A committed reader with a position of its own."""

    def __init__(self, cluster: MemoryCluster, link: Link, queue: MessageQueue, offset: int) -> None:
        self._cluster = cluster
        self._link = link
        self._queue = queue
        self._offset = offset

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        agenda = self._cluster.agenda
        until_ms = agenda.monotonic_ms() + max_wait_ms
        await self._link.pause()
        while True:
            agenda.run_due()
            partition = self._find()
            if partition.has_leader:
                result = self._read(partition, max_count)
                if result.messages:
                    return result
            if agenda.monotonic_ms() >= until_ms:
                return GetResult(GetStatus.NO_NEW_MSG, (), self._offset, partition.minimum, partition.maximum)
            await agenda.wait(partition.waiters, until_ms)
            if self._link.is_stopped:
                await self._link.pause()

    async def close(self) -> None:
        """Nothing to give back; kept so that a closed reader and a closed client behave alike."""

    def _find(self) -> Partition:
        try:
            return self._cluster.log.find(self._queue)
        except LogError as error:
            raise make_store_error(error) from error

    def _read(self, partition: Partition, max_count: int) -> GetResult:
        if not partition.minimum <= self._offset <= partition.maximum:
            held = f"{partition.minimum}..{partition.maximum}"
            raise QueueHalted(f"{self._queue}: offset {self._offset} is outside of {held}")
        messages, self._offset = partition.read(self._offset, max_count)
        status = GetStatus.FOUND if messages else GetStatus.NO_NEW_MSG
        return GetResult(status, messages, self._offset, partition.minimum, partition.maximum)


def get_from(partition: Partition, offset: int, max_count: int) -> GetResult:
    """One look at the log from `offset` on. Raises LogError without a leader."""
    minimum, stable, maximum = partition.get_offsets()
    if not minimum <= offset <= maximum:
        nearest = minimum if offset < minimum else maximum
        return GetResult(GetStatus.OFFSET_ILLEGAL, (), nearest, minimum, maximum)
    if offset >= stable:
        return GetResult(GetStatus.NO_NEW_MSG, (), offset, minimum, maximum)
    messages, next_offset = partition.read(offset, max_count)
    status = GetStatus.FOUND if messages else GetStatus.NO_MATCHED_MSG
    return GetResult(status, messages, next_offset, minimum, maximum)


class MemoryGroupMember:
    """A member of a group; it heartbeats for as long as its process is not frozen."""

    def __init__(self, cluster: MemoryCluster, link: Link, group: str, topic: str) -> None:
        self._cluster = cluster
        self._link = link
        self._group = group
        self._is_closed = False
        try:
            self._membership: Membership = cluster.groups.join(group, topic, link.client)
        except LogError as error:
            raise make_store_error(error) from error

    async def next_change(self) -> GroupChange:
        agenda = self._cluster.agenda
        await self._link.pause()
        while True:
            agenda.run_due()
            if self._is_closed:
                raise StoreUnavailable("the member has left its group")
            if self._membership.changes and not self._link.is_stopped:
                return self._membership.changes.popleft()
            await agenda.wait(self._membership.waiters, NEVER)
            await self._link.pause()

    def release(self, queue_ids: Collection[int]) -> None:
        if not self._link.is_dead:
            self._cluster.groups.release(self._group, self._membership, queue_ids)

    def is_owned(self, queue_id: int) -> bool:
        return queue_id in self._membership.owned

    async def close(self) -> None:
        self._is_closed = True
        await self._link.pause()
        self._cluster.groups.leave(self._group, self._membership)
        self._membership.waiters.wake()

    def freeze(self) -> None:
        """No more heartbeats; also what becomes of a killed process."""
        self._cluster.groups.freeze(self._group, self._membership)

    def thaw(self) -> None:
        """Heartbeats again."""
        self._cluster.agenda.run_due()
        self._cluster.groups.thaw(self._group, self._membership)


T = TypeVar("T")

PUT_TIMEOUT_MS = 10_000
READ_TIMEOUT_MS = 5_000


class MemoryStore:
    """Plain puts through one idempotent producer, and look-ups, of one client process."""

    def __init__(self, cluster: MemoryCluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link
        self._puts: set[asyncio.Future[list[PutResult]]] = set()

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

    def put_then(self, messages: Sequence[Message], give: Callable[[list[PutResult]], None]) -> None:
        def land(put: "asyncio.Future[list[PutResult]]") -> None:
            self._puts.discard(put)
            if not put.cancelled():  # by the end of its loop
                error = put.exception()
                unknown = PutResult(PutStatus.OUTCOME_UNKNOWN, detail=repr(error))
                give(put.result() if error is None else [unknown] * len(messages))

        put = asyncio.ensure_future(self.put_many(messages))
        self._puts.add(put)
        put.add_done_callback(land)

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

    async def get_consume_offsets(self, group: str, queues: Sequence[MessageQueue]) -> Mapping[MessageQueue, Consumed]:
        find = self._cluster.groups.get_offset
        return {queue: await self._read(queue, partial(find, group, queue)) for queue in queues}

    async def put_consume_offset(self, group: str, queue: MessageQueue, offset: int, note: str = "") -> None:
        step = Step(StepKind.CONSUME_OFFSET, self._link.client, group, queue)
        groups, client = self._cluster.groups, self._link.client
        await self._ask(step, lambda: groups.put_offset(group, queue, Consumed(offset, note), client))

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
        except LogError as error:
            return make_refused_put(error)
        return PutResult(PutStatus.PUT_OK, appended.queue_offset, appended.stored_ms)

    async def _read(self, queue: MessageQueue, look_up: Callable[[], T]) -> T:
        return await self._ask(Step(StepKind.GET, self._link.client, queue.topic, queue), look_up)

    async def _ask(self, step: Step, request: Callable[[], T]) -> T:
        try:
            return await self._link.call(step, request, READ_TIMEOUT_MS)
        except (LogError, NoAnswerError) as error:
            raise make_store_error(error) from error


_TIMEOUT_MS = 5_000


class MemoryTopicAdmin:
    """What the in-memory cluster says of its topics."""

    def __init__(self, cluster: MemoryCluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link

    async def ping(self) -> None:
        await self._ask("", lambda: None)

    async def describe_cluster(self) -> ClusterDescription:
        description = ClusterDescription(self._cluster.cluster_id, ("memory:0",))
        return await self._ask("", lambda: description)

    async def describe_topics(
        self, names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        topics = self._cluster.log.topics
        return await self._ask(
            ",".join(names), lambda: {name: topics[name].describe() if name in topics else None for name in names}
        )

    async def identify_topics(self, names: Collection[str]) -> dict[str, TopicOutline | None]:
        def outline(name: str) -> TopicOutline | None:
            topic = self._cluster.log.topics.get(name)
            return TopicOutline(topic.topic_id, len(topic.partitions)) if topic is not None else None

        return await self._ask(",".join(names), lambda: {name: outline(name) for name in names})

    async def list_topics(self) -> list[str]:
        return await self._ask("", lambda: [name for name in self._cluster.log.topics if not name.startswith("__")])

    async def list_groups(self) -> list[str]:
        return await self._ask("", lambda: self._cluster.groups.names)

    async def create_topic(self, name: str, queues: int, replication_factor: int, config: Mapping[str, str]) -> bool:
        def create() -> bool:
            if replication_factor != 1:
                raise LogError(Code.INVALID_REPLICATION_FACTOR, name)
            try:
                self._cluster.log.create_topic(name, queues, config)
            except LogError as error:
                if error.code is Code.TOPIC_ALREADY_EXISTS:
                    return False
                raise
            return True

        return await self._ask(name, create)

    async def delete_topic(self, name: str) -> bool:
        def delete() -> bool:
            is_there = name in self._cluster.log.topics
            if is_there:
                self._cluster.log.delete_topic(name)
            return is_there

        return await self._ask(name, delete)

    async def _ask(self, subject: str, request: Callable[[], T]) -> T:
        try:
            return await self._link.call(Step(StepKind.DESCRIBE, self._link.client, subject), request, _TIMEOUT_MS)
        except (LogError, NoAnswerError) as error:
            raise make_store_error(error) from error
