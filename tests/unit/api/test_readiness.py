"""Readiness on a real database whose threads are all busy."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from sqlalchemy import Connection

from api.web.health import check_sql
from bridge.core.errors import SqlUnavailable
from bridge.sql.engine import Database, SqlConfig
from bridge.sql.tables import metadata
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.live_server import serve

CONFIG = SqlConfig(admission_timeout_ms=200, threads=1)


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """With one thread for reading, and one for writing."""
    opened = Database(f"sqlite:///{tmp_path}/bridge.db", CONFIG)
    metadata.create_all(opened.engine)
    yield opened
    await opened.close()


class Busy:
    """Keeps a thread until it is let go."""

    def __init__(self, database: Database, *, is_writing: bool) -> None:
        self._begun = threading.Event()
        self._end = threading.Event()
        self._call = database.run if is_writing else database.read
        self._task = asyncio.ensure_future(self._call(self._work))

    def _work(self, _: Connection) -> None:
        self._begun.set()
        self._end.wait(20)

    async def has_begun(self) -> None:
        """The thread is taken."""
        await asyncio.to_thread(self._begun.wait, 20)

    async def fail_beside(self) -> None:
        """Somebody else is sent away."""
        with pytest.raises(SqlUnavailable, match="overloaded"):
            await self._call(lambda _: None)

    async def let_go(self) -> None:
        """The thread is free."""
        self._end.set()
        with suppress(SqlUnavailable):
            await self._task


def detail_of(answer: httpx2.Response) -> str:
    """What the only check says."""
    (check,) = answer.json()["checks"]
    assert check["name"] == "sql"
    return str(check["detail"])


@pytest.mark.parametrize("is_writing", [True, False], ids=["writing", "reading"])
async def test_not_ready_while_callers_are_sent_away(
    is_writing: bool, database: Database, fake: FakeTransactions
) -> None:
    """Also where readiness itself would get in; alive meanwhile, and ready afterwards."""
    services = make_services(fake, readiness={"sql": partial(check_sql, database)})
    async with serve(services) as live:
        busy = Busy(database, is_writing=is_writing)
        await busy.has_begun()
        await busy.fail_beside()
        full = await live.client.get("/readyz?verbose")
        assert (full.status_code, full.json()["ready"]) == (503, False)
        assert "overloaded" in detail_of(full)
        assert (await live.client.get("/livez")).status_code == 200
        await busy.let_go()
        again = await live.client.get("/readyz?verbose")
        assert (again.status_code, detail_of(again)) == (200, "")


async def test_one_busy_thread_is_no_overload(database: Database) -> None:
    """Nobody was sent away."""
    busy = Busy(database, is_writing=True)
    await busy.has_begun()
    assert (await check_sql(database)).is_ok
    await busy.let_go()


async def test_overload_is_over_when_a_thread_has_been_free(database: Database) -> None:
    """What happened once is not told for ever, however busy it is later."""
    first = Busy(database, is_writing=True)
    await first.has_begun()
    await first.fail_beside()
    assert not (await check_sql(database)).is_ok
    await first.let_go()
    second = Busy(database, is_writing=True)
    await second.has_begun()
    assert (await check_sql(database)).is_ok
    await second.let_go()
