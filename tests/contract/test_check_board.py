"""What every board of due checks promises: in memory, over SQLite, over PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.directory import LEASE_SLACK_MS, PullCheck, PullCheckStore
from bridge.sql.engine import Database
from bridge.sql.leases import SqlPullCheckStore
from tests.support.check_fakes import MemoryPullCheckStore

QUEUE, OTHER_QUEUE = 3, 4
LEASE_MS = 60_000


@pytest_asyncio.fixture(params=["memory", "sqlite", "postgres"])
async def board(request: pytest.FixtureRequest) -> AsyncIterator[PullCheckStore]:
    """A board under test, its queue taken by `ann`."""
    if request.param == "memory":
        made: PullCheckStore = MemoryPullCheckStore()
        await made.take_queue(QUEUE, "ann")
        yield made
        return
    url = request.getfixturevalue("make_sqlite_url")() if request.param == "sqlite" else None
    database = Database(url or request.getfixturevalue("postgres").create_migrated())
    made = SqlPullCheckStore(database)
    await made.take_queue(QUEUE, "ann")
    yield made
    await database.close()


def check(name: str, number: int = 1, group: str = "shop", due_ms: int = 100) -> PullCheck:
    return PullCheck(name, group, number, due_ms)


def names(checks: object) -> list[str]:
    assert isinstance(checks, list | tuple)
    return [found.transaction_id for found in checks]


async def claim(board: PullCheckStore, limit: int = 10, group: str = "shop") -> list[str]:
    return names(await board.claim(group, limit, LEASE_MS))


async def test_longest_due_are_claimed_first_and_only_once(board: PullCheckStore) -> None:
    """Nobody else gets what somebody holds; what was claimed is counted."""
    checks = [check("a", due_ms=3), check("b", due_ms=1), check("c", due_ms=2)]
    assert await board.put(QUEUE, "ann", 0, checks) == {"a": 0, "b": 0, "c": 0}
    assert await board.claim("shop", 2, LEASE_MS) == [
        check("b", due_ms=1)._replace(claims=1),
        PullCheck("c", "shop", 1, 2, 1),
    ]
    assert await claim(board) == ["a"]
    assert await claim(board) == []
    assert await board.put(QUEUE, "ann", 0, checks) == {"a": 1, "b": 1, "c": 1}


async def test_check_is_free_again_when_its_lease_is_over(board: PullCheckStore) -> None:
    """By the ticks of its queue's owner, with the slack by which they may be behind; never earlier."""
    await board.put(QUEUE, "ann", 500, [check("a")])
    assert await claim(board) == ["a"]
    assert await board.tick(QUEUE, "ann", 500 + LEASE_MS + LEASE_SLACK_MS - 1)
    assert await board.count_free(["shop"]) == {}
    assert await board.tick(QUEUE, "ann", 500 + LEASE_MS + LEASE_SLACK_MS)
    assert await board.count_free(["shop"]) == {"shop": 1}
    assert (await board.claim("shop", 1, LEASE_MS))[0].claims == 2


async def test_ticks_never_go_back(board: PullCheckStore) -> None:
    """A put that was overtaken by a tick does not make check leases longer."""
    await board.put(QUEUE, "ann", 5_000, [check("a")])
    await board.put(QUEUE, "ann", 1_000, [check("b")])
    assert await board.take_queue(QUEUE, "bob") == 5_000


async def test_answered_check_makes_room_for_the_next_number(board: PullCheckStore) -> None:
    """Another number is another check: nobody holds it, and removing the old one does not take it away."""
    await board.put(QUEUE, "ann", 0, [check("a")])
    await claim(board)
    assert await board.put(QUEUE, "ann", 0, [check("a", 2)]) == {"a": 0}
    await board.remove([check("a", 1)])
    assert await board.claim("shop", 1, LEASE_MS) == [check("a", 2)._replace(claims=1)]
    await board.remove([check("a", 2), check("never")])
    await board.tick(QUEUE, "ann", 10 * LEASE_MS)
    assert await board.count_free(["shop"]) == {}


async def test_released_checks_are_free_at_once(board: PullCheckStore) -> None:
    """Only the check lease that is given back: a later one of another claimer stays."""
    await board.put(QUEUE, "ann", 0, [check("a"), check("b")])
    first = await board.claim("shop", 2, LEASE_MS)
    await board.release(first[:1])
    second = await board.claim("shop", 2, LEASE_MS)
    assert names(second) == ["a"]
    await board.release(first)
    assert names(await board.claim("shop", 2, LEASE_MS)) == ["b"]


async def test_groups_do_not_mix(board: PullCheckStore) -> None:
    """A group fetches its own checks; only those that were asked for are counted."""
    await board.put(QUEUE, "ann", 0, [check("a"), check("b", group="bank"), check("c", group="bank")])
    assert await board.count_free(["shop", "bank", "nobody"]) == {"shop": 1, "bank": 2}
    assert await board.count_free(["bank"]) == {"bank": 2}
    assert await claim(board, group="bank") == ["b", "c"]


async def test_taken_over_checks_wait_for_their_new_owner(board: PullCheckStore) -> None:
    """They may have ended; put again they are given out, and check leases of before still hold."""
    await board.put(QUEUE, "ann", 7_000, [check("held", due_ms=1), check("free")])
    assert await claim(board, 1) == ["held"]
    assert await board.take_queue(QUEUE, "bob") == 7_000
    assert await claim(board) == []
    assert await board.put(QUEUE, "bob", 7_000, [check("held"), check("free")]) == {"held": 1, "free": 0}
    assert await claim(board) == ["free"]
    await board.tick(QUEUE, "bob", 7_000 + LEASE_MS + LEASE_SLACK_MS)
    assert sorted(await claim(board)) == ["free", "held"]


