"""Gives memory back to the system. Full garbage collections look at every pending transaction, so they are rare."""

import asyncio
import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import structlog

from bridge.clock import Clock

_LOG = structlog.get_logger()

# Pending transactions are many and acyclic, so full passes cost much: HeapLoop makes one when memory has grown.
GC_THRESHOLD = (100_000, 50, 1_000)
_INTERVAL_MS = 10_000
_LEAST_GROWTH = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HeapActs:
    """What is done to this process. `trim` blocks and runs in a thread."""

    resident_bytes: Callable[[], int]
    collect: Callable[[], int]
    trim: Callable[[], None]


def make_heap_acts() -> HeapActs:
    """For this process; without glibc nothing is trimmed."""
    process, libc = psutil.Process(), ctypes.CDLL(None)

    def trim() -> None:
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)

    return HeapActs(lambda: int(process.memory_info().rss), gc.collect, trim)


class HeapLoop:
    """Collects when the process has grown by a quarter, so the cost stays a part of what was allocated anyway."""

    def __init__(self, clock: Clock, acts: HeapActs, interval_ms: int = _INTERVAL_MS) -> None:
        self._clock = clock
        self._acts = acts
        self._interval_ms = interval_ms
        self._settled = acts.resident_bytes()

    async def run_forever(self) -> None:
        """Every few seconds."""
        while True:
            await self._clock.sleep_ms(self._interval_ms)
            await self.run_once()

    async def run_once(self) -> bool:
        """Whether it collected."""
        before = self._acts.resident_bytes()
        is_grown = before > self._settled + max(_LEAST_GROWTH, self._settled // 4)
        if is_grown:
            self._acts.collect()
        # memory freed since the last time is between blocks in use, and malloc keeps it
        await asyncio.to_thread(self._acts.trim)
        after = self._acts.resident_bytes()
        self._settled = after if is_grown else min(self._settled, after)
        if is_grown:
            _LOG.debug("heap_collected", before_bytes=before, after_bytes=after)
        return is_grown
