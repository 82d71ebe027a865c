"""bridge.service.journal: what a queue that halts would get is refused, and certainly not written."""

import asyncio

from bridge.clock import KafkaTime
from bridge.core.message import Message
from bridge.core.topics import InternalTopics
from bridge.service.journal import Deadline, Journal
from bridge.store.message_store import PutStatus, Refusal
from tests.support.memory_world import SoundLog, make_memory_world


def test_only_records_of_the_halted_queue_are_refused() -> None:
    """In one list with others, each gets its own answer, in its place."""
    world = make_memory_world()
    clock = world.clock
    world.cluster.log.create_topic("two", 2)
    process = world.start_process("api")

    class OneHalts(SoundLog):
        def find_refusal(self, queue_id: int) -> str | None:
            return "queue 1 halts" if queue_id == 1 else None

    async def story() -> None:
        journal = Journal(process.store, InternalTopics(), KafkaTime(clock), 100, OneHalts())
        messages = [Message("two", b"k", value, (), queue_id) for value, queue_id in ((b"a", 0), (b"b", 1), (b"c", 0))]
        results = await journal.append(messages, Deadline.after(clock, 5_000))
        assert [result.status is PutStatus.REFUSED for result in results] == [False, True, False]
        assert (results[1].refusal, results[1].detail) == (Refusal.HALTED, "queue 1 halts")

    asyncio.run(clock.drive(story(), 60_000))
    assert sorted(world.visible("two")) == [b"a", b"c"]
