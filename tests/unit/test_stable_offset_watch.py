"""bridge.log_watch: what counts as written and not readable."""

import pytest

from bridge.core.errors import StoreUnavailable
from bridge.core.message import MessageQueue, Receipt
from bridge.log_watch import StableOffsetWatch
from bridge.store.message_store import QueueOffsets
from tests.support.memory_world import make_memory_world

AWAY = None


@pytest.mark.parametrize(
    ("looks", "age_ms"),
    [
        ([], 0),
        ([QueueOffsets(0, 5, 9)], 10_000),
        ([QueueOffsets(0, 3, 9), QueueOffsets(0, 3, 9)], 20_000),
        ([QueueOffsets(0, 5, 9), QueueOffsets(0, 8, 9)], 0),
        ([QueueOffsets(0, 8, 9), QueueOffsets(0, 3, 9)], 0),
        ([QueueOffsets(0, 6, 9)], 0),
        ([QueueOffsets(0, 6, 9), QueueOffsets(0, 6, 9)], 10_000),
        ([QueueOffsets(0, 5, 9), QueueOffsets(0, 0, 7)], 0),
        ([QueueOffsets(0, 5, 9), AWAY, QueueOffsets(0, 5, 9)], 0),
    ],
    ids=[
        "not looked yet", "waits at the first", "waits before it", "went on", "was readable", "another one now",
        "waits at that", "made anew", "not asked",
    ],
)  # fmt: skip
async def test_age_is_that_of_the_first_offset_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, looks: list[QueueOffsets | None], age_ms: int
) -> None:
    """Offsets 5 and 7 were written; then there is a look every ten seconds. A partition that moves does not stand."""
    world = make_memory_world()
    watch = StableOffsetWatch(world.store, world.clock)
    said: list[QueueOffsets | None] = []

    async def get_offsets(_: MessageQueue) -> QueueOffsets:
        if said[-1] is AWAY:
            raise StoreUnavailable("away")
        return said[-1]

    monkeypatch.setattr(world.store, "get_offsets", get_offsets)
    watch.note([Receipt("orders", 0, 5), Receipt("orders", 0, 7), Receipt("orders", 0, None)])
    for look in looks:
        said.append(look)
        await world.clock.advance(10_000)
        await watch.run_once()
    assert watch.age_ms == age_ms


async def test_partition_that_is_written_to_while_it_is_asked_about_still_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer says nothing of what was written after it: else no look at a busy partition finds that it hangs."""
    world = make_memory_world()
    watch = StableOffsetWatch(world.store, world.clock)
    end = 8

    async def get_offsets(_: MessageQueue) -> QueueOffsets:
        nonlocal end
        asked = QueueOffsets(0, 5, end)
        watch.note([Receipt("orders", 0, end)])
        end += 1
        return asked

    monkeypatch.setattr(world.store, "get_offsets", get_offsets)
    watch.note([Receipt("orders", 0, 5)])
    for _ in range(7):
        await world.clock.advance(10_000)
        await watch.run_once()
    assert watch.age_ms == 70_000


async def test_what_was_written_after_the_answer_is_looked_at_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the answer speaks of can be read."""
    world = make_memory_world()
    watch = StableOffsetWatch(world.store, world.clock)
    answers = [QueueOffsets(0, 6, 6), *[QueueOffsets(0, 6, 7)] * 3]

    async def get_offsets(_: MessageQueue) -> QueueOffsets:
        if len(answers) == 4:
            watch.note([Receipt("orders", 0, 6)])
        return answers.pop(0)

    monkeypatch.setattr(world.store, "get_offsets", get_offsets)
    watch.note([Receipt("orders", 0, 5)])
    for _ in range(4):
        await world.clock.advance(10_000)
        await watch.run_once()
    assert watch.age_ms == 30_000


async def test_partition_stands_between_the_looks_at_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look asks about some of them; what is known of the rest holds until their turn."""
    world = make_memory_world()
    watch = StableOffsetWatch(world.store, world.clock)

    async def get_offsets(queue: MessageQueue) -> QueueOffsets:
        return QueueOffsets(0, 5 if queue.queue_id == 0 else 9, 9)

    monkeypatch.setattr(world.store, "get_offsets", get_offsets)
    ages = []
    for _ in range(10):
        watch.note([Receipt("orders", queue_id, 5) for queue_id in range(500)])
        await world.clock.advance(10_000)
        await watch.run_once()
        ages.append(watch.age_ms)
    assert ages == [10_000 * count for count in range(1, 11)]
