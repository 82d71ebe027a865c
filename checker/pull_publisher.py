"""Keeps the board of due checks for the queues of this process: its ticks, and what is to be taken away again."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import structlog

from bridge.clock import Clock
from bridge.core.transaction import Transaction
from bridge.directory import LEASE_SLACK_MS, PullCheck, PullCheckStore
from bridge.turns import take_error
from checker.config import CheckCounts

_LOG = structlog.get_logger()
_INTERVAL_MS = 250
_TICK_MS = 1_000
_BACKOFF_MS = 2_000
_MAX_BATCH = 1_000


@dataclass(slots=True)
class _OwnershipEpoch:
    """A queue whose checks this process puts on the board. `tick_ms` was written at `ticked_ms` of our monotonic
    clock."""

    queue_id: int
    owner: str
    tick_ms: int
    ticked_ms: int
    lying: dict[str, PullCheck] = field(default_factory=dict)
    stale: dict[str, PullCheck] = field(default_factory=dict)

    def next_tick_ms(self, monotonic_ms: int) -> int:
        """Never far beyond the last one: a check lease that was taken while we stood still is not over at once."""
        return self.tick_ms + min(monotonic_ms - self.ticked_ms, LEASE_SLACK_MS)

    def set_tick(self, tick_ms: int, monotonic_ms: int) -> None:
        if tick_ms > self.tick_ms:
            self.tick_ms, self.ticked_ms = tick_ms, monotonic_ms


class PullCheckPublisher:
    """What is said to it takes effect within a moment; what cannot be written is kept and tried again."""

    def __init__(self, board: PullCheckStore, clock: Clock, counts: CheckCounts, make_owner: Callable[[], str]) -> None:
        self._board = board
        self._clock = clock
        self._counts = counts
        self._make_owner = make_owner
        self._tenures: dict[int, _OwnershipEpoch] = {}
        self._taking: dict[int, asyncio.Task[_OwnershipEpoch]] = {}
        self._leaving: list[_OwnershipEpoch] = []
        self._lying: Counter[str] = Counter()  # by group
        self._is_closing = False

    # --- what the settler says; never blocks ---

    def prepared(self, queue_id: int, transactions: Iterable[Transaction]) -> None:
        """Removes checks whose answers were counted."""
        tenure = self._tenures.get(queue_id)
        for transaction in transactions if tenure and tenure.lying else ():
            assert tenure is not None
            check = tenure.lying.get(transaction.transaction_id)
            if check is not None and check.check_number != transaction.check_times + 1:
                self._forget(tenure, transaction.transaction_id)

    def ended(self, queue_id: int, transaction_ids: Iterable[str]) -> None:
        """Nobody is asked about these any more."""
        tenure = self._tenures.get(queue_id)
        for transaction_id in transaction_ids if tenure and tenure.lying else ():
            assert tenure is not None
            self._forget(tenure, transaction_id)

    def queue_released(self, queue_id: int) -> None:
        """The queue is not ours any more."""
        tenure = self._tenures.get(queue_id)
        if tenure is not None:
            self._drop(tenure)
            self._leaving.append(tenure)

    # --- laying ---

    def count_lying(self, group: str) -> int:
        """How many checks of the group are on the board."""
        return self._lying[group]

    def find(self, queue_id: int, check: PullCheck) -> PullCheck | None:
        """The same check as it was put there, with the claims known then."""
        tenure = self._tenures.get(queue_id)
        found = tenure.lying.get(check.transaction_id) if tenure else None
        return found if found is not None and found.check_number == check.check_number else None

    async def lay(self, queue_id: int, checks: Sequence[PullCheck]) -> Mapping[str, int] | None:
        """How often each check was claimed by now. None: nothing was put, the queue seems to be another's.

        Raises SqlUnavailable.
        """
        tenure = self._tenures.get(queue_id) or await self._take(queue_id)
        monotonic_ms = self._clock.monotonic_ms()
        tick_ms = tenure.next_tick_ms(monotonic_ms)
        claims = await self._board.put(queue_id, tenure.owner, tick_ms, checks)
        if claims is None:
            self._drop(tenure)
        elif self._tenures.get(queue_id) is tenure:  # not let go meanwhile
            tenure.set_tick(tick_ms, monotonic_ms)
            for check in checks:
                self._note(tenure, check._replace(claims=claims[check.transaction_id]))
        return claims

    async def _take(self, queue_id: int) -> _OwnershipEpoch:
        """All groups with checks of the queue wait for one SQL transaction."""
        taking = self._taking.get(queue_id)
        if taking is None:
            taking = self._taking[queue_id] = asyncio.create_task(self._make_tenure(queue_id))
            taking.add_done_callback(lambda _: self._taking.pop(queue_id))
            taking.add_done_callback(take_error)
        return await asyncio.shield(taking)

    async def _make_tenure(self, queue_id: int) -> _OwnershipEpoch:
        owner = self._make_owner()
        tick_ms = await self._board.take_queue(queue_id, owner)
        tenure = self._tenures[queue_id] = _OwnershipEpoch(queue_id, owner, tick_ms, self._clock.monotonic_ms())
        return tenure

    def _note(self, tenure: _OwnershipEpoch, check: PullCheck) -> None:
        tenure.stale.pop(check.transaction_id, None)
        self._lying[check.group] += check.transaction_id not in tenure.lying
        tenure.lying[check.transaction_id] = check

    def _forget(self, tenure: _OwnershipEpoch, transaction_id: str) -> None:
        """Its check is on the board in vain."""
        check = tenure.lying.pop(transaction_id, None)
        if check is not None:
            self._lying[check.group] -= 1
            tenure.stale[transaction_id] = check

    def _drop(self, tenure: _OwnershipEpoch) -> None:
        """Not ours any more; if our settler still holds the queue, the next laying takes it again."""
        if self._tenures.get(tenure.queue_id) is tenure:
            del self._tenures[tenure.queue_id]
            self._lying.subtract(check.group for check in tenure.lying.values())
            self._lying = +self._lying

    # --- loop ---

    async def run_once(self) -> int:
        """Takes away a bounded number of checks, lets queues go, moves ticks on. How many were taken away.

        Raises SqlUnavailable.
        """
        removed = 0
        while self._leaving:
            await self._board.leave_queue(self._leaving[0].queue_id, self._leaving[0].owner)
            self._leaving.pop(0)
        for tenure in list(self._tenures.values()):
            removed += await self._remove_stale(tenure)
            monotonic_ms = self._clock.monotonic_ms()
            if tenure.lying and monotonic_ms - tenure.ticked_ms >= _TICK_MS:
                await self._tick(tenure, monotonic_ms)
        return removed

    async def run_forever(self) -> None:
        """Until closed; then the queues are let go, if that is possible at once."""
        while True:
            is_last = self._is_closing
            if is_last:
                for queue_id in list(self._tenures):
                    self.queue_released(queue_id)
            pause_ms = _INTERVAL_MS
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001 - the board's own errors; the loop goes on
                self._counts.errors += 1
                _LOG.warning("check_board_not_kept", error=type(error).__name__)
                pause_ms = _BACKOFF_MS
            if is_last:
                return
            await self._pause(pause_ms)

    def close(self) -> None:
        """Lets `run_forever` end."""
        self._is_closing = True

    async def _remove_stale(self, tenure: _OwnershipEpoch) -> int:
        batch = list(islice(tenure.stale.values(), _MAX_BATCH))
        if batch:
            await self._board.remove(batch)
            for check in batch:
                if tenure.stale.get(check.transaction_id) == check:
                    del tenure.stale[check.transaction_id]
        return len(batch)

    async def _tick(self, tenure: _OwnershipEpoch, monotonic_ms: int) -> None:
        tick_ms = tenure.next_tick_ms(monotonic_ms)
        if not await self._board.tick(tenure.queue_id, tenure.owner, tick_ms):
            self._drop(tenure)
        else:
            tenure.set_tick(tick_ms, monotonic_ms)

    async def _pause(self, pause_ms: int) -> None:
        for _ in range(pause_ms // _INTERVAL_MS):
            if self._is_closing:
                return
            await self._clock.sleep_ms(_INTERVAL_MS)
