"""When a queue is known to have been read to its end."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from bridge.clock import OwnerTime
from bridge.core.errors import StoreTimeout
from bridge.core.message import Message, MessageQueue
from bridge.core.op_message import LogStart, LogTopics
from bridge.core.position import Witness
from bridge.log_watch import StableOffsetWatch
from bridge.settler.ports import QueueEnd
from bridge.settler.writer import QueueMemory
from bridge.store.memory.store import MemoryQueueReader, MemoryStore
from bridge.store.message_store import GetResult, GetStatus, QueueOffsets
from bridge.store.op_topic import WatchedReader
from tests.support.memory_world import MemoryWorld, make_memory_world
from tests.support.settler_world import make_settler_world

QUEUE = MessageQueue("orders", 0)


class SilentStore(MemoryStore):
    """So many next questions are not answered."""

    failing = asked = 0

    async def get_offsets(self, queue: MessageQueue) -> QueueOffsets:
        self.asked += 1
        found = await super().get_offsets(queue)
        await asyncio.sleep(0)
        if self.failing:
            self.failing -= 1
            raise StoreTimeout("no leader")
        return found


class Followed:
    """A queue with three records, whose end somebody wants to know."""

    def __init__(self) -> None:
        self.memory: MemoryWorld = make_memory_world({"orders": 1})
        self.store = SilentStore(self.memory.cluster, self.memory.cluster.connect("settler"))
        self.time = OwnerTime(self.memory.clock)
        self.time.observe(self.memory.clock.now_ms())
        self.end = QueueEnd(self.store, QUEUE, self.time, StableOffsetWatch(self.store, self.memory.clock))

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            for _ in range(3):
                await self.memory.store.put(QUEUE, Message("orders", b"k", b"v"))
            await story

        asyncio.run(self.memory.clock.drive(whole()))

    async def follow(self, s: int, after_ms: int = 1_000) -> int:
        """What is known after `s` was reached."""
        self.end.follow(s)
        await self.memory.clock.sleep_ms(after_ms)
        return self.end.read_through_ms


def test_queue_is_read_through_at_the_moment_its_end_was_asked_for() -> None:
    """Once all below it is decided; what comes later was not asked for, and nothing is asked without need."""
    followed = Followed()

    async def story() -> None:
        assert (await followed.follow(3), followed.store.asked, followed.end.is_asked) == (0, 0, False)
        asked_ms = followed.time.now_ms() or 0
        followed.end.ask()
        assert followed.end.is_asked
        assert await followed.follow(1) == 0
        assert await followed.follow(2) == 0
        followed.end.ask()  # asked again for a later moment, when this one is known
        assert (await followed.follow(3), followed.store.asked) == (asked_ms, 2)
        later_ms = (followed.time.now_ms() or 0) - 1_000
        assert followed.end.is_asked
        assert await followed.follow(4) == later_ms
        assert (followed.store.asked, followed.end.is_asked) == (2, False)

    followed.run(story())


def test_end_that_could_not_be_asked_for_is_asked_for_again() -> None:
    """Nothing is believed meanwhile."""
    followed = Followed()

    async def story() -> None:
        followed.store.failing = 2
        followed.end.ask()
        assert [await followed.follow(3) for _ in range(2)] == [0, 0]
        assert followed.end.is_asked
        await followed.follow(3)
        began_ms = (followed.time.now_ms() or 0) - 1_000
        assert await followed.follow(3) == began_ms
        assert followed.store.asked == 3

    followed.run(story())


def test_reader_is_not_doubted_while_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was away for long is no sign of a deaf client; one that says that there is more is (T)."""
    followed = Followed()

    async def get_nothing(self: MemoryQueueReader, max_count: int, max_wait_ms: int) -> GetResult:
        await followed.memory.clock.sleep_ms(max_wait_ms)
        return GetResult(GetStatus.NO_NEW_MSG, (), self._offset, 0, 0)

    async def story() -> None:
        monkeypatch.setattr(MemoryQueueReader, "get", get_nothing)
        memory = followed.memory
        reader = WatchedReader(memory.owners, followed.store, memory.clock, QUEUE, 2)

        async def read(count: int) -> None:
            for _ in range(count):
                await reader.get(10, 1_000)

        followed.store.failing = 3
        await read(4 * 60)
        assert followed.store.failing == 0
        with pytest.raises(StoreTimeout, match="nothing comes from 2 on"):
            await read(60 + 30 + 2)
        await reader.close()

    followed.run(story())


def test_closed_one_notes_nothing_more() -> None:
    """The question that is under way is dropped with its queue."""
    followed = Followed()

    async def story() -> None:
        followed.end.close()
        followed.end.ask()
        followed.end.follow(3)
        followed.end.close()
        await followed.memory.clock.sleep_ms(1_000)
        assert await followed.follow(3) == 0

    followed.run(story())


def test_idle_owner_asks_for_its_end_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that journal time goes on, and once more whether its reader is deaf; more would be requests for nothing."""
    world, asked = make_settler_world(), 0

    async def story() -> None:
        nonlocal asked
        async with world.settling() as process:
            get_offsets = process.store.get_offsets

            async def count(queue: MessageQueue) -> QueueOffsets:
                nonlocal asked
                asked += queue.topic == world.topics.half
                return await get_offsets(queue)

            monkeypatch.setattr(process.store, "get_offsets", count)
            await world.memory.clock.sleep_ms(60_000)
            before_ms, asked = world.settlers["settler"].status[0].journal_ms, 0
            await world.memory.clock.sleep_ms(600_000)
            assert 17 <= asked <= 22
            assert world.settlers["settler"].status[0].journal_ms - before_ms >= 530_000

    world.run(story())


def test_settler_is_a_witness_of_what_it_wrote() -> None:
    """Should the log be lost under it, its next take-over sees that; without topics to compare it says nothing."""
    memory = QueueMemory()
    start = LogStart(1, 2)
    memory.confirm(5, LogTopics("half", "op", "parked"), start, 7)
    assert memory.confirmed == Witness(5, "half", "op", start, 7)
    memory.confirm(6, None, start, 8)
    assert memory.confirmed is None
