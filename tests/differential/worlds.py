"""The two logs under the same program, and what is done to them from outside."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bridge.core.errors import StoreError
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.consumer import make_stored
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore
from bridge.store.kafka.transactional_producer import LimitOf
from bridge.store.memory.link import PASSES, Fate, Step, StepKind
from bridge.store.memory.process import MemoryProcess, MemoryProducer
from tests.contract.kafka_world import KafkaContractWorld, KafkaTransaction, append_openly, transactional_producer
from tests.contract.memory_adapter import LateMarkers, MemoryContractWorld
from tests.contract.world import ContractWorld, Process, fresh_name
from tests.differential.program import ALONE, QUEUES, TOPIC_CONFIGS

PROGRAMS_A_TOPIC = 50
_TIMEOUT_S = 30
_ABANDONED_MS = 600_000  # no program lasts so long: what it leaves open stays open
_LOOK_MS = 20
_TOKEN_MS = 200  # members look at their generation every 50 ms

Action = Callable[[], Awaitable[None]]


class DifferentialWorld(ContractWorld, Protocol):
    """A log and two client processes on it."""

    @property
    def processes(self) -> Sequence[Process]: ...

    async def allot(self, kinds: Sequence[str]) -> list[MessageQueue]:
        """For each kind of topic the first of two fresh queues that follow each other."""
        ...

    async def dump(self, queue: MessageQueue) -> list[StoredMessage]:
        """What an uncommitted reader sees."""
        ...

    async def forget_group(self, group: str) -> None:
        """Deletes a group without members; it need not be there."""
        ...

    async def await_group(self, group: str, members: int) -> None:
        """Returns when the group is at rest with so many members, and they know it."""
        ...

    def interrupt(self, action: Action) -> None:
        """Called inside of `finish`: `action` happens before the batch goes on."""
        ...


class _Interruptions(LateMarkers):
    """What is to happen before the next request of a batch."""

    def __init__(self) -> None:
        self.action: Action | None = None

    async def before(self, step: Step) -> Fate:
        if self.action is not None and step.kind in (StepKind.ADD_QUEUES, StepKind.APPEND):
            action, self.action = self.action, None
            await action()
        return PASSES


class MemoryDifferentialWorld(MemoryContractWorld):
    """The in-memory log; a fresh one for each program."""

    def __init__(self) -> None:
        self._interruptions = _Interruptions()
        super().__init__(self._interruptions)
        self.processes: Sequence[MemoryProcess] = (self.process, MemoryProcess(self.cluster, "other"))

    async def allot(self, kinds: Sequence[str]) -> list[MessageQueue]:
        for number, kind in enumerate(kinds):
            self.cluster.log.create_topic(f"topic-{number}", QUEUES, TOPIC_CONFIGS[kind])
        return [MessageQueue(f"topic-{number}", 0) for number in range(len(kinds))]

    async def begin(self, transactional_id: str, messages: Sequence[Message]) -> MemoryProducer:
        producer = MemoryProducer(self.cluster, self.cluster.connect("foreign"), transactional_id)
        await producer.init()
        known = self.cluster.producers.describe(transactional_id)
        assert known is not None
        known.timeout_ms = _ABANDONED_MS
        await producer.put(messages)
        return producer

    async def dump(self, queue: MessageQueue) -> list[StoredMessage]:
        return [record.stored for record in self.cluster.log.find(queue).records if not record.is_control]

    async def forget_group(self, group: str) -> None:
        self.cluster.groups.delete_offsets(group)

    async def await_group(self, group: str, members: int) -> None:
        assert len(self.cluster.groups.describe(group)) == members

    def interrupt(self, action: Action) -> None:
        self._interruptions.action = action


class _SizedProcess:
    """The stores of one client process that knows the limits of the topics in use."""

    def __init__(self, config: KafkaConfig, limit_of: LimitOf) -> None:
        self.owners = KafkaOwnerStore(config, limit_of)
        self.store = KafkaMessageStore(config, self.owners)
        self.admin = KafkaTopicAdmin(config)

    async def close(self) -> None:
        await asyncio.gather(self.owners.close(), self.store.close(), self.admin.close())


class KafkaDifferentialWorld(KafkaContractWorld):
    """Clients that many programs share, each with topics, ids and groups of its own."""

    def __init__(self, bootstrap_servers: str) -> None:
        options = {"bootstrap.servers": bootstrap_servers}
        self._limits: dict[str, int] = {}
        self.processes: Sequence[Process] = tuple(
            _SizedProcess(KafkaConfig(options, client_id=client), self._limits.get) for client in ("main", "other")
        )
        super().__init__(bootstrap_servers, self.processes[0])
        self._loop = asyncio.get_running_loop()
        self._topics = AdminClient(options)
        self._spare: dict[str, list[MessageQueue]] = {}
        self._allotting = asyncio.Lock()
        self._dumping = asyncio.Lock()
        self._dumper = Consumer(
            {
                **options,
                "group.id": "dump",
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 1,
                "fetch.queue.backoff.ms": 0,
            }
        )

    async def allot(self, kinds: Sequence[str]) -> list[MessageQueue]:
        async with self._allotting:
            return [await self._take(kind) for kind in kinds]

    async def begin(self, transactional_id: str, messages: Sequence[Message]) -> KafkaTransaction:
        producer = transactional_producer(self._bootstrap_servers, transactional_id, timeout_ms=_ABANDONED_MS)
        await asyncio.to_thread(append_openly, producer, messages)
        return KafkaTransaction(producer)

    async def dump(self, queue: MessageQueue) -> list[StoredMessage]:
        offsets = await self.process.store.get_offsets(queue)
        async with self._dumping:
            return await asyncio.to_thread(self._dump, queue, offsets.minimum)

    async def forget_group(self, group: str) -> None:
        for future in self._topics.delete_consumer_groups([group], request_timeout=_TIMEOUT_S).values():
            with suppress(KafkaException):  # it was never there
                await asyncio.wrap_future(future)

    async def await_group(self, group: str, members: int) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            while not await self._is_at_rest(group, members):
                await self.clock.sleep_ms(_LOOK_MS)
        await self.clock.sleep_ms(_TOKEN_MS)

    def interrupt(self, action: Action) -> None:
        async def act() -> None:
            await action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(_TIMEOUT_S)

    async def close(self) -> None:
        await super().close()
        await self.processes[1].close()
        await asyncio.to_thread(self._dumper.close)
        del self._topics, self._admin  # or they look for the broker for as long as the run lasts

    async def _is_at_rest(self, group: str, members: int) -> bool:
        (future,) = self._topics.describe_consumer_groups([group], request_timeout=_TIMEOUT_S).values()
        try:
            described = await asyncio.wrap_future(future)
        except KafkaException:  # the coordinator of a fresh broker comes late
            return False
        return described.state.name in ("STABLE", "EMPTY", "DEAD") and len(described.members) == members

    async def _take(self, kind: str) -> MessageQueue:
        """Programs share topics, though no queues: a client takes half a second to find a topic new to it."""
        spare = self._spare.setdefault(kind, [])
        if not spare:
            programs = 1 if kind == ALONE else PROGRAMS_A_TOPIC
            name = fresh_name(f"differential-{kind}")
            await self._make_topic(name, programs * QUEUES, TOPIC_CONFIGS[kind])
            spare += [MessageQueue(name, number * QUEUES) for number in range(programs)]
        return spare.pop()

    async def _make_topic(self, name: str, queues: int, config: Mapping[str, str]) -> None:
        if (limit := config.get("max.message.bytes")) is not None:
            self._limits[name] = int(limit)
        new = NewTopic(name, queues, 1, config=dict(config))
        await asyncio.wrap_future(self._topics.create_topics([new], request_timeout=_TIMEOUT_S)[name])
        async with asyncio.timeout(_TIMEOUT_S):
            for queue_id in range(queues):
                while not await self._is_there(MessageQueue(name, queue_id)):
                    await self.clock.sleep_ms(_LOOK_MS)

    async def _is_there(self, queue: MessageQueue) -> bool:
        try:
            await self.process.store.get_offsets(queue)
        except StoreError:
            return False
        return True

    def _dump(self, queue: MessageQueue, start: int) -> list[StoredMessage]:
        self._dumper.assign([TopicPartition(queue.topic, queue.queue_id, start)])
        found = []
        try:
            while (record := self._dumper.poll(_TIMEOUT_S)) is not None and record.error() is None:
                found.append(make_stored(record))
        finally:
            self._dumper.unassign()
        assert record is not None, f"no end of {queue}"
        return found
