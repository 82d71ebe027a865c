"""What an operator has given up: callers hear so at once and for good, and no process need be restarted."""

import json
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from bridge.core.message import Message
from bridge.core.record import Act, Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.service.contract import Prepared, RefusalCode, Refused
from bridge.service.operate import Who
from bridge.sql.identity import believe_from, read_halts
from tests.support.lost_log_world import GROUP, LostLogWorld, make_lost_log_world
from tests.support.virtual_time import in_world


async def lose(world: LostLogWorld, node: Any, name: str) -> tuple[Prepared, Prepared]:
    """A transaction that is published, one that is pending, keyed; then the topic is lost and given up."""
    done, pending = await world.prepare(node, b"done"), await world.prepare(node, b"pending", idempotency_key="key")
    await world.end(node, done)
    await world.until_true(lambda: is_searched(node, pending), "in search")
    world.recreate(getattr(world.topics, name))
    await world.refused(node)
    (loss,) = await world.give_up()
    assert pending.transaction_id in {u.transaction_id for u in loss.unproven}
    await world.until_true(lambda: is_prepared(world, node), "open again")
    return done, pending


async def is_searched(node: Any, made: Prepared) -> bool:
    return isinstance(await node.transactions.get(made.transaction_id), TransactionView)


async def is_prepared(world: LostLogWorld, node: Any) -> bool:
    return isinstance(await world.prepare(node, b"later"), Prepared)


@pytest.mark.parametrize("name", ["op", "half"])
@in_world(make_lost_log_world)
async def test_whatever_is_asked_of_a_given_up_one_has_a_definite_answer(world: LostLogWorld, name: str) -> None:
    """Ends, repeats, acts and looks: never "unknown", which would be asked again for ever (A)."""
    async with world.running() as node:
        done, pending = await lose(world, node, name)
        calls = node.transactions
        who = Who("operator", "reason")
        answers = [
            *[await world.end(node, pending, resolution) for resolution in Resolution],
            await world.prepare(node, b"pending", idempotency_key="key"),
            await calls.act(pending.transaction_id, Act.CHECK, who),
            await calls.act(pending.transaction_id, Act.RESUME, who),
            await calls.force(pending.transaction_id, Resolution.COMMIT, who),
        ]
        for answer in answers:
            assert isinstance(answer, Refused), answer
            assert (answer.code, answer.outcome) == (RefusalCode.GIVEN_UP, None)
            assert answer.state is TransactionState.PREPARED
        seen = await calls.get(pending.transaction_id)
        assert isinstance(seen, TransactionView)
        assert seen.given_up_ms is not None
        (event,) = await calls.timeline(pending.transaction_id)
        assert (event.type, event.at_ms) == ("given_up", seen.given_up_ms)
        ended = await world.end(node, done)
        assert (ended.state, ended.given_up_ms is not None) == (TransactionState.COMMITTED, True)
        assert (await world.end(node, done, Resolution.ROLLBACK)).code is RefusalCode.ALREADY_RESOLVED
    assert world.memory.visible("orders") == [b"done"]


@in_world(make_lost_log_world)
async def test_running_processes_believe_no_unsealed_record_of_the_op_topic_that_came_after(
    world: LostLogWorld,
) -> None:
    """Up to where records were believed without a seal spoke of the topic that was given up (D, 62)."""
    await world.database.run(partial(believe_from, queue_id=0, op_offset=10_000))  # as after an upgrade
    async with AsyncExitStack() as first:
        owner = await first.enter_async_context(world.running())
        async with world.running() as successor:
            await lose(world, owner, "op")
            fresh = await world.prepare(owner, b"fresh")
            await world.until_true(lambda: is_searched(owner, fresh), "in search")
            members = {"v": 1, "state": "ROLLED_BACK", "group": GROUP, "at": fresh.queue_offset}
            members |= {"half": fresh.queue_offset, "appended_ms": 1, "by": "producer", "ended_ms": 1}
            value = json.dumps({**members, "check_times": 0}).encode()
            forged = Message(world.topics.op, fresh.transaction_id.encode(), value, (), 0)
            world.memory.cluster.log.topics[world.topics.op].partitions[0].append([forged], None, 0)
            await first.aclose()
            ended = await world.end(successor, fresh)
            assert ended.state is TransactionState.COMMITTED, ended
    assert b"fresh" in world.memory.visible("orders")


@in_world(make_lost_log_world)
async def test_halt_found_before_an_act_is_not_stored_after_it(world: LostLogWorld) -> None:
    """An owner that stood still meanwhile speaks of the log that was given up: acting again would cost what came
    since (L)."""
    async with world.running() as node:
        await world.prepare(node)
        world.recreate(world.topics.op)
        await world.give_up()  # before anybody has looked
        await world.until_true(lambda: is_prepared(world, node), "open again")
        await world.memory.clock.sleep_ms(20_000)
        assert await world.database.read(read_halts) == {}
        later = await world.prepare(node, b"last")
        assert (await world.end(node, later)).state is TransactionState.COMMITTED
    assert world.memory.visible("orders") == [b"last"]


@in_world(make_lost_log_world)
async def test_what_retention_removed_is_given_up_and_what_is_left_goes_on(world: LostLogWorld) -> None:
    """Its owner does not know it any more, so search must not show it as pending for ever (A, 56)."""
    async with world.running() as node:
        gone, left = await world.prepare(node, b"gone"), await world.prepare(node, b"left")
        await world.until_true(lambda: is_searched(node, left), "in search")
    world.memory.cluster.log.topics[world.topics.half].partitions[0].drop_below(left.queue_offset)
    async with world.running() as node:
        assert "--accept-identity" in (await world.refused(node)).detail
        (loss,) = await world.give_up()
        assert [u.transaction_id for u in loss.unproven] == [gone.transaction_id]
        await world.until_true(lambda: is_prepared(world, node), "open again")
        answer = await world.end(node, gone)
        assert (answer.code, answer.outcome) == (RefusalCode.GIVEN_UP, None)
        assert (await world.end(node, left)).state is TransactionState.COMMITTED
    assert world.memory.visible("orders") == [b"left"]


@in_world(make_lost_log_world)
async def test_what_was_published_a_moment_before_its_journal_was_lost_is_not_published_again(
    world: LostLogWorld,
) -> None:
    """Only its op message tells, since the projection was late: a repeat of it is no new transaction (D)."""

    async def publish(node: Any) -> Any:
        return await world.prepare(node, b"once", idempotency_key="key", is_published=True)

    async with world.running(is_projecting=False) as node:
        first = await publish(node)
        assert first.state is TransactionState.COMMITTED, first
        world.recreate(world.topics.half)
        await world.refused(node)
        (loss,) = await world.give_up()
        assert loss.unproven == []
    async with world.running() as node:
        await world.until_true(lambda: is_prepared(world, node), "open again")
        again = await publish(node)
        assert again.state is TransactionState.COMMITTED, again
    assert world.memory.visible("orders").count(b"once") == 1
