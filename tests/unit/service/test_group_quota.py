"""A producer group that leaves too much pending is told to wait; the others are not."""

from pathlib import Path

import sqlalchemy as sa

from bridge.core.message import Message
from bridge.service.contract import Limits, PrepareCall, Prepared, RefusalCode, Refused
from bridge.sql.tables import group_counts
from tests.support.service_world import ServiceWorld, make_service_world


def count_pending(world: ServiceWorld, group: str, pending: int) -> None:
    """As the projector counts them."""
    counts = {"prepared": 7 + pending, "committed": 4, "rolled_back": 2, "parked": 1, "blocked": 1}
    with world.database.engine.begin() as conn:
        conn.execute(sa.delete(group_counts).where(group_counts.c.producer_group == group))
        conn.execute(sa.insert(group_counts).values(producer_group=group, **counts))


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
