"""Checks answered by a listener, within bounds."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from outbox.client.listener import HalfMessage, LocalTransactionState, Resolution
from outbox.client.producer import AsyncCheckPool, CheckPool
from tests.support.bridge_process import wait_until
from tests.support.sdk_messages import Asked

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE


Look = Callable[[HalfMessage], Any]


class Blocking:
    """A pool of threads; its listener may wait for `release`."""

    def __init__(self, look: Look, at_once: int = 2, waiting: int = 10) -> None:
        self.release = threading.Event()
        self.pool = CheckPool(lambda half: self._look(look, half), at_once, waiting)

    def _look(self, look: Look, half: HalfMessage) -> Any:
        answer = look(half)
        if answer == "wait":
            self.release.wait(20)
        return answer

    async def answer(self, checks: Sequence[Asked], timeout_s: float) -> dict[str, Resolution]:
        answered = await asyncio.to_thread(lambda: list(self.pool.answer(checks, timeout_s)))
        return {check.transaction_id: resolution for check, resolution in answered}

    def close(self) -> None:
        self.release.set()
        self.pool.close()


class Awaited:
    """A pool of tasks."""

    def __init__(self, look: Look, at_once: int = 2, waiting: int = 10) -> None:
        self.release = asyncio.Event()
        self.pool = AsyncCheckPool(lambda half: self._look(look, half), at_once, waiting)

    async def _look(self, look: Look, half: HalfMessage) -> Any:
        answer = look(half)
        if answer == "wait":
            await self.release.wait()
        return answer

    async def answer(self, checks: Sequence[Asked], timeout_s: float) -> dict[str, Resolution]:
        return {check.transaction_id: resolution async for check, resolution in self.pool.answer(checks, timeout_s)}

    def close(self) -> None:
        self.release.set()


@pytest.fixture(params=[Blocking, Awaited])
def make(request: pytest.FixtureRequest) -> Any:
    """Makes a pool of either kind."""
    made: list[Any] = []

    def make_one(*args: Any, **options: Any) -> Any:
        made.append(request.param(*args, **options))
        return made[-1]

    yield make_one
    for pool in made:
        pool.close()


async def test_listener_sees_the_half_message(make: Any) -> None:
    """With the number of the check, its time, the caller's key, and messages as they were sent."""
    seen: list[HalfMessage] = []
    pool = make(lambda half: seen.append(half) or COMMIT)
    assert await pool.answer([Asked("t1")], 10) == {"t1": Resolution.COMMIT}
    (half,) = seen
    assert (half.transaction_id, half.producer_group, half.check_number, half.idempotency_key) == (
        "t1", "shop", 2, "order-1",
    )  # fmt: skip
    assert (half.topic, half.key, half.value, half.headers) == ("orders", b"k", b'{"a":1}', ())
    assert half.born_time is not None
    assert half.born_time.isoformat() == "2026-01-31T12:00:00.123000+00:00"


async def test_each_check_gets_its_own_answer(make: Any) -> None:
    """More of them than can run at once; exceptions, None and messages that cannot be read are UNKNOWN."""

    def look(half: HalfMessage) -> Any:
        if half.transaction_id == "raises":
            raise ValueError("secret")
        return {"commit": COMMIT, "rollback": ROLLBACK, "none": None}[half.transaction_id]

    pool = make(look)
    checks = [Asked(name) for name in ("commit", "rollback", "none", "raises")]
    assert await pool.answer([*checks, Asked("odd", messages=({"no": 1},))], 10) == {
        "commit": Resolution.COMMIT,
        "rollback": Resolution.ROLLBACK,
        "none": Resolution.UNKNOWN,
        "raises": Resolution.UNKNOWN,
        "odd": Resolution.UNKNOWN,
    }


async def test_late_check_is_left_out(make: Any) -> None:
    """No answer uses up nothing; the others are answered in time."""
    pool = make(lambda half: "wait" if half.transaction_id == "late" else COMMIT)
    assert await pool.answer([Asked("late"), Asked("t1"), Asked("t2")], 0.3) == {
        "t1": Resolution.COMMIT,
        "t2": Resolution.COMMIT,
    }


class Noting(list[Asked]):
    """`is_read`: whether somebody has gone through all of it."""

    is_read = False

    def __iter__(self) -> Iterator[Asked]:
        yield from super().__iter__()
        self.is_read = True


async def test_check_that_finds_no_place_is_left_out(make: Any) -> None:
    """One runs, one waits, the third is another instance's to answer."""
    looked: list[str] = []
    pool = make(lambda half: looked.append(half.transaction_id) or "wait", at_once=1, waiting=1)
    checks = Noting([Asked("t1"), Asked("t2"), Asked("t3")])
    answering = asyncio.create_task(pool.answer(checks, 30))
    await asyncio.to_thread(wait_until, lambda: looked and (checks.is_read or isinstance(pool, Awaited)))
    pool.release.set()
    assert await answering == {"t1": Resolution.UNKNOWN, "t2": Resolution.UNKNOWN}
    assert looked == ["t1", "t2"]


async def test_places_of_hanging_checks_are_not_given_twice(make: Any) -> None:
    """Threads that hang cannot be ended, tasks can; when they go on, all places are free again."""
    hanging = {"h1", "h2"}
    pool = make(lambda half: "wait" if half.transaction_id in hanging else COMMIT, at_once=2, waiting=1)
    assert await pool.answer([Asked("h1"), Asked("h2")], 0.2) == {}
    assert await pool.answer([Asked("t1")], 0.2) == ({} if isinstance(pool, Blocking) else {"t1": Resolution.COMMIT})
    pool.release.set()
    assert await pool.answer([Asked("t2")], 20) == {"t2": Resolution.COMMIT}


async def test_task_whose_end_hangs_keeps_its_place_and_nobody_waiting() -> None:
    """Not the checks that were answered in time; and a caller who is cancelled meanwhile takes no place along."""
    release = asyncio.Event()

    async def look(half: HalfMessage) -> LocalTransactionState:
        try:
            return COMMIT if half.transaction_id.startswith("t") else await asyncio.Future()
        finally:
            await release.wait() if half.transaction_id == "late" else None

    async def answer(*names: str) -> list[str]:
        answered = pool.answer([Asked(name) for name in names], 0.1)
        return [check.transaction_id async for check, _ in answered]

    pool = AsyncCheckPool(look, 2, 0)
    async with asyncio.timeout(10):
        assert await answer("late", "t1") == ["t1"]
        assert await answer("t2", "t3") == ["t2"]
        for _ in range(3):
            gone = asyncio.create_task(answer("hangs"))
            await asyncio.sleep(0.02)
            gone.cancel()
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
        release.set()
        await asyncio.sleep(0.02)
        assert await answer("t4", "t5") == ["t4", "t5"]


async def test_log_shows_no_more_than_the_kind_of_an_error(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Drivers quote values in their errors."""

    def look(_: HalfMessage) -> Any:
        raise ValueError("secret")

    await make(look).answer([Asked("t1")], 10)
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text
