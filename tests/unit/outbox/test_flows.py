"""Flows whose steps block."""

import asyncio

import pytest

from outbox.client.connection import run_now


async def add(first: int, second: int) -> int:
    return first + second


async def test_flow_runs_inside_a_running_loop_too() -> None:
    """It needs none."""

    async def flow() -> int:
        return await add(1, await add(2, 3))

    assert run_now(flow()) == 6


def test_exception_of_a_step_arrives() -> None:
    """As it was raised."""

    async def flow() -> None:
        raise KeyError("of a step")

    with pytest.raises(KeyError, match="of a step"):
        run_now(flow())


def test_step_that_suspends_is_a_bug() -> None:
    """And said so, instead of never going on."""
    with pytest.raises(RuntimeError, match="suspended"):
        run_now(asyncio.sleep(0))
