"""One round: a batch of one group's transactions, asked about at its endpoints one after the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from bridge.core.config import CheckMode
from bridge.core.errors import BridgeError, StoreError
from bridge.core.record import EndRecord, Resolution, Source
from bridge.core.record_codec import encode_end
from bridge.core.transaction_id import queue_of
from bridge.directory import Endpoint, UnansweredRound
from bridge.fault_points import FaultPoint, reach
from bridge.settler.observer import BodiesRead, Body
from bridge.store.results import PutResult, PutStatus
from checker.caller import Call, Failure, Reply
from checker.check_call import Answers, Check, decode_answers, encode_call, make_check
from checker.desk import Desk
from checker.signing import can_sign, sign_call
from checker.timetable import Ask
from checker.turns import GONE_MS, Order, Turns, retry_after_ms

_LOG = structlog.get_logger()
_JITTER = 0.2  # of the interval, so that what failed together does not come back together
_LARGE_RETRY_MS = 1_000


@dataclass(slots=True)
class GroupMemory:
    """What a group's rounds remember: whose turn it is."""

    turns: Turns = field(default_factory=Turns)


class _Open(NamedTuple):
    ask: Ask
    check: Check


class Round:
    """Asks about `asks` and lands every one of them, whatever happens."""

    def __init__(self, desk: Desk, group: str, asks: Sequence[Ask], memory: GroupMemory) -> None:
        self._desk = desk
        self._group = group
        self._memory = memory
        self._calls = desk.ports.directory.settings_of(group).calls
        self._flying = {ask.transaction.transaction_id: ask for ask in asks}
        self._open: dict[str, _Open] = {}
        self._failures: dict[str, tuple[Failure, str | None]] = {}
        self._webhook_id = ""
        self._answered = 0
        self._has_large_call = False

    async def run(self) -> bool | None:
        """Whether anything was answered; None if nobody was called."""
        try:
            return await self._run()
        finally:
            if self._has_large_call:
                self._desk.large_calls.give_back(self._group, was_answered=self._answered > 0)
            for ask in list(self._flying.values()):
                self._postpone(ask, self._desk.config.append_retry_ms)

    async def _run(self) -> bool | None:
        ports = self._desk.ports
        endpoints = live_endpoints(self._desk, self._group)
        order = self._memory.turns.order(endpoints, ports.clock.monotonic_ms())
        if not order.urls:
            failure = Failure.RATE_LIMITED if order.paused else Failure.NO_ENDPOINT
            self._give_up(dict.fromkeys(self._flying, (failure, None)))
            return None
        known = ports.directory.get(self._group)
        if known is None or not can_sign(known.secrets):
            self._desk.raise_alert(self._group, "producer_group_without_secret")
            self._give_up(dict.fromkeys(self._flying, (Failure.NO_SECRET, None)))
            return None
        self._desk.clear_alert(self._group, "producer_group_without_secret")
        await self._render()
        self._webhook_id = f"check_{ports.random_text()}"
        self._count_asked()
        was_called = False
        for url in order.urls[: self._desk.config.max_attempts]:
            self._drop_ended()
            if not self._open:
                break
            was_called |= await self._attempt(url)
        self._give_up({id_: self._failures[id_] for id_ in self._open if id_ in self._failures})
        return self._answered > 0 if was_called else None

    # --- what is asked ---

    async def _render(self) -> None:
        """Reads and renders as much as one call may hold; what does not fit lands, and is due again at once.

        The queue of the first ask comes first, so that none waits for ever behind another's large bodies.
        """
        most, used = self._desk.config.max_call_bytes, 0
        async with self._desk.rendering:
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

    def _open_check(self, ask: Ask, body: Body, room: int) -> int:
        """What it takes of the call's room. One that is too large for any call goes alone, if it may now."""
        check = make_check(ask.transaction, body, self._desk.nonces.make)
        size = len(check.text)
        if size > room:
            if self._open:
                return room
            self._has_large_call = self._desk.large_calls.take(self._group)
            if not self._has_large_call:
                self._postpone(ask, _LARGE_RETRY_MS)
                return 0
        self._open[check.transaction_id] = _Open(ask, check)
        return size

    async def _bodies_of(self, queue_id: int, asks: Sequence[Ask], max_bytes: int) -> list[tuple[Ask, Body]]:
        """The first bodies that could be read; asks whose body cannot be read, or is nowhere, land here."""
        owner = self._desk.owners.get(queue_id)
        found, asked = BodiesRead({}, len(asks))
        try:
            if owner is not None:
                found, asked = await owner.get_bodies([ask.transaction for ask in asks], max_bytes)
        except BridgeError as error:
            _LOG.warning("bodies_not_read", queue=queue_id, error=type(error).__name__)
            for ask in asks:
                self._postpone(ask, self._desk.config.append_retry_ms)
            return []
        self._give_up({_id_of(ask): (Failure.NO_BODY, None) for ask in asks[:asked] if _id_of(ask) not in found})
        return [(ask, found[_id_of(ask)]) for ask in asks[:asked] if _id_of(ask) in found]

    def _drop_ended(self) -> None:
        """No check starts after a resolution, or for a queue that is not ours any more."""
        for id_ in [id_ for id_, item in self._open.items() if not self._desk.timetable.is_pending(item.ask)]:
            self._postpone(self._open.pop(id_).ask, 0)

    def _count_asked(self) -> None:
        counts = self._desk.counts
        counts.asked += len(self._open)
        for item in self._open.values():
            counts.count_lateness(self._desk.now_of(item.ask.queue_id) - item.ask.due_ms)

    # --- asking ---

    async def _attempt(self, url: str) -> bool:
        """Asks one endpoint about all that is open; False if it was not called."""
        checks = [item.check for item in self._open.values()]
        text = encode_call(self._group, checks)
        known = self._desk.ports.directory.get(self._group)
        now_ms = self._desk.ports.clock.now_ms()
        headers = sign_call(known.secrets if known else (), self._webhook_id, now_ms, text)
        if headers is None:
            self._note(Failure.NO_SECRET, None)
            return False
        self._desk.counts.calls += 1
        most = self._desk.config.max_answer_bytes(len(checks))
        reach(FaultPoint.CHECK_SIGNED)
        call = Call(url, headers, text.encode(), self._calls.call_timeout_ms, most)
        del text  # a call may wait for long
        reply = await self._desk.ports.caller.call(call)
        answers = self._read(url, reply)
        if answers.resolutions:
            await self._append(reply, answers.resolutions)
        return True

    def _read(self, url: str, reply: Reply) -> Answers:
        """What the reply answers; what it does not is noted with the reason."""
        asked = {item.check.transaction_id: item.check.nonce for item in self._open.values()}
        failure, answers = reply.failure, Answers({})
        if failure is None:
            answers = decode_answers(reply.body, asked)
            self._desk.counts.strange += answers.strange
            failure = Failure.LEFT_OUT if answers.is_well_formed else Failure.BAD_ANSWER
        monotonic_ms = self._desk.ports.clock.monotonic_ms()
        if answers.resolutions:
            self._memory.turns.note_answer(url)
        else:
            self._memory.turns.note_failure(url, monotonic_ms)
        if failure is Failure.RATE_LIMITED:
            self._memory.turns.pause(url, monotonic_ms + retry_after_ms(reply.retry_after))
        if failure is Failure.GONE:
            self._disable(url, reply, monotonic_ms)
        self._note(failure, reply.endpoint)
        return answers

    def _disable(self, url: str, reply: Reply, monotonic_ms: int) -> None:
        self._memory.turns.pause(url, monotonic_ms + GONE_MS)
        self._desk.recorder.disable(self._group, url, "410 Gone")
        _LOG.error("endpoint_gone", group=self._group, endpoint=reply.endpoint)

    def _note(self, failure: Failure, endpoint: str | None) -> None:
        for id_ in self._open:
            self._failures[id_] = (failure, endpoint)

    # --- what came of it ---

    async def _append(self, reply: Reply, resolutions: Mapping[str, Resolution]) -> None:
        """The answers become end records; those that perhaps did not are asked for again, with the same number."""
        answered = [(self._open.pop(id_), resolution) for id_, resolution in resolutions.items()]
        now_ms = self._desk.ports.clock.now_ms()
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
                ),
                self._desk.topics.half,
                queue_of(item.check.transaction_id),
            )
            for item, resolution in answered
        ]
        self._answered += len(answered)
        reach(FaultPoint.CHECK_ANSWERED)
        try:
            results: Sequence[PutResult] = await self._desk.ports.store.put_many(messages)
        except StoreError as error:
            results = [PutResult(PutStatus.OUTCOME_UNKNOWN, detail=str(error))] * len(messages)
        reach(FaultPoint.CHECK_APPENDED)
        for (item, resolution), result in zip(answered, results, strict=True):
            self._land_answer(item.ask, resolution, result)

    def _land_answer(self, ask: Ask, resolution: Resolution, result: PutResult) -> None:
        if result.status is not PutStatus.PUT_OK:
            self._desk.counts.unappended += 1
            self._postpone(ask, self._desk.config.append_retry_ms, was_tried=True)
            return
        self._flying.pop(_id_of(ask))
        self._desk.counts.answered[resolution.name] += 1
        self._desk.timetable.set_answered(ask, self._desk.now_of(ask.queue_id))

    def _postpone(self, ask: Ask, delay_ms: int, *, was_tried: bool = False) -> None:
        if self._flying.pop(_id_of(ask), None) is not None:
            due_ms = self._desk.now_of(ask.queue_id) + delay_ms if delay_ms else ask.due_ms
            self._desk.timetable.set_postponed(ask, due_ms, was_tried=was_tried)

    def _give_up(self, failures: Mapping[str, tuple[Failure, str | None]]) -> None:
        """Nobody answered about these: again at the next interval, nothing used up."""
        asks = [(self._flying.pop(id_), *failure) for id_, failure in failures.items()]
        give_up(self._desk, self._group, asks)