async def test_earlier_owner_can_do_nothing_any_more(board: PullCheckStore) -> None:
    """A frozen settler that wakes up lays nothing and moves no clock."""
    await board.put(QUEUE, "ann", 0, [check("a")])
    await board.take_queue(QUEUE, "bob")
    await board.put(QUEUE, "bob", 10, [check("a")])
    assert await board.put(QUEUE, "ann", 99_999, [check("late")]) is None
    assert not await board.tick(QUEUE, "ann", 99_999)
    await board.leave_queue(QUEUE, "ann")
    assert await claim(board) == ["a"]
    assert await board.take_queue(QUEUE, "bob") == 10


async def test_what_an_earlier_owner_left_is_swept(board: PullCheckStore) -> None:
    """Of its own queue, when nobody holds it any more."""
    await board.put(QUEUE, "ann", 0, [check("held", due_ms=1), check("left")])
    await board.take_queue(OTHER_QUEUE, "ann")
    await board.put(OTHER_QUEUE, "ann", 0, [check("elsewhere", due_ms=9)])
    await claim(board, 1)
    await board.take_queue(QUEUE, "bob")
    assert await board.tick(QUEUE, "bob", 1)
    assert await board.put(QUEUE, "bob", 1, [check("held"), check("left")]) == {"held": 1, "left": 0}
    assert await board.count_free(["shop"]) == {"shop": 2}
    await board.take_queue(QUEUE, "eve")
    await board.tick(QUEUE, "eve", 10 * LEASE_MS)
    assert await board.put(QUEUE, "eve", 10 * LEASE_MS, [check("held")]) == {"held": 0}
    assert sorted(await claim(board)) == ["elsewhere", "held"]


async def test_queue_that_is_left_gives_nothing_out(board: PullCheckStore) -> None:
    """What somebody holds stays held for the next owner."""
    await board.put(QUEUE, "ann", 0, [check("held", due_ms=1), check("free")])
    await claim(board, 1)
    await board.leave_queue(QUEUE, "ann")
    assert await board.put(QUEUE, "ann", 0, [check("late")]) is None
    assert await board.count_free(["shop"]) == {}
    await board.take_queue(QUEUE, "bob")
    assert await board.put(QUEUE, "bob", 0, [check("held"), check("free")]) == {"held": 1, "free": 0}
    assert await claim(board) == ["free"]


async def test_claimers_at_once_never_hold_the_same(board: PullCheckStore) -> None:
    """Twenty who come at the same moment share what there is."""
    await board.put(QUEUE, "ann", 0, [check(f"t{number:03}") for number in range(60)])
    found = await asyncio.gather(*[claim(board, 7) for _ in range(20)])
    flat = [name for part in found for name in part]
    assert len(flat) == len(set(flat)) > 40
    assert len(flat) + (await board.count_free(["shop"])).get("shop", 0) == 60


async def test_nothing_to_do_is_done(board: PullCheckStore) -> None:
    """Empty lists need no special care of callers."""
    assert await board.put(QUEUE, "ann", 0, []) == {}
    await board.remove([])
    await board.release([])
    assert await board.count_free([]) == {}


async def tell(board: PullCheckStore, steps: list[tuple[str, Any]]) -> list[object]:
    """What the board answers to every step, and what is free after it; the last owner speaks."""
    owner, tick_ms, claimed, answers = "ann", 0, [], []
    await board.take_queue(QUEUE, owner)
    for what, how in steps:
        if what == "put":
            latest = {name: check(name, number) for name, number in how}
            answers.append(await board.put(QUEUE, owner, tick_ms, list(latest.values())))
        elif what == "claim":
            got = await board.claim("shop", how, LEASE_MS)
            claimed += got
            answers.append(list(got))
        elif what == "release":
            await board.release(claimed[how : how + 1])
        elif what == "tick":
            tick_ms += how
            answers.append(await board.tick(QUEUE, owner, tick_ms))
        elif what == "take":
            owner = how
            answers.append(await board.take_queue(QUEUE, owner))
        elif what == "leave":
            await board.leave_queue(QUEUE, how)
        else:
            await board.remove([check(how, 1)])
        answers.append(dict(await board.count_free(["shop"])))
    return answers


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 2)), max_size=4)),
        st.tuples(st.just("claim"), st.integers(1, 4)),
        st.tuples(st.just("release"), st.integers(0, 5)),
        st.tuples(st.just("tick"), st.integers(0, 2 * LEASE_MS)),
        st.tuples(st.just("take"), st.sampled_from(["ann", "bob"])),
        st.tuples(st.just("leave"), st.sampled_from(["ann", "bob"])),
        st.tuples(st.just("remove"), st.sampled_from("abcd")),
    ),
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_every_story_goes_as_in_memory(make_sqlite_url: Callable[[], str], steps: list[tuple[str, Any]]) -> None:
    """Whatever is done in whatever order, SQL answers what the simple board answers."""
    database = Database(make_sqlite_url())
    try:
        answers = [await tell(board, steps) for board in (MemoryPullCheckStore(), SqlPullCheckStore(database))]
    finally:
        await database.close()
    assert answers[0] == answers[1]
