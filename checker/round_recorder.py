"""Writes rounds without answer, and endpoints that are gone, into the directory: beside the rounds, in batches."""

from collections import deque
from collections.abc import Iterable

import structlog

from bridge.clock import Clock
from bridge.directory import ProducerDirectory, UnansweredRound
from bridge.fault_points import FaultPoint, reach
from checker.counts import CheckCounts

_LOG = structlog.get_logger()
_INTERVAL_MS = 500
_BACKOFF_MS = 5_000
_MAX_WAITING = 20_000  # beyond it the oldest are dropped: they are for people
_MAX_BATCH = 1_000


class RoundRecorder:
    """Takes notes at once, writes them when it can."""

    def __init__(self, directory: ProducerDirectory, clock: Clock, counts: CheckCounts) -> None:
        self._directory = directory
        self._clock = clock
        self._counts = counts
        self._rounds: deque[UnansweredRound] = deque(maxlen=_MAX_WAITING)
        self._gone: dict[tuple[str, str], str] = {}
        self._is_closing = False

    def add(self, rounds: Iterable[UnansweredRound]) -> None:
        """Never blocks."""
        self._rounds.extend(rounds)

    def disable(self, group: str, url: str, reason: str) -> None:
        """Never blocks."""
        self._gone[group, url] = reason

    async def run_once(self) -> int:
        """Writes up to one batch; what could not be written is kept."""
        batch = [self._rounds.popleft() for _ in range(min(_MAX_BATCH, len(self._rounds)))]
        if batch:
            reach(FaultPoint.CHECK_UNANSWERED)
            try:
                await self._directory.record_rounds(batch)
            except BaseException:
                room = _MAX_WAITING - len(self._rounds)
                self._rounds.extendleft(reversed(batch[-room:] if room else []))
                raise
        for (group, url), reason in list(self._gone.items()):
            if self._directory.get(group) is not None:
                await self._directory.disable_endpoint(group, url, reason)
            self._gone.pop((group, url), None)
        return len(batch)

    async def run_forever(self) -> None:
        """Until closed; the last notes are tried once more then."""
        while True:
            is_last = self._is_closing
            pause_ms = _INTERVAL_MS
            try:
                while await self.run_once():
                    pass
            except Exception as error:  # noqa: BLE001 - the directory's own errors; the loop goes on
                self._counts.errors += 1
                _LOG.warning("rounds_not_recorded", waiting=len(self._rounds), error=type(error).__name__)
                pause_ms = _BACKOFF_MS
            if is_last:
                return
            await self._pause(pause_ms)

    def close(self) -> None:
        """Lets `run_forever` end."""
        self._is_closing = True

    async def _pause(self, pause_ms: int) -> None:
        for _ in range(pause_ms // 100):
            if self._is_closing:
                return
            await self._clock.sleep_ms(100)
