"""bridge.log_watch: which halts are kept, while the database comes and goes."""

from collections.abc import Callable
from typing import TypeVar

import pytest
from sqlalchemy import Connection

from bridge.core.errors import HaltKind, QueueHalted
from bridge.log_watch import LogWatch
from bridge.sql.engine import InlineDatabase, SqlUnavailable
from bridge.sql.identity import read_halts
from tests.support.memory_world import make_memory_world

pytest_plugins = ["tests.support.postgres"]

T = TypeVar("T")
FOUND = QueueHalted("the op topic is another one", HaltKind.OTHER_OP)


class DatabaseThatGoes(InlineDatabase):
    """`is_down`: as if it could not be reached."""

    is_down = False

    async def read(self, work: Callable[[Connection], T]) -> T:
        if self.is_down:
            raise SqlUnavailable("down")
        return await super().read(work)


@pytest.mark.parametrize("was_down", [False, True], ids=["known at take-over", "away at take-over"])
async def test_halt_is_kept_when_it_is_known_to_follow_the_last_act(
    make_sqlite_url: Callable[[], str], *, was_down: bool
) -> None:
    """Else it may speak of what was given up meanwhile: its queue is refused, taken over anew, and judged again (L)."""
    world, database = make_memory_world(), DatabaseThatGoes(make_sqlite_url())
    watch = LogWatch(world.admin, world.topics, world.clock, database)
    database.is_down = was_down
    await watch.check_halts(0)
    database.is_down = True
    await watch.store_halt(0, FOUND)
    assert watch.find_refusal(0) is not None
    database.is_down = False
    await watch.run_once()
    assert (0 in await database.read(read_halts)) is not was_down
    await watch.check_halts(0) if was_down else None
    await watch.store_halt(0, FOUND)
    assert 0 in await database.read(read_halts)
