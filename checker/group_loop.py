"""The loop that asks one producer group, and one round of it: a batch asked about at endpoint after endpoint."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import structlog

from bridge.core.check_rules import Backoff, CheckMode, GroupSettings, WhenExhausted
from bridge.core.errors import BridgeError, StoreError
from bridge.core.record import EndRecord, Resolution, Source
from bridge.core.record_codec import encode_end
from bridge.core.transaction import find_common_trace, queue_of
from bridge.directory import Endpoint, UnansweredRound
from bridge.fault_points import FaultPoint, reach
from bridge.settler.bodies import Loaded
from bridge.store.message_store import LoadedHalf, PutResult, PutStatus
from checker.call import (
    TELLING_STATUSES,
    Answers,
    Check,
    EndpointCall,
    EndpointReply,
    Failure,
    can_sign,
    decode_answers,
    encode_call,
    make_check,
    show_first,
    sign_call,
)
from checker.concurrency import GONE_MS, EndpointOrder, EndpointRotation, retry_after_ms
from checker.context import CheckContext
from checker.pull import PullDispatcher
from checker.scheduler import DueCheck

_LOG = structlog.get_logger()
_JITTER = 0.2  # of the interval, so that what failed together does not come back together
_LARGE_RETRY_MS = 1_000


@dataclass(slots=True)
class GroupMemory:
    """What a group's rounds remember: whose turn it is."""

    turns: EndpointRotation = field(default_factory=EndpointRotation)


class _Open(NamedTuple):
    ask: DueCheck
    check: Check


class _Silence(NamedTuple):
    """Why nobody answered. `status`: of the endpoint's reply, if that is the reason; `said`: how that begins."""

    failure: Failure
    endpoint: str | None = None
    status: int = 0
    said: str = ""

    @property
    def text(self) -> str:
        return f"{self.failure} {self.status}" if self.status else self.failure.value