def give_up(desk: Desk, group: str, asks: Iterable[tuple[Ask, Failure, str | None]]) -> None:
    """Lands transactions nobody answered about, and takes note of it."""
    interval_ms = desk.ports.directory.settings_of(group).times.interval_ms
    rounds = []
    for ask, failure, endpoint in asks:
        now_ms = desk.now_of(ask.queue_id)
        retry_ms = now_ms + interval_ms + int(desk.ports.jitter() * _JITTER * interval_ms)
        desk.timetable.set_unanswered(ask, retry_ms, found_no_endpoint=failure is Failure.NO_ENDPOINT)
        desk.counts.unanswered[failure.value] += 1
        rounds.append(UnansweredRound(_id_of(ask), group, now_ms, failure.value, endpoint))
    desk.recorder.add(rounds)


def give_up_unasked(desk: Desk, group: str, asks: Sequence[Ask], order: Order) -> None:
    """Lands transactions for which there is no endpoint now; the first time is an alert."""
    if not order.paused:
        desk.counts.groups_without_endpoint.add(group)
        desk.raise_alert(group, "producer_group_without_endpoint")
    failure = Failure.RATE_LIMITED if order.paused else Failure.NO_ENDPOINT
    give_up(desk, group, [(ask, failure, None) for ask in asks])


def live_endpoints(desk: Desk, group: str) -> Sequence[Endpoint]:
    """Endpoints that may be called; a group that fetches its checks has none."""
    known = desk.ports.directory.get(group)
    return known.endpoints if known is not None and known.settings.calls.mode is CheckMode.PUSH else ()


def _id_of(ask: Ask) -> str:
    return ask.transaction.transaction_id
