"""Brokers' clocks that are set forward: append times jump, and nothing is older for it."""

import pytest

from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message
from bridge.core.op_message import AnswerCode
from bridge.core.record import Act, ActRecord
from bridge.core.transaction import MAX_LIFE, TransactionState
from tests.support.checked_world import CheckedWorld
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world
from tests.unit.checker.world import saying

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


@in_world(make_settler_world)
async def test_what_ended_is_forgotten_when_both_clocks_say_so(world: SettlerWorld) -> None:
    """Memory and the op messages a successor reads stay bounded after a jump too."""
    async with world.settling():
        await publish_keyed(world, "once")
        world.memory.clock.shift_wall_clock(3 * MINUTE_MS)
        await pass_others(world, "x")
        first_o = world.read_op().positions[-1].o
        await world.memory.clock.sleep_ms(5 * MINUTE_MS)
        await pass_others(world, "y")
        assert world.read_op().positions[-1].o > first_o


@pytest.mark.parametrize("is_read_back", [False, True], ids=["read live", "read back"])
def test_life_lasts_as_long_as_it_should_although_the_clock_jumps(*, is_read_back: bool) -> None:
    """By an hour, ten seconds after a prepare with half an hour to live: parked after half an hour (S)."""
    story = CheckedWorld(CheckTimes(max_checks=1_000, max_lifetime_ms=30 * MINUTE_MS))
    story.serve(saying("UNKNOWN"))
    world = story.world

    async def body() -> None:
        async with story.checking("first"):
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.settled()
        async with story.checking("second"):
            if not is_read_back:
                await world.rollback("a")
                await world.prepare("b", Message("credits", b"k", b"v"))
            name = "a" if is_read_back else "b"
            await story.sleep(10_000)
            world.memory.clock.shift_wall_clock(60 * MINUTE_MS)
            await pass_others(world, "x")
            await story.sleep(28 * MINUTE_MS)
            assert world.op_of(name).transaction.state is TransactionState.PREPARED
            before = len(story.calls)
            await story.sleep(3 * MINUTE_MS)
            parked = world.op_of(name).transaction
            assert (parked.state, parked.reason) == (TransactionState.PARKED, MAX_LIFE)
            assert len(story.calls) - before <= 6, "asked at its interval, not more often"

    world.run(body())


@pytest.mark.parametrize("act", [None, Act.CHECK], ids=["by itself", "an operator asks"])
def test_further_checks_keep_their_interval_although_the_clock_was_ahead(act: Act | None) -> None:
    """Set back again, append times are behind the owner's for as long as it owns the queue; all checks at once (K)."""
    story = CheckedWorld(CheckTimes(interval_ms=30_000))
    story.serve(saying("UNKNOWN"))
    world = story.world

    async def body() -> None:
        async with story.checking():
            world.memory.clock.shift_wall_clock(3 * MINUTE_MS)
            await pass_others(world, "x")
            world.memory.clock.shift_wall_clock(-3 * MINUTE_MS)
            await world.prepare("a", Message("credits", b"k", b"v"))
            await story.sleep(10_000)
            assert len(story.calls) == 1
            if act is not None:
                await world.act(ActRecord(world.id_of("a"), act, "me", "now", 0))
                await story.sleep(10_000)
                assert len(story.calls) == 2, "who asks for a check gets it at once"
            await story.sleep(2 * MINUTE_MS)
            assert 5 <= len(story.calls) <= 6
            assert world.op_of("a").transaction.state is TransactionState.PREPARED

    world.run(body())


def test_what_was_appended_while_the_clock_was_ahead_is_asked_about_in_time() -> None:
    """Its due time is one of that clock: the owner's never goes back (K)."""
    story = CheckedWorld(CheckTimes(transaction_timeout_ms=5 * MINUTE_MS))
    story.serve(saying("COMMIT"))
    world = story.world

    async def body() -> None:
        async with story.checking():
            world.memory.clock.shift_wall_clock(60 * MINUTE_MS)
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.settled()
            world.memory.clock.shift_wall_clock(-60 * MINUTE_MS)
            for n in range(4):
                await pass_others(world, f"x{n}")
                await story.sleep(MINUTE_MS)
            assert not story.calls
            await story.sleep(MINUTE_MS)
            assert len(story.calls) == 1

    world.run(body())


