"""Destinations that stay bad for long while commits for them go on coming: what is in vain costs others little."""

from bridge.core.message import Message, MessageQueue
from bridge.settler.ports import SettlerConfig
from bridge.store.memory.link import PASSES, Fate, NoFaults, Step, StepKind
from tests.support.settler_world import SettlerWorld, make_settler_world

_SLOW_MS = 50


class SlowDescriptions(NoFaults):
    """A cluster whose answers about topics take a while; how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    async def before(self, step: Step) -> Fate:
        if step.kind is not StepKind.DESCRIBE:
            return PASSES
        self.count += 1
        return Fate(request_ms=_SLOW_MS)


def set_leader(world: SettlerWorld, *, is_there: bool) -> None:
    world.memory.cluster.log.set_leader(MessageQueue("credits", 0), has_leader=is_there)


def test_tries_in_vain_leave_most_of_the_time_to_others() -> None:
    """However many commits wait for a topic, their queue is there for others (B), and publishes all of them later."""
    faults = SlowDescriptions()
    world = make_settler_world(faults=faults, config=SettlerConfig(max_batch_records=4))
    names = [f"t{n}" for n in range(400)]
    looked_ms = 0

    async def story() -> None:
        nonlocal looked_ms
        async with world.settling():
            for name in names:
                await world.prepare(name, Message("credits", name.encode(), name.encode()))
            await world.settled()
            set_leader(world, is_there=False)
            await world.memory.clock.sleep_ms(6_000)
            for name in names:
                await world.commit(name)
            await world.settled()
            asked = faults.count
            for n in range(500):
                await world.prepare(f"other{n}", Message("orders", b"other", None))
                await world.memory.clock.sleep_ms(20)
            looked_ms = (faults.count - asked) * _SLOW_MS
            set_leader(world, is_there=True)
            await world.memory.clock.sleep_ms(150_000)

    world.run(story())
    assert looked_ms < 4_000
    assert sorted(world.memory.visible("credits")) == sorted(name.encode() for name in names)
