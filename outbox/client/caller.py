"""Calls from their first try to their answer: batches, repeats, deadlines.

Nothing is waited for: a call that finds no request of its kind in flight leaves at once.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import NamedTuple, TypeAlias

from outbox.client.calls import (
    Call,
    Kind,
    PlainCall,
    PrepareOptions,
    end_call,
    get_call,
    is_batch,
    join,
    prepare_call,
    request_of,
)
from outbox.client.config import BridgeConfig
from outbox.client.errors import AlreadyEnded, NotPrepared
from outbox.client.listener import HalfMessage, Resolution, TransactionState
from outbox.client.message import Message, as_messages
from outbox.client.replies import (
    CallResult,
    NoReply,
    Prepared,
    Reply,
    RetryAfter,
    RetryPolicy,
    TransactionView,
    read_answer,
    read_answers,
    read_prepared,
    read_view,
)
from outbox.client.transport import Transport

_CLOSED = NoReply("closed before it was sent", is_sent=False)
Send = Callable[[Sequence[Call], float], Awaitable[Sequence[CallResult]]]


@dataclass(frozen=True, slots=True)
class BatcherLimits:
    """Bounds of one lane."""

    in_flight: int
    items: int
    batch_bytes: int
    waiting: int


@dataclass(slots=True, eq=False)
class _Waiting:
    call: Call
    deadline_s: float
    told: "asyncio.Future[CallResult]" = field(repr=False)
    is_sent: bool = False


class Batcher:
    """Calls of one kind on their way, in the order they came. `send` gets calls and how long they may take."""

    def __init__(self, send: Send, limits: BatcherLimits) -> None:
        self._send = send
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._is_woken = False
        self._is_closed = False

    async def ask(self, call: Call, timeout_s: float) -> CallResult:
        """The bridge's answer to this call; never raises for what happens on the way."""
        if self._is_closed:
            return _CLOSED
        if len(self._waiting) >= self._limits.waiting:
            return NoReply(f"{self._limits.waiting} calls are waiting", is_sent=False)
        waiting = _Waiting(call, self._loop.time() + timeout_s, self._loop.create_future())
        self._waiting.append(waiting)
        self._wake()
        try:
            async with asyncio.timeout_at(waiting.deadline_s):
                return await waiting.told
        except TimeoutError:
            return NoReply(f"no answer within {timeout_s:.1f} s", is_sent=waiting.is_sent)
        finally:
            self._withdraw(waiting)

    async def close(self) -> None:
        """Sends nothing more, and cuts off what is in flight."""
        self._is_closed = True
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.told.done():
                waiting.told.set_result(_CLOSED)
        for request in list(self._requests):
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    def _wake(self) -> None:
        """Looks again when everybody who is ready now has asked."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._is_woken = False
        while self._waiting and len(self._requests) < self._limits.in_flight:
            request = self._loop.create_task(self._run(self._take()))
            self._requests.add(request)
            request.add_done_callback(self._end)

    def _end(self, request: "asyncio.Task[None]") -> None:
        self._requests.discard(request)
        self._start()

    def _take(self) -> list[_Waiting]:
        taken = [self._waiting.popleft()]
        size = len(taken[0].call.item)
        while self._waiting and len(taken) < self._limits.items:
            size += len(self._waiting[0].call.item)
            if size > self._limits.batch_bytes:
                break
            taken.append(self._waiting.popleft())
        for waiting in taken:
            waiting.is_sent = True
        return taken

    async def _run(self, taken: Sequence[_Waiting]) -> None:
        timeout_s = max(waiting.deadline_s for waiting in taken) - self._loop.time()
        told: Sequence[CallResult] = [NoReply("cut off")] * len(taken)
        try:
            told = await self._send([waiting.call for waiting in taken], timeout_s)
        finally:
            for waiting, its_own in zip(taken, told, strict=True):
                if not waiting.told.done():
                    waiting.told.set_result(its_own)

    def _withdraw(self, waiting: _Waiting) -> None:
        if not waiting.is_sent and waiting in self._waiting:
            self._waiting.remove(waiting)


# A first try gives up the wait for being settled early and is asked again apart from the others, so that one slow
# queue does not hold up the calls that travel with it.
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 10.0  # the bridge's own limit


class Lane(NamedTuple):
    """What travels together. `is_fresh`: nobody has sent the idempotency keys before, so nothing need be looked up."""

    kind: Kind
    is_repeat: bool
    is_fresh: bool = False


class Caller:
    """Calls to one bridge. Belongs to the event loop it is made in."""

    def __init__(self, url: str, config: BridgeConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._transport = Transport(url, config.http)
        self._lanes: dict[Lane, Batcher] = {}
        self._is_closed = asyncio.Event()
        self._kafka_time: tuple[int, float] | None = None  # milliseconds, and the loop's time when they were heard

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Whose it is."""
        return self._loop

    async def call(self, call: Call | PlainCall, timeout_s: float | None = None) -> Reply:
        """The bridge's answer. Raises the OutboxError that says what became of the call."""
        deadline_s = self._loop.time() + (self._config.call_timeout_s if timeout_s is None else timeout_s)
        course = RetryPolicy(call, deadline_s, random.random)
        while True:
            left_s = course.left_s(self._loop.time())
            if left_s <= 0 or self._is_closed.is_set():
                raise course.give_up()
            step = course.take(await self._try(call, course, left_s), self._loop.time())
            if not isinstance(step, RetryAfter):
                return step
            await self._pause(step.pause_s)

    async def close(self) -> None:
        """Cuts off what is in flight, and closes the connections."""
        self._is_closed.set()
        for lane in self._lanes.values():
            await lane.close()
        await self._transport.close()

    async def _try(self, call: Call | PlainCall, course: RetryPolicy, left_s: float) -> CallResult:
        if isinstance(call, PlainCall):
            timeout_s = min(left_s, MAX_WAIT_S + self._config.http.slack_s)
            answer = await self._transport.exchange(request_of(call), timeout_s)
            return answer if isinstance(answer, NoReply) else read_answer(answer, call)
        if course.is_alone:
            (told,) = await self._send(Lane(call.kind, is_repeat=True), [call], left_s)
            return told
        is_repeat = course.tries > 0
        return await self._lane_of(Lane(call.kind, is_repeat, call.is_fresh and not is_repeat)).ask(call, left_s)

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_closed.wait()

    def _lane_of(self, name: Lane) -> Batcher:
        lane = self._lanes.get(name)
        if lane is None:
            config = self._config
            limits = BatcherLimits(
                config.max_in_flight, config.max_batch_items, config.max_batch_bytes, config.max_waiting
            )
            lane = self._lanes[name] = Batcher(partial(self._send, name), limits)
        return lane

    async def _send(self, lane: Lane, calls: Sequence[Call], left_s: float) -> list[CallResult]:
        """One request. The bridge waits a little shorter than we do, so that its answer still arrives."""
        wait_s = max(0.0, min(MAX_WAIT_S if lane.is_repeat else FIRST_WAIT_S, left_s * 0.9))
        first_try_ms = self._find_kafka_time() if lane.is_fresh else None
        request = join(lane.kind, [call.item for call in calls], wait_s, first_try_ms)
        answer = await self._transport.exchange(request, min(left_s, wait_s + self._config.http.slack_s))
        if isinstance(answer, NoReply):
            return [answer] * len(calls)
        if answer.kafka_time_ms > self._find_kafka_time():
            self._kafka_time = answer.kafka_time_ms, self._loop.time()
        if is_batch(lane.kind, len(calls)):
            return read_answers(answer, list(calls))
        return [read_answer(answer, calls[0])]

    def _find_kafka_time(self) -> int:
        """Never after what it is, for it was told before it was heard; 0 if nothing was told yet."""
        if self._kafka_time is None:
            return 0
        told_ms, heard_s = self._kafka_time
        return told_ms + int((self._loop.time() - heard_s) * 1_000)


