"""Whole processes of the bridge on the in-memory log, with guard and watch, whose topics can be lost on the way.

world = make_lost_log_world(tmp_path)
async def story() -> None:
    async with world.running() as node:
        made = await world.prepare(node)
        world.recreate(world.topics.op)
        ...
    lost = await world.give_up()
world.run(story())

A process is production's `Node` in all its roles; only adapters, time and chance are given to it. SQL runs inside the
event loop, since threads know no virtual time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from bridge.core.message import Message
from bridge.core.record import Resolution
from bridge.core.topics import InternalTopics
from bridge.giving_up import GivingUp, Loss
from bridge.node import Backing, Node, NodeConfig, Roles
from bridge.projector import RebuildVerdict
from bridge.service.contract import EndCall, Outcome, PrepareCall, Prepared, Refused
from bridge.sql.engine import InlineDatabase, open_new_database
from bridge.store.memory.log import Topic
from bridge.store.op_topic import SealedOwnerStore, SealWatch, begin_queues
from bridge.topology import create_missing, load_seals, migrate_topics, start_seals
from tests.support.check_fakes import MemoryCaller
from tests.support.memory_world import MemoryWorld, make_memory_world

GROUP = "shop"
_LIMIT_MS = 3_600_000


class LostLogWorld:
    """`topics` of one cluster, one database; processes come and go."""

    def __init__(self, memory: MemoryWorld, database: InlineDatabase) -> None:
        self.memory = memory
        self.database = database
        self._lives = 0

    @property
    def topics(self) -> InternalTopics:
        return self.memory.topics

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Runs a story on the virtual clock, from `migrate` on."""

        async def whole() -> None:
            await self._migrate()
            await story

        try:
            asyncio.run(self.memory.clock.drive(whole(), _LIMIT_MS))
        finally:
            self.database.dispose()

    @asynccontextmanager
    async def running(
        self, *, is_settling: bool = True, is_projecting: bool = True, is_awaited: bool = True
    ) -> AsyncIterator[Node]:
        """A process that takes calls, awaited until it is ready; leaves cleanly at the end."""
        self._lives += 1
        async with AsyncExitStack() as stack:
            node = await self._start(
                f"bridge-{self._lives}", stack, Roles(True, is_settling, is_settling and is_projecting)
            )
            if is_awaited:
                await self.until(lambda: node.is_ready, "ready")
            yield node

    async def prepare(self, node: Node, value: bytes = b"v", **members: Any) -> Prepared | Any:
        """One call with one message; `topic` is `orders` unless said."""
        message = Message(members.pop("topic", "orders"), members.pop("message_key", b"k"), value)
        return (await node.transactions.prepare([PrepareCall(GROUP, (message,), **members)], 5_000))[0]

    async def end(self, node: Node, made: Prepared, resolution: Resolution = Resolution.COMMIT) -> Any:
        """Ends what was prepared."""
        calls = [EndCall(made.transaction_id, resolution, GROUP)]
        return (await node.transactions.end(calls, wait_ms=5_000))[0]

    async def refused(self, node: Node, words: str = "") -> Refused:
        """Prepares until that is refused as certainly not applied, in such words; what it says."""
        found: list[Refused] = []

        async def is_refused() -> bool:
            answer = await self.prepare(node, b"refused")
            if isinstance(answer, Refused) and answer.outcome is Outcome.NOT_APPLIED and words in answer.detail:
                found.append(answer)
            return bool(found)

        await self.until_true(is_refused, "a refusal")
        return found[0]

    async def until(self, is_so: Callable[[], bool], what: str, limit_ms: int = 120_000) -> None:
        """Waits for it."""

        async def look() -> bool:
            return is_so()

        await self.until_true(look, what, limit_ms)

    async def until_true(
        self, is_so: Callable[[], Coroutine[Any, Any, bool]], what: str, limit_ms: int = 120_000
    ) -> None:
        """Waits for it."""
        clock = self.memory.clock
        end_ms = clock.monotonic_ms() + limit_ms
        while not await is_so():
            assert clock.monotonic_ms() < end_ms, f"never {what}"
            await clock.sleep_ms(100)

    async def give_up(self) -> Sequence[Loss]:
        """An operator's `migrate --accept-identity --yes`."""
        process, seal_watch = self.memory.start_process("operator"), SealWatch()
        await load_seals(self.database, seal_watch.seals)
        owners = SealedOwnerStore(process.owners, self.topics.op, seal_watch)
        await create_missing(process.admin, self.topics)
        clock = self.memory.clock
        giving_up = GivingUp(process.store, owners, process.admin, self.database, clock, self.topics)
        return await giving_up.act("operator")

    async def rebuild(self) -> RebuildVerdict:
        """An operator's `projection rebuild`."""
        return await self._put_together("rebuilder").rebuild(lambda _: None)

    def lose(self, name: str) -> None:
        """Deletes a topic."""
        self.memory.cluster.log.delete_topic(name)

    def recreate(self, name: str) -> Topic:
        """Deletes a topic and makes it again with the same settings: another id, and empty."""
        log = self.memory.cluster.log
        config, queues = log.topics[name].config, len(log.topics[name].partitions)
        log.delete_topic(name)
        return log.create_topic(name, queues, config)

    def truncate(self, name: str, end: int) -> None:
        """What an unclean election does: records from `end` on were never there, and offsets are given out again."""
        partition = self.memory.cluster.log.topics[name].partitions[0]
        del partition.records[partition.find_index(end) :]
        partition.maximum = end

    async def _migrate(self) -> None:
        process, clock = self.memory.process, self.memory.clock
        begin = partial(begin_queues, process.store, process.owners, self.topics)
        await migrate_topics(process.admin, self.database, self.topics, clock.now_ms(), begin)
        await start_seals(process.store, self.database, self.topics, clock.now_ms())

    async def _start(self, name: str, stack: AsyncExitStack, roles: Roles) -> Node:
        node = self._put_together(name)
        stack.push_async_callback(node.stop)
        await node.start(roles)
        return node

    def _put_together(self, name: str) -> Node:
        process, clock = self.memory.start_process(name), self.memory.clock
        backing = Backing(
            process.store, process.owners, process.admin, self.database, clock, lambda: MemoryCaller(clock),
            Random(self._lives),
        )  # fmt: skip
        return Node(backing, NodeConfig(name, self.topics))


def make_lost_log_world(tmp_path: Path, *, queues: int = 1) -> LostLogWorld:
    """A migrated bridge with an empty journal."""
    return LostLogWorld(make_memory_world(topics=InternalTopics(queues=queues)), open_new_database(tmp_path))
