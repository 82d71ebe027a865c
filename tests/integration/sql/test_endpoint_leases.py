"""Endpoint leases on both databases: taken, renewed, over; heard of by every process."""

from dataclasses import dataclass

import pytest
import pytest_asyncio
import sqlalchemy as sa

from bridge.directory import DEFAULT_SETTINGS, UnansweredRound
from bridge.sql.access import ActEntry, read_audit
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.events import RoundCounts, count_rounds
from bridge.sql.leases import EndpointLease, EndpointTerm, Registration, remove_ended
from bridge.sql.tables import check_results
from tests.support.virtual_time import VirtualClock

HOUR_MS = 3_600_000
LEASE_MS = 60_000
STATIC, LIVE, OTHER = "https://static/check", "https://live/check", "https://other/check"
ACT = ActEntry(1, "ann", "act", "shop")


@dataclass
class Process:
    """A process with a clock of its own; each refresh is as its loop does it."""

    database: Database
    clock: VirtualClock
    directory: SqlDirectory

    async def register(self, url: str = LIVE, lease_ms: int = LEASE_MS, most: int = 10) -> Registration:
        """As the instance behind the URL asks for it."""
        term = EndpointTerm(self.clock.now_ms() + lease_ms, lease_ms)
        return await self.directory.register_endpoint(EndpointLease("shop", url, term), most, ACT)

    async def pass_ms(self, duration_ms: int) -> None:
        """Time passes here, and the directory is refreshed."""
        await self.clock.advance(duration_ms)
        await self.directory.refresh()

    def urls(self) -> list[str]:
        """Who would be asked now."""
        group = self.directory.get("shop")
        return sorted(endpoint.url for endpoint in group.endpoints) if group else []


@pytest_asyncio.fixture
async def api(database: Database) -> Process:
    """Registers."""
    return await start(database)


@pytest_asyncio.fixture
async def settler(api: Process) -> Process:
    """Asks; knows the group and its static endpoint."""
    await api.directory.put_group("shop", DEFAULT_SETTINGS, [STATIC])
    return await start(api.database)


async def start(database: Database) -> Process:
    clock = VirtualClock()
    directory = SqlDirectory(database, clock)
    await directory.refresh()
    return Process(database, clock, directory)


async def count_audited(database: Database) -> int:
    return len((await database.read(lambda conn: read_audit(conn, 100)))[0])


async def test_lease_is_heard_of_and_ends_where_nobody_renews(api: Process, settler: Process) -> None:
    """Within a refresh it is asked; unchanged for its whole length it is not."""
    assert await api.register() is Registration.NEW
    await settler.pass_ms(1_000)
    assert settler.urls() == [LIVE, STATIC]
    await settler.pass_ms(LEASE_MS - 1)
    assert settler.urls() == [LIVE, STATIC]
    await settler.pass_ms(1)
    assert settler.urls() == [STATIC]


