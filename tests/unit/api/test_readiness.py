"""Readiness on a real database whose threads are all busy."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy import Connection

from api.console.site import make_site
from api.web.app import create_app
from api.web.health import _kafka, _secrets, check_sql
from api.web.request import CheckResult
from bridge.clock import SystemClock
from bridge.core.errors import SqlUnavailable
from bridge.core.grants import Grant, Verb
from bridge.core.keyring import SecretKey
from bridge.directory import DEFAULT_SETTINGS
from bridge.service.access import AccessConfig, AccessService
from bridge.service.operate import Who
from bridge.service.reads import read_page
from bridge.sql.access import MadeKey
from bridge.sql.at_rest import SecretCipher, use_cipher
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database, SqlConfig
from bridge.sql.identity import ProcessBoard, begin_seals
from bridge.sql.tables import metadata, secrets
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.live_server import serve
from tests.support.memory_world import make_memory_world

WHO = Who("ops/abcdefgh@127.0.0.1", "")
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


async def test_many_who_ask_at_once_are_one_look(fake: FakeTransactions) -> None:
    """Nobody needs a key for it: else whoever reaches the port takes all threads of SQL, and callers are sent away."""
    looks = 0

    async def look() -> CheckResult:
        nonlocal looks
        looks += 1
        await asyncio.sleep(1)
        return CheckResult(is_ok=True)

    async with serve(make_services(fake, readiness={"sql": look})) as live:
        answers = await asyncio.gather(*[live.client.get("/readyz") for _ in range(80)])
    assert [answer.status_code for answer in answers] == [200] * 80
    assert looks < 40


async def test_lists_leave_threads_to_what_prepares_look_up(tmp_path: Path) -> None:
    """Who may read one group can ask for lists on hundreds of connections: callers would be sent away meanwhile."""
    opened, end = Database(f"sqlite:///{tmp_path}/bridge.db", replace(CONFIG, threads=2)), threading.Event()
    lists = [asyncio.ensure_future(read_page(opened, lambda _: end.wait(20))) for _ in range(20)]
    await asyncio.sleep(0.1)  # so that they have taken what they get
    try:
        assert await opened.read(lambda _: 7) == 7
    finally:
        end.set()
        await asyncio.gather(*lists)
        await opened.close()


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


async def test_database_that_is_read_and_takes_nothing_is_told(database: Database, tmp_path: Path) -> None:
    """Read-only after a switch-over, held by somebody, or full: pages look well, and nothing that is done is kept."""
    board = ProcessBoard(database, SystemClock(), "one")
    await board.run_once()
    assert await check_sql(database, board) == CheckResult(is_ok=True)
    with closing(sqlite3.connect(tmp_path / "bridge.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SqlUnavailable):
            await board.run_once()
        told = await check_sql(database, board)
    assert (told.is_ok, told.is_degraded) == (False, True)
    assert told.detail.startswith("nothing can be written: ")
    await board.run_once()
    assert await check_sql(database, board) == CheckResult(is_ok=True)


async def test_what_the_client_complains_of_is_told_while_kafka_does_not_answer(
    fake: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password that was changed looks like a broker that is away, but for these words."""
    admin = make_memory_world().admin
    monkeypatch.setattr(admin, "ping", asyncio.Event().wait)
    check = partial(_kafka, admin, lambda: "_AUTHENTICATION: invalid credentials", int)
    async with serve(make_services(fake, readiness={"kafka": check})) as live:
        answer = await live.client.get("/readyz?verbose")
    (told,) = answer.json()["checks"]
    assert (answer.status_code, told["detail"]) == (503, "_AUTHENTICATION: invalid credentials")


async def test_what_of_a_group_is_damaged_is_told_to_those_who_may_read_all(
    fake: FakeTransactions, tmp_path: Path
) -> None:
    """To everybody else who is known, that something is; on the console's pages too."""
    cipher = use_cipher(SecretCipher([SecretKey("k1", bytes(32))]))
    database = Database(f"sqlite:///{tmp_path}/bridge.db", CONFIG, cipher)
    metadata.create_all(database.engine)
    await database.run(partial(begin_seals, believed={}, now_ms=1))
    access = AccessService(database, SystemClock(), AccessConfig(is_open=False))
    await SqlDirectory(database, SystemClock()).put_group("bank", DEFAULT_SETTINGS, [])
    await database.run(lambda conn: conn.execute(sa.update(secrets).values(secret="{k1}AAAA")))
    damaged = SqlDirectory(database, SystemClock())
    await damaged.refresh()
    told: dict[str, list[str]] = {}
    services = replace(make_services(fake, readiness={"secrets": lambda: _secrets(damaged)}), access=access)
    transport = httpx2.ASGITransport(create_app(services, site=make_site()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for name, groups in {"operator": "*", "shop": "shop"}.items():
            assert await access.put(name, [Grant(Verb.READ, groups)], WHO) is True
            made = await access.make_key(name, None, None, WHO)
            assert isinstance(made, MadeKey)
            headers = {"Authorization": f"Bearer {made.text}"}
            found = await client.get("/readyz?verbose", headers=headers)
            page = await client.get("/console/settings", headers=headers)
            (check,) = found.json()["checks"]
            assert (check["ok"], check["degraded"]) == (False, True)
            told[name] = [check["detail"], re.sub("<[^>]*>", "", page.text)]
    assert all("group bank" in text for text in told["operator"])
    assert not any("bank" in text for text in told["shop"])
    await database.close()
