"""A checker that runs."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.checker.world import World, make_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Its loops run until the test is over; nothing may have gone wrong unseen."""
    made = make_world()
    running = asyncio.ensure_future(made.service.run_forever())
    yield made
    await made.clock.drive(made.service.close())
    await made.clock.drive(asyncio.wait_for(running, None))
