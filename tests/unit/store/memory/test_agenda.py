"""Due actions: run by whoever comes next, at the time at which they were due."""

import asyncio

from bridge.store.memory.link import Agenda, Waiters
from tests.support.virtual_time import VirtualClock


async def test_actions_see_the_time_at_which_they_were_due() -> None:
    """Somebody who comes late does not make them late."""
    clock = VirtualClock(start_ms=1_000_000)
    agenda = Agenda(clock)
    seen: list[tuple[int, int]] = []
    for delay_ms in (300, 100):
        agenda.later(delay_ms, lambda: seen.append((agenda.monotonic_ms(), agenda.now_ms())))
    await clock.advance(5_000)
    agenda.run_due()
    assert seen == [(100, 1_000_100), (300, 1_000_300)]
    assert agenda.now_ms() == 1_005_000


async def test_an_action_may_ask_for_another_one() -> None:
    """Delays count from the time of the action, and what has become due by then runs too."""
    clock = VirtualClock()
    agenda = Agenda(clock)
    seen: list[int] = []

    def repeat() -> None:
        seen.append(agenda.monotonic_ms())
        agenda.later(100, repeat)

    agenda.later(100, repeat)
    await clock.advance(350)
    agenda.run_due()
    assert seen == [100, 200, 300]
    assert agenda.next_due_ms() == 400


async def test_waiter_wakes_for_an_action_asked_for_later() -> None:
    """Who waits long notices that something is due earlier."""
    clock = VirtualClock()
    agenda, waiters = Agenda(clock), Waiters()
    waiting = asyncio.create_task(agenda.wait(waiters, 10_000))
    await clock.advance(100)
    agenda.later(50, lambda: None)
    await clock.advance(0)
    assert waiting.done()


async def test_cancelled_waiter_leaves_nothing_behind() -> None:
    """Neither a sleeper nor a registration stays."""
    clock = VirtualClock()
    agenda, waiters = Agenda(clock), Waiters()
    waiting = asyncio.create_task(agenda.wait(waiters, 10_000))
    await clock.advance(100)
    waiting.cancel()
    await asyncio.wait([waiting])
    await clock.advance(0)
    waiters.wake()
    assert clock.next_due_ms() is None
