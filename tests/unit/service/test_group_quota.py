"""A producer group that leaves too much pending, or is switched off, gets nothing new; the others do."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import sqlalchemy as sa

from bridge.core.check_rules import GroupSettings
from bridge.core.message import Message
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionView
from bridge.directory import GroupSwitch
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
from tests.support.virtual_time import in_world


def count_pending(world: ServiceWorld, group: str, pending: int, parked: int = 1) -> None:
    """As the projector counts them."""
    counts = {"prepared": 6 + parked + pending, "committed": 4, "rolled_back": 2, "parked": parked, "blocked": 1}
    with world.database.engine.begin() as conn:
        conn.execute(sa.delete(group_counts).where(group_counts.c.producer_group == group))
        conn.execute(sa.insert(group_counts).values(producer_group=group, **counts))


@in_world(make_service_world)
async def test_group_that_is_switched_off_gets_nothing_new_and_what_is_pending_ends(world: ServiceWorld) -> None:
    """Neither prepares nor publishes, nothing applied; switched on again, both go on."""
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


@in_world(make_service_world)
async def test_bridge_that_is_switched_off_takes_nothing_new_of_any_group(world: ServiceWorld) -> None:
    """Known groups, new ones and published messages alike, nothing applied; what is pending ends, and all goes on."""
    who = Who("ann", "the cluster is moved")
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


@pytest.mark.parametrize("is_of_all", [False, True])
@in_world(make_service_world)
async def test_repeat_of_what_was_taken_is_answered_as_ever_while_prepares_are_switched_off(
    world: ServiceWorld, is_of_all: bool
) -> None:
    """A: it is nothing new, however its first answer was lost: pending, then ended. A new key is refused."""
    who = Who("ann", "the cluster is moved")
    async with world.serving() as api, world.settlers.settling(), world.projecting():

        async def prepare(key: str, value: bytes = b"v") -> object:
            return (await api.transactions.prepare([world.call(value, idempotency_key=key)]))[0]

        async def switch(*, is_paused: bool) -> None:
            if is_of_all:
                await api.groups.switch_prepares(who, is_paused=is_paused)
            else:
                await api.groups.switch("shop", GroupSwitch.PREPARES, who, is_paused=is_paused)

        first = await prepare("key")
        assert isinstance(first, Prepared)
        await switch(is_paused=True)
        assert await prepare("key") == first
        for refused in [await prepare("new"), await prepare("key", b"other")]:
            assert isinstance(refused, Refused)
            assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
            assert "switched off" in refused.detail
        [ended] = await api.transactions.end([EndCall(first.transaction_id, Resolution.COMMIT)])
        again = await prepare("key")
        assert isinstance(again, TransactionView)
        assert isinstance(ended, TransactionView)
        assert (again.state, list(again.receipts)) == (ended.state, list(ended.receipts))
        world.database.is_down = True
        unread = await prepare("key")
        assert isinstance(unread, Refused)
        assert "switched off" not in unread.detail, "what cannot be looked up may be known"
        world.database.is_down = False
        await switch(is_paused=False)
        assert isinstance(await prepare("new"), Prepared)
        assert world.settlers.memory.visible("orders") == [b"v"]


@pytest.mark.parametrize(
    ("limits", "full", "what"),
    [
        (Limits(max_pending_of_group=3), {"pending": 3, "parked": 9}, "pending"),
        (Limits(max_parked_of_group=3), {"pending": 9, "parked": 3}, "parked"),
        (Limits(max_pending_of_group=3, max_parked_of_group=5), {"pending": 3, "parked": 4}, "pending"),
    ],
)
def test_full_group_waits_and_others_do_not(tmp_path: Path, limits: Limits, full: Mapping[str, int], what: str) -> None:
    """Until some of its transactions have ended; counted now and then, so it may have a few more by then."""
    world = make_service_world(tmp_path, limits=limits)

    async def story() -> None:
        async with world.serving() as api:

            async def prepare(group: str) -> list[object]:
                return list(await api.transactions.prepare([PrepareCall(group, [Message("orders", b"k")])]))

            assert isinstance((await prepare("shop"))[0], Prepared)
            count_pending(world, "shop", **full)
            count_pending(world, "other", **{**full, what: 2})
            await api.pending.run_once()
            refused, taken = [*await prepare("shop"), *await prepare("other")]
            assert isinstance(refused, Refused)
            assert (refused.code, bool(refused.retry_after_s)) == (RefusalCode.RATE_LIMITED, True)
            assert f"as many {what} transactions as it may have" in refused.detail
            assert isinstance(taken, Prepared)
            count_pending(world, "shop", **{**full, what: 2})
            await api.pending.run_once()
            assert isinstance((await prepare("shop"))[0], Prepared)

    world.run(story())


@pytest.mark.parametrize("limits", [Limits(max_pending_of_group=1), Limits(max_pending=1)])
def test_repeat_of_what_was_taken_is_answered_as_ever_while_no_more_may_be_pending(
    tmp_path: Path, limits: Limits
) -> None:
    """A: else an answer that was lost became a refusal, and the transaction one that nobody knows of."""
    world = make_service_world(tmp_path, limits=limits)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling(), world.projecting():

            async def prepare(key: str) -> object:
                return (await api.transactions.prepare([world.call(idempotency_key=key)]))[0]

            first = await prepare("key")
            assert isinstance(first, Prepared)
            count_pending(world, "shop", 1)
            await api.pending.run_once()
            refused = await prepare("new")
            assert isinstance(refused, Refused)
            assert refused.outcome is Outcome.NOT_APPLIED
            assert await prepare("key") == first

    world.run(story())
