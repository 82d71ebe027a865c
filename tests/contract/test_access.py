"""What keys promise, over SQLite and over PostgreSQL: who has one is let in, until it is revoked or has expired."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, replace

import httpx2
import pytest
import pytest_asyncio
import sqlalchemy as sa
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from sqlalchemy import Connection

from api.web.app import create_app
from api.web.guard import MARK
from bridge.core.errors import SqlUnavailable
from bridge.core.grants import EVERYTHING, Grant, Verb
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from bridge.service.access import AccessConfig, AccessService
from bridge.service.contract import RefusalCode, Refused
from bridge.service.issuers import BadToken, IssuerConfig
from bridge.service.operate import Who
from bridge.sql import access
from bridge.sql.access import MadeKey, read_audit
from bridge.sql.engine import Database, SqlConfig
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.held_database import HeldDatabase
from tests.support.virtual_time import VirtualClock

WHO = Who("ops/abcdefgh@127.0.0.1", "")
ORDERS = [Grant(Verb.PREPARE, "orders", "orders.*"), Grant(Verb.READ, "orders*")]
DAY_MS = 86_400_000


@dataclass
class AccessWorld:
    """Two processes on one database."""

    database: Database
    clock: VirtualClock
    first: AccessService
    second: AccessService

    async def make_key(self, name: str = "shop", life_ms: int | None = None) -> MadeKey:
        made = await self.first.make_key(name, None, life_ms, WHO)
        assert isinstance(made, MadeKey)
        return made


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[AccessWorld]:
    """With a principal that has no key."""
    url = request.getfixturevalue("make_sqlite_url")() if request.param == "sqlite" else None
    database = Database(url or request.getfixturevalue("postgres").create_migrated())
    clock = VirtualClock()
    first, second = [AccessService(database, clock, AccessConfig(is_open=False)) for _ in range(2)]
    await first.refresh()
    await second.refresh()
    assert await first.put("shop", ORDERS, WHO) is True
    yield AccessWorld(database, clock, first, second)
    await database.close()


async def test_key_proves_who_calls(world: AccessWorld) -> None:
    """In every process as soon as it has looked; with the rights of the principal, which may change."""
    made = await world.make_key()
    assert world.second.identify(made.text) is None
    await world.second.refresh()
    for process in (world.first, world.second):
        caller = process.identify(made.text)
        assert caller is not None
        assert (caller.name, caller.key_id) == ("shop", made.key.key_id)
        assert caller.rights.grants == tuple(ORDERS)
    await world.first.put("shop", [], WHO)
    caller = world.first.identify(made.text)
    assert caller is not None
    assert caller.rights.grants == ()


async def test_only_the_very_key_is_taken(world: AccessWorld) -> None:
    """Nothing near it, nothing of another's, nothing that is stored."""
    made, other = await world.make_key(), await world.make_key()
    mixed = made.text[:13] + other.text[13:]
    for wrong in ("", "obk_", made.text[:-1], made.text + "=", mixed, made.text.swapcase(), made.key.key_id):
        assert world.first.identify(wrong) is None

    def read(conn: object) -> str:
        return str([list(row) for row in conn.exec_driver_sql("SELECT * FROM api_keys")])  # type: ignore[attr-defined]

    stored = await world.database.read(read)
    assert made.key.key_id in stored
    assert made.text[13:] not in stored


