"""The API on a real socket over in-memory services."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.api_fakes import FakeTransactions, make_facts, make_services
from tests.support.bad_requests import Facts
from tests.support.live_server import LiveServer, serve


@pytest.fixture
def fake() -> FakeTransactions:
    """What stands behind the API."""
    return FakeTransactions()


@pytest_asyncio.fixture
async def live(fake: FakeTransactions) -> AsyncIterator[LiveServer]:
    """A server of this test's own."""
    async with serve(make_services(fake)) as server:
        yield server


@pytest_asyncio.fixture
async def facts(fake: FakeTransactions) -> Facts:
    """A prepared and a committed transaction."""
    return await make_facts(fake)
