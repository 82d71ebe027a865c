"""bridge.log_watch: which halts are kept, while the database comes and goes."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from sqlalchemy import Connection

from bridge.core.errors import HaltKind, QueueHalted, SqlUnavailable
from bridge.log_watch import LogWatch
from bridge.sql.access import ActEntry, record_act
from bridge.sql.engine import InlineDatabase
from bridge.sql.identity import GIVE_UP, name_target, read_halts
from bridge.sql.rows import AppliedPosition, LogIdentity, begin_position
from tests.support.memory_world import make_memory_world

T = TypeVar("T")
FOUND = QueueHalted("the op topic is another one", HaltKind.OTHER_OP)


class DatabaseThatGoes(InlineDatabase):
    """`is_down`: as if it could not be reached. `is_read_only`: as if nothing could be written."""

    is_down = is_read_only = False

    async def read(self, work: Callable[[Connection], T]) -> T:
        if self.is_down:
            raise SqlUnavailable("down")
        return await super().read(work)

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        if self.is_read_only:
            raise SqlUnavailable("read-only")
        return await super().run(work, timeout_ms)


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


async def test_doubt_about_what_was_given_up_meanwhile_halts_nobody(make_sqlite_url: Callable[[], str]) -> None:
    """An offset was given out again, the halt could not be stored, and then an operator gave the journal up (L, T)."""
    world, database = make_memory_world(), DatabaseThatGoes(make_sqlite_url())
    watch = LogWatch(world.admin, world.topics, world.clock, database)
    begin = partial(begin_position, queue_id=0, position=AppliedPosition(2, 2, 0), identity=LogIdentity("c", "h", "o"))
    await database.run(begin)
    await watch.run_once()
    watch.doubt(0, 0)
    database.is_read_only = True
    await watch.run_once()
    assert watch.find_refusal(0) is not None
    database.is_read_only = False
    given_up = ActEntry(1_000, "ann", GIVE_UP, name_target(0), None, None, {})
    await database.run(partial(record_act, entry=given_up))
    await watch.run_once()
    assert (await database.read(read_halts), watch.find_refusal(0)) == ({}, None)
    watch.doubt(0, 0)
    await watch.run_once()
    assert 0 in await database.read(read_halts)
