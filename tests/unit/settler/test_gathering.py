"""How soon the next Kafka transaction of a queue follows."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from bridge.core.message import Message
from bridge.core.record import EndRecord, Resolution, Source
from bridge.core.record_codec import encode_end
from bridge.settler.ports import SettlerConfig
from tests.support.settler_world import make_settler_world

_LONG_MS = 3_000


@pytest.mark.parametrize(("commits", "is_awaited", "is_next_awaited", "config", "waits"), [
    (16, True, True, SettlerConfig(gather_ms=_LONG_MS), True),
    (15, True, True, SettlerConfig(gather_ms=_LONG_MS, unawaited_gather_ms=_LONG_MS), False),
    (15, True, False, SettlerConfig(gather_ms=_LONG_MS, unawaited_gather_ms=_LONG_MS), False),
    (1, False, False, SettlerConfig(unawaited_gather_ms=_LONG_MS), True),
    (1, False, True, SettlerConfig(unawaited_gather_ms=_LONG_MS), False),
    (1, False, False, SettlerConfig(unawaited_gather_ms=_LONG_MS, gather_bytes=100), False),
])  # fmt: skip
def test_next_batch_waits_a_little_after_one_of_many_commits_or_of_some_that_nobody_waits_for(
    commits: int, is_awaited: bool, is_next_awaited: bool, config: SettlerConfig, waits: bool
) -> None:
    """A caller who waits is held up by nothing that nobody waits for."""
    world = make_settler_world(config=config)
    took_ms = 0

    async def commit(names: Sequence[str], *, is_awaited: bool) -> None:
        ends = [EndRecord(world.id_of(name), Resolution.COMMIT, Source.PRODUCER, 0) for name in names]
        if is_awaited:
            ends = [replace(end, request=f"a1-{number}") for number, end in enumerate(ends)]
        await world.memory.store.put_many([encode_end(end, world.topics.half, 0) for end in ends])
        await world.settled()

    async def story() -> None:
        nonlocal took_ms
        names = [f"{n}" for n in range(commits)]
        async with world.settling():
            for name in [*names, "late"]:
                await world.prepare(name, Message("credits", b"k", b"v"))
            await world.settled()
            await commit(names, is_awaited=is_awaited)
            began_ms = world.memory.clock.monotonic_ms()
            await commit(["late"], is_awaited=is_next_awaited)
            took_ms = world.memory.clock.monotonic_ms() - began_ms

    world.run(story())
    assert len(world.memory.visible("credits")) == commits + 1
    assert (took_ms > 2_000) is waits
