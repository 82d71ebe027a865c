"""A journal that gives out offsets again, made again or cut off: what lands there is not acknowledged."""

from typing import Any

import pytest

from bridge.core.errors import HaltKind
from bridge.core.transaction import TransactionView
from bridge.service.contract import Outcome, Prepared, Refused
from bridge.sql.identity import read_halts
from tests.support.lost_log_world import LostLogWorld, make_lost_log_world
from tests.support.virtual_time import in_world


async def fill(world: LostLogWorld, node: Any, count: int = 10) -> None:
    for number in range(count):
        made = await world.prepare(node, b"%d" % number)
    await world.end(node, made)

    async def is_projected() -> bool:
        return isinstance(await node.transactions.get(made.transaction_id), TransactionView)

    await world.until_true(is_projected, "in search")


def is_not_acknowledged(answer: object) -> bool:
    """Neither stored for good nor certainly not written."""
    return isinstance(answer, Refused)


@pytest.mark.parametrize("who", ["the process that appended", "one that has appended nothing"])
@in_world(make_lost_log_world)
async def test_prepares_to_a_journal_made_again_are_never_acknowledged(world: LostLogWorld, who: str) -> None:
    """Within the second or two before anybody has looked, no 201 is given that could only be told as lost (S, 53)."""
    async with world.running() as first, world.running(is_settling=False) as other:
        await fill(world, first)
        await world.memory.clock.sleep_ms(2_000)
        node = first if who == "the process that appended" else other
        world.recreate(world.topics.half)
        answers = [await world.prepare(node) for _ in range(5)]
        assert all(is_not_acknowledged(answer) for answer in answers), answers
        assert answers[0].outcome is Outcome.UNKNOWN, "it is written, and may be decided by nobody"
        assert {answer.outcome for answer in answers[1:]} == {Outcome.NOT_APPLIED}, "the first one was a warning"
        await world.give_up()

        async def is_open() -> bool:
            return isinstance(await world.prepare(node), Prepared)

        await world.until_true(is_open, "open again")


@in_world(make_lost_log_world)
async def test_journal_cut_off_below_what_was_decided_halts_its_queue(world: LostLogWorld) -> None:
    """The api has seen it before any owner could: offsets that the projection has applied were given out again."""
    async with world.running() as node:
        await fill(world, node)
    async with world.running(is_settling=False) as node:
        world.truncate(world.topics.half, 4)
        answer = await world.prepare(node)
        assert isinstance(answer, Refused)
        assert answer.outcome is Outcome.UNKNOWN

        async def is_halted() -> bool:
            halts = await world.database.read(read_halts)
            return 0 in halts and halts[0].kind is HaltKind.JOURNAL_LOST

        await world.until_true(is_halted, "halted")
        assert "--accept-identity" in (await world.refused(node)).detail


@in_world(make_lost_log_world)
async def test_doubt_without_a_reason_ends_with_the_next_look(world: LostLogWorld) -> None:
    """What nobody had decided is gone without a witness: the queue goes on, and only that append was in doubt."""
    async with world.running(is_settling=False) as node:
        for _ in range(3):
            assert isinstance(await world.prepare(node), Prepared)
        world.truncate(world.topics.half, 1)
        assert (await world.prepare(node)).outcome is Outcome.UNKNOWN
        assert (await world.prepare(node)).outcome is Outcome.NOT_APPLIED
        await world.memory.clock.sleep_ms(3_000)
        assert isinstance(await world.prepare(node), Prepared)
        assert await world.database.read(read_halts) == {}
