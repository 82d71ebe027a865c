"""The virtual clock: time moves only when it is told to."""

import asyncio

import pytest

from tests.support.virtual_time import NothingEverHappensError, VirtualClock


async def sleep_and_note(clock: VirtualClock, duration_ms: int, woken: list[tuple[int, int]]) -> None:
    """Notes when a sleep ended."""
    await clock.sleep_ms(duration_ms)
    woken.append((duration_ms, clock.monotonic_ms()))


async def test_sleepers_wake_in_order_at_their_time() -> None:
    """Each sleeper sees its own time, also when much time passes at once."""
    clock, woken = VirtualClock(), list[tuple[int, int]]()
    async with asyncio.TaskGroup() as tasks:
        for duration_ms in (300, 100, 200):
            tasks.create_task(sleep_and_note(clock, duration_ms, woken))
        await clock.advance(250)
        assert woken == [(100, 100), (200, 200)]
        assert clock.monotonic_ms() == 250
        await clock.advance(50)
    assert woken[-1] == (300, 300)


async def test_sleeper_that_sleeps_again_is_woken_on_the_way() -> None:
    """Time passes through every sleep that begins while it passes."""
    clock = VirtualClock()
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            await clock.sleep_ms(10)
            ticks.append(clock.monotonic_ms())

    ticking = asyncio.create_task(tick())
    await clock.advance(35)
    ticking.cancel()
    assert ticks == [10, 20, 30]


async def test_cancelled_sleeper_does_not_hold_time() -> None:
    """Who no longer sleeps is no reason to stop."""
    clock, woken = VirtualClock(), list[tuple[int, int]]()
    cancelled = asyncio.create_task(sleep_and_note(clock, 10, woken))
    kept = asyncio.create_task(sleep_and_note(clock, 20, woken))
    await clock.advance(0)
    cancelled.cancel()
    await clock.advance_to_next()
    assert woken == [(20, 20)]
    assert not await clock.advance_to_next()
    await kept


async def test_drive_runs_hours_at_once() -> None:
    """A driven program sleeps as long as it likes."""
    clock = VirtualClock()

    async def work() -> int:
        await clock.sleep_ms(3_000_000)
        return clock.monotonic_ms()

    assert await clock.drive(work()) == 3_000_000


async def test_drive_says_when_nothing_can_happen() -> None:
    """A program that waits for something other than time is reported, not waited for."""
    clock = VirtualClock()
    with pytest.raises(NothingEverHappensError):
        await clock.drive(asyncio.Event().wait())


async def test_drive_has_a_limit() -> None:
    """A program that only ever sleeps is ended."""
    clock = VirtualClock()

    async def work() -> None:
        while True:
            await clock.sleep_ms(1_000)

    with pytest.raises(NothingEverHappensError):
        await clock.drive(work(), limit_ms=10_000)


async def test_wall_clock_moves_alone() -> None:
    """A shifted wall clock does not touch the monotonic one."""
    clock = VirtualClock(start_ms=1_000)
    clock.shift_wall_clock(-500)
    await clock.advance(10)
    assert (clock.now_ms(), clock.monotonic_ms()) == (510, 10)
