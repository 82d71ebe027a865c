"""Calls from their first try to their answer, on one event loop: lanes, repeats, deadlines."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from outbox.batching import Lane, LaneLimits
from outbox.calls import Call, Kind, PlainCall, is_batch, join, request_of
from outbox.config import BridgeConfig
from outbox.replies import NoReply, Reply, Told, read_answer, read_answers
from outbox.retrying import Again, Course
from outbox.transport import Transport

# A first try gives up the wait for being settled early and is asked again apart from the others, so that one slow
# queue does not hold up the calls that travel with it.
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 10.0  # the bridge's own limit


class Caller:
    """Calls to one bridge. Belongs to the event loop it is made in."""

    def __init__(self, url: str, config: BridgeConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._transport = Transport(url, config.http)
        self._lanes: dict[tuple[Kind, bool], Lane] = {}
        self._is_closed = asyncio.Event()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Whose it is."""
        return self._loop

    async def call(self, call: Call | PlainCall, timeout_s: float | None = None) -> Reply:
        """The bridge's answer. Raises the OutboxError that says what became of the call."""
        deadline_s = self._loop.time() + (self._config.call_timeout_s if timeout_s is None else timeout_s)
        course = Course(call, deadline_s, random.random)
        while True:
            left_s = course.left_s(self._loop.time())
            if left_s <= 0 or self._is_closed.is_set():
                raise course.give_up()
            step = course.take(await self._try(call, course, left_s), self._loop.time())
            if not isinstance(step, Again):
                return step
            await self._pause(step.pause_s)

    async def close(self) -> None:
        """Cuts off what is in flight, and closes the connections."""
        self._is_closed.set()
        for lane in self._lanes.values():
            await lane.close()
        await self._transport.close()

    async def _try(self, call: Call | PlainCall, course: Course, left_s: float) -> Told:
        if isinstance(call, PlainCall):
            timeout_s = min(left_s, MAX_WAIT_S + self._config.http.slack_s)
            answer = await self._transport.exchange(request_of(call), timeout_s)
            return answer if isinstance(answer, NoReply) else read_answer(answer, call)
        if course.is_alone:
            (told,) = await self._send(call.kind, MAX_WAIT_S, [call], left_s)
            return told
        return await self._lane_of(call.kind, is_repeat=course.tries > 0).ask(call, left_s)

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_closed.wait()

    def _lane_of(self, kind: Kind, *, is_repeat: bool) -> Lane:
        lane = self._lanes.get((kind, is_repeat))
        if lane is None:
            config = self._config
            limits = LaneLimits(
                config.max_in_flight, config.max_batch_items, config.max_batch_bytes, config.max_waiting
            )
            lane = Lane(partial(self._send, kind, MAX_WAIT_S if is_repeat else FIRST_WAIT_S), limits)
            self._lanes[kind, is_repeat] = lane
        return lane

    async def _send(self, kind: Kind, most_wait_s: float, calls: Sequence[Call], left_s: float) -> list[Told]:
        """One request. The bridge waits a little shorter than we do, so that its answer still arrives."""
        wait_s = max(0.0, min(most_wait_s, left_s * 0.9))
        request = join(kind, [call.item for call in calls], wait_s)
        answer = await self._transport.exchange(request, min(left_s, wait_s + self._config.http.slack_s))
        if isinstance(answer, NoReply):
            return [answer] * len(calls)
        if is_batch(kind, len(calls)):
            return read_answers(answer, list(calls))
        return [read_answer(answer, calls[0])]
