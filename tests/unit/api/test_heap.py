"""When memory is given back, and at which cost."""

import asyncio
import errno

import pytest

from api.process import HeapActs, HeapLoop, make_heap_acts
from bridge.clock import SystemClock

MIB = 1024 * 1024


class Process:
    """One whose memory is what a test says; a collection brings it to `kept`."""

    def __init__(self) -> None:
        self.resident = self.kept = 100 * MIB
        self.collected = self.trimmed = 0
        self.loop = HeapLoop(SystemClock(), HeapActs(lambda: self.resident, self.collect, self.trim))

    def collect(self) -> int:
        self.collected += 1
        return 0

    def trim(self) -> None:
        self.trimmed += 1
        if self.collected:
            self.resident = self.kept


async def test_memory_comes_back_after_growth() -> None:
    """Once; then it rests until the process has grown again."""
    process = Process()
    process.resident = 1_000 * MIB
    assert await process.loop.run_once()
    assert process.resident == 100 * MIB
    assert not await process.loop.run_once()


async def test_what_stays_is_looked_at_seldom() -> None:
    """A million pending transactions that grow to two: few full passes, each worth a quarter of the memory."""
    process = Process()
    for resident in range(100, 2_000):
        process.resident = process.kept = resident * MIB
        await process.loop.run_once()
    assert 5 <= process.collected <= 20
    assert process.trimmed == 1_900


@pytest.mark.parametrize(
    "fault", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
)
async def test_process_goes_on_where_its_memory_cannot_be_measured(fault: Exception) -> None:
    """No file or thread is left for a moment: a loop that ends would end the process with it."""
    again, measured = asyncio.Event(), [0]

    def measure() -> int:
        measured[0] += 1
        if measured[0] == 2:
            raise fault
        return MIB

    loop = HeapLoop(SystemClock(), HeapActs(measure, lambda: 0, again.set), 1)
    running = asyncio.create_task(loop.run_forever())
    async with asyncio.timeout(10):
        await asyncio.wait({running, asyncio.create_task(again.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert again.is_set()
    running.cancel()


async def test_this_process_can_be_trimmed() -> None:
    """The system's own calls are there and do no harm."""
    acts = make_heap_acts()
    acts.trim()
    assert acts.resident_bytes() > MIB


async def test_process_goes_on_where_nobody_knows_how_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, as in some sandboxes: its loop is made, and gives back what it can."""
    monkeypatch.setattr("psutil.PROCFS_PATH", "/not/there")
    loop = HeapLoop(SystemClock(), make_heap_acts())
    assert not await loop.run_once()