@pytest.mark.parametrize("answer", ["COMMIT", "UNKNOWN"])
@pytest.mark.parametrize("is_operators", [False, True], ids=["by itself", "an operator asks"])
def test_what_was_read_back_of_a_time_ahead_is_asked_about_an_hour_sooner(answer: str, *, is_operators: bool) -> None:
    """The clock is right again when another owner takes over: it waits its time from then on, not an hour more (T)."""
    story = CheckedWorld(CheckTimes(transaction_timeout_ms=5 * MINUTE_MS, interval_ms=MINUTE_MS))
    story.serve(saying(answer))
    world = story.world

    async def body() -> None:
        async with story.checking("first"):
            world.memory.clock.shift_wall_clock(60 * MINUTE_MS)
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.settled()
            await story.sleep(0 if answer == "COMMIT" else 5 * MINUTE_MS + 10_000)
            world.memory.clock.shift_wall_clock(-60 * MINUTE_MS)
        before = len(story.calls)
        assert before == (answer == "UNKNOWN")
        wait_ms = MINUTE_MS if before else 5 * MINUTE_MS
        async with story.checking("second"):
            await story.sleep(1_000)
            if is_operators:
                await world.act(ActRecord(world.id_of("a"), Act.CHECK, "me", "now", 0))
                await story.sleep(1_000)
                assert len(story.calls) == before + bool(before), "before the first one only its time counts"
            await story.sleep(wait_ms - 10_000)
            assert len(story.calls) == before + bool(before and is_operators)
            await story.sleep(15_000)
            assert len(story.calls) == before + 1 + bool(before and is_operators)

    world.run(body())


@pytest.mark.parametrize("is_read_back", [False, True], ids=["read live", "read back"])
def test_life_ends_between_two_checks(*, is_read_back: bool) -> None:
    """The interval by the monotonic clock holds up no parking (T)."""
    story = CheckedWorld(CheckTimes(interval_ms=60 * MINUTE_MS, max_lifetime_ms=10 * MINUTE_MS))
    story.serve(saying("UNKNOWN"))
    world = story.world

    async def body() -> None:
        async with story.checking("first"):
            await world.prepare("a", Message("credits", b"k", b"v"))
            await story.sleep(0 if is_read_back else 11 * MINUTE_MS)
        async with story.checking("second"):
            await story.sleep(11 * MINUTE_MS if is_read_back else 0)
            parked = world.op_of("a").transaction
            assert (parked.state, parked.reason) == (TransactionState.PARKED, MAX_LIFE)

    world.run(body())


def test_resumed_one_has_its_whole_life_although_the_clock_jumps() -> None:
    """A new life is counted anew by both clocks (S)."""
    story = CheckedWorld(CheckTimes(max_checks=1_000, max_lifetime_ms=30 * MINUTE_MS))
    story.serve(saying("UNKNOWN"))
    world = story.world

    async def body() -> None:
        async with story.checking():
            await world.prepare("a", Message("credits", b"k", b"v"))
            await story.sleep(35 * MINUTE_MS)
            assert world.op_of("a").transaction.state is TransactionState.PARKED
            await world.act(ActRecord(world.id_of("a"), Act.RESUME, "me", "fixed", 0))
            await story.sleep(10_000)
            world.memory.clock.shift_wall_clock(60 * MINUTE_MS)
            await pass_others(world, "x")
            await story.sleep(28 * MINUTE_MS)
            assert world.op_of("a").transaction.state is TransactionState.PREPARED
            await story.sleep(3 * MINUTE_MS)
            assert world.op_of("a").transaction.state is TransactionState.PARKED

    world.run(body(), 3 * 60 * MINUTE_MS)
