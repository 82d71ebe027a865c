"""Lets claims wait for checks: one look at the board for all who wait, and none when nobody does."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import structlog

from bridge.clock import Clock
from bridge.directory import CheckBoard
from bridge.service.deadline import Deadline
from bridge.sql.errors import SqlUnavailable

_LOG = structlog.get_logger()


class Waited(Enum):
    """Why a claim waits no more."""

    FREE = "checks of the group are free"
    OVER = "nothing came in time, or nobody wants it any more"
    UNREACHABLE = "the board cannot be looked at"
    CROWDED = "too many wait"


@dataclass(frozen=True, slots=True)
class _Waiting:
    group: str
    limit: int
    is_wanted: Callable[[], bool]


class ClaimWatch:
    """Who came first is let go first; no more of a group's claims than its free checks can serve."""

    def __init__(self, board: CheckBoard, clock: Clock, *, poll_ms: int, max_waiting: int) -> None:
        self._board = board
        self._clock = clock
        self._poll_ms = poll_ms
        self._max_waiting = max_waiting
        self._waiting: dict[asyncio.Future[Waited], _Waiting] = {}
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, group: str, limit: int, deadline: Deadline, is_wanted: Callable[[], bool]) -> Waited:
        """Waits until checks of the group are free. `is_wanted`: asked now and then whether to go on waiting."""
        if not deadline.left_ms():
            return Waited.OVER
        if len(self._waiting) >= self._max_waiting:
            return Waited.CROWDED
        future: asyncio.Future[Waited] = asyncio.get_running_loop().create_future()
        self._waiting[future] = _Waiting(group, limit, is_wanted)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.ensure_future(self._poll())
        try:
            return future.result() if await deadline.wait(future) else Waited.OVER
        finally:
            self._waiting.pop(future, None)

    async def _poll(self) -> None:
        while self._waiting:
            await self._clock.sleep_ms(self._poll_ms)
            for future in [future for future, waiting in self._waiting.items() if not waiting.is_wanted()]:
                self._let_go(future, Waited.OVER)
            groups = {waiting.group for waiting in self._waiting.values()}
            try:
                free = await self._board.count_free(groups) if groups else {}
            except SqlUnavailable as error:
                _LOG.warning("check_board_unreachable", reason=str(error))
                for future in list(self._waiting):
                    self._let_go(future, Waited.UNREACHABLE)
                return
            self._wake(free)

    def _wake(self, free: Mapping[str, int]) -> None:
        left = dict(free)
        for future, waiting in list(self._waiting.items()):
            if left.get(waiting.group, 0) > 0:
                left[waiting.group] -= waiting.limit
                self._let_go(future, Waited.FREE)

    def _let_go(self, future: "asyncio.Future[Waited]", why: Waited) -> None:
        del self._waiting[future]
        if not future.done():
            future.set_result(why)
