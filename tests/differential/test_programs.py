"""Programs drawn from seeds: the in-memory log shows what Kafka shows. SEED=n runs one, SEEDS=n so many."""

import pytest

from tests.differential import corpus
from tests.differential.comparison import Comparison
from tests.differential.generator import make_program

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_programs_that_once_differed(comparison: Comparison) -> None:
    """What was found stays found; these run first."""
    differences = await comparison.compare([make_program(seed) for seed in corpus.SEEDS])
    assert [str(difference) for difference in differences if difference is not None] == []


@pytest.mark.timeout(600)
async def test_programs_look_the_same(comparison: Comparison, seeds: range) -> None:
    """Every result, status, error and offset of every step is the same on both logs; else the shortest program."""
    differences = await comparison.compare([make_program(seed) for seed in seeds])
    found = {seed: each for seed, each in zip(seeds, differences, strict=True) if each is not None}
    if found:
        first = await comparison.shrink(next(iter(found.values())))
        pytest.fail(f"seeds {list(found)} differ; the first of them, shortened:\n{first}", pytrace=False)
