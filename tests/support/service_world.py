"""The service on the in-memory log and on real SQL, on virtual time; settlers are started where a test wants them.

world = make_service_world(tmp_path)
async def story() -> None:
    async with world.serving(), world.settlers.settling():
        [prepared] = await world.transactions.prepare([world.call(b"v")])
world.run(story())

SQL runs inside the event loop, since threads know no virtual time. The projection is written by hand: `project`
puts into it what journal and op topic hold, as a projector would.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import Connection

from bridge.core.errors import SqlUnavailable
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.op_message import OpMessage, encode_receipts, make_view
from bridge.core.record import HalfMessage, Record, is_void
from bridge.core.record_codec import decode_record
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node, NodeConfig
from bridge.service.contract import Limits, PrepareCall
from bridge.sql.engine import InlineDatabase, make_empty_file
from bridge.sql.rows import make_row_id
from bridge.sql.tables import projection_positions, transactions
from tests.support.settler_world import SettlerWorld, make_settler_world

T = TypeVar("T")
GROUP = "shop"


class DatabaseThatGoes(InlineDatabase):
    """`is_down`: as if it could not be reached."""

    is_down = False

    async def read(self, work: Callable[[Connection], T]) -> T:
        if self.is_down:
            raise SqlUnavailable("down")
        return await super().read(work)


@dataclass(slots=True)
class ServiceWorld:
    """`database` is shared by all processes."""

    settlers: SettlerWorld
    database: DatabaseThatGoes
    limits: Limits = field(default_factory=Limits)
    projected: dict[int, int] = field(default_factory=dict)  # op offset by queue

    @property
    def topics(self) -> InternalTopics:
        return self.settlers.topics

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Runs a story on the virtual clock."""
        self.settlers.run(story)

    async def sleep(self, ms: int) -> None:
        await self.settlers.memory.clock.sleep_ms(ms)

    def make_process(self, name: str = "api", *, auto_create_groups: bool = True) -> Node:
        """One more api process, its follower not running yet."""
        config = NodeConfig(
            name,
            self.topics,
            lambda url: None if url.startswith("https://") else "only https",
            self.limits,
            auto_create_groups=auto_create_groups,
        )
        return self.settlers.make_node(self.settlers.memory.start_process(name), name, config, self.database)

    @asynccontextmanager
    async def serving(self, name: str = "api", **options: Any) -> AsyncIterator[Node]:
        """A running api process that is ready."""
        made = self.make_process(name, **options)
        task = asyncio.create_task(made.follower.run_forever())
        try:
            while not made.follower.is_ready:
                await self.sleep(1)
            yield made
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def project(self) -> None:
        """Brings the projection up to date, as a projector would."""
        for queue_id in range(self.topics.queues):
            await self._project_queue(queue_id)

    @asynccontextmanager
    async def projecting(self, interval_ms: int = 50) -> AsyncIterator[None]:
        """A projector that runs."""

        async def follow() -> None:
            while True:
                await self.project()
                await self.sleep(interval_ms)

        task = asyncio.create_task(follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def journal(self, queue_id: int = 0) -> list[Record]:
        """What the journal's queue holds."""
        return [decode_record(stored) for stored in await self._read_journal(queue_id)]

    async def _read_journal(self, queue_id: int) -> list[StoredMessage]:
        queue = MessageQueue(self.topics.half, queue_id)
        return list((await self.settlers.memory.store.get(queue, 0, 10_000)).messages)

    async def _project_queue(self, queue_id: int) -> None:
        end = self.settlers.memory.cluster.log.topics[self.topics.op].partitions[queue_id].maximum
        if self.projected.get(queue_id) == end:
            return
        self.projected[queue_id] = end
        log = self.settlers.read_op(queue_id)
        s = log.positions[-1].s if log.positions else 0
        for stored in await self._read_journal(queue_id):
            record = decode_record(stored)
            if stored.queue_offset < s and isinstance(record, HalfMessage) and not is_void(record, stored.stored_ms):
                op = log.last.get(record.transaction_id)
                self.put_view(_view_of(record, stored, queue_id, op))
        self.put_position(queue_id, s)

    def put_view(self, view: TransactionView) -> None:
        """Writes a row, or writes it anew."""
        row_id = make_row_id(view.queue_id, view.queue_offset)
        row = {
            "id": row_id,
            "transaction_id": view.transaction_id,
            "producer_group": view.group,
            "state": view.state.value,
            "live": int(view.blocked or view.state in {TransactionState.PREPARED, TransactionState.PARKED}),
            "blocked": int(view.blocked),
            "has_half": 1,
            "queue_id": view.queue_id,
            "queue_offset": view.queue_offset,
            "born_ms": view.born_ms,
            "appended_ms": view.appended_ms,
            "at_offset": view.queue_offset,
            "first_check_ms": view.first_check_ms,
            "next_due_ms": view.next_due_ms,
            "check_times": view.check_times,
            "base": view.base,
            "resolved_by": view.by,
            "ended_ms": view.ended_ms,
            "why": view.reason,
            "parked_offset": view.parked_offset,
            "idempotency_key": view.idempotency_key,
            "ordering_key": view.ordering_key,
            "receipts": encode_receipts(view.receipts) if view.receipts else None,
        }
        with self.database.engine.begin() as connection:
            known = transactions.c.transaction_id == view.transaction_id
            if connection.execute(sa.select(transactions.c.id).where(known)).first() is None:
                connection.execute(sa.insert(transactions).values(row))
            else:
                del row["id"], row["queue_offset"]
                connection.execute(sa.update(transactions).where(known).values(row))

    def put_position(self, queue_id: int, s: int) -> None:
        """Says up to where the projection has applied a queue."""
        table = projection_positions
        row: dict[str, Any] = {"queue_id": queue_id, "s": s, "journal_next": s, "op_next": 0}
        row |= {"journal_topic_id": "", "op_topic_id": "", "cluster_id": ""}
        with self.database.engine.begin() as connection:
            connection.execute(sa.delete(table).where(table.c.queue_id == queue_id))
            connection.execute(sa.insert(table).values(row))

    def call(self, value: bytes | None = b"v", **members: Any) -> PrepareCall:
        """A prepare of one message to `orders`."""
        message = Message(members.pop("topic", "orders"), members.pop("message_key", b"k"), value)
        return PrepareCall(members.pop("group", GROUP), (message,), **members)


def _view_of(half: HalfMessage, stored: StoredMessage, queue_id: int, op: OpMessage | None) -> TransactionView:
    if op is None:
        view = TransactionView(
            half.transaction_id, half.group, TransactionState.PREPARED, queue_id, stored.queue_offset,
            half.born_ms, stored.stored_ms, first_check_ms=stored.stored_ms + 6_000,
        )  # fmt: skip
    else:
        view = replace(make_view(op), born_ms=half.born_ms, first_check_ms=stored.stored_ms + 6_000)
    return replace(view, idempotency_key=half.idempotency_key, ordering_key=half.ordering_key)


def make_service_world(
    tmp_path: Path, *, queues: int = 1, limits: Limits | None = None, **options: Any
) -> ServiceWorld:
    """A world with an empty database in `tmp_path`."""
    file = tmp_path / "bridge.db"
    file.write_bytes(make_empty_file())
    database = DatabaseThatGoes(f"sqlite:///{file}")
    return ServiceWorld(make_settler_world(queues=queues, **options), database, limits or Limits())
