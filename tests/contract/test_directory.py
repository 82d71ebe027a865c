"""What every directory of producer groups promises: in memory, over SQLite, over PostgreSQL."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from bridge.clock import SystemClock
from bridge.core.check_rules import CheckCalls, CheckMode, CheckTimes, GroupSettings, WhenExhausted
from bridge.directory import DEFAULT_SETTINGS, Endpoint, ProducerDirectory, ProducerGroup, UnansweredRound
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from tests.support.check_fakes import MemoryDirectory

URL, OTHER = "https://shop/check", "https://shop-2/check"
SLOW = GroupSettings(
    CheckTimes(60_000, 1_000, 3, 7_000),
    CheckCalls(900, 7, 2, CheckMode.PULL),
    WhenExhausted.ROLLBACK,
    accepts_prepares=False,
)
Put = Callable[[str, GroupSettings, list[str]], Awaitable[None]]


@dataclass
class DirectoryWorld:
    """A directory, and how a group gets into it."""

    directory: ProducerDirectory
    put: Put
    count_rounds: Callable[[str], Awaitable[int]]


@pytest_asyncio.fixture(params=["memory", "sqlite", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[DirectoryWorld]:
    """A directory under test."""
    if request.param == "memory":
        yield make_memory_world()
        return
    url = request.getfixturevalue("make_sqlite_url")() if request.param == "sqlite" else None
    database = Database(url or request.getfixturevalue("postgres").create_migrated())
    yield make_sql_world(SqlDirectory(database, SystemClock()))
    await database.close()


def make_memory_world() -> DirectoryWorld:
    directory = MemoryDirectory()

    async def put(name: str, settings: GroupSettings, urls: list[str]) -> None:
        directory.groups[name] = ProducerGroup(name, settings, [Endpoint(url) for url in urls])

    async def count_rounds(group: str) -> int:
        return sum(r.group == group for r in directory.rounds)

    return DirectoryWorld(directory, put, count_rounds)


def make_sql_world(directory: SqlDirectory) -> DirectoryWorld:
    async def put(name: str, settings: GroupSettings, urls: list[str]) -> None:
        await directory.put_group(name, settings, urls)

    async def count_rounds(group: str) -> int:
        health = await directory.read_health(group)
        return sum(endpoint.unanswered for endpoint in health.endpoints) if health else 0

    return DirectoryWorld(directory, put, count_rounds)


async def test_unknown_group_is_none_with_default_settings(world: DirectoryWorld) -> None:
    """Checks of a group that nobody created still have times to go by."""
    assert world.directory.get("shop") is None
    assert world.directory.settings_of("shop") == DEFAULT_SETTINGS


async def test_put_group_is_read_as_it_was_put(world: DirectoryWorld) -> None:
    """Settings and endpoints come back exactly."""
    await world.put("shop", SLOW, [URL, OTHER])
    group = world.directory.get("shop")
    assert group is not None
    assert (group.name, group.settings, set(group.endpoints)) == ("shop", SLOW, {Endpoint(URL), Endpoint(OTHER)})
    assert world.directory.settings_of("shop") == SLOW


async def test_groups_do_not_mix(world: DirectoryWorld) -> None:
    """One group's endpoint is never asked about another's transactions."""
    await world.put("shop", SLOW, [URL])
    await world.put("bank", DEFAULT_SETTINGS, [OTHER])
    shop, bank = world.directory.get("shop"), world.directory.get("bank")
    assert shop is not None
    assert bank is not None
    assert ([e.url for e in shop.endpoints], [e.url for e in bank.endpoints]) == ([URL], [OTHER])


async def test_disabled_endpoint_says_why_and_others_stay(world: DirectoryWorld) -> None:
    """410: this instance is gone; the group's others are asked on."""
    await world.put("shop", DEFAULT_SETTINGS, [URL, OTHER])
    await world.directory.disable_endpoint("shop", URL, "gone")
    group = world.directory.get("shop")
    assert group is not None
    assert {e.url: e.disabled_reason for e in group.endpoints} == {URL: "gone", OTHER: None}


async def test_endpoint_is_back_when_the_group_is_put_again(world: DirectoryWorld) -> None:
    """Who deploys the instance again says so by a put."""
    await world.put("shop", DEFAULT_SETTINGS, [URL])
    await world.directory.disable_endpoint("shop", URL, "gone")
    await world.put("shop", DEFAULT_SETTINGS, [URL])
    group = world.directory.get("shop")
    assert group is not None
    assert list(group.endpoints) == [Endpoint(URL)]


async def test_unanswered_rounds_are_kept_by_group(world: DirectoryWorld) -> None:
    """They are the group's health, and no check was used up."""
    await world.put("shop", DEFAULT_SETTINGS, [URL])
    rounds = [UnansweredRound("a" * 28, "shop", at_ms, "timeout", URL) for at_ms in (1, 2)]
    await world.directory.record_rounds([*rounds, UnansweredRound("b" * 28, "shop", 3, "no-endpoint", None)])
    await world.directory.record_rounds([])
    assert await world.count_rounds("shop") == 3
