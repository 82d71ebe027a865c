"""Calls from their first try to their answer: repeats, deadlines, and a breaker for a bridge that is away."""

import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple, TypeAlias

from outbox.client.batcher import Batcher, BatcherLimits, Send
from outbox.client.calls import (
    STORED_END,
    Call,
    Kind,
    PrepareOptions,
    Request,
    end_call,
    get_call,
    is_batch,
    join,
    prepare_call,
)
from outbox.client.config import BridgeConfig
from outbox.client.errors import AlreadyEnded, NotPrepared
from outbox.client.listener import HalfMessage, Resolution, TransactionState
from outbox.client.message import Message, as_messages, with_trace
from outbox.client.replies import (
    Answer,
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
    unwrap,
)
from outbox.client.transport import Transport

# --- what this process knows of a bridge that is away, so that not every caller has to wait to find out ---

FAILURES = 3  # in a row: one may be a single connection's fault
SPAN_S = 0.2  # from the beginning of the first of them: a restart behind a proxy breaks many connections in one moment
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 2.0
PROBE_S = 1.5  # what one call may lose to find out; an idle bridge answers in milliseconds

_LOG = logging.getLogger(__name__)


class Breaker:
    """Of one bridge. After failures in a row nothing is sent to it, but one call at a time that finds out.

    Any answer of the bridge, also a refusal, says that it is back.
    """

    def __init__(self, url: str, now: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._now = now
        self._lock = threading.Lock()
        self._failures = 0
        self._first_failed_s = math.inf
        self._answered_s = -math.inf
        self._reason = ""
        self._cause: BaseException | None = None
        self._pause_s = FIRST_PAUSE_S
        self._next_s: float | None = None  # when the next call may try

    @property
    def is_open(self) -> bool:
        """Whether the bridge is taken to be away."""
        return self._next_s is not None

    def admit(self) -> float:
        """How long a call may take that is sent now; 0: it must not be sent."""
        with self._lock:
            now_s = self._now()
            if self._next_s is None:
                return math.inf
            if now_s < self._next_s:
                return 0.0
            self._next_s = now_s + PROBE_S  # if nothing is heard of this one, another may try then
            return PROBE_S

    def refuse(self) -> NoReply:
        """What a call hears that must not be sent."""
        left_s = max(0.0, (self._next_s or 0.0) - self._now())
        why = f"taken to be away: {self._failures} tries in a row failed, the last with: {self._reason}"
        return NoReply(f"{why}; tried again in {left_s:.1f} s", is_sent=False, is_final=True, cause=self._cause)

    def note_answer(self) -> None:
        """The bridge has answered."""
        with self._lock:
            self._answered_s = self._now()
            self._failures, self._first_failed_s, self._cause = 0, math.inf, None
            is_back, self._next_s = self._next_s is not None, None
        if is_back:
            _LOG.warning("bridge_back url=%s", self.url)

    def note_failure(self, began_s: float, reason: str, cause: BaseException | None = None) -> None:
        """An exchange that began then was not answered by the bridge. `cause`: what the network raised."""
        with self._lock:
            now_s = self._now()
            if began_s < self._answered_s:  # others have been answered since
                return
            self._failures += 1
            self._first_failed_s = min(self._first_failed_s, began_s)
            self._reason, self._cause = reason, cause
            is_new = self._next_s is None
            if is_new and (self._failures < FAILURES or now_s - self._first_failed_s < SPAN_S):
                return
            self._pause_s = FIRST_PAUSE_S if is_new else min(2 * self._pause_s, MAX_PAUSE_S)
            self._next_s = now_s + self._pause_s
        if is_new:
            _LOG.warning("bridge_away url=%s failures=%d reason=%s", self.url, self._failures, reason)


_BREAKERS: dict[str, Breaker] = {}


def breaker_of(url: str) -> Breaker:
    """The one that all connections of this process to a bridge share."""
    return _BREAKERS.setdefault(url, Breaker(url))


def forget_breakers() -> None:
    """After a fork: their locks may be held by threads of the parent."""
    _BREAKERS.clear()


# --- calls from their first try to their answer: repeats and deadlines ---

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
    """Calls to one bridge, none while it is away.

    `transport` and `make_batcher` say whether they are those of threads or of an event loop.
    """

    def __init__(
        self,
        config: BridgeConfig,
        transport: Transport[Any],
        breaker: Breaker,
        make_batcher: Callable[[Send, BatcherLimits], Batcher[Any]],
    ) -> None:
        self._config = config
        self._transport = transport
        self._breaker = breaker
        self._make_batcher = make_batcher
        self._lanes: dict[Lane, Batcher[Any]] = {}
        self._kafka_time: tuple[int, float] | None = None  # milliseconds, and our own time when they were heard

    async def call(self, call: Call | Request, timeout_s: float | None = None) -> Reply:
        """The bridge's answer. Raises the OutboxError that says what became of the call."""
        now = self._transport.now
        began_s = now()
        deadline_s = began_s + (self._config.call_timeout_s if timeout_s is None else timeout_s)
        course = RetryPolicy(call, deadline_s, random.random, began_s, self._breaker.url)
        while True:
            left_s = course.left_s(now())
            if left_s <= 0 or self._transport.is_closed:
                raise course.give_up()
            step = course.take(await self._try(call, course, left_s), now())
            if not isinstance(step, RetryAfter):
                return step
            await self._transport.pause(step.pause_s)

    async def close(self) -> None:
        """Cuts off what is in flight, and closes the connections."""
        await self._transport.close()
        for lane in list(self._lanes.values()):
            await lane.close()

    async def _try(self, call: Call | Request, course: RetryPolicy, left_s: float) -> CallResult:
        if isinstance(call, Request):
            return (await self._exchange(partial(self._ask_alone, call), left_s, call.waits_s))[0]
        if course.is_alone:
            return (await self._send(Lane(call.kind, is_repeat=True), [call], left_s))[0]
        is_repeat = course.tries > 0
        return await self._lane_of(Lane(call.kind, is_repeat, call.is_fresh and not is_repeat)).ask(call, left_s)

    def _lane_of(self, name: Lane) -> Batcher[Any]:
        lane = self._lanes.get(name)
        if lane is None:
            config = self._config
            limits = BatcherLimits(
                config.max_in_flight, config.max_batch_items, config.max_batch_bytes, config.max_waiting
            )
            lane = self._lanes.setdefault(name, self._make_batcher(partial(self._send, name), limits))
        return lane

    async def _send(self, lane: Lane, calls: Sequence[Call], left_s: float) -> list[CallResult]:
        """One request for all of them."""
        told = await self._exchange(partial(self._ask_together, lane, calls), left_s)
        return list(told) if len(told) == len(calls) else [told[0]] * len(calls)

    async def _exchange(
        self, ask: Callable[[float], Awaitable[Sequence[CallResult]]], left_s: float, waits_s: float = 0.0
    ) -> Sequence[CallResult]:
        """What `ask` is told within the time that the breaker allows; the breaker hears of it.

        `waits_s`: so long the bridge is silent because it was asked to be.
        """
        allowed_s = self._breaker.admit()
        if not allowed_s:
            return [self._breaker.refuse()]
        began_s = time.monotonic()
        told = await ask(min(left_s, allowed_s + waits_s))
        self._note(began_s, told[0])
        return told

    async def _ask_alone(self, request: Request, left_s: float) -> Sequence[CallResult]:
        answer = await self._transport.exchange(request, min(left_s, MAX_WAIT_S + self._config.http.slack_s))
        return [answer if isinstance(answer, NoReply) else read_answer(answer, request)]

    async def _ask_together(self, lane: Lane, calls: Sequence[Call], left_s: float) -> Sequence[CallResult]:
        """The bridge waits a little shorter than we do, so that its answer still arrives."""
        wait_s = max(0.0, min(MAX_WAIT_S if lane.is_repeat else FIRST_WAIT_S, left_s * 0.9))
        first_try_ms = self._find_kafka_time() if lane.is_fresh else None
        request = join(lane.kind, [call.item for call in calls], wait_s, first_try_ms)
        answer = await self._transport.exchange(request, min(left_s, wait_s + self._config.http.slack_s))
        return self._read(lane, calls, answer)

    def _read(self, lane: Lane, calls: Sequence[Call], answer: Answer | NoReply) -> list[CallResult]:
        if isinstance(answer, NoReply):
            return [answer] * len(calls)
        if answer.kafka_time_ms:  # the last counts, for a broker's clock may have been set back
            self._kafka_time = answer.kafka_time_ms, self._transport.now()
        if is_batch(lane.kind, len(calls)):
            return read_answers(answer, list(calls))
        return [read_answer(answer, calls[0])]

    def _note(self, began_s: float, told: CallResult) -> None:
        """All calls of a request hear alike of a bridge that has not answered."""
        said = unwrap(told)
        if not isinstance(said, NoReply):
            self._breaker.note_answer()
        elif said.is_away:
            self._breaker.note_failure(began_s, said.why, said.cause)

    def _find_kafka_time(self) -> int:
        """Never after what it is, for it was told before it was heard; 0 if nothing was told yet."""
        if self._kafka_time is None:
            return 0
        told_ms, heard_s = self._kafka_time
        return told_ms + int((self._transport.now() - heard_s) * 1_000)


Ask: TypeAlias = Callable[[Call | Request, float | None], Awaitable[Reply]]

_PREPARE_PART = 0.8


class CallTime:
    """The time that the calls of one block may take together, whatever the database needs between them.

    A part is kept for the end: once the local transaction is committed, it is always tried.
    """

    def __init__(self, whole_s: float) -> None:
        self._whole_s = whole_s
        self._spent_s = 0.0
        self._began_s = 0.0

    @property
    def for_prepare_s(self) -> float:
        """What a prepare may take now."""
        return max(0.0, self._whole_s * _PREPARE_PART - self._spent_s)

    @property
    def for_end_s(self) -> float:
        """What an end may take now."""
        return max(self._whole_s * (1 - _PREPARE_PART), self._whole_s - self._spent_s)

    def __enter__(self) -> None:
        """A call is under way."""
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._spent_s += time.monotonic() - self._began_s


class BridgeClient:
    """Calls of one producer group."""

    def __init__(self, group: str, ask: Ask, config: BridgeConfig) -> None:
        self.group = group
        self.config = config
        self._ask = ask

    async def prepare(
        self, messages: Message | Sequence[Message], options: PrepareOptions, timeout_s: float | None = None
    ) -> tuple[HalfMessage, Prepared]:
        """Stores a half message. Raises AlreadyEnded if the caller's idempotency key names one that has ended."""
        listed = _as_traced(messages)
        is_fresh = self.config.are_prepares_keyed and options.get("idempotency_key") is None
        named = _with_key(options) if is_fresh else options
        reply = await self._ask(prepare_call(self.group, listed, named, is_fresh=is_fresh), timeout_s)
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
        call = prepare_call(self.group, _as_traced(messages), named, is_published=True, is_fresh=is_fresh)
        return read_view((await self._ask(call, None)).members)

    async def end(
        self, transaction_id: str, resolution: Resolution, timeout_s: float | None = None, remark: str | None = None
    ) -> TransactionView:
        """Ends a transaction of this group."""
        call = end_call(transaction_id, resolution, self.group, remark=remark)
        return read_view((await self._ask(call, timeout_s)).members)

    async def store_end(self, transaction_id: str, resolution: Resolution, timeout_s: float | None = None) -> None:
        """Ends a transaction of this group, and waits only until the bridge has stored that."""
        await self._ask(end_call(transaction_id, resolution, self.group, kind=STORED_END), timeout_s)

    async def get(self, transaction_id: str, *, with_messages: bool = False) -> TransactionView:
        """A transaction as it is recorded now."""
        return read_view((await self._ask(get_call(transaction_id, with_messages=with_messages), None)).members)


def _with_key(options: PrepareOptions) -> PrepareOptions:
    """With a key of our own: a repeat is then known as one."""
    return {**options, "idempotency_key": f"sdk-{token_hex(16)}"}


def _as_traced(messages: Message | Sequence[Message]) -> tuple[Message, ...]:
    return tuple(map(with_trace, as_messages(messages)))