Ask: TypeAlias = Callable[[Call | PlainCall], Awaitable[Reply]]


class BridgeClient:
    """Calls of one producer group."""

    def __init__(self, group: str, ask: Ask, *, are_prepares_keyed: bool) -> None:
        self.group = group
        self._ask = ask
        self._are_prepares_keyed = are_prepares_keyed

    async def prepare(
        self, messages: Message | Sequence[Message], options: PrepareOptions
    ) -> tuple[HalfMessage, Prepared]:
        """Stores a half message. Raises AlreadyEnded if the caller's idempotency key names one that has ended."""
        listed = as_messages(messages)
        is_fresh = self._are_prepares_keyed and options.get("idempotency_key") is None
        named = _with_key(options) if is_fresh else options
        reply = await self._ask(prepare_call(self.group, listed, named, is_fresh=is_fresh))
        prepared = read_prepared(reply.members)
        state = reply.members["state"]
        if state != TransactionState.PREPARED:
            ended = AlreadyEnded(prepared.transaction_id, state)
            if options.get("idempotency_key") is None and state == TransactionState.ROLLED_BACK:
                raise NotPrepared("a check has ended it before the answer to its prepare came") from ended
            raise ended
        half = HalfMessage(prepared.transaction_id, self.group, listed, named.get("idempotency_key"))
        return half, prepared

    async def publish(self, messages: Message | Sequence[Message], options: PrepareOptions) -> TransactionView:
        """Publishes without a local transaction."""
        is_fresh = options.get("idempotency_key") is None
        named = _with_key(options) if is_fresh else options
        call = prepare_call(self.group, as_messages(messages), named, is_published=True, is_fresh=is_fresh)
        return read_view((await self._ask(call)).members)

    async def end(self, transaction_id: str, resolution: Resolution, nonce: str | None = None) -> TransactionView:
        """Ends a transaction of this group, or answers a check."""
        return read_view((await self._ask(end_call(transaction_id, resolution, self.group, nonce))).members)

    async def get(self, transaction_id: str, *, with_messages: bool = False) -> TransactionView:
        """A transaction as it is recorded now."""
        return read_view((await self._ask(get_call(transaction_id, with_messages=with_messages))).members)


def _with_key(options: PrepareOptions) -> PrepareOptions:
    """With a key of our own: a repeat is then known as one."""
    return {**options, "idempotency_key": f"sdk-{token_hex(16)}"}