async def test_guess_costs_the_same_whether_its_id_is_known(
    world: AccessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashed and compared as often, so that the time of an answer tells no ids."""
    made = await world.make_key()
    hash_key, hashed = access.hash_key, list[str]()

    def count(text: str) -> str:
        hashed.append(text)
        return hash_key(text)

    monkeypatch.setattr(access, "hash_key", count)
    costs = []
    for guess in (make_key_text(bytes(RANDOM_BYTES)), made.text[:13] + "A" * 43, "obk_"):
        hashed.clear()
        assert world.first.identify(guess) is None
        assert set(hashed) == {guess}
        costs.append(len(hashed))
    assert len(set(costs)) == 1


async def test_revoked_key_is_refused_everywhere(world: AccessWorld) -> None:
    """What was concluded from it before is forgotten."""
    made = await world.make_key()
    await world.second.refresh()
    assert world.second.identify(made.text) is not None
    generation = world.second.generation
    assert await world.first.revoke(made.key.key_id, WHO) is None
    assert world.first.identify(made.text) is None
    await world.second.refresh()
    assert world.second.identify(made.text) is None
    assert world.second.generation > generation
    refused = await world.first.revoke(made.key.key_id, WHO)
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.NOT_FOUND


async def test_revoked_key_stays_refused_beside_a_look_that_began_before(world: AccessWorld) -> None:
    """Which knows it still: if the database went away then, it would be let in for as long as that lasts."""
    made = await world.make_key()
    database = HeldDatabase(world.database.url.render_as_string(hide_password=False))
    process = AccessService(database, world.clock, AccessConfig(is_open=False))
    look = asyncio.create_task(process.refresh())
    await database.has_read.wait()
    assert await process.revoke(made.key.key_id, WHO) is None
    assert process.identify(made.text) is None
    database.goes_on.set()
    await look
    assert process.identify(made.text) is None
    await database.close()


async def test_key_is_refused_that_was_revoked_in_a_database_without_the_last_write(
    make_sqlite_url: Callable[[], str],
) -> None:
    """As after a fail-over or a restored backup: a number that was given before says another thing there."""
    database, clock = Database(make_sqlite_url()), VirtualClock()
    first, second = [AccessService(database, clock, AccessConfig(is_open=False)) for _ in range(2)]
    assert await first.put("shop", ORDERS, WHO) is True
    made = await first.make_key("shop", None, None, WHO)
    assert isinstance(made, MadeKey)
    with (
        closing(sqlite3.connect(":memory:")) as backup,
        closing(sqlite3.connect(str(database.url.database), isolation_level=None)) as now,
    ):
        now.backup(backup)
        assert await first.put("billing", [], WHO) is True
        await second.refresh()
        backup.backup(now)
    assert await first.revoke(made.key.key_id, WHO) is None
    await second.refresh()
    assert second.identify(made.text) is None
    await database.close()


async def test_key_expires(world: AccessWorld) -> None:
    """Also where it has just been used, and although nothing in the database has changed."""
    made = await world.make_key(life_ms=DAY_MS)
    assert world.first.identify(made.text) is not None
    generation = world.first.generation
    await world.clock.advance(DAY_MS)
    await world.first.refresh()
    assert world.first.identify(made.text) is None
    assert world.first.generation > generation


async def test_key_that_seemed_over_while_the_clock_was_ahead_is_taken_again(world: AccessWorld) -> None:
    """Nothing in the database changes by it, so nothing is read anew. It expires when its time has come."""
    made = await world.make_key(life_ms=DAY_MS)
    world.clock.shift_wall_clock(2 * DAY_MS)
    await world.first.refresh()
    assert world.first.identify(made.text) is None
    world.clock.shift_wall_clock(-2 * DAY_MS)
    await world.first.refresh()
    assert world.first.identify(made.text) is not None
    await world.clock.advance(DAY_MS)
    await world.first.refresh()
    assert world.first.identify(made.text) is None


async def test_key_expires_in_time_while_the_database_takes_its_time(world: AccessWorld) -> None:
    """Nothing of it has to be asked for."""
    made = await world.make_key(life_ms=60_000)
    database = HeldDatabase(world.database.url.render_as_string(hide_password=False), others=1)
    process = AccessService(database, world.clock, AccessConfig(is_open=False))
    await process.refresh()
    loop = asyncio.create_task(process.run_forever())
    await database.has_read.wait()
    assert process.identify(made.text) is not None
    generation = process.generation
    await world.clock.advance(61_000)
    assert process.identify(made.text) is None
    assert process.generation > generation
    loop.cancel()
    await database.close()


async def test_two_keys_replace_one_another(world: AccessWorld) -> None:
    """A third is refused until one is revoked, or has expired."""
    old, new = await world.make_key(), await world.make_key(life_ms=DAY_MS)
    assert world.first.identify(old.text)
    assert world.first.identify(new.text)
    refused = await world.first.make_key("shop", None, None, WHO)
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.TOO_MANY_KEYS
    await world.clock.advance(DAY_MS)
    await world.make_key()
    await world.first.revoke(old.key.key_id, WHO)
    await world.make_key()


async def test_two_processes_cannot_make_a_third_key(world: AccessWorld) -> None:
    """However many ask at once."""
    asked = [process.make_key("shop", None, None, WHO) for process in (world.first, world.second) * 4]
    made = await asyncio.gather(*asked)
    assert sum(isinstance(one, MadeKey) for one in made) == 2


async def test_grants_are_those_of_one_request_where_two_replace_them_at_once(world: AccessWorld) -> None:
    """What the later one did not name is not granted; the audit has what it took away."""
    loop, is_put = asyncio.get_running_loop(), asyncio.Event()
    earlier, later = [Grant(Verb.ADMIN, "*")], [Grant(Verb.READ, "orders")]

    def put_first(conn: Connection) -> None:
        access.put_principal(conn, "shop", earlier, world.clock.now_ms())
        loop.call_soon_threadsafe(is_put.set)
        wait_for_waiting(conn)

    first = asyncio.create_task(world.database.run(put_first))
    await is_put.wait()
    assert await world.second.put("shop", later, WHO) is False
    await first
    principal = await world.second.get("shop")
    assert not isinstance(principal, Refused)
    assert principal.grants == later
    entries, _ = await world.database.read(lambda conn: read_audit(conn, 1))
    assert (entries[0].before, entries[0].after) == ({"grants": ["admin:*:*"]}, {"grants": ["read:orders:*"]})


def wait_for_waiting(conn: Connection) -> None:
    """Until somebody waits for a lock of this SQL transaction. SQLite lets nobody begin meanwhile."""
    if conn.dialect.name == "postgresql":
        deadline = time.monotonic() + 1.5  # below the bound of a statement
        query = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not conn.execute(query).scalar_one() and time.monotonic() < deadline:
            time.sleep(0.01)


async def test_principal_goes_with_its_keys(world: AccessWorld) -> None:
    """And there is nobody of that name any more."""
    made = await world.make_key()
    assert await world.first.delete("shop", WHO) is None
    assert world.first.identify(made.text) is None
    assert await world.first.list() == []
    for answer in (await world.first.make_key("shop", None, None, WHO), await world.first.delete("shop", WHO)):
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.NOT_FOUND


async def test_admin_key_of_the_settings_is_in_no_table(world: AccessWorld) -> None:
    """It may do everything, as long as the setting is there."""
    key = (await world.make_key()).text
    admin_key = key[:-1] + ("A" if key[-1] != "A" else "E")
    process = AccessService(world.database, world.clock, AccessConfig(is_open=False, admin_key=admin_key))
    caller = process.identify(admin_key)
    assert caller is not None
    assert caller.rights is EVERYTHING
    assert world.first.identify(admin_key) is None
    assert process.identify(key) is None


async def test_token_has_the_rights_of_the_principal_it_names(world: AccessWorld) -> None:
    """Until it is over, also while the database is away; a principal that is not known may do nothing."""
    signer = ECKey.generate_key("P-256", {"kid": "1"})

    async def fetch(url: str) -> bytes:
        return json.dumps(KeySet([signer]).as_dict()).encode()

    def sign(subject: str) -> str:
        told = {"iss": "https://login", "aud": "us", "sub": subject, "exp": world.clock.now_ms() // 1000 + 10}
        return jwt.encode({"alg": "ES256", "kid": "1"}, told, signer)

    issuer = IssuerConfig("https://login", "us", "https://login/keys")
    process = AccessService(world.database, world.clock, AccessConfig(is_open=False, issuers=(issuer,), fetch=fetch))
    assert process.issuers is not None
    await process.issuers.refresh()
    await process.refresh()
    shop, nobody = process.identify(sign("shop")), process.identify(sign("nobody"))
    assert shop is not None
    assert nobody is not None
    assert (shop.name, shop.key_id is not None, shop.rights.grants) == ("shop", True, tuple(sorted(ORDERS)))
    assert not nobody.rights.grants
    token, generation = sign("shop"), process.generation
    assert process.identify(token) is not None
    await world.database.close()
    await world.clock.advance(70_000)
    with pytest.raises(SqlUnavailable):
        await process.refresh()
    assert process.generation > generation
    with pytest.raises(BadToken):
        process.identify(token)


async def test_certificate_has_the_rights_of_the_principal_it_names(world: AccessWorld) -> None:
    """As they are now in every process that has looked, with or without keys; one without grants may do nothing."""
    await world.second.refresh()
    for process in (world.first, world.second):
        caller = process.find_certified("shop")
        assert (caller.name, caller.key_id) == ("shop", "cert")
        assert caller.rights.grants == tuple(sorted(ORDERS))
        assert process.find_certified("nobody").rights.grants == ()
        assert process.find_certified("admin").rights.grants == ()
        process.note_use(caller)
    generation = world.second.generation
    await world.first.put("shop", [], WHO)
    assert world.first.find_certified("shop").rights.grants == ()
    assert world.second.find_certified("shop").rights.grants == tuple(sorted(ORDERS))
    await world.second.refresh()
    assert world.second.find_certified("shop").rights.grants == ()
    assert world.second.generation > generation
    await world.first.put("shop", ORDERS, WHO)
    await world.first.delete("shop", WHO)
    assert world.first.find_certified("shop").rights.grants == ()


async def test_uses_are_kept_now_and_then(world: AccessWorld) -> None:
    """The last one of each key."""
    made = await world.make_key()
    caller = world.first.identify(made.text)
    assert caller is not None
    loop = asyncio.create_task(world.first.run_forever())
    world.first.note_use(caller)
    used_ms = world.clock.now_ms()
    for _ in range(70):
        await world.clock.advance(1_000)
        await asyncio.sleep(0.01)
    loop.cancel()
    principals = await world.first.list()
    assert not isinstance(principals, Refused)
    assert [key.last_used_ms for key in principals[0].keys] == [used_ms]


async def test_text_that_a_database_cannot_keep_is_refused(world: AccessWorld) -> None:
    """PostgreSQL has no text with a 0x00: neither as the label of a key, nor where one is looked for."""
    services = replace(make_services(FakeTransactions()), access=world.first)
    transport = httpx2.ASGITransport(create_app(services))
    admin = [Grant(Verb.ADMIN, "*")]
    assert await world.first.put("ops", admin, WHO) is True
    headers = {"Authorization": f"Bearer {(await world.make_key('ops')).text}", MARK: "1"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        made = await client.post("/v1/principals/shop/keys", json={"label": "shop\0"})
        revoked = await client.delete("/v1/keys/%00")
    assert (made.status_code, made.json()["errors"][0]["pointer"]) == (422, "/label")
    assert revoked.status_code == 404


async def test_use_while_the_database_is_away_is_kept_later(make_sqlite_url: Callable[[], str]) -> None:
    """Nobody revokes a key as unused whose one use of the day was then."""
    database, clock = Database(make_sqlite_url(), SqlConfig(statement_timeout_ms=20)), VirtualClock()
    process = AccessService(database, clock, AccessConfig(is_open=False))
    assert await process.put("shop", ORDERS, WHO) is True
    made = await process.make_key("shop", None, None, WHO)
    assert isinstance(made, MadeKey)
    caller = process.identify(made.text)
    assert caller is not None
    process.note_use(caller)
    used_ms = clock.now_ms()
    with closing(sqlite3.connect(str(database.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await clock.advance(60_000)
        with pytest.raises(SqlUnavailable):
            await process.keep_uses()
    await clock.advance(60_000)
    await process.keep_uses()
    principal = await process.get("shop")
    assert not isinstance(principal, Refused)
    assert [key.last_used_ms for key in principal.keys] == [used_ms]
    await database.close()


async def test_every_change_is_audited(world: AccessWorld) -> None:
    """With who did it; never with the key."""
    made = await world.make_key()
    await world.first.revoke(made.key.key_id, WHO)
    await world.first.delete("shop", WHO)
    entries, _ = await world.database.read(lambda conn: read_audit(conn, 10))
    assert [entry.what for entry in entries] == ["principal.delete", "key.revoke", "key.create", "principal.put"]
    assert {entry.actor for entry in entries} == {WHO.actor}
    assert made.text[13:] not in str(entries)


async def test_rights_of_who_began_something_are_those_of_now(world: AccessWorld) -> None:
    """Whatever proved then who it was; the first administrator's key is in the settings."""
    config = AccessConfig(is_open=False, admin_key=f"obk_aaaaaaaa_{'A' * 43}")
    access = AccessService(world.database, world.clock, config)
    await access.put("ada", [Grant(Verb.OPERATE, "*")], WHO)
    known, strange = (
        ("ada/jwt@::1", "ada/abcdefgh@a", "admin/aaaaaaaa@a"),
        ("ada@a", "b@ada/cert@a", "admin/bbbbbbbb@a"),
    )
    may = [actor for actor in (*known, *strange) if access.rights_of(actor).may_everywhere(Verb.OPERATE)]
    assert may == list(known)
    assert AccessService(world.database, world.clock, AccessConfig()).rights_of("anonymous@a") is EVERYTHING