async def test_renewals_keep_it_and_are_no_changes(api: Process, settler: Process) -> None:
    """Nobody reads all groups again for a renewal, and the audit is not flooded."""
    await api.register()
    await settler.pass_ms(0)
    known, audited = settler.directory.groups, await count_audited(api.database)
    for _ in range(6):
        await api.pass_ms(LEASE_MS // 3)
        assert await api.register() is Registration.RENEWED
        await settler.pass_ms(LEASE_MS // 3)
    assert settler.urls() == [LIVE, STATIC]
    assert settler.directory.groups is known
    assert await count_audited(api.database) == audited


@pytest.mark.parametrize("shift_ms", [HOUR_MS, -HOUR_MS])
async def test_wall_clocks_decide_nothing(api: Process, settler: Process, shift_ms: int) -> None:
    """A settler an hour ahead asks a living instance, one an hour behind gives up a dead one (68)."""
    settler.clock.shift_wall_clock(shift_ms)
    await api.register()
    await settler.pass_ms(1_000)
    assert settler.urls() == [LIVE, STATIC]
    await settler.pass_ms(LEASE_MS)
    assert settler.urls() == [STATIC]


async def test_late_renewal_brings_it_back(api: Process, settler: Process) -> None:
    """It was over here, and its row still stood: the instance lives after all."""
    await api.register()
    await settler.pass_ms(0)
    await settler.pass_ms(LEASE_MS)
    assert settler.urls() == [STATIC]
    await api.clock.advance(LEASE_MS)
    assert await api.register() is Registration.RENEWED
    await settler.pass_ms(0)
    assert settler.urls() == [LIVE, STATIC]


async def test_row_of_an_ended_lease_is_removed_by_the_loop(api: Process, settler: Process) -> None:
    """Instances that come and go leave nothing behind; the place is free for another."""
    await api.register()
    assert await settler.directory.run_once() == 0
    await settler.clock.advance(LEASE_MS)
    assert await settler.directory.run_once() == 1
    assert await settler.directory.run_once() == 0
    assert await api.register(OTHER, most=1) is Registration.NEW


async def test_renewal_in_the_moment_of_the_end_wins(api: Process, settler: Process) -> None:
    """What was seen unchanged is removed, not what was renewed since."""
    await api.register()
    await settler.pass_ms(0)
    await settler.pass_ms(LEASE_MS)
    await api.clock.advance(LEASE_MS)
    await api.register()
    ended = {("shop", LIVE): EndpointTerm(api.clock.now_ms(), LEASE_MS)}
    assert await api.database.run(lambda conn: remove_ended(conn, ended)) == 0
    await settler.pass_ms(0)
    assert settler.urls() == [LIVE, STATIC]


async def test_put_keeps_leases_and_may_make_one_static(api: Process, settler: Process) -> None:
    """A put replaces what was configured, not who is alive; what it names needs no lease."""
    await api.register()
    await api.register(OTHER)
    await api.directory.put_group("shop", DEFAULT_SETTINGS, [OTHER])
    await settler.pass_ms(0)
    assert settler.urls() == [LIVE, OTHER]
    assert await api.register(OTHER) is Registration.STATIC
    await settler.pass_ms(LEASE_MS)
    assert settler.urls() == [OTHER]


async def test_registering_again_after_410_asks_again(api: Process, settler: Process) -> None:
    """An instance that is started anew at the same URL says so by its lease."""
    await api.register()
    await settler.directory.disable_endpoint("shop", LIVE, "410 Gone")
    await api.register()
    await settler.pass_ms(0)
    group = settler.directory.get("shop")
    assert group is not None
    assert {e.url: e.disabled_reason for e in group.endpoints} == {LIVE: None, STATIC: None}


async def test_leaving_is_heard_of_and_said_once(api: Process, settler: Process) -> None:
    """The second time there is nothing to end; a static endpoint is the settings' own."""
    await api.register()
    audited = await count_audited(api.database)
    assert await api.directory.remove_endpoint("shop", LIVE, ACT)
    assert not await api.directory.remove_endpoint("shop", LIVE, ACT)
    assert not await api.directory.remove_endpoint("shop", STATIC, ACT)
    await settler.pass_ms(0)
    assert settler.urls() == [STATIC]
    assert await count_audited(api.database) == audited + 1


async def test_leases_of_a_group_are_limited(api: Process, settler: Process) -> None:
    """Above the limit nothing is written; renewals of those that are in go on. Unknown groups have none."""
    assert await api.register(most=1) is Registration.NEW
    assert await api.register(OTHER, most=1) is Registration.TOO_MANY
    assert await api.register(most=1) is Registration.RENEWED
    await settler.pass_ms(0)
    assert settler.urls() == [LIVE, STATIC]
    await api.directory.delete_group("shop")
    assert await api.register() is Registration.UNKNOWN_GROUP


async def test_results_of_instances_that_left_are_kept_together(settler: Process) -> None:
    """Each deployment brings new ones: their results are added up, and none is lost in the sums of the group."""
    database, clock = settler.database, settler.clock
    known = dict[str, RoundCounts]()
    for deployment in range(5):
        urls = [f"https://{deployment}-{n}.shop/check" for n in range(3)]
        for url in urls:
            await settler.register(url)
        at_ms = clock.now_ms()
        rounds = [UnansweredRound("a" * 28, "shop", at_ms, "timeout", url) for url in urls]
        await settler.directory.record_rounds(rounds)
        known = await database.read(count_rounds)
        assert known["shop"] == RoundCounts(0, 3 * (deployment + 1), at_ms, 0)
        for url in urls[:2]:
            assert await settler.directory.remove_endpoint("shop", url, ACT)
        clock.shift_wall_clock(25 * 3_600_000)
    await settler.register("https://new.shop/check")
    rows = await database.read(lambda conn: conn.execute(sa.select(check_results)).all())
    assert len(rows) == 5 + 1  # those that stayed, and all others together
    assert await database.read(count_rounds) == known
    health = await settler.directory.read_health("shop")
    assert health is not None
    assert sorted(one.unanswered for one in health.endpoints) == [0, 0, 1, 1, 1, 1, 1]