class Round:
    """Asks about `asks` and lands every one of them, whatever happens."""

    def __init__(self, context: CheckContext, group: str, asks: Sequence[DueCheck], memory: GroupMemory) -> None:
        self._context = context
        self._group = group
        self._memory = memory
        self._calls = context.directory.settings_of(group).calls
        self._flying = {ask.transaction.transaction_id: ask for ask in asks}
        self._open: dict[str, _Open] = {}
        self._silences: dict[str, _Silence] = {}
        self._webhook_id = ""
        self._make_nonce = context.nonces.begin()
        self._answered = 0
        self._has_large_call = False

    async def run(self) -> bool | None:
        """Whether anything was answered; None if nobody was called."""
        try:
            return await self._run()
        finally:
            if self._has_large_call:
                self._context.large_calls.give_back(self._group, was_answered=self._answered > 0)
            for ask in list(self._flying.values()):
                self._postpone(ask, self._context.config.append_retry_ms)

    async def _run(self) -> bool | None:
        context = self._context
        endpoints = live_endpoints(self._context, self._group)
        order = self._memory.turns.order(endpoints, context.clock.monotonic_ms())
        if not order.urls:
            failure = Failure.RATE_LIMITED if order.paused else Failure.NO_ENDPOINT
            self._give_up(dict.fromkeys(self._flying, _Silence(failure)))
            return None
        known = context.directory.get(self._group)
        if known is None or not can_sign(known.secrets):
            self._context.raise_alert(self._group, "producer_group_without_secret")
            self._give_up(dict.fromkeys(self._flying, _Silence(Failure.NO_SECRET)))
            return None
        self._context.clear_alert(self._group, "producer_group_without_secret")
        await self._render()
        self._webhook_id = f"check_{context.random_text()}"
        self._count_asked()
        was_called = False
        for url in order.urls[: self._context.config.max_attempts]:
            self._drop_ended()
            if not self._open:
                break
            was_called |= await self._attempt(url)
        self._give_up({id_: self._silences[id_] for id_ in self._open if id_ in self._silences})
        return self._answered > 0 if was_called else None

    # --- what is asked ---

    async def _render(self) -> None:
        """Reads and renders as much as one call may hold; what does not fit lands, and is due again at once.

        The queue of the first ask comes first, so that none waits for ever behind another's large bodies.
        """
        most, used = self._context.config.max_call_bytes, 0
        async with self._context.rendering:
            for queue_id in dict.fromkeys([ask.queue_id for ask in self._flying.values()]):
                asks = [ask for ask in self._flying.values() if ask.queue_id == queue_id]
                for ask, body in await self._bodies_of(queue_id, asks, most - used):
                    if used >= most:
                        break
                    used += self._open_check(ask, body, most - used)
                if used >= most:
                    break
        for ask in [ask for id_, ask in self._flying.items() if id_ not in self._open]:
            self._postpone(ask, 0)

    def _open_check(self, ask: DueCheck, body: LoadedHalf, room: int) -> int:
        """What it takes of the call's room. One that is too large for any call goes alone, if it may now."""
        check = make_check(ask.transaction, body, self._make_nonce)
        size = len(check.text)
        if size > room:
            if self._open:
                return room
            self._has_large_call = self._context.large_calls.take(self._group)
            if not self._has_large_call:
                self._postpone(ask, _LARGE_RETRY_MS)
                return 0
        self._open[check.transaction_id] = _Open(ask, check)
        return size

    async def _bodies_of(
        self, queue_id: int, asks: Sequence[DueCheck], max_bytes: int
    ) -> list[tuple[DueCheck, LoadedHalf]]:
        """The first bodies that could be read; asks whose body cannot be read, or is nowhere, land here."""
        owner = self._context.owners.get(queue_id)
        found, asked = Loaded({}, len(asks))
        try:
            if owner is not None:
                found, asked = await owner.get_bodies([ask.transaction for ask in asks], max_bytes)
        except BridgeError as error:
            _LOG.warning("bodies_not_read", queue=queue_id, error=type(error).__name__)
            for ask in asks:
                self._postpone(ask, self._context.config.append_retry_ms)
            return []
        self._give_up({_id_of(ask): _Silence(Failure.NO_BODY) for ask in asks[:asked] if _id_of(ask) not in found})
        return [(ask, found[_id_of(ask)]) for ask in asks[:asked] if _id_of(ask) in found]

    def _drop_ended(self) -> None:
        """No check starts after a resolution, for a queue that is not ours any more, or in a pause of its group."""
        context, is_paused = self._context, self._context.is_paused(self._group)
        for id_ in [i for i, item in self._open.items() if is_paused or not context.timetable.is_pending(item.ask)]:
            self._postpone(self._open.pop(id_).ask, 0)

    def _count_asked(self) -> None:
        counts, now_of = self._context.counts, cache(self._context.now_of)
        counts.asked += len(self._open)
        for item in self._open.values():
            counts.lateness.add(now_of(item.ask.queue_id) - item.ask.due_ms)

    # --- asking ---

    async def _attempt(self, url: str) -> bool:
        """Asks one endpoint about all that is open; False if it was not called."""
        checks = [item.check for item in self._open.values()]
        text = encode_call(self._group, checks)
        known = self._context.directory.get(self._group)
        now_ms = self._context.clock.now_ms()
        headers = sign_call(known.secrets if known else (), self._webhook_id, now_ms, text)
        if headers is None:
            self._note(_Silence(Failure.NO_SECRET))
            return False
        self._context.counts.calls += 1
        most = self._context.config.max_answer_bytes(len(checks))
        reach(FaultPoint.CHECK_SIGNED)
        headers = {**find_common_trace([check.trace for check in checks]), **headers}
        call = EndpointCall(url, headers, text.encode(), self._calls.call_timeout_ms, most, self._group)
        del text  # a call may wait for long
        reply = await self._context.caller.call(call)
        self._context.counts.groups.of(self._group).calls.add(reply.latency_ms)
        answers = self._read(url, reply)
        if answers.resolutions:
            await self._append(reply, answers)
        return True

    def _read(self, url: str, reply: EndpointReply) -> Answers:
        """What the reply answers; what it does not is noted with the reason."""
        asked = {item.check.transaction_id: item.check.nonce for item in self._open.values()}
        failure, answers = reply.failure, Answers({})
        if failure is None:
            answers = decode_answers(reply.body, asked)
            self._context.counts.strange += answers.strange
            failure = Failure.LEFT_OUT if answers.is_well_formed else Failure.BAD_ANSWER
        monotonic_ms = self._context.clock.monotonic_ms()
        if answers.resolutions:
            self._memory.turns.note_answer(url)
        else:
            self._memory.turns.note_failure(url, monotonic_ms)
        if failure is Failure.RATE_LIMITED:
            self._memory.turns.pause(url, monotonic_ms + retry_after_ms(reply.retry_after))
        if failure is Failure.GONE:
            self._disable(url, reply, monotonic_ms)
        is_status = failure in {Failure.STATUS, Failure.REDIRECT}
        # no word of one that may quote the query of its URL, which is hidden everywhere
        said = show_first(reply.body) if reply.status in TELLING_STATUSES and "?" not in url else ""
        self._note(_Silence(failure, reply.endpoint, reply.status if is_status else 0, said))
        return answers

    def _disable(self, url: str, reply: EndpointReply, monotonic_ms: int) -> None:
        self._memory.turns.pause(url, monotonic_ms + GONE_MS)
        self._context.recorder.disable(self._group, url, "410 Gone")
        _LOG.error("endpoint_gone", group=self._group, endpoint=reply.endpoint)

    def _note(self, silence: _Silence) -> None:
        self._silences |= dict.fromkeys(self._open, silence)

    # --- what came of it ---

    async def _append(self, reply: EndpointReply, answers: Answers) -> None:
        """The answers become end records; those that perhaps did not are asked for again, with the same number."""
        answered = [(self._open.pop(id_), resolution) for id_, resolution in answers.resolutions.items()]
        now_ms = self._context.clock.now_ms()
        messages = [
            encode_end(
                EndRecord(
                    item.check.transaction_id,
                    resolution,
                    Source.CHECK,
                    now_ms,
                    group=self._group,
                    check_number=item.check.number,
                    endpoint=reply.endpoint,
                    status=reply.status,
                    latency_ms=reply.latency_ms,
                    remark=answers.remarks.get(item.check.transaction_id),
                ),
                self._context.topics.half,
                queue_of(item.check.transaction_id),
            )
            for item, resolution in answered
        ]
        self._answered += len(answered)
        reach(FaultPoint.CHECK_ANSWERED)
        try:
            results: Sequence[PutResult] = await self._context.store.put_many(messages)
        except StoreError as error:
            results = [PutResult(PutStatus.OUTCOME_UNKNOWN, detail=str(error))] * len(messages)
        reach(FaultPoint.CHECK_APPENDED)
        counts, moment_of = self._context.counts, cache(self._context.moment_of)
        for (item, resolution), result in zip(answered, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                del self._flying[item.check.transaction_id]
                counts.count_answer(self._group, resolution.name)
                self._context.timetable.set_answered(item.ask, moment_of(item.ask.queue_id))
            else:
                self._postpone(item.ask, self._context.config.append_retry_ms, was_tried=True)

    def _postpone(self, ask: DueCheck, delay_ms: int, *, was_tried: bool = False) -> None:
        if self._flying.pop(_id_of(ask), None) is not None:
            moment = self._context.moment_of(ask.queue_id)
            self._context.timetable.set_postponed(ask, moment, delay_ms, was_tried=was_tried)

    def _give_up(self, silences: Mapping[str, _Silence]) -> None:
        """Nobody answered about these: again at the next interval, nothing used up."""
        give_up(self._context, self._group, [(self._flying.pop(id_), silence) for id_, silence in silences.items()])


def give_up(context: CheckContext, group: str, asks: Iterable[tuple[DueCheck, _Silence]]) -> None:
    """Lands transactions nobody answered about, and takes note of it."""
    interval_ms = context.directory.settings_of(group).times.interval_ms
    rounds = []
    for ask, silence in asks:
        moment, wait_ms = context.moment_of(ask.queue_id), interval_ms + int(context.jitter() * _JITTER * interval_ms)
        context.timetable.set_unanswered(ask, moment, wait_ms, found_no_endpoint=silence.failure is Failure.NO_ENDPOINT)
        context.counts.count_silence(group, silence.failure.value)
        at_ms = moment.now_ms
        rounds.append(UnansweredRound(_id_of(ask), group, at_ms, silence.text, silence.endpoint, silence.said))
    context.recorder.add(rounds)


def give_up_unasked(context: CheckContext, group: str, asks: Sequence[DueCheck], order: EndpointOrder) -> None:
    """Lands transactions for which there is no endpoint now; the first time is an alert."""
    if not order.paused:
        context.counts.groups_without_endpoint.add(group)
        context.raise_alert(group, "producer_group_without_endpoint")
    failure = Failure.RATE_LIMITED if order.paused else Failure.NO_ENDPOINT
    give_up(context, group, [(ask, _Silence(failure)) for ask in asks])


def live_endpoints(context: CheckContext, group: str) -> Sequence[Endpoint]:
    """Endpoints that may be called; a group that fetches its checks has none."""
    known = context.directory.get(group)
    return known.endpoints if known is not None and known.settings.calls.mode is CheckMode.PUSH else ()


def _id_of(ask: DueCheck) -> str:
    return ask.transaction.transaction_id


EXHAUSTED_ACTOR = "when_exhausted"  # stands in the timeline and says whose wish it was
_MIN_READ_WAIT_MS = 20
_MAX_READ_WAIT_MS = 500
_MIN_PAUSE_MS = 100  # between rounds of a group that does not answer
_MAX_PAUSE_MS = 1_000
_ERROR_PAUSE_MS = 1_000


class GroupCheckLoop:
    """Takes what is due, waits for a slot, starts rounds."""

    def __init__(self, group: str, context: CheckContext) -> None:
        self.group = group
        self._context = context
        self._memory = GroupMemory()
        self._offers = PullDispatcher(context, group)
        self._stirred = asyncio.Event()
        self._in_flight = 0  # rounds
        self._backoff = Backoff(_MIN_PAUSE_MS, _MAX_PAUSE_MS)
        self._paused_until_ms = 0
        self._read_wait_ms = _MIN_READ_WAIT_MS

    def stir(self) -> None:
        """Something has become due, or the checker is closing."""
        self._stirred.set()

    async def run_forever(self) -> None:
        """Until nothing is due and no round in flight, or the checker closes; outlives its own errors."""
        while not self._context.is_closing:
            try:
                async with asyncio.TaskGroup() as rounds:
                    await self._ask_until_rest(rounds)
            except Exception as error:  # noqa: BLE001 - logged and counted; one group's errors stay its own
                self._context.counts.errors += 1
                _LOG.exception("asking_failed", group=self.group, error=type(error).__name__)
                await self._context.clock.sleep_ms(_ERROR_PAUSE_MS)
            else:
                return

    async def run_once(self, rounds: asyncio.TaskGroup) -> bool:
        """One step: parks, starts one round, or puts checks on the board; False if nothing is due."""
        context = self._context
        await self._wait_for_turn()
        if context.is_paused(self.group):
            return False
        settings = context.directory.settings_of(self.group)
        taken = context.timetable.take(self.group, context.moment_of, settings.calls.batch_size)
        if settings.when_exhausted is WhenExhausted.ROLLBACK:
            await self._roll_back(taken.parks)
        else:
            self._park(taken.parks)
        for queue_id in taken.unread:
            context.owners[queue_id].note_end()
        if taken.asks or not taken.unread:
            self._read_wait_ms = _MIN_READ_WAIT_MS
        if taken.asks:
            if settings.calls.mode is CheckMode.PULL:
                await self._offers.offer(taken.asks)
                await context.clock.sleep_ms(0)
            else:
                await self._start_round(taken.asks, settings, rounds)
            return True
        if taken.parks or taken.is_more:
            await context.clock.sleep_ms(0)
            return True
        if taken.unread:
            await context.clock.sleep_ms(self._read_wait_ms)
            self._read_wait_ms = min(2 * self._read_wait_ms, _MAX_READ_WAIT_MS)
        return bool(taken.unread)

    async def _ask_until_rest(self, rounds: asyncio.TaskGroup) -> None:
        while not self._context.is_closing:
            self._stirred.clear()
            if await self.run_once(rounds):
                continue
            self._context.timetable.rest(self.group)
            if not self._in_flight:
                return
            await self._stirred.wait()

    def _park(self, parks: Mapping[int, Mapping[str, str]]) -> None:
        if parks:
            reach(FaultPoint.PARK_CHOSEN)
        for queue_id, reasons in parks.items():
            self._context.owners[queue_id].park(reasons)
            self._context.counts.parked += len(reasons)

    async def _roll_back(self, parks: Mapping[int, Mapping[str, str]]) -> None:
        """Ends them as the group's operator wants it; what perhaps was not appended is due again soon."""
        now_ms, half = self._context.clock.now_ms(), self._context.topics.half
        ends = [
            EndRecord(i, Resolution.ROLLBACK, Source.OPERATOR, now_ms, actor=EXHAUSTED_ACTOR, reason=reason)
            for reasons in parks.values()
            for i, reason in reasons.items()
        ]
        if not ends:
            return
        try:
            await self._context.store.put_many([encode_end(end, half, queue_of(end.transaction_id)) for end in ends])
        except StoreError as error:
            _LOG.warning("exhausted_not_rolled_back", group=self.group, error=str(error))

    async def _start_round(self, asks: Sequence[DueCheck], settings: GroupSettings, rounds: asyncio.TaskGroup) -> None:
        """Without an endpoint nothing is called, so no slot is waited for."""
        order = self._peek()
        if not order.urls:
            give_up_unasked(self._context, self.group, asks, order)
            await self._context.clock.sleep_ms(0)
            return
        self._context.counts.groups_without_endpoint.discard(self.group)
        self._context.clear_alert(self.group, "producer_group_without_endpoint")
        is_let_in = False
        try:
            is_let_in = await self._context.gate.take(self.group, settings.calls.concurrency)
        finally:
            pending = []
            for ask in asks:
                if is_let_in and self._context.timetable.is_pending(ask) and not self._context.is_paused(self.group):
                    pending.append(ask)
                else:
                    moment = self._context.moment_of(ask.queue_id)
                    self._context.timetable.set_postponed(ask, moment, 0, was_tried=False)
        if pending:
            reach(FaultPoint.CHECK_PICKED)
            self._in_flight += 1
            rounds.create_task(self._run_round(pending))
        elif is_let_in:
            self._context.gate.give_back(self.group, was_answered=None)

    async def _run_round(self, asks: Sequence[DueCheck]) -> None:
        was_answered: bool | None = None
        try:
            was_answered = await Round(self._context, self.group, asks, self._memory).run()
        finally:
            self._in_flight -= 1
            self._context.gate.give_back(self.group, was_answered=was_answered)
            self._learn(was_answered)
            self.stir()

    def _learn(self, was_answered: bool | None) -> None:
        """A group that does not answer is given time, more with each round."""
        if was_answered is None:
            return
        if was_answered:
            self._backoff.reset()
            self._paused_until_ms = 0
            return
        self._paused_until_ms = self._context.clock.monotonic_ms() + self._backoff.next_ms()

    async def _wait_for_turn(self) -> None:
        """Takes nothing before a round of its own could start: what is taken early may have ended when it is asked."""
        while self._in_flight >= self._context.gate.slots.limit_of(self.group) and not self._context.is_closing:
            self._stirred.clear()
            await self._stirred.wait()
        rest_ms = self._paused_until_ms - self._context.clock.monotonic_ms()
        if rest_ms > 0:
            await self._context.clock.sleep_ms(rest_ms)

    def _peek(self) -> EndpointOrder:
        endpoints = live_endpoints(self._context, self.group)
        return self._memory.turns.peek(endpoints, self._context.clock.monotonic_ms())
