"""One broker, one set of clients, for all programs."""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.differential.comparison import Comparison
from tests.differential.worlds import KafkaDifferentialWorld
from tests.support.broker import running_broker

SEEDS = int(os.environ.get("SEEDS", "250"))
SEEDS_A_TEST = 50


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """SEEDS programs, or the one that SEED names."""
    if "seeds" not in metafunc.fixturenames:
        return
    if "SEED" in os.environ:
        ranges = [range(int(os.environ["SEED"]), int(os.environ["SEED"]) + 1)]
    else:
        ranges = [range(start, min(start + SEEDS_A_TEST, SEEDS)) for start in range(0, SEEDS, SEEDS_A_TEST)]
    metafunc.parametrize("seeds", ranges, ids=[f"{each.start}-{each.stop - 1}" for each in ranges])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def comparison() -> AsyncIterator[Comparison]:
    """The in-memory log beside a real Kafka of its own."""
    with running_broker() as broker:
        world = KafkaDifferentialWorld(broker.bootstrap)
        yield Comparison(world)
        await world.close()
