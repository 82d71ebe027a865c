"""The asking loop of one producer group; it lives while the group has something due or in flight."""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from bridge.core.config import CheckMode, GroupSettings
from bridge.fault_points import FaultPoint, reach
from checker.desk import Desk
from checker.pull import Offers
from checker.round import GroupMemory, Round, give_up_unasked, live_endpoints
from checker.timetable import Ask
from checker.turns import Order

_LOG = structlog.get_logger()
_MIN_READ_WAIT_MS = 20
_MAX_READ_WAIT_MS = 500
_MIN_PAUSE_MS = 100  # between rounds of a group that does not answer
_MAX_PAUSE_MS = 1_000
_ERROR_PAUSE_MS = 1_000


class GroupAsker:
    """Takes what is due, waits for a slot, starts rounds."""

    def __init__(self, group: str, desk: Desk) -> None:
        self.group = group
        self._desk = desk
        self._memory = GroupMemory()
        self._offers = Offers(desk, group)
        self._stirred = asyncio.Event()
        self._in_flight = 0  # rounds
        self._silent_rounds = 0
        self._paused_until_ms = 0
        self._read_wait_ms = _MIN_READ_WAIT_MS

    def stir(self) -> None:
        """Something has become due, or the checker is closing."""
        self._stirred.set()

    async def run_forever(self) -> None:
        """Until nothing is due and no round in flight, or the checker closes; outlives its own errors."""
        while not self._desk.is_closing:
            try:
                async with asyncio.TaskGroup() as rounds:
                    await self._ask_until_rest(rounds)
            except Exception as error:  # noqa: BLE001 - logged and counted; one group's errors stay its own
                self._desk.counts.errors += 1
                _LOG.exception("asking_failed", group=self.group, error=type(error).__name__)
                await self._desk.ports.clock.sleep_ms(_ERROR_PAUSE_MS)
            else:
                return

    async def run_once(self, rounds: asyncio.TaskGroup) -> bool:
        """One step: parks, starts one round, or lays checks on the board; False if nothing is due."""
        desk = self._desk
        await self._wait_for_turn()
        settings = desk.ports.directory.settings_of(self.group)
        taken = desk.timetable.take(self.group, desk.moment_of, settings.calls.batch_size)
        self._park(taken.parks)
        for queue_id in taken.unread:
            desk.owners[queue_id].note_end()
        if taken.asks:
            self._read_wait_ms = _MIN_READ_WAIT_MS
            if settings.calls.mode is CheckMode.PULL:
                await self._offers.offer(taken.asks)
                await desk.ports.clock.sleep_ms(0)
            else:
                await self._start_round(taken.asks, settings, rounds)
            return True
        if taken.parks or taken.is_more:
            await desk.ports.clock.sleep_ms(0)
            return True
        if taken.unread:
            await desk.ports.clock.sleep_ms(self._read_wait_ms)
            self._read_wait_ms = min(2 * self._read_wait_ms, _MAX_READ_WAIT_MS)
        return bool(taken.unread)

    async def _ask_until_rest(self, rounds: asyncio.TaskGroup) -> None:
        while not self._desk.is_closing:
            self._stirred.clear()
            if await self.run_once(rounds):
                continue
            self._desk.timetable.rest(self.group)
            if not self._in_flight:
                return
            await self._stirred.wait()

    def _park(self, parks: Mapping[int, Mapping[str, str]]) -> None:
        if parks:
            reach(FaultPoint.PARK_CHOSEN)
        for queue_id, whys in parks.items():
            self._desk.owners[queue_id].park(whys)
            self._desk.counts.parked += len(whys)

    async def _start_round(self, asks: Sequence[Ask], settings: GroupSettings, rounds: asyncio.TaskGroup) -> None:
        """Without an endpoint nothing is called, so no slot is waited for."""
        order = self._peek()
        if not order.urls:
            give_up_unasked(self._desk, self.group, asks, order)
            await self._desk.ports.clock.sleep_ms(0)
            return
        self._desk.counts.groups_without_endpoint.discard(self.group)
        self._desk.clear_alert(self.group, "producer_group_without_endpoint")
        is_let_in = False
        try:
            is_let_in = await self._desk.gate.take(self.group, settings.calls.concurrency)
        finally:
            pending = [ask for ask in asks if is_let_in and self._desk.timetable.is_pending(ask)]
            for ask in set(asks) - set(pending):
                self._desk.timetable.set_postponed(ask, ask.due_ms, was_tried=False)
        if pending:
            reach(FaultPoint.CHECK_PICKED)
            self._in_flight += 1
            rounds.create_task(self._run_round(pending))
        elif is_let_in:
            self._desk.gate.give_back(self.group, was_answered=None)

    async def _run_round(self, asks: Sequence[Ask]) -> None:
        was_answered: bool | None = None
        try:
            was_answered = await Round(self._desk, self.group, asks, self._memory).run()
        finally:
            self._in_flight -= 1
            self._desk.gate.give_back(self.group, was_answered=was_answered)
            self._learn(was_answered)
            self.stir()

    def _learn(self, was_answered: bool | None) -> None:
        """A group that does not answer is given time, more with each round."""
        if was_answered is None:
            return
        self._silent_rounds = 0 if was_answered else self._silent_rounds + 1
        if was_answered:
            self._paused_until_ms = 0
            return
        pause_ms = min(_MIN_PAUSE_MS << min(self._silent_rounds - 1, 10), _MAX_PAUSE_MS)
        self._paused_until_ms = self._desk.ports.clock.monotonic_ms() + pause_ms

    async def _wait_for_turn(self) -> None:
        """Takes nothing before a round of its own could start: what is taken early may have ended when it is asked."""
        while self._in_flight >= self._desk.gate.slots.limit_of(self.group) and not self._desk.is_closing:
            self._stirred.clear()
            await self._stirred.wait()
        rest_ms = self._paused_until_ms - self._desk.ports.clock.monotonic_ms()
        if rest_ms > 0:
            await self._desk.ports.clock.sleep_ms(rest_ms)

    def _peek(self) -> Order:
        endpoints = live_endpoints(self._desk, self.group)
        return self._memory.turns.peek(endpoints, self._desk.ports.clock.monotonic_ms())
