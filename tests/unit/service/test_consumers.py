"""How far consumer groups are behind."""

import asyncio

from bridge.core.errors import StoreTimeout
from bridge.core.message import Message, MessageQueue
from bridge.service.topics import ConsumerWatch, GroupLag
from bridge.store.memory.store import MemoryStore, MemoryTopicAdmin
from tests.support.memory_world import MemoryWorld, make_memory_world

QUEUES = [MessageQueue("orders", queue_id) for queue_id in range(2)]


class CountingGroups(MemoryTopicAdmin):
    """Counts questions; `is_slow`: whoever asks waits for ever, `is_down`: nobody answers."""

    asked = 0
    is_slow = is_down = False

    async def list_groups(self) -> list[str]:
        self.asked += 1
        if self.is_slow:
            await asyncio.Event().wait()
        if self.is_down:
            raise StoreTimeout("no answer")
        return await super().list_groups()


async def make_watch(memory: MemoryWorld) -> tuple[ConsumerWatch, CountingGroups]:
    link = memory.cluster.connect("api")
    store, admin = MemoryStore(memory.cluster, link), CountingGroups(memory.cluster, link)
    await store.put_many([Message("orders", None, b"x", queue_id=n % 2) for n in range(10)])
    for offset, group in ((2, "slow"), (5, "quick")):
        await store.put_consume_offset(group, QUEUES[0], offset)
    await store.put_consume_offset("elsewhere", MessageQueue("mails", 0), 0)
    return ConsumerWatch(store, admin, memory.clock), admin


def test_groups_are_behind_by_what_they_could_read() -> None:
    """Only where they have committed; the one farthest behind comes first, and groups of other topics do not."""
    memory = make_memory_world({"orders": 2, "mails": 1})

    async def story() -> None:
        watch, _ = await make_watch(memory)
        lag = await watch.read("orders")
        assert lag is not None
        assert (lag.offsets, lag.groups, lag.is_cut) == (10, [GroupLag("slow", 3), GroupLag("quick", 0)], False)
        assert await watch.read("nowhere") is None

    asyncio.run(memory.clock.drive(story(), 60_000))


def test_kafka_is_asked_rarely() -> None:
    """Once in half a minute for all who look, and nobody waits long for an answer."""
    memory = make_memory_world({"orders": 2, "mails": 1})

    async def story() -> None:
        watch, admin = await make_watch(memory)
        await asyncio.gather(*[watch.read("orders") for _ in range(20)])
        await watch.read("orders")
        assert admin.asked == 1
        await memory.clock.sleep_ms(31_000)
        admin.is_down = True
        assert await watch.read("orders") is None
        await memory.clock.sleep_ms(31_000)
        admin.is_down, admin.is_slow = False, True
        began_ms = memory.clock.monotonic_ms()
        assert await watch.read("orders") is None
        assert memory.clock.monotonic_ms() - began_ms <= 1_000
        assert admin.asked == 3

    asyncio.run(memory.clock.drive(story(), 600_000))
