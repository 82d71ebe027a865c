"""A restart with everything there can be on both sides of S and L, on the real broker."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from bridge.core.position import LowWatermarkConfig
from bridge.core.record import Resolution, Source
from bridge.core.transaction import TransactionState
from bridge.settler.ports import SettlerConfig
from tests.support.bridge_process import create_topics, read_committed, wait_until
from tests.support.cluster_acts import delete_topic, read_last_position
from tests.support.lone_settler import Known, LoneWorld, until

GOOD, GONE = "restart.good", "restart.gone"
SMALL = SettlerConfig(horizon=LowWatermarkConfig(journal_records=30))


class Kinds(NamedTuple):
    """Names of the transactions of one side."""

    pending: str
    asked: str
    parked: str
    committed: str
    rolled_back: str
    blocked: list[str]


def kinds(side: str) -> Kinds:
    """Side "old": half messages before L; "new": after it."""
    pending, asked, parked, committed, rolled_back = [f"{side}-{kind}" for kind in Kinds._fields[:-1]]
    return Kinds(pending, asked, parked, committed, rolled_back, [f"{side}-b0", f"{side}-b1"])


@pytest.fixture
async def world(kafka: str) -> AsyncIterator[LoneWorld]:
    """A journal whose owner puts back what is 30 records old."""
    create_topics(kafka, {GOOD: 2, GONE: 1})
    made = await LoneWorld.create(kafka, SMALL)
    yield made
    await made.close()


async def play(world: LoneWorld, side: str) -> None:
    """One of each kind."""
    k = kinds(side)
    await world.prepare(GOOD, *k[:-1])
    await world.prepare(GONE, *k.blocked, key=b"one key")
    await world.settled()
    await world.commit(k.committed, *k.blocked)
    await world.rollback(k.rolled_back)
    await world.end(Resolution.UNKNOWN, k.asked, source=Source.CHECK, check_number=1)
    world.owner().park({world.id_of(k.parked): "MAX_CHECKS"})
    await world.settled()


async def fill(world: LoneWorld) -> None:
    """Forty records that leave nothing pending."""
    names = [f"filler {n}" for n in range(20)]
    await world.prepare(GOOD, *names)
    await world.commit(*names)
    await world.settled()


def count_parked(world: LoneWorld) -> int:
    return sum(t.state is TransactionState.PARKED for t in Known.of(world.owner()).live.values())


def on_both_sides(known: Known, l: int) -> bool:  # noqa: E741 - the name of the format
    """Pending, parked and blocked ones before L and after it."""
    found = {(t.state, t.blocked, t.half < l) for t in known.live.values()}
    wanted = [(TransactionState.PREPARED, False), (TransactionState.PARKED, False), (TransactionState.COMMITTED, True)]
    return all((*each, is_old) in found for each in wanted for is_old in (True, False))


async def test_restart_knows_what_was_known_and_publishes_nothing_twice(kafka: str, world: LoneWorld) -> None:
    """Ended, blocked, parked, asked and put-back transactions on both sides of L, records on both sides of S: the
    successor knows exactly what the last owner knew, and decides only what lies beyond S (D, F, S, C)."""
    async with world.settling():
        await world.prepare(GOOD, "warm")
        await world.commit("warm")
        delete_topic(kafka, GONE)
        await play(world, "old")
        await fill(world)
        await play(world, "new")
        await until(lambda: count_parked(world) == 2)
        owner = world.owner()
    before = Known.of(owner)
    position = read_last_position(kafka, world.topics.op)
    assert position["s"] == before.s
    assert on_both_sides(before, position["l"]), (position, before)

    old, new = kinds("old"), kinds("new")
    await world.commit(old.pending, new.parked, old.committed, new.committed, old.rolled_back)
    await world.rollback(new.asked, new.committed, old.parked, new.blocked[0])
    await world.prepare(GOOD, old.committed, new.pending, "after")  # repeats, and one more
    await world.commit("after")

    async with world.settling() as taken:
        assert taken == before
        await world.settled()
        await asyncio.to_thread(create_topics, kafka, {GONE: 1})
        await asyncio.to_thread(wait_until, lambda: len(read_committed(kafka, [GONE])) == 4)
        owner = world.owner()
    after = Known.of(owner)
    async with world.settling() as again:
        assert again == after

    records = read_committed(kafka, [GOOD, GONE])
    seen = Counter((r.value or b"").decode() for r in records)
    assert set(seen.values()) == {1}, seen
    names = {name for name in seen if name.split()[0] not in {"filler", "warm"}}
    assert names == {
        old.committed, new.committed, old.pending, new.parked, *old.blocked, *new.blocked, "after"
    }  # fmt: skip
    assert [r.value for r in records if r.topic == GONE] == [b"old-b0", b"old-b1", b"new-b0", b"new-b1"]
