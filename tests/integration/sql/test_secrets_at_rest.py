"""Secrets of groups and of the bridge in SQL, encrypted, on both databases."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
import sqlalchemy as sa

from bridge.clock import SystemClock
from bridge.core.errors import SecretUnreadable
from bridge.core.keyring import SecretKey
from bridge.directory import DEFAULT_SETTINGS, GroupSwitch
from bridge.service.groups import refuse_sql
from bridge.sql.access import ActEntry, read_audit
from bridge.sql.at_rest import SecretCipher, use_cipher
from bridge.sql.bulk import move_version
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.groups import count_by_key, rewrap_secrets
from bridge.sql.identity import begin_seals, read_keys
from bridge.sql.leases import EndpointLease, EndpointTerm
from bridge.sql.tables import bridge_keys, directory_version, endpoints, secrets

K1, K2 = SecretKey("k1", b"1" * 32), SecretKey("k2", b"2" * 32)
WRONG = SecretKey("k1", b"3" * 32)
URL, LEASED = "https://shop/check?token=canary", "https://shop-7/check?token=canary"
Open = Callable[..., Database]


@pytest_asyncio.fixture
async def reopen(database: Database) -> AsyncIterator[Open]:
    """The same database as processes with these keys have it."""
    opened: list[Database] = []

    def open_with(*keys: SecretKey) -> Database:
        url = database.url.render_as_string(hide_password=False)
        opened.append(Database(url, options=use_cipher(SecretCipher(keys))))
        return opened[-1]

    yield open_with
    for one in opened:
        await one.close()


async def fill(database: Database) -> tuple[list[str], bytes]:
    """A group with a static and a leased endpoint, and the bridge's own key; what is secret of them."""
    await database.run(lambda conn: begin_seals(conn, {}, 1))
    directory = SqlDirectory(database, SystemClock())
    made = await directory.put_group("shop", DEFAULT_SETTINGS, [URL])
    await lease(database)
    assert made.secret is not None
    (key,) = await database.read(read_keys)
    return [made.secret], key.secret


async def lease(database: Database, url: str = LEASED) -> None:
    """Takes or renews it."""
    wanted = EndpointLease("shop", url, EndpointTerm(9, 9))
    await SqlDirectory(database, SystemClock()).register_endpoint(wanted, 9, ActEntry(1, "a", "b", "c"))


async def see(database: Database) -> tuple[list[str], bytes, list[str]]:
    """The secrets as a process reads them, and its URLs."""
    directory = SqlDirectory(database, SystemClock())
    await directory.refresh()
    group = directory.get("shop")
    assert group is not None
    (key,) = await database.read(read_keys)
    return list(group.secrets), key.secret, sorted(endpoint.url for endpoint in group.endpoints)


async def dump(database: Database) -> str:
    """All that is stored of them."""

    def work(conn: sa.Connection) -> str:
        found = [conn.execute(sa.select(table)).all() for table in (secrets, endpoints, bridge_keys)]
        return repr([[bytes(v) if isinstance(v, memoryview) else v for v in row] for rows in found for row in rows])

    return await database.read(work)


async def test_database_with_a_key_from_the_start_holds_nothing_in_clear(reopen: Open) -> None:
    """A copy of it tells neither secrets nor tokens in URLs."""
    database = reopen(K1)
    shown, key = await fill(database)
    stored = await dump(database)
    assert [text for text in (shown[0], "canary", repr(key)[2:-1]) if text in stored] == []
    assert await database.read(count_by_key) == {"k1": 4}
    assert await see(database) == (shown, key, sorted([URL, LEASED]))


async def test_until_it_is_turned_on_processes_without_keys_read_everything(reopen: Open) -> None:
    """Those of a version before too: a process that has keys writes as they do, and reads both."""
    old, new = reopen(), reopen(K1)
    await fill(old)
    await SqlDirectory(new, SystemClock()).put_group("shop", DEFAULT_SETTINGS, [URL])
    await SqlDirectory(new, SystemClock()).rotate_secret("shop")
    assert await see(old) == await see(new)
    assert await new.read(count_by_key) == {None: 5}


