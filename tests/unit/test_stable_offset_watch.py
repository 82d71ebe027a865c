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
