"""Long lists are worked on in steps, between which other calls are served."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bridge.core.record import Resolution
from bridge.node import Node
from bridge.service.contract import EndCall, PrepareCall, Prepared, Wait
from bridge.turns import STEP_BYTES, Recent
from tests.support.held_turns import HeldTurn
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

VALUE = b"v" * 2_000
COUNT = 500
Work = Callable[[ServiceWorld, Node], Coroutine[Any, Any, object]]


async def prepare(world: ServiceWorld, api: Node) -> object:
    """A long list of prepares."""
    return await api.transactions.prepare([world.call(VALUE)] * COUNT)


async def prepare_one(world: ServiceWorld, api: Node) -> object:
    """Long because of its transactions' many messages."""
    (message,) = world.call(VALUE).messages
    return await api.transactions.prepare([PrepareCall("shop", [message] * 100)] * 5)


async def end(_world: ServiceWorld, api: Node) -> object:
    """A long list of ends."""
    ids = [prepared.transaction_id for prepared in await prepare_many(_world, api)]
    return await api.transactions.end([EndCall(name, Resolution.COMMIT) for name in ids], Wait.DURABLE)


async def prepare_many(world: ServiceWorld, api: Node) -> list[Prepared]:
    """Small ones: they take no turn."""
    prepared: list[Prepared] = []
    for _ in range(COUNT // 50):
        prepared += [one for one in await api.transactions.prepare([world.call()] * 50) if isinstance(one, Prepared)]
    return prepared


@pytest.mark.parametrize(("work", "turns"), [
    (prepare, 2 * COUNT * len(VALUE) // STEP_BYTES), (prepare_one, 3 * 5), (end, 1),
])  # fmt: skip
@in_world(make_service_world)
async def test_another_call_is_answered_while_a_long_list_is_worked_on(
    world: ServiceWorld, work: Work, turns: int
) -> None:
    """Admission and making of records each take a turn for each step."""
    async with world.serving() as api:
        before = api.turns.taken
        turn = HeldTurn(api.turns)
        long = asyncio.ensure_future(work(world, api))
        await turn.begin(long)
        (small,) = await api.transactions.prepare([world.call()])
        assert isinstance(small, Prepared)
        assert not long.done()
        turn.is_over.set()
        await long
        assert api.turns.taken - before >= turns


async def test_what_was_made_a_moment_ago_is_made_once_for_all_who_ask() -> None:
    """For each key, and again when it is too old; an error goes to all who wait, and is not kept."""
    now_ms, made = [0], list[int]()

    async def make() -> int:
        await asyncio.sleep(0)
        made.append(len(made))
        if len(made) == 3:
            raise OSError
        return made[-1]

    recent = Recent[int](1_000, lambda: now_ms[0], most=2)
    assert await asyncio.gather(*[recent.get(make) for _ in range(5)]) == [0] * 5
    now_ms[0] = 999
    assert (await recent.get(make), await recent.get(make, "another")) == (0, 1)
    now_ms[0] = 1_000
    found = await asyncio.gather(*[recent.get(make) for _ in range(2)], return_exceptions=True)
    assert [type(one) for one in found] == [OSError, OSError]
    assert (await recent.get(make), await recent.get(make, "another")) == (3, 1)
    assert [await recent.get(make, key) for key in ("third", None, "another")] == [4, 3, 5], "the oldest is forgotten"
