"""Checks whose answers nobody expects any more, and lives that go on under another owner."""

import pytest
from structlog.testing import capture_logs

from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message
from bridge.core.record import Act, ActRecord, Resolution, Source
from bridge.core.transaction import MAX_CHECKS, TransactionState
from tests.support.checked_world import CheckedWorld
from tests.support.settler_world import GROUP, make_settler_world
from tests.unit.checker.world import saying

DAY_MS = 86_400_000


@pytest.mark.parametrize("is_parked", [False, True])
@pytest.mark.parametrize(("number", "check_times"), [(1, 2), (3, 3), (9, 2)])
def test_commit_of_a_check_decides_whatever_its_number(number: int, check_times: int, *, is_parked: bool) -> None:
    """Answered long ago, by a checker that has lost its queue, or after parking: the group said COMMIT (L, K, S)."""
    world = make_settler_world()

    async def story() -> None:
        async with world.settling():
            await world.prepare("a", Message("credits", b"k", b"v"))
            for answered in (1, 2):
                await world.end("a", Resolution.UNKNOWN, source=Source.CHECK, check_number=answered)
            await world.settled()
            if is_parked:
                world.observer.owners[0].park({world.id_of("a"): MAX_CHECKS})
                await world.memory.clock.sleep_ms(1_000)
                assert world.op_of("a").transaction.state is TransactionState.PARKED
            await world.commit("a", source=Source.CHECK, check_number=number)
            await world.settled()

    world.run(story())
    assert world.memory.visible("credits") == [b"v"]
    op = world.op_of("a").transaction
    assert (op.state, op.by, op.check_times) == (TransactionState.COMMITTED, "check", check_times)


@pytest.mark.parametrize("is_at_once", [False, True], ids=["later", "in one batch"])
@pytest.mark.parametrize(
    ("recorded", "said", "group", "count"),
    [
        (Resolution.COMMIT, Resolution.ROLLBACK, GROUP, 1),
        (Resolution.ROLLBACK, Resolution.COMMIT, GROUP, 1),
        (Resolution.COMMIT, Resolution.COMMIT, GROUP, 0),
        (Resolution.ROLLBACK, Resolution.ROLLBACK, GROUP, 0),
        (Resolution.COMMIT, Resolution.UNKNOWN, GROUP, 0),
        (Resolution.COMMIT, Resolution.ROLLBACK, "other", 0),
    ],
)
def test_check_that_finds_otherwise_changes_nothing_and_is_told(
    recorded: Resolution, said: Resolution, group: str, count: int, *, is_at_once: bool
) -> None:
    """The first one recorded stands; the producer's endpoint looks in the wrong place, and nobody else would tell (27,
    28)."""
    world = make_settler_world()

    async def story() -> None:
        async with world.settling("first"):
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.settled()
            await world.end("a", recorded)
            if not is_at_once:
                await world.settled()
            with capture_logs() as logs:
                await world.end("a", said, source=Source.CHECK, check_number=1, group=group)
                await world.settled()
            assert world.settlers["first"].status[0].counts.overruled == count
            told = [log for log in logs if log["event"] == "end_overruled"]
            assert [(log["transaction"], log["source"]) for log in told] == [(world.id_of("a"), "CHECK")] * count

    world.run(story())
    assert world.memory.visible("credits") == ([b"v"] if recorded is Resolution.COMMIT else [])


@pytest.mark.parametrize("is_decided", [False, True])
def test_resumed_one_has_its_new_life_under_the_next_owner(*, is_decided: bool) -> None:
    """All checks and the whole life again, also if the last owner left before deciding it; numbers go on (K, S)."""
    story = CheckedWorld(CheckTimes(max_checks=2, max_lifetime_ms=200_000))
    story.serve(saying("UNKNOWN"))
    world = story.world

    async def body() -> None:
        resume = ActRecord(world.id_of("a"), Act.RESUME, "me", "fixed", 0)
        async with story.checking("first"):
            await world.prepare("a", Message("credits", b"k", b"v"))
            await story.sleep(250_000)
            assert world.op_of("a").transaction.state is TransactionState.PARKED
            if is_decided:
                await world.act(resume)
                await story.sleep(50)
        if not is_decided:
            await world.act(resume)
        async with story.checking("second"):
            await story.sleep(100_000)

    world.run(body())
    assert [check["check_number"] for _, check in story.calls] == [1, 2, 3, 4]
    op = world.op_of("a").transaction
    assert (op.state, op.reason, op.check_times, op.base) == (TransactionState.PARKED, MAX_CHECKS, 4, 2)


def test_life_that_ended_while_everything_was_down_is_asked_about_first() -> None:
    """Three days without an owner: the group is asked once more before anything is parked (S, K)."""
    story = CheckedWorld()
    story.serve(saying("COMMIT"))
    world = story.world

    async def body() -> None:
        async with story.checking("first"):
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.settled()
        await story.sleep(3 * DAY_MS)
        async with story.checking("second"):
            await story.sleep(60_000)

    world.run(body(), limit_ms=4 * DAY_MS)
    assert len(story.calls) == 1
    assert world.memory.visible("credits") == [b"v"]
    assert world.memory.read_visible(world.topics.parked) == []


def test_timers_of_an_idle_queue_run() -> None:
    """Nothing is appended for twenty minutes; the check comes when it is due (T)."""
    story = CheckedWorld()
    story.serve(saying("COMMIT"))
    world = story.world

    async def body() -> None:
        async with story.checking():
            place = await world.prepare("a", Message("credits", b"k", b"v"), immunity_s=1_200)
            await story.sleep(1_210_000)
            [(asked_ms, _)] = story.calls
            assert 1_200_000 <= asked_ms - place.stored_ms <= 1_201_000

    world.run(body())
    assert world.memory.visible("credits") == [b"v"]
