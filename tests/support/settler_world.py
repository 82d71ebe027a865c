"""A settler, or several, on the in-memory log; records are appended and read back without the HTTP side.

world = make_settler_world(queues=1)
async def story() -> None:
    async with world.settling():
        place = await world.prepare("a", Message("orders", b"k", b"v"))
        ...
world.run(story())
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from sqlalchemy import Connection

from bridge.core.check_rules import CheckTimes
from bridge.core.errors import SqlUnavailable
from bridge.core.message import Message, MessageQueue
from bridge.core.op_message import (
    ANSWERS_KEY,
    POSITION_KEY,
    Answer,
    OpMessage,
    Position,
    decode_answers,
    decode_op,
    decode_position,
)
from bridge.core.pending_table import PendingTable
from bridge.core.record import ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end, encode_half
from bridge.core.topics import InternalTopics
from bridge.core.transaction import Transaction, make_transaction_id
from bridge.log_watch import LogWatch
from bridge.node import Backing, Node, NodeConfig
from bridge.settler.ports import QueueOwner, SettlerConfig
from bridge.settler.settler import Settler
from bridge.sql.engine import Database
from bridge.store.memory.process import MemoryOwnerStore, MemoryProcess
from bridge.store.message_store import OwnerStore, PutResult
from bridge.store.op_topic import SealedOwnerStore, SealWatch
from tests.support.check_fakes import MemoryCaller
from tests.support.memory_world import MemoryWorld, make_memory_world

GROUP = "shop"
T = TypeVar("T")


@dataclass(slots=True)
class RecordingObserver:
    """An observer that keeps what it was told."""

    owners: dict[int, QueueOwner] = field(default_factory=dict)
    pending: dict[str, Transaction] = field(default_factory=dict)

    def queue_taken(self, owner: QueueOwner, prepared: Iterable[Transaction], rows: PendingTable) -> None:
        self.owners[owner.queue_id] = owner
        self.pending |= {t.transaction_id: t for t in [*prepared, *rows]}

    def prepared(self, queue_id: int, transactions: Sequence[Transaction], read_monotonic_ms: int) -> None:
        assert queue_id in self.owners
        assert read_monotonic_ms >= 0
        self.pending |= {t.transaction_id: t for t in transactions}

    def ended(self, queue_id: int, transaction_ids: Sequence[str]) -> None:
        assert queue_id in self.owners
        for transaction_id in transaction_ids:
            self.pending.pop(transaction_id, None)

    def queue_released(self, queue_id: int) -> None:
        self.owners.pop(queue_id, None)


@dataclass(slots=True)
class OpLog:
    """Everything a committed reader finds in the op topic."""

    last: dict[str, OpMessage] = field(default_factory=dict)
    every: list[OpMessage] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)


class NoDatabase(Database):
    """One that never answers."""

    def __init__(self) -> None:
        self.is_sqlite = True
        self.list_turns = asyncio.Semaphore(1)

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        raise SqlUnavailable("there is none")

    async def read(self, work: Callable[[Connection], T]) -> T:
        raise SqlUnavailable("there is none")


class _WorldNode(Node):
    """`start` is not called: a world looks neither at topics nor at groups by itself."""

    def __init__(self, backing: Backing, config: NodeConfig, world: "SettlerWorld") -> None:
        super().__init__(backing, config)
        self.directory.times_of = lambda _: world.times
        self.guard.faults = ()


class SettlerWorld:
    """One journal, any number of settlers."""

    def __init__(self, memory: MemoryWorld, config: SettlerConfig, seal_watch: SealWatch | None = None) -> None:
        self.memory = memory
        self.seal_watch = seal_watch or SealWatch()  # without keys: nothing is sealed
        for partition in memory.cluster.log.topics[memory.topics.op].partitions:  # first positions
            self.seal_watch.seals.believed.setdefault(partition.queue.queue_id, partition.maximum)
        self.config = config
        self.observer = RecordingObserver()
        self.times = CheckTimes()
        self.random = Random(7)
        self.settlers: dict[str, Settler] = {}
        self.watches: dict[str, LogWatch] = {}
        self._ids: dict[str, str] = {}

    @property
    def topics(self) -> InternalTopics:
        return self.memory.topics

    def make_settler(
        self,
        process: MemoryProcess,
        name: str = "settler",
        owners: Callable[[MemoryOwnerStore], OwnerStore] = lambda owners: owners,
    ) -> Settler:
        node = self.make_node(process, name, NodeConfig(name, self.topics, settler=self.config), owners=owners)
        self.watches[name] = node.log
        return node.make_settler(self.observer)

    def make_node(
        self,
        process: MemoryProcess,
        name: str,
        config: NodeConfig,
        database: Database | None = None,
        owners: Callable[[MemoryOwnerStore], OwnerStore] = lambda owners: owners,
    ) -> Node:
        """A process whose groups have the times of this world."""
        backing = Backing(
            process.store, owners(process.owners), process.admin, database or NoDatabase(), self.memory.clock,
            lambda: MemoryCaller(self.memory.clock), self.random, seal_watch=self.seal_watch,
        )  # fmt: skip
        return _WorldNode(backing, config, self)

    def seal(self, owners: OwnerStore) -> SealedOwnerStore:
        """What a process reads and writes op records through."""
        return SealedOwnerStore(owners, self.topics.op, self.seal_watch)

    @asynccontextmanager
    async def settling(self, name: str = "settler") -> AsyncIterator[MemoryProcess]:
        """A running settler process; leaves cleanly at the end."""
        process = self.memory.start_process(name)
        settler = self.settlers[name] = self.make_settler(process, name)
        task = asyncio.create_task(settler.run_forever())
        watching = asyncio.create_task(self.watches[name].run_forever())
        try:
            yield process
        finally:
            settler.stop()
            await task
            watching.cancel()

    def run(self, story: Coroutine[Any, Any, None], limit_ms: int = 3_600_000) -> None:
        """Runs a story on the virtual clock, for at most so long."""
        asyncio.run(self.memory.clock.drive(story, limit_ms))

    def id_of(self, name: str, queue_id: int = 0) -> str:
        """A transaction id that is the same for the same name."""
        return make_transaction_id(queue_id, int.from_bytes(name.encode().rjust(16, b"\1")[:16]))

    async def prepare(self, name: str, *messages: Message, queue_id: int = 0, **members: Any) -> PutResult:
        """Appends a half message."""
        first = messages[0]
        single = {"real_topic": first.topic, "real_queue_id": first.queue_id, "timestamp_ms": first.timestamp_ms}
        half = HalfMessage(
            self.id_of(name, queue_id), GROUP, len(messages), self.memory.clock.now_ms(),
            **(single if len(messages) == 1 else {}), **members,
        )  # fmt: skip
        return await self._append(encode_half(half, messages, self.topics.half, queue_id))

    async def end(self, name: str, resolution: Resolution, *, queue_id: int = 0, **members: Any) -> PutResult:
        """Appends an end record."""
        source = members.pop("source", Source.PRODUCER)
        end = EndRecord(self.id_of(name, queue_id), resolution, source, self.memory.clock.now_ms(), **members)
        return await self._append(encode_end(end, self.topics.half, queue_id))

    async def commit(self, name: str, **members: Any) -> PutResult:
        return await self.end(name, Resolution.COMMIT, **members)

    async def rollback(self, name: str, **members: Any) -> PutResult:
        return await self.end(name, Resolution.ROLLBACK, **members)

    async def act(self, act: ActRecord, queue_id: int = 0) -> PutResult:
        """Appends an operator's act."""
        return await self._append(encode_act(act, self.topics.half, queue_id))

    async def settled(self, queue_id: int = 0) -> None:
        """Waits until the queue's position has reached the journal's end."""
        while True:
            end = (await self.memory.store.get_offsets(MessageQueue(self.topics.half, queue_id))).maximum
            positions = self.read_op(queue_id).positions
            if positions and positions[-1].s >= end:
                return
            await self.memory.clock.sleep_ms(20)

    def read_op(self, queue_id: int = 0) -> OpLog:
        """The op queue as a committed reader finds it now."""
        log = OpLog()
        self.memory.cluster.agenda.run_due()
        partition = self.memory.cluster.log.topics[self.topics.op].partitions[queue_id]
        for message in partition.read(partition.minimum, len(partition.records))[0]:
            assert message.key is not None
            assert message.value is not None
            value = self.seal_watch.seals.open(queue_id, message.queue_offset, message.key, message.value)
            if value is None:
                continue  # somebody else's
            if message.key == POSITION_KEY:
                log.positions.append(decode_position(value))
            elif message.key == ANSWERS_KEY:
                log.answers += decode_answers(value)
            else:
                op = decode_op(message.key.decode(), value)
                log.last[message.key.decode()] = op
                log.every.append(op)
        return log

    def op_of(self, name: str, queue_id: int = 0) -> OpMessage:
        """The last op message of a transaction."""
        return self.read_op(queue_id).last[self.id_of(name, queue_id)]

    async def _append(self, message: Message) -> PutResult:
        return (await self.memory.store.put_many([message]))[0]


def make_settler_world(
    *, queues: int = 1, config: SettlerConfig | None = None, seal_watch: SealWatch | None = None, **options: Any
) -> SettlerWorld:
    """A world whose journal has `queues` queues."""
    memory = make_memory_world(topics=InternalTopics(queues=queues), **options)
    return SettlerWorld(memory, config or SettlerConfig(), seal_watch)