async def test_turning_on_changes_what_is_stored_and_nothing_that_is_read(reopen: Open) -> None:
    """Of secrets, URLs and keys; what comes later is encrypted as well, whatever key the writer names first."""
    plain, database = reopen(), reopen(K1)
    await fill(plain)
    before = await see(plain)
    assert await rewrap_secrets(database, "k1", "me", 7) == {"bridge keys": 1, "signing secrets": 1, "endpoints": 2}
    assert "canary" not in await dump(database)
    assert await see(database) == before
    await SqlDirectory(reopen(K2, K1), SystemClock()).rotate_secret("shop")
    assert await database.read(count_by_key) == {"k1": 5}
    ((entry, *_), _) = await database.read(lambda conn: read_audit(conn, 1))
    assert (entry.actor, entry.what, entry.target, entry.at_ms) == ("me", "secrets.rewrap", "key k1", 7)
    assert await rewrap_secrets(database, "k1", "me", 8) == {}


async def test_another_key_takes_the_place_of_the_first(reopen: Open) -> None:
    """Both are known for a time; then the old one is needed no more."""
    shown, key = await fill(reopen(K1))
    both = reopen(K2, K1)
    assert await see(both) == (shown, key, sorted([URL, LEASED]))
    await rewrap_secrets(both, "k2", "me", 1, step_rows=1)
    assert await both.read(count_by_key) == {"k2": 4}
    assert await see(reopen(K2)) == (shown, key, sorted([URL, LEASED]))


async def test_everything_can_be_as_before(reopen: Open) -> None:
    """For going back to a version that knows no keys."""
    database = reopen(K1)
    shown, key = await fill(database)
    await rewrap_secrets(database, None, "me", 1)
    await lease(database)
    assert await see(reopen()) == (shown, key, sorted([URL, LEASED]))
    assert await database.read(count_by_key) == {None: 4}


@pytest.mark.parametrize("keys", [(), (K2,), (WRONG,)])
async def test_process_without_the_key_reads_nothing_and_writes_nothing(
    reopen: Open, keys: tuple[SecretKey, ...]
) -> None:
    """It would sign with what is no secret, or store a new one in clear."""
    database = reopen(K1)
    await fill(database)
    before, stranger = await dump(database), reopen(*keys)
    directory = SqlDirectory(stranger, SystemClock())
    with pytest.raises(SecretUnreadable, match=r"bridge key of this database .*k1"):
        await stranger.read(read_keys)
    if keys[:1] != (WRONG,):  # a process reads the bridge's key before it writes, and so finds out that a key is wrong
        with pytest.raises(SecretUnreadable, match=r"group shop .*k1"):
            await directory.refresh()
        with pytest.raises(SecretUnreadable):
            await directory.rotate_secret("shop")
    with pytest.raises(SecretUnreadable):
        await rewrap_secrets(stranger, None, "me", 1)
    assert await dump(database) == before


async def test_running_process_without_the_new_key_notices_what_is_paused_and_says_which_key_it_lacks(
    reopen: Open,
) -> None:
    """Somebody forgot it before `security rewrap`: it goes on asking with what it knows, but nobody is asked beside an
    operator's pause, and whoever gives it something to write is told why it cannot."""
    await fill(reopen(K1))
    forgotten, both = SqlDirectory(reopen(K1), SystemClock()), reopen(K2, K1)
    await forgotten.refresh()
    known = forgotten.get("shop")
    assert known is not None
    await rewrap_secrets(both, "k2", "me", 1)
    act = ActEntry(1, "me", "producer-group.pause", "shop")
    await SqlDirectory(both, SystemClock()).switch_group("shop", GroupSwitch.CHECKS, act, is_paused=True)
    await forgotten.refresh()
    paused = forgotten.get("shop")
    assert paused is not None
    assert paused.settings.pauses_checks
    assert (paused.secrets, paused.endpoints) == (known.secrets, known.endpoints)
    assert forgotten.lacks_key
    assert [reason for reason in forgotten.damaged if "k2, which is not in security.keys" not in reason] == []
    assert "bridge key of this database" in forgotten.damaged[-1]
    with pytest.raises(SecretUnreadable) as caught:
        await forgotten.rotate_secret("shop")
    assert "k2, which is not in security.keys" in refuse_sql(caught.value).detail
    again = SqlDirectory(reopen(K1), SystemClock())
    with pytest.raises(SecretUnreadable, match=r"group shop .*k2"):  # at its next start
        await again.refresh()


