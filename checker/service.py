"""The checker: asks producer groups what became of transactions that are due, and appends what they say.

The checker runs in the settler's process, which passes on what is pending. The pure timetable decides who is due;
every group with something due has an asking loop of its own.
"""

import asyncio
from collections.abc import Iterable, Sequence
from operator import add
from typing import NamedTuple

import structlog

from bridge.core.measures import Durations
from bridge.core.pending_table import PendingTable
from bridge.core.transaction import Transaction
from bridge.settler.ports import QueueOwner, SettlerObserver
from checker.call import CheckCounts
from checker.context import CheckContext
from checker.group_loop import GroupCheckLoop

_LOG = structlog.get_logger()
_MOST_COUNTED = 10_000
_ERROR_PAUSE_MS = 1_000
_CLOSE_STEP_MS = 20
_LAST_NOTES_MS = 1_000  # for writing down the last rounds without answer


class CheckGauges(NamedTuple):
    """Where the checker stands. `due` is counted up to 10,000."""

    pending: int
    due: int
    in_flight: int
    calls_in_flight: int


class CallsOfGroup(NamedTuple):
    """Calls to the endpoints of one group: how long they took since the process began, and how many run now."""

    took: Durations
    in_flight: int

    def note(self) -> list[int]:
        """As numbers, which other processes can add to their own."""
        return [self.in_flight, *self.took.counts]


def add_notes(notes: Iterable[Sequence[int]]) -> CallsOfGroup:
    """The calls of several processes; a note of another version, with other bounds, is left out."""
    took, in_flight = Durations(), 0
    for running, *counts in notes:
        if len(counts) == len(took.counts):
            took.counts = list(map(add, took.counts, counts))
            in_flight += running
    return CallsOfGroup(took, in_flight)


