"""api.testing.stand: time that goes on by itself, and that a test moves."""

import asyncio
import time

from api.testing.stand import MovableClock, TrueDate

_HOUR_MS = 3_600_000


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    """Each at his own time, before time goes on: who sleeps again at once is woken again on the way."""
    clock, woken = MovableClock(), list[tuple[str, int]]()
    begun_ms = clock.monotonic_ms()

    async def sleep(name: str, *durations_ms: int) -> None:
        for duration_ms in durations_ms:
            await clock.sleep_ms(duration_ms)
            woken.append((name, (clock.monotonic_ms() - begun_ms) // 60_000))

    tasks = [asyncio.create_task(sleep("late", 1_260_000)), asyncio.create_task(sleep("early", 600_000, 1_200_000))]
    await asyncio.sleep(0)
    await clock.move(_HOUR_MS)
    await asyncio.gather(*tasks)
    assert woken == [("early", 10), ("late", 21), ("early", 30)]


async def test_machines_clock_goes_on_meanwhile() -> None:
    """A short sleep ends without anybody moving time."""
    clock = MovableClock()
    await clock.move(_HOUR_MS)
    async with asyncio.timeout(20):
        await clock.sleep_ms(1)


async def test_cancelled_timer_is_not_called() -> None:
    """Neither by the machine's clock nor by a move past its time."""
    clock, called = MovableClock(), list[str]()
    clock.call_later(1_000, lambda: called.append("cancelled")).cancel()
    clock.call_later(1_000, lambda: called.append("kept"))
    await clock.move(2_000)
    assert called == ["kept"]


async def test_signatures_have_the_machines_date() -> None:
    """Whoever verifies one refuses what is more than minutes off."""
    clock = MovableClock()
    await clock.move(_HOUR_MS)
    before_ms = time.time_ns() // 1_000_000
    assert before_ms <= TrueDate(clock).now_ms() <= time.time_ns() // 1_000_000
    assert clock.now_ms() >= before_ms + _HOUR_MS
