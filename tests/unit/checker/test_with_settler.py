"""Checker and settler together on the in-memory log: from a half message nobody ended to its end."""

from dataclasses import replace

import pytest

from bridge.core.check_rules import CheckTimes, GroupSettings, WhenExhausted
from bridge.core.message import Message
from bridge.core.record import Act, ActRecord, EndRecord, Source
from bridge.core.record_codec import decode_record
from bridge.core.transaction import MAX_CHECKS, MAX_LIFE, NO_ENDPOINT, TransactionState
from bridge.directory import ProducerGroup
from tests.support.checked_world import CheckedWorld
from tests.support.settler_world import GROUP
from tests.unit.checker.world import saying, sending


@pytest.mark.parametrize(
    ("word", "state", "published"),
    [("COMMIT", TransactionState.COMMITTED, [b"v"]), ("ROLLBACK", TransactionState.ROLLED_BACK, [])],
)
def test_forgotten_transaction_is_decided_by_its_group(
    word: str, state: TransactionState, published: list[bytes]
) -> None:
    """The producer died: the check's answer decides, once, and says so."""
    story = CheckedWorld()
    story.serve(saying(word))

    async def body() -> None:
        async with story.checking():
            await story.world.prepare("a", Message("credits", b"k", b"v"))
            born_ms = story.world.memory.clock.now_ms()
            await story.sleep(40_000)
            assert len(story.calls) == 1
            assert 6_000 <= story.calls[0][0] - born_ms <= 7_000
            await story.world.settled()

    story.world.run(body())
    op = story.world.op_of("a").transaction
    assert (op.state, op.by) == (state, "check")
    assert story.world.memory.visible("credits") == published


def test_answers_unknown_are_counted_until_it_is_parked() -> None:
    """Three answers, 30 s apart, numbered; then parked with its message."""
    story = CheckedWorld(CheckTimes(max_checks=3))
    story.serve(saying("UNKNOWN"))

    async def body() -> None:
        async with story.checking():
            await story.world.prepare("a", Message("credits", b"k", b"v"))
            await story.sleep(150_000)

    story.world.run(body())
    assert [check["check_number"] for _, check in story.calls] == [1, 2, 3]
    gaps = [later - at for (at, _), (later, _) in zip(story.calls, story.calls[1:], strict=False)]
    assert all(30_000 <= gap <= 31_000 for gap in gaps)
    op = story.world.op_of("a").transaction
    assert (op.state, op.reason, op.check_times) == (TransactionState.PARKED, MAX_CHECKS, 3)
    assert len(story.world.memory.read_visible(story.world.topics.parked)) == 1


@pytest.mark.parametrize(
    ("times", "word", "reason"),
    [(CheckTimes(max_checks=2), "UNKNOWN", MAX_CHECKS), (CheckTimes(max_lifetime_ms=60_000), None, MAX_LIFE)],
)
def test_exhausted_one_is_rolled_back_where_its_group_wishes_it(
    times: CheckTimes, word: str | None, reason: str
) -> None:
    """By a recorded resolution, in an operator's name; a late commit finds it ended, and nothing is parked."""
    story = CheckedWorld(times)
    known = story.directory.groups[GROUP]
    settings = replace(known.settings, when_exhausted=WhenExhausted.ROLLBACK)
    story.directory.groups[GROUP] = replace(known, settings=settings)
    story.serve(saying(word) if word else sending(500))

    async def body() -> None:
        async with story.checking():
            await story.world.prepare("a", Message("credits", b"k", b"v"))
            await story.sleep(120_000)
            await story.world.commit("a")
            await story.sleep(1_000)

    story.world.run(body())
    op = story.world.op_of("a").transaction
    assert (op.state, op.by) == (TransactionState.ROLLED_BACK, "operator")
    journal = [decode_record(stored) for stored in story.world.memory.read_visible(story.world.topics.half)]
    ends = [(end.actor, end.reason) for end in journal if isinstance(end, EndRecord) and end.source is Source.OPERATOR]
    assert ends == [("when_exhausted", reason)]
    assert story.world.memory.visible("credits") == []
    assert story.world.memory.read_visible(story.world.topics.parked) == []


def test_commit_in_time_is_never_checked() -> None:
    """No check after a resolution, and none before the due time (K)."""
    story = CheckedWorld()
    story.serve(saying("ROLLBACK"))

    async def body() -> None:
        async with story.checking():
            for number in range(50):
                await story.world.prepare(f"{number}", Message("credits", b"k", b"v"))
            await story.sleep(5_000)
            for number in range(50):
                await story.world.commit(f"{number}")
            await story.sleep(40_000)

    story.world.run(body())
    assert story.calls == []
    assert len(story.world.memory.visible("credits")) == 50


def test_rounds_without_endpoint_use_nothing_up() -> None:
    """Hole 6: parked at the end of its life with no check counted, not before."""
    story = CheckedWorld(CheckTimes(max_checks=2, max_lifetime_ms=200_000))
    story.directory.groups[GROUP] = ProducerGroup(GROUP, GroupSettings(story.world.times))

    async def body() -> None:
        async with story.checking():
            await story.world.prepare("a", Message("credits", b"k", b"v"))
            await story.sleep(199_000)
            assert story.world.read_op().last == {}
            await story.sleep(5_000)

    story.world.run(body())
    op = story.world.op_of("a").transaction
    assert (op.state, op.reason, op.check_times) == (TransactionState.PARKED, NO_ENDPOINT, 0)


def test_resumed_transaction_is_asked_about_at_once() -> None:
    """An operator resumes a parked one: next number, new allowance."""
    story = CheckedWorld(CheckTimes(max_checks=1))
    story.serve(saying("UNKNOWN"))

    async def body() -> None:
        async with story.checking():
            await story.world.prepare("a", Message("credits", b"k", b"v"))
            await story.sleep(60_000)
            assert story.world.op_of("a").transaction.state is TransactionState.PARKED
            story.serve(saying("COMMIT"))
            resume = ActRecord(story.world.id_of("a"), Act.RESUME, "op", "again", 0)
            await story.world.act(resume)
            await story.sleep(2_000)

    story.world.run(body())
    assert [check["check_number"] for _, check in story.calls] == [1, 2]
    assert story.world.memory.visible("credits") == [b"v"]


def test_successor_goes_on_where_the_last_owner_stopped() -> None:
    """Counters come from the journal: no number is lost or used twice by a take-over."""
    story = CheckedWorld()
    story.serve(saying("UNKNOWN"))

    async def body() -> None:
        for name in ("first", "second", "third"):
            async with story.checking(name):
                if name == "first":
                    await story.world.prepare("a", Message("credits", b"k", b"v"))
                await story.sleep(31_000)

    story.world.run(body())
    numbers = [check["check_number"] for _, check in story.calls]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 2
    assert story.world.op_of("a").transaction.check_times == numbers[-1]
