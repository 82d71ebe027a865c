"""Brokers' clocks that are set forward: append times jump, and nothing is older for it."""

import pytest

from bridge.core.message import Message
from bridge.core.op_message import AnswerCode
from tests.support.settler_world import SettlerWorld, make_settler_world

MINUTE_MS = 60_000


async def publish_keyed(world: SettlerWorld, name: str) -> None:
    """A keyed publish, looked up just now."""
    seen_ms = world.memory.clock.now_ms()
    await world.prepare(
        name, Message("credits", b"k", name.encode()), is_published=True, idempotency_key=name, seen_ms=seen_ms,
        request="r",
    )  # fmt: skip


async def pass_others(world: SettlerWorld, prefix: str) -> None:
    """Records of others, so that journal time goes on and the position is written again."""
    for n in range(3):
        await world.prepare(f"{prefix}{n}", Message("orders", None, b"v"))
        await world.rollback(f"{prefix}{n}")
        await world.settled()
        await world.memory.clock.sleep_ms(1_000)


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["the same owner", "another owner"])
def test_repeat_is_known_for_two_minutes_although_the_clock_jumps(*, is_taken_over: bool) -> None:
    """The projection may be a minute late, so its owner is the only one who knows: not published twice (D)."""
    world = make_settler_world()

    async def story() -> None:
        async with world.settling("first"):
            await publish_keyed(world, "once")
            await world.settled()
            world.memory.clock.shift_wall_clock(3 * MINUTE_MS)
            await pass_others(world, "x")
            if not is_taken_over:
                await publish_keyed(world, "once")
                await world.settled()
        async with world.settling("second"):
            if is_taken_over:
                await pass_others(world, "y")
                await publish_keyed(world, "once")
            await world.settled()
            assert [answer.code for answer in world.read_op().answers] == [AnswerCode.ALREADY]

    world.run(story())
    assert world.memory.visible("credits") == [b"once"]


def test_what_ended_is_forgotten_when_both_clocks_say_so() -> None:
    """Memory and the op messages a successor reads stay bounded after a jump too."""
    world = make_settler_world()

    async def story() -> None:
        async with world.settling():
            await publish_keyed(world, "once")
            world.memory.clock.shift_wall_clock(3 * MINUTE_MS)
            await pass_others(world, "x")
            first_o = world.read_op().positions[-1].o
            await world.memory.clock.sleep_ms(5 * MINUTE_MS)
            await pass_others(world, "y")
            assert world.read_op().positions[-1].o > first_o

    world.run(story())