async def test_row_that_was_changed_or_moved_costs_its_group_alone(reopen: Open) -> None:
    """Whoever can write to the database cannot give one group's secret to another, nor stop the checks of all. The
    secret signs no more, the endpoint is asked no more and says why, until they are made anew."""
    database = reopen(K1)
    await fill(database)
    directory = SqlDirectory(database, SystemClock())
    made = await directory.put_group("bank", DEFAULT_SETTINGS, ["https://bank/check?token=b"])
    moved = sa.update(secrets).where(secrets.c.producer_group == "shop").values(producer_group="bank")
    other_url = sa.func.replace(endpoints.c.url, "{k1}", "{k1}AAAA")
    changed = sa.update(endpoints).where(endpoints.c.producer_group == "shop").values(url=other_url)

    def damage(conn: sa.Connection) -> None:
        conn.execute(moved)
        conn.execute(changed)
        move_version(conn, directory_version)

    await database.run(damage)
    await directory.refresh()
    shop, bank = directory.get("shop"), directory.get("bank")
    assert shop is not None
    assert bank is not None
    assert bank.secrets == (made.secret,)
    assert [(one.url, one.disabled_reason) for one in bank.endpoints] == [("https://bank/check?token=b", None)]
    assert shop.secrets == ()
    (endpoint,) = [one for one in shop.endpoints if not one.is_leased]
    assert endpoint.url == "https://shop/check"
    assert "endpoint of group shop cannot be decrypted" in (endpoint.disabled_reason or "")
    assert [reason.partition(" cannot")[0] for reason in directory.damaged] == [
        "endpoint of group shop", "endpoint of group shop", "signing secret of group bank",
    ]  # fmt: skip

    health = await directory.read_health("bank")
    assert health is not None
    assert [reason.partition(" cannot")[0] for reason in health.damaged] == ["signing secret of group bank"]

    renewed = await directory.rotate_secret("shop")
    await directory.put_group("shop", DEFAULT_SETTINGS, [URL])
    shop = directory.get("shop")
    assert shop is not None
    assert shop.secrets == (renewed,)
    assert [one.url for one in shop.endpoints if one.disabled_reason is None] == [URL]
    await directory.rotate_secret("bank")
    assert [reason for reason in directory.damaged if "secret" in reason] == []


async def test_leases_go_on_across_a_change_of_keys(reopen: Open) -> None:
    """The same endpoint is one row before and after, is disabled and left by its URL."""
    database, directory = reopen(K1), SqlDirectory(reopen(K1), SystemClock())
    await fill(reopen())
    await lease(database)
    await rewrap_secrets(database, "k1", "me", 1)
    await lease(database)
    await lease(database, f"{LEASED}2")
    await directory.disable_endpoint("shop", URL, "gone")
    group = directory.get("shop")
    assert group is not None
    assert {e.url: e.disabled_reason for e in group.endpoints} == {URL: "gone", LEASED: None, f"{LEASED}2": None}
    assert await directory.remove_endpoint("shop", LEASED, ActEntry(1, "a", "b", "c"))
    assert not await directory.remove_endpoint("shop", LEASED, ActEntry(1, "a", "b", "c"))
    assert (await see(database))[2] == sorted([URL, f"{LEASED}2"])


async def test_whoever_writes_while_keys_change_is_not_left_behind(reopen: Open) -> None:
    """Afterwards nothing is encrypted with the key before, and no endpoint is there twice."""
    one, other = reopen(K1, K2), reopen(K2, K1)
    await fill(one)

    async def write(number: int) -> None:
        await lease(one, f"{LEASED}{number % 3}")
        await SqlDirectory(one, SystemClock()).rotate_secret("shop")

    async def change() -> None:
        for key_id in ("k2", None, "k1", "k2"):
            await rewrap_secrets(other, key_id, "me", 1, step_rows=2)

    await asyncio.gather(change(), *map(write, range(9)))
    assert set(await one.read(count_by_key)) == {"k2"}
    assert (await see(reopen(K2)))[2] == sorted([URL, LEASED, *[f"{LEASED}{n}" for n in range(3)]])
