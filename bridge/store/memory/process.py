"""One client process on an in-memory cluster: its stores and writers, and how it is frozen and killed from outside."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, StoreFenced, StoreUnavailable
from bridge.core.message import Message, MessageQueue, Receipt
from bridge.store.memory.link import ABORTABLE, FENCED, Code, Link, LogError, NoAnswerError, Step, StepKind
from bridge.store.memory.partition import Appended, Stamp
from bridge.store.memory.store import MemoryCluster, MemoryGroupMember, MemoryQueueReader, MemoryStore, MemoryTopicAdmin
from bridge.store.message_store import AtomicBatch, BatchResult

T = TypeVar("T")

CALL_TIMEOUT_MS = 2_000
TRANSACTION_TIMEOUT_MS = 10_000
_RETRY_MS = 20
_RETRIED = frozenset(
    {Code.CONCURRENT_TRANSACTIONS, Code.LEADER_NOT_AVAILABLE, Code.UNKNOWN_TOPIC_OR_PARTITION}
)  # fmt: skip


class MemoryProducer:
    """One transactional producer. Every request is a step of its own, at which faults can be put in."""

    def __init__(self, cluster: MemoryCluster, link: Link, transactional_id: str) -> None:
        self._cluster = cluster
        self._link = link
        self._id = transactional_id
        self._stamp = Stamp(-1, -1, 0)
        self._sequences: dict[MessageQueue, int] = {}
        self._queues: set[MessageQueue] = set()
        self._is_begun = False

    async def init(self) -> None:
        """Takes the transactional id: whatever an earlier producer left is fenced, and ended."""
        step = Step(StepKind.INIT, self._link.client, self._id)
        coordinator = self._cluster.producers
        producer_id, epoch = await self._call(step, lambda: coordinator.init(self._id, TRANSACTION_TIMEOUT_MS))
        self._stamp = Stamp(producer_id, epoch, 0)
        self._sequences.clear()

    async def put(self, messages: Sequence[Message]) -> list[Appended]:
        """Appends to the queues the messages name: one request to add the queues, one a queue to append."""
        by_queue: dict[MessageQueue, list[int]] = {}
        for place, message in enumerate(messages):
            by_queue.setdefault(MessageQueue(message.topic, message.queue_id), []).append(place)
        self._check_known(by_queue)
        await self._add_queues([queue for queue in by_queue if queue not in self._queues])
        found: dict[int, Appended] = {}
        refused: LogError | None = None
        for queue, places in by_queue.items():
            try:
                appended = await self._append(queue, [messages[place] for place in places])
            except LogError as error:
                if error.code not in ABORTABLE:
                    raise
                self._sequences[queue] = self._cluster.log.find(queue).next_sequence(self._stamp)  # some may be in
                refused = refused or error  # the other requests are on their way by then
            else:
                found.update(zip(places, appended, strict=True))
        if refused is not None:
            raise refused
        return [found[place] for place in range(len(messages))]

    async def end(self, *, is_commit: bool) -> None:
        """Ends the Kafka transaction; readers see it a little later. Nothing is sent for an empty one."""
        if self._is_begun:
            step = Step(StepKind.END, self._link.client, self._id, is_commit=is_commit)
            stamp = self._stamp
            await self._call(step, lambda: self._cluster.producers.end(self._id, stamp, is_commit))
        self._is_begun = False
        self._queues.clear()

    def _check_known(self, queues: Collection[MessageQueue]) -> None:
        """A client library refuses a queue that its topic does not have; for a missing topic it goes on looking."""
        topics = self._cluster.log.topics
        for queue in queues:
            if queue.topic in topics and queue.queue_id >= len(topics[queue.topic].partitions):
                raise LogError(Code.LOCAL_UNKNOWN_PARTITION, queue.topic)

    async def _add_queues(self, queues: Sequence[MessageQueue]) -> None:
        if queues:
            step = Step(StepKind.ADD_QUEUES, self._link.client, self._id)
            coordinator = self._cluster.producers
            stamp = self._stamp
            await self._call(step, lambda: coordinator.add_queues(self._id, stamp, queues))
            self._queues.update(queues)
            self._is_begun = True

    async def _append(self, queue: MessageQueue, messages: Sequence[Message]) -> list[Appended]:
        sequence = self._sequences.get(queue, 0)
        stamp = self._stamp._replace(sequence=sequence)
        coordinator = self._cluster.producers
        step = Step(StepKind.APPEND, self._link.client, self._id, queue)
        appended = await self._call(step, lambda: coordinator.append(self._id, stamp, queue, messages))
        self._sequences[queue] = sequence + len(messages)
        return appended

    async def _call(self, step: Step, request: Callable[[], T]) -> T:
        """Retries within the time-out what a client library retries by itself."""
        agenda = self._cluster.agenda
        deadline_ms = agenda.monotonic_ms() + CALL_TIMEOUT_MS
        while True:
            left_ms = deadline_ms - agenda.monotonic_ms()
            if left_ms <= 0:
                raise NoAnswerError(f"{step.kind.value}: no success within {CALL_TIMEOUT_MS} ms")
            try:
                return await self._link.call(step, request, left_ms)
            except LogError as error:
                if error.code not in _RETRIED:
                    raise
            await agenda.clock.sleep_ms(_RETRY_MS)


class MemoryBatchWriter:
    """The two producers of one queue. After any error but a clean abort it refuses everything."""

    def __init__(self, cluster: MemoryCluster, link: Link, transactional_ids: tuple[str, str]) -> None:
        first, second = transactional_ids
        self._producers = (MemoryProducer(cluster, link, first), MemoryProducer(cluster, link, second))
        self._turn = 0
        self._is_usable = False

    async def fence(self) -> None:
        self._is_usable = False
        try:
            for producer in self._producers:
                await producer.init()
        except (LogError, NoAnswerError) as error:
            raise _make_fatal(error) from error
        self._turn = 0
        self._is_usable = True

    async def put_all(self, batch: AtomicBatch) -> BatchResult:
        if not self._is_usable:
            raise StoreUnavailable("the writer is not fenced, at work, or dead")
        self._is_usable = False  # also when this task is cancelled at any step below
        producer = self._producers[self._turn]
        try:
            result = await _write(producer, batch)
        except LogError as error:
            if error.code not in ABORTABLE:
                raise _make_fatal(error) from error
            await self._abort(producer)
            raise BatchAborted(error.code.value, error.topic) from error
        except BatchAborted:
            await self._abort(producer)
            raise
        except NoAnswerError as error:
            raise _make_fatal(error) from error
        self._turn = 1 - self._turn
        self._is_usable = True
        return result

    async def close(self) -> None:
        self._is_usable = False

    async def _abort(self, producer: MemoryProducer) -> None:
        try:
            await producer.end(is_commit=False)
        except (LogError, NoAnswerError) as error:
            raise _make_fatal(error) from error
        self._is_usable = True


async def _write(producer: MemoryProducer, batch: AtomicBatch) -> BatchResult:
    """Messages, the records that close the batch, end: each a step of its own."""
    opening = [] if batch.opening is None else [batch.opening]
    appended = (await producer.put([*opening, *batch.messages]))[len(opening) :]
    receipts = [
        Receipt(message.topic, message.queue_id, one.queue_offset if one.queue_offset >= 0 else None)
        for message, one in zip(batch.messages, appended, strict=True)
    ]
    closing = await producer.put(batch.finish(receipts))
    last = closing[-1] if closing else Appended(-1, -1)
    last_offset = last.queue_offset if last.queue_offset >= 0 else None
    batch.check_last(last_offset)
    await producer.end(is_commit=True)
    return BatchResult(receipts, last_offset, last.stored_ms)


def _make_fatal(error: LogError | NoAnswerError) -> BatchOutcomeUnknown:
    if isinstance(error, LogError) and error.code in FENCED:
        return StoreFenced(str(error))
    return BatchOutcomeUnknown(str(error))


class MemoryOwnerStore:
    """OwnerStore of one process."""

    def __init__(self, cluster: MemoryCluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link
        self.members: list[MemoryGroupMember] = []

    def open_reader(self, queue: MessageQueue, offset: int) -> MemoryQueueReader:
        return MemoryQueueReader(self._cluster, self._link, queue, offset)

    def open_writer(self, transactional_ids: tuple[str, str]) -> MemoryBatchWriter:
        return MemoryBatchWriter(self._cluster, self._link, transactional_ids)

    def join_group(self, group: str, topic: str) -> MemoryGroupMember:
        member = MemoryGroupMember(self._cluster, self._link, group, topic)
        self.members.append(member)
        return member


class MemoryProcess:
    """The stores of one client process. Start it anew by making another one."""

    def __init__(self, cluster: MemoryCluster, client: str) -> None:
        self._link = cluster.connect(client)
        self.store = MemoryStore(cluster, self._link)
        self.owners = MemoryOwnerStore(cluster, self._link)
        self.admin = MemoryTopicAdmin(cluster, self._link)

    @property
    def is_stopped(self) -> bool:
        """Whether it is frozen or killed."""
        return self._link.is_stopped

    async def pause(self) -> None:
        """Lets others run, and waits while the process is frozen; raises CancelledError in a killed one."""
        await self._link.pause()

    def freeze(self) -> None:
        """SIGSTOP: no request leaves, no answer is seen, no heartbeat is sent."""
        self._link.freeze()
        for member in self.owners.members:
            member.freeze()

    def kill(self) -> None:
        """SIGKILL: nothing it still tries has an effect, no heartbeat is sent; cancel its tasks afterwards."""
        for member in self.owners.members:
            member.freeze()
        self._link.kill()

    def thaw(self) -> None:
        """SIGCONT."""
        for member in self.owners.members:
            member.thaw()
        self._link.thaw()
