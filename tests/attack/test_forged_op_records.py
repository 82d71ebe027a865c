"""Somebody else writes to the op topic: what is not the owner's changes nothing, and is told of."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.core.keyring import SECRET_BYTES, BridgeKey, Keyring, OpSeals
from bridge.core.message import Message, MessageQueue
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY
from bridge.core.transaction import TransactionState
from bridge.service.contract import Refused
from bridge.store.op_topic import SealWatch
from bridge.topology import is_sealed, load_seals, start_seals
from tests.support.projector_world import ProjectorWorld, make_projector_world
from tests.support.service_world import make_service_world
from tests.support.settler_world import GROUP, SettlerWorld, make_settler_world

CREDIT = Message("credits", b"k", b"v")


def new_watch() -> SealWatch:
    return SealWatch(OpSeals(Keyring([BridgeKey("1", b"k" * SECRET_BYTES)])))


def sealed_world() -> SettlerWorld:
    return make_settler_world(seal_watch=new_watch())


def rolled_back(half: int = 0) -> bytes:
    """What an owner would write of a rollback."""
    members = {"v": 1, "state": "ROLLED_BACK", "group": GROUP, "at": half, "half": half, "appended_ms": 1}
    return json.dumps({**members, "by": "producer", "ended_ms": 1, "check_times": 0}).encode()


def position(s: int) -> bytes:
    return json.dumps({"v": 1, "s": s, "l": s, "o": 0, "owner": "forger"}).encode()


async def forge(world: SettlerWorld, key: bytes, value: bytes) -> None:
    await world.memory.store.put(MessageQueue(world.topics.op, 0), Message(world.topics.op, key, value))


def test_successor_believes_no_forged_end() -> None:
    """A forged ROLLED_BACK of a pending transaction, read back at a take-over: the commit publishes it (L, F)."""
    world = sealed_world()

    async def story() -> None:
        async with world.settling("first"):
            await world.prepare("a", CREDIT)
            await world.settled()
        await forge(world, world.id_of("a").encode(), rolled_back())
        async with world.settling("second"):
            await world.commit("a")
            await world.settled()

    world.run(story())
    assert world.memory.visible("credits") == [b"v"]
    assert world.seal_watch.forged == 1


@pytest.mark.parametrize("value", [position(3), position(10**6), b"{}", b'{"v":9}'], ids=["end", "far", "torn", "new"])
def test_successor_believes_no_forged_position(value: bytes) -> None:
    """Acknowledged commits above the owner's position are not skipped, and no queue is halted (L, T)."""
    world = sealed_world()

    async def story() -> None:
        async with world.settling("first"):
            await world.prepare("a", CREDIT)
            await world.settled()
        await world.commit("a")
        await world.prepare("b", CREDIT)
        for _ in range(300):  # more than the tail that is looked at first
            await forge(world, POSITION_KEY, value)
        async with world.settling("second"):
            await world.commit("b")
            while len(world.memory.visible("credits")) < 2:
                await world.memory.clock.sleep_ms(20)

    world.run(story(), 60_000)
    assert world.memory.visible("credits") == [b"v", b"v"]


def test_caller_believes_no_forged_state_and_no_forged_answer(tmp_path: Path) -> None:
    """Who waits for a commit hears what the owner says, whatever lies in the op topic before it (A)."""
    world = make_service_world(tmp_path, seal_watch=new_watch())
    heard = []

    async def story() -> None:
        async with world.settlers.settling(), world.serving() as process:
            [prepared] = await process.transactions.prepare([world.call(b"v")])
            assert not isinstance(prepared, Refused)
            wait = process.waiters.open([prepared.transaction_id])
            answer = {"request": wait.requests[0], "id": prepared.transaction_id, "answer": "UNKNOWN_TRANSACTION"}
            await forge(world.settlers, ANSWERS_KEY, json.dumps({"v": 1, "answers": [answer]}).encode())
            await forge(world.settlers, prepared.transaction_id.encode(), rolled_back())
            await forge(world.settlers, POSITION_KEY, position(1_000))
            await world.sleep(1_000)
            heard.append((list(wait.heard), process.follower.positions()[0]))
            wait.close()

    world.run(story())
    [(answers, s)] = heard
    assert answers == [None]
    assert s < 1_000


def make_sealed_projector_world(url: str) -> ProjectorWorld:
    return make_projector_world(url, queues=1, seal_watch=new_watch())


def test_projection_believes_no_forged_record(make_sqlite_url: Callable[[], str]) -> None:
    """Search, counts and look-ups of repeats stay true, and the projector goes on (F, C)."""
    world = make_sealed_projector_world(make_sqlite_url())

    async def story() -> None:
        async with world.settlers.settling():
            await world.settlers.prepare("a", CREDIT)
            await world.catch_up()
            await forge(world.settlers, world.settlers.id_of("a").encode(), rolled_back())
            await forge(world.settlers, POSITION_KEY, position(10**6))
            await forge(world.settlers, POSITION_KEY, b'{"v":9}')
            await world.settlers.commit("a")
            await world.catch_up()

    world.run(story())
    view = world.view("a")
    assert view is not None
    assert view.state is TransactionState.COMMITTED


def test_upgrade_loses_nothing_that_was_written_without_seals(make_sqlite_url: Callable[[], str]) -> None:
    """An owner of an older release, then `migrate`, then a new one: what had ended has ended, what was pending is."""
    world = make_projector_world(make_sqlite_url(), queues=1)
    settlers = world.settlers

    async def story() -> None:
        async with settlers.settling("old"):
            await settlers.prepare("ended", CREDIT)
            await settlers.commit("ended")
            await settlers.prepare("pending", CREDIT)
            await settlers.settled()
        assert not await is_sealed(world.database)
        await start_seals(settlers.memory.store, world.database, world.topics, 1)
        assert await is_sealed(world.database)
        settlers.seal_watch = SealWatch()
        await load_seals(world.database, settlers.seal_watch.seals)
        await forge(settlers, settlers.id_of("pending").encode(), rolled_back(2))
        async with settlers.settling("new"):
            await settlers.commit("ended")
            await settlers.commit("pending")
            await settlers.settled()

    world.run(story())
    assert settlers.memory.visible("credits") == [b"v", b"v"]
    assert settlers.seal_watch.forged == 1


def test_lost_database_loses_nothing_that_another_key_sealed(make_sqlite_url: Callable[[], str]) -> None:
    """A new database makes a new key: what the lost one sealed is believed below the op topic's end."""
    world = make_projector_world(make_sqlite_url(), queues=1, seal_watch=new_watch())
    settlers = world.settlers

    async def story() -> None:
        async with settlers.settling("before"):
            await settlers.prepare("ended", CREDIT)
            await settlers.commit("ended")
            await settlers.settled()
        await start_seals(settlers.memory.store, world.database, world.topics, 1)
        settlers.seal_watch = SealWatch()
        await load_seals(world.database, settlers.seal_watch.seals)
        async with settlers.settling("after"):
            await settlers.commit("ended")
            await settlers.settled()

    world.run(story())
    assert settlers.memory.visible("credits") == [b"v"]
    assert settlers.op_of("ended").transaction.state is TransactionState.COMMITTED
