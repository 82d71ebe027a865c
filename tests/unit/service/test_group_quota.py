"""A producer group that leaves too much pending, or is switched off, gets nothing new; the others do."""

from pathlib import Path

import sqlalchemy as sa

from bridge.core.check_rules import GroupSettings
from bridge.core.message import Message
from bridge.core.record import Resolution
from bridge.service.contract import (
    Accepted,
    EndCall,
    Limits,
    Outcome,
    PrepareCall,
    Prepared,
    RefusalCode,
    Refused,
    Wait,
)
from bridge.service.operate import Who
from bridge.service.reads import AuditList
from bridge.sql.tables import group_counts
from tests.support.service_world import ServiceWorld, make_service_world


def count_pending(world: ServiceWorld, group: str, pending: int) -> None:
    """As the projector counts them."""
    counts = {"prepared": 7 + pending, "committed": 4, "rolled_back": 2, "parked": 1, "blocked": 1}
    with world.database.engine.begin() as conn:
        conn.execute(sa.delete(group_counts).where(group_counts.c.producer_group == group))
        conn.execute(sa.insert(group_counts).values(producer_group=group, **counts))


def test_group_that_is_switched_off_gets_nothing_new_and_what_is_pending_ends(tmp_path: Path) -> None:
    """Neither prepares nor publishes, nothing applied; switched on again, both go on."""
    world = make_service_world(tmp_path)

    async def story() -> None:
        async with world.serving() as api:

            async def prepare(*, is_published: bool = False) -> object:
                call = PrepareCall("shop", [Message("orders", b"k")], is_published=is_published)
                return (await api.transactions.prepare([call]))[0]

            async def switch(*, is_on: bool) -> None:
                await api.groups.put("shop", GroupSettings(accepts_prepares=is_on), [], Who("ann", "audit"))

            pending = await prepare()
            assert isinstance(pending, Prepared)
            await switch(is_on=False)
            for is_published in (False, True):
                refused = await prepare(is_published=is_published)
                assert isinstance(refused, Refused)
                assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
                assert "accept_prepares" in refused.detail
            call = EndCall(pending.transaction_id, Resolution.COMMIT)
            assert isinstance((await api.transactions.end([call], Wait.DURABLE))[0], Accepted)
            await switch(is_on=True)
            assert isinstance(await prepare(), Prepared)

    world.run(story())


def test_bridge_that_is_switched_off_takes_nothing_new_of_any_group(tmp_path: Path) -> None:
    """Known groups, new ones and published messages alike, nothing applied; what is pending ends, and all goes on."""
    world = make_service_world(tmp_path)
    who = Who("ann", "the cluster is moved")

    async def story() -> None:
        async with world.serving() as api:

            async def prepare(group: str = "shop", *, is_published: bool = False) -> object:
                call = PrepareCall(group, [Message("orders", b"k")], is_published=is_published)
                return (await api.transactions.prepare([call]))[0]

            pending = await prepare()
            assert isinstance(pending, Prepared)
            assert await api.groups.switch_prepares(who, is_paused=True) is None
            for refused in [await prepare(), await prepare("new"), await prepare(is_published=True)]:
                assert isinstance(refused, Refused)
                assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
                assert "all groups" in refused.detail
            call = EndCall(pending.transaction_id, Resolution.COMMIT)
            assert isinstance((await api.transactions.end([call], Wait.DURABLE))[0], Accepted)
            assert await api.groups.switch_prepares(who, is_paused=False) is None
            assert isinstance(await prepare("new"), Prepared)
            audit = await api.search.audit(10)
            assert isinstance(audit, AuditList)
            assert [entry.what for entry in audit.entries] == ["bridge.resume", "bridge.pause"]

    world.run(story())


def test_full_group_waits_and_others_do_not(tmp_path: Path) -> None:
    """Until some of its transactions have ended; counted now and then, so it may have a few more by then."""
    world = make_service_world(tmp_path, limits=Limits(max_pending_of_group=3))

    async def story() -> None:
        async with world.serving() as api:

            async def prepare(group: str) -> list[object]:
                return list(await api.transactions.prepare([PrepareCall(group, [Message("orders", b"k")])]))

            assert isinstance((await prepare("shop"))[0], Prepared)
            count_pending(world, "shop", 3)
            count_pending(world, "other", 2)
            await api.pending.run_once()
            refused, taken = [*await prepare("shop"), *await prepare("other")]
            assert isinstance(refused, Refused)
            assert (refused.code, bool(refused.retry_after_s)) == (RefusalCode.RATE_LIMITED, True)
            assert isinstance(taken, Prepared)
            count_pending(world, "shop", 2)
            await api.pending.run_once()
            assert isinstance((await prepare("shop"))[0], Prepared)

    world.run(story())
