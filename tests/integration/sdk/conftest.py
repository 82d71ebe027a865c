"""A whole bridge behind a socket, a front that spoils its answers, and both faces of the producer's side."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from tests.support.faulty_front import Front, faulty_front
from tests.support.sdk_twins import TWINS, MakeTwin, Twin
from tests.support.socket_bridge import SocketBridge, socket_bridge

_NUMBERS = count()


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketBridge]:
    """One for all tests of a file: make groups of your own."""
    with socket_bridge(tmp_path_factory.mktemp("bridge"), {"orders": 3, "line": 1}) as running:
        yield running


@pytest.fixture
def front(bridge: SocketBridge) -> Iterator[Front]:
    """Spoils what goes through it."""
    with faulty_front(bridge.url) as running:
        yield running


@pytest.fixture
def group() -> str:
    """A producer group that nobody uses."""
    return f"group-{next(_NUMBERS)}"


@pytest_asyncio.fixture(params=list(TWINS))
async def make_twin(request: pytest.FixtureRequest) -> AsyncIterator[MakeTwin]:
    """Makes a face of either kind; closed at the end."""
    made: list[Twin] = []

    def make(url: str, group: str, **options: Any) -> Twin:
        made.append(TWINS[request.param](url, group, **options))
        return made[-1]

    yield make
    for twin in made:
        await twin.do("close")
