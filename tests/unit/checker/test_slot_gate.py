"""Waiting for slots."""

import asyncio

import pytest

from checker.context import ConcurrencyGate
from tests.support.virtual_time import settle


async def make_full_gate() -> ConcurrencyGate:
    """Four slots, one for each of four groups whose endpoints are known to answer."""
    gate = ConcurrencyGate(4)
    for number in range(4):
        assert await gate.take(f"g{number}", 1)
        gate.give_back(f"g{number}", was_answered=True)
    for number in range(4):
        assert await gate.take(f"g{number}", 1)
    return gate


async def test_waits_until_a_slot_is_free() -> None:
    """In the order of asking."""
    gate = await make_full_gate()
    waiting = [asyncio.ensure_future(gate.take(group, 1)) for group in ("a", "b")]
    await settle()
    gate.give_back("g0", was_answered=True)
    await settle()
    assert [task.done() for task in waiting] == [True, False]
    gate.give_back("g1", was_answered=True)
    assert await waiting[1]


async def test_cancelled_waiter_leaves_its_place() -> None:
    """The next one gets the slot."""
    gate = await make_full_gate()
    first, second = (asyncio.ensure_future(gate.take(group, 1)) for group in ("a", "b"))
    await settle()
    first.cancel()
    await settle()
    gate.give_back("g0", was_answered=True)
    assert await second
    assert gate.slots.in_use == 4


async def test_slot_given_to_a_cancelled_waiter_goes_back() -> None:
    """Granted and cancelled in the same step: nothing is lost, either way round."""
    for order in ("cancel first", "grant first"):
        gate = await make_full_gate()
        waiter = asyncio.ensure_future(gate.take("a", 1))
        await settle()
        if order == "cancel first":
            waiter.cancel()
        gate.give_back("g0", was_answered=True)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert gate.slots.in_use == 3


async def test_closed_gate_lets_nobody_in() -> None:
    """Neither those who wait nor those who come."""
    gate = await make_full_gate()
    waiter = asyncio.ensure_future(gate.take("a", 1))
    await settle()
    gate.close()
    assert not await waiter
    assert not await gate.take("b", 1)
    gate.give_back("g0", was_answered=True)
    assert gate.slots.in_use == 3