class CheckService(SettlerObserver):
    """One for each process; everything in it belongs to one event loop."""

    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._askers: dict[str, GroupCheckLoop] = {}
        self._active: dict[str, asyncio.Task[None]] = {}
        self._paused: set[str] = set()  # groups that would have been asked
        self._is_running = False

    @property
    def counts(self) -> CheckCounts:
        """What has happened since the process began."""
        return self._context.counts

    def gauges(self) -> CheckGauges:
        """How much is pending, due and in flight now."""
        timetable = self._context.timetable
        due = timetable.count_due(self._context.now_of, _MOST_COUNTED)
        return CheckGauges(timetable.count_pending(), due, timetable.in_flight, self._context.gate.slots.in_use)

    def calls_of(self, group: str) -> CallsOfGroup:
        """Beyond a number of groups they are measured together, and it is not said of one of them."""
        known = self.counts.groups.get(group)
        return CallsOfGroup(known.calls if known else Durations(), self._context.gate.slots.in_use_of(group))

    def note_calls(self) -> dict[str, list[int]]:
        """Of every group that is measured by itself; see `add_notes`."""
        return {name: self.calls_of(name).note() for name in self.counts.groups}

    # --- SettlerObserver ---

    def queue_taken(self, owner: QueueOwner, prepared: Iterable[Transaction], rows: PendingTable) -> None:
        self._context.owners[owner.queue_id] = owner
        self._context.timetable.add_queue(owner.queue_id, prepared, self._context.moment_of(owner.queue_id), rows)

    def prepared(self, queue_id: int, transactions: Sequence[Transaction], read_monotonic_ms: int) -> None:
        self._context.timetable.set_prepared(queue_id, transactions, read_monotonic_ms)
        if self._context.keeper.epochs:
            self._context.keeper.prepared(queue_id, transactions)

    def ended(self, queue_id: int, transaction_ids: Sequence[str]) -> None:
        self._context.timetable.set_ended(queue_id, transaction_ids)
        if self._context.keeper.epochs:
            self._context.keeper.ended(queue_id, transaction_ids)

    def queue_released(self, queue_id: int) -> None:
        self._context.timetable.drop_queue(queue_id)
        self._context.keeper.queue_released(queue_id)
        self._context.owners.pop(queue_id, None)

    # --- loops ---

    async def run_forever(self) -> None:
        """Asks about what becomes due until `close`; outlives its own errors."""
        self._is_running = True
        try:
            while not self._context.is_closing:
                await self._run()
        finally:
            self._is_running = False

    async def run_once(self) -> CheckGauges:
        """Asks about everything that is due now, once the queues have been read so far; returns when it is done."""
        async with asyncio.TaskGroup() as tasks:
            while not self._start_due(tasks):
                await self._context.clock.sleep_ms(0)
        while await self._context.recorder.run_once() or await self._context.keeper.run_once():
            pass
        return self.gauges()

    async def close(self) -> None:
        """Starts no more rounds, waits for those in flight within a bound, then cuts them and `run_forever` ends."""
        context = self._context
        context.is_closing = True
        context.gate.close()
        for group in self._active:
            self._askers[group].stir()
        for _ in range(context.config.close_wait_ms // _CLOSE_STEP_MS):
            if not self._active:
                break
            await context.clock.sleep_ms(_CLOSE_STEP_MS)
        for task in list(self._active.values()):
            task.cancel()
        context.recorder.close()
        context.keeper.close()
        for _ in range(_LAST_NOTES_MS // _CLOSE_STEP_MS):
            if not self._is_running:
                break
            await context.clock.sleep_ms(_CLOSE_STEP_MS)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._context.recorder.run_forever())
                tasks.create_task(self._context.keeper.run_forever())
                while not self._context.is_closing:
                    is_tidy = self._start_due(tasks)
                    await self._context.clock.sleep_ms(self._pause_ms() if is_tidy else 0)
        except Exception as error:  # noqa: BLE001 - logged and counted; the loop goes on
            self._context.counts.errors += 1
            _LOG.exception("checker_failed", error=type(error).__name__)
            await self._context.clock.sleep_ms(_ERROR_PAUSE_MS)

    def _start_due(self, tasks: asyncio.TaskGroup) -> bool:
        """Wakes the groups that have something due; False while the timetable has more to bring into order."""
        context = self._context
        self._resume()
        is_more = context.timetable.tidy()
        for queue_id, owner in context.owners.items():
            for group in context.timetable.wake(queue_id, owner.now_ms()):
                self._wake(group, tasks)
            is_more |= context.timetable.is_behind(queue_id, owner.now_ms())
        return not is_more

    def _resume(self) -> None:
        """Groups that are not paused any more."""
        for group in [group for group in self._paused if not self._context.is_paused(group)]:
            self._paused.discard(group)
            self._context.timetable.resume(group)

    def _wake(self, group: str, tasks: asyncio.TaskGroup) -> None:
        if self._context.is_paused(group):
            self._paused.add(group)
            return
        if group in self._active:
            self._askers[group].stir()
            return
        asker = self._askers.setdefault(group, GroupCheckLoop(group, self._context))
        task = tasks.create_task(asker.run_forever())
        self._active[group] = task
        task.add_done_callback(lambda _: self._rest(group))

    def _rest(self, group: str) -> None:
        """The loop of a group has ended; whatever became due meanwhile wakes it again."""
        self._active.pop(group, None)
        self._context.timetable.rest(group)
        if self._context.directory.get(group) is None:
            self._askers.pop(group, None)
            self._context.gate.slots.forget(group)

    def _pause_ms(self) -> int:
        """Until the next group at rest has something due, at most a tick."""
        pause_ms = self._context.config.tick_ms
        for queue_id, owner in self._context.owners.items():
            front_ms = self._context.timetable.next_front_ms(queue_id)
            if front_ms is not None:
                pause_ms = min(pause_ms, front_ms - owner.now_ms())
        return max(1, pause_ms)
