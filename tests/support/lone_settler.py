"""A settler on a real Kafka inside the test's process, with its journal written by hand.

world = await LoneWorld.create(kafka, "restart", SettlerConfig(...))
async with world.settling() as taken:      # `taken` is the state right after the take-over
    ...
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

from msgspec.structs import replace

from bridge.clock import SystemClock
from bridge.core.message import Message, MessageQueue
from bridge.core.pending_table import PendingTable
from bridge.core.record import EndRecord, HalfMessage, Record, Resolution, Source
from bridge.core.record_codec import encode_end, encode_half
from bridge.core.topics import InternalTopics, with_prefix
from bridge.core.transaction import Transaction, TransactionState, make_transaction_id
from bridge.node import Backing, Node, NodeConfig
from bridge.settler.bodies import KnownTopics
from bridge.settler.owner import OwnedQueue
from bridge.settler.ports import QueueOwner, SettlerConfig
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore
from bridge.store.message_store import PutStatus
from bridge.store.op_topic import begin_queues
from tests.support.check_fakes import MemoryCaller
from tests.support.settler_world import NoDatabase, RecordingObserver

GROUP = "shop"
_DEADLINE_S = 60


class Known(NamedTuple):
    """What an owner knows of its queue."""

    s: int
    live: dict[str, Transaction]
    ended: dict[str, bytes]
    blocked_queues: dict[int, list[str]]

    @classmethod
    def of(cls, owner: QueueOwner) -> Self:
        """A copy, before it changes. A due time has a meaning for PREPARED ones only."""
        assert isinstance(owner, OwnedQueue)
        state = owner.state
        live = {
            t.transaction_id: t if t.state is TransactionState.PREPARED else replace(t, next_due_ms=0)
            for t in [*state.rows, *state.live.values()]
        }
        return cls(state.s, live, dict(state.ended), {k: list(v) for k, v in state.blocked_queues.items()})


class _TakeOvers(RecordingObserver):
    """Keeps what each owner knew when it had taken the queue over and not decided anything yet."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: asyncio.Queue[Known] = asyncio.Queue()

    def queue_taken(self, owner: QueueOwner, prepared: Iterable[Transaction], rows: PendingTable) -> None:
        super().queue_taken(owner, prepared, rows)
        self.taken.put_nowait(Known.of(owner))


async def until(what: Callable[[], bool]) -> None:
    """Looks now and then, while the settler in the same loop works."""
    async with asyncio.timeout(_DEADLINE_S):
        while not what():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.02)


class LoneWorld:
    """One queue. Ids are made of names; ends and half messages are appended in the order of the calls."""

    def __init__(self, kafka: str, config: SettlerConfig) -> None:
        self.prefix = f"lone{secrets.token_hex(4)}."
        self.topics: InternalTopics = with_prefix(self.prefix, 1)
        self.observer = _TakeOvers()
        self._config = config
        self._kafka = KafkaConfig({"bootstrap.servers": kafka})
        self._clock = SystemClock()
        self._store = KafkaMessageStore(self._kafka)
        self._queue = MessageQueue(self.topics.half, 0)

    @classmethod
    async def create(cls, kafka: str, config: SettlerConfig, settings: Mapping[str, str] | None = None) -> Self:
        """With internal topics of its own."""
        world = cls(kafka, config)
        admin = KafkaTopicAdmin(world._kafka)
        appended = {"message.timestamp.type": "LogAppendTime", **(settings or {})}
        for topic in (world.topics.half, world.topics.op, world.topics.parked):
            await admin.create_topic(topic, 1, 1, appended)
        owners = KafkaOwnerStore(world._kafka)
        log = await world._make_node(world._store, owners, admin).log.identify()
        await begin_queues(world._store, owners, world.topics, log)
        await owners.close()
        await admin.close()
        return world

    async def close(self) -> None:
        """Lets the store go."""
        await self._store.close()

    @asynccontextmanager
    async def settling(self) -> AsyncIterator[Known]:
        """A settler with clients of its own, from its take-over on."""
        store, owners, admin = (
            KafkaMessageStore(self._kafka),
            KafkaOwnerStore(self._kafka),
            KafkaTopicAdmin(self._kafka),
        )
        destinations = KnownTopics(admin, self._clock, max_age_ms=100)
        settler = self._make_node(store, owners, admin, destinations).make_settler(self.observer)
        running = asyncio.create_task(settler.run_forever())
        try:
            async with asyncio.timeout(_DEADLINE_S):
                taken = await self.observer.taken.get()
            yield taken
        finally:
            settler.stop()
            await running
            await asyncio.gather(owners.close(), store.close(), admin.close())

    def _make_node(
        self,
        store: KafkaMessageStore,
        owners: KafkaOwnerStore,
        admin: KafkaTopicAdmin,
        destinations: KnownTopics | None = None,
    ) -> Node:
        backing = Backing(
            store, owners, admin, NoDatabase(), self._clock, lambda: MemoryCaller(self._clock),
            destinations=destinations,
        )  # fmt: skip
        return Node(backing, NodeConfig("lone", self.topics, settler=self._config))

    def owner(self) -> QueueOwner:
        """The owner of the queue now."""
        return self.observer.owners[0]

    async def settled(self) -> Known:
        """What the owner knows when it has applied everything appended so far; perhaps it is not written yet."""
        end = (await self._store.get_offsets(self._queue)).maximum
        await until(lambda: Known.of(self.owner()).s >= end)
        return Known.of(self.owner())

    def id_of(self, name: str) -> str:
        """The id of a name."""
        return make_transaction_id(0, int.from_bytes(name.encode().rjust(16, b"\1")[:16]))

    async def prepare(self, topic: str, *names: str, key: bytes | None = None) -> None:
        """Half messages, each with its name as the value."""
        halves = []
        for name in names:
            half = HalfMessage(self.id_of(name), GROUP, 1, self._clock.now_ms(), topic)
            message = Message(topic, key or name.encode(), name.encode(), [("name", name.encode())])
            halves.append(encode_half(half, [message], self.topics.half, 0))
        await self._append(halves)

    async def end(self, resolution: Resolution, *names: str, **members: Any) -> None:
        """End records."""
        source = members.pop("source", Source.PRODUCER)
        records: list[Record] = [
            EndRecord(self.id_of(name), resolution, source, self._clock.now_ms(), **members) for name in names
        ]
        await self._append([encode_end(r, self.topics.half, 0) for r in records if isinstance(r, EndRecord)])

    async def commit(self, *names: str) -> None:
        await self.end(Resolution.COMMIT, *names)

    async def rollback(self, *names: str) -> None:
        await self.end(Resolution.ROLLBACK, *names)

    async def _append(self, messages: list[Message]) -> None:
        results = await self._store.put_many(messages)
        assert all(result.status is PutStatus.PUT_OK for result in results), results
