"""What producers remark with ends and answers, behind a real settler, as timelines show it."""

from functools import partial

import pytest

from bridge.core.message import Message
from bridge.core.record import Resolution, Source
from bridge.sql.transactions import read_surroundings
from tests.support.projector_world import make_projector_world


def of() -> Message:
    return Message("orders", b"k", b"v")


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
def test_remarks_are_told_with_their_ends_and_the_last_one_of_the_transaction(
    database_url: str, resolution: Resolution
) -> None:
    """Also if journal and op topic are read together, where the deciding end says no more than the op message."""
    world = make_projector_world(database_url)

    async def story() -> None:
        async with world.settlers.settling():
            await world.settlers.prepare("a", of())
            check = {"source": Source.CHECK, "endpoint": "https://shop/check", "status": 200}
            await world.settlers.end("a", Resolution.UNKNOWN, check_number=1, remark="busy", **check)
            await world.settlers.end("a", resolution, remark="no stock")
            await world.settlers.prepare("b", of())
            await world.settlers.end("b", resolution)
            await world.settlers.prepare("c", of())
            await world.settlers.end("c", resolution, remark="at once")
            await world.catch_up()

    world.run(story())
    events = [(event.type, event.members.get("remark")) for event in world.timeline("a")]
    assert [event for event in events if event[1]] == [("check_answered", "busy"), ("end", "no stock")]
    assert [kind for kind, _ in events].count("end") == 1
    assert [event.members.get("remark") for event in world.timeline("b") if event.type == "end"] == [None]
    remarks = []
    for name in ("a", "b", "c"):
        view = world.view(name)
        assert view is not None
        remarks.append(world.query(partial(read_surroundings, view=view))[2])
    assert remarks == ["no stock", None, "at once"]
