"""Following the op topic."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from bridge.clock import KafkaTime
from bridge.core.message import Message, MessageQueue
from bridge.core.op_message import (
    ANSWERS_KEY,
    POSITION_KEY,
    Answer,
    AnswerCode,
    OpMessage,
    Position,
    encode_answers,
    encode_op,
    encode_position,
)
from bridge.core.topics import InternalTopics
from bridge.core.transaction import Transaction, TransactionState
from bridge.service.journal import Deadline
from bridge.service.replies import FollowerPorts, OpFollower, PendingReplies, ReplyBatch
from bridge.store.memory.store import MemoryQueueReader
from bridge.store.message_store import GetResult, GetStatus
from bridge.store.op_topic import SealWatch
from tests.support.memory_world import MemoryWorld, SoundLog, make_memory_world

ID = "00" + "0" * 26
TOPICS = InternalTopics(queues=2)


@dataclass(slots=True)
class Following:
    memory: MemoryWorld
    follower: OpFollower
    waiters: PendingReplies
    time: KafkaTime

    async def put(self, *records: tuple[bytes | None, bytes | None]) -> None:
        """Together, so that they are read together."""
        await self.memory.store.put_many([Message(TOPICS.op, key, value, (), 0) for key, value in records])

    async def put_state(self, state: TransactionState = TransactionState.COMMITTED) -> None:
        transaction = replace(Transaction(ID, "shop", 5, 1_000, 0), state=state)
        await self.put((ID.encode(), encode_op(OpMessage(transaction))))

    async def wait(self, wait: ReplyBatch) -> bool:
        await wait.until(Deadline.after(self.memory.clock, 20_000))
        return wait.heard[0] is not None


@asynccontextmanager
async def following(memory: MemoryWorld, *, is_ready: bool = True) -> AsyncIterator[Following]:
    time, waiters = KafkaTime(memory.clock), PendingReplies("p-")
    ports = FollowerPorts(memory.store, memory.owners, memory.clock, time, waiters, SealWatch(), SoundLog())
    follower = OpFollower(TOPICS, ports)
    task = asyncio.create_task(follower.run_forever())
    try:
        while is_ready and not follower.is_ready:
            await memory.clock.sleep_ms(1)
        yield Following(memory, follower, waiters, time)
    finally:
        task.cancel()
        await asyncio.wait([task])


def run(story: object) -> None:
    memory = make_memory_world(topics=TOPICS)
    asyncio.run(memory.clock.drive(story(memory)))  # type: ignore[operator]


def test_states_wake_and_teach_kafkas_time() -> None:
    """A final state wakes; its append time is Kafka's time from then on."""

    async def story(memory: MemoryWorld) -> None:
        async with following(memory) as f:
            wait = f.waiters.open([ID])
            assert f.time.now_ms() == 0
            await f.put_state()
            assert await f.wait(wait)
            assert f.time.now_ms() == memory.clock.now_ms()

    run(story)


def test_what_was_there_before_wakes_nobody() -> None:
    """It begins at the end: states from before the process started are not read."""

    async def story(memory: MemoryWorld) -> None:
        early = Following(memory, None, PendingReplies(""), KafkaTime(memory.clock))  # type: ignore[arg-type]
        await early.put_state()
        async with following(memory) as f:
            assert not await f.wait(f.waiters.open([ID]))

    run(story)


def test_answers_of_others_are_not_parsed() -> None:
    """An answers record without our prefix may be anything; one that cannot be read hides nothing read with it."""

    async def story(memory: MemoryWorld) -> None:
        async with following(memory) as f:
            wait = f.waiters.open([ID])
            answer = Answer(wait.requests[0], ID, AnswerCode.GROUP_MISMATCH, None)
            await f.put(
                (ANSWERS_KEY, b"not JSON"),
                (ANSWERS_KEY, b"p- but not JSON"),
                (ID.encode(), b"not JSON"),
                (ID.encode(), None),
                (ANSWERS_KEY, None),
                (ANSWERS_KEY, encode_answers([(answer, None)])[0]),
            )
            assert await f.wait(wait)
            assert not f.follower.is_failing

    run(story)


def test_not_ready_until_every_end_is_known() -> None:
    """A record appended before the end is known could be answered below it."""

    async def story(memory: MemoryWorld) -> None:
        memory.cluster.log.set_leader(MessageQueue(TOPICS.op, 1), has_leader=False)
        async with following(memory, is_ready=False) as f:
            await memory.clock.sleep_ms(30_000)
            assert not f.follower.is_ready
            assert f.follower.is_failing
            memory.cluster.log.set_leader(MessageQueue(TOPICS.op, 1), has_leader=True)
            while not f.follower.is_ready:
                await memory.clock.sleep_ms(10)

    run(story)


def test_goes_on_from_its_position_after_an_error() -> None:
    """What was written while the topic could not be read is heard afterwards."""

    async def story(memory: MemoryWorld) -> None:
        async with following(memory) as f:
            await f.put_state(TransactionState.PREPARED)
            await memory.clock.sleep_ms(2_000)
            kept = memory.cluster.log.topics.pop(TOPICS.op)
            wait = f.waiters.open([ID])
            await memory.clock.sleep_ms(5_000)
            assert f.follower.is_failing
            memory.cluster.log.topics[TOPICS.op] = kept
            await f.put_state()
            assert await f.wait(wait)
            while f.follower.is_failing:
                await memory.clock.sleep_ms(100)

    run(story)


def test_position_of_a_topic_that_was_made_anew_is_forgotten() -> None:
    """Nobody waits for a journal to reach what was decided of the one before (T)."""

    async def story(memory: MemoryWorld) -> None:
        async with following(memory) as f:
            await f.put((POSITION_KEY, encode_position(Position(7, 0, 0, "who"))))
            await memory.clock.sleep_ms(2_000)
            assert f.follower.positions() == {0: 7}
            memory.cluster.log.delete_topic(TOPICS.op)
            memory.cluster.log.create_topic(TOPICS.op, TOPICS.queues)
            await memory.clock.sleep_ms(20_000)
            assert f.follower.positions() == {}
            assert f.follower.is_ready

    run(story)


def test_queue_whose_reader_hears_nothing_is_read_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client can stay deaf for ever; all callers of the process would get 504 until it is started anew (A, T)."""
    deaf, get = set[MemoryQueueReader](), MemoryQueueReader.get

    async def story(memory: MemoryWorld) -> None:
        async def get_nothing(self: MemoryQueueReader, max_count: int, max_wait_ms: int) -> GetResult:
            if memory.clock.monotonic_ms() < until_ms:
                deaf.add(self)
            if self not in deaf:
                return await get(self, max_count, max_wait_ms)
            await memory.clock.sleep_ms(max_wait_ms)
            return GetResult(GetStatus.NO_NEW_MSG, (), self._offset, 0, 0)

        async with following(memory) as f:
            until_ms = memory.clock.monotonic_ms() + 2_000
            monkeypatch.setattr(MemoryQueueReader, "get", get_nothing)
            await memory.clock.sleep_ms(3_000)
            await f.put_state()
            wait = f.waiters.open([ID])
            await wait.until(Deadline.after(memory.clock, 120_000))
            assert wait.heard[0] is not None

    run(story)
