"""Attacks a group's endpoints with calls as the checker makes them, and with calls that it would never make."""

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from bridge.clock import SystemClock
from bridge.core.keyring import Keyring
from bridge.core.message import Message, write_message
from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from bridge.directory import ProducerGroup, place_of
from checker.call import Check, Nonces, Subject, can_sign, encode_call, render_check, sign_call
from checker.caller import CheckCaller, EndpointCall, EndpointReply
from checker.config import CheckerConfig
from checker.conformance import (
    Answer,
    Judgement,
    Trial,
    TrialFinding,
    TrialVerdict,
    judge_committed,
    judge_garbage,
    judge_many_calls,
    judge_many_checks,
    judge_open,
    judge_oversized,
    judge_refused,
    judge_restarted,
    judge_same,
    judge_unknown,
    read_answer,
    skip,
)
from checker.endpoint_guard import CallbackPolicy, parse_networks
from checker.http_caller import HttpCaller

SAMPLE_TOPIC = "outbox-bridge.sample"
_MANY = 100
_HOUR_MS = 3_600_000
_LARGE_BYTES = 1024 * 1024
_OVERSIZED_BYTES = 16 * _LARGE_BYTES
_PATIENT_MS = 60_000  # for bodies that take their time on the way
_AGAIN_MS = 250
_REVIVAL_MS = 60_000

Act = Callable[[], Awaitable[None]]
"""Something that the user does while the trials wait."""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """What the user has given. `committed`, `open_id`: transaction ids; `end_open`, `restart`: what then happens."""

    committed: str | None = None
    open_id: str | None = None
    end_open: Act | None = None
    restart: Act | None = None


async def try_endpoints(group: ProducerGroup, networks: Sequence[str], plan: TrialPlan) -> list[TrialFinding]:
    """All trials at each endpoint, one endpoint after the other; those around a restart at all of them together.

    `networks`: may be called besides public addresses, as in the settings.
    """
    async with _open_caller(networks) as caller:
        trials = [_EndpointTrial(caller, group, endpoint.url) for endpoint in group.endpoints]
        for trial in trials:
            await trial.attack(plan)
        if plan.end_open is not None and plan.open_id is not None:
            await plan.end_open()
        for trial in trials:
            await trial.look_after_open(plan)
        if plan.restart is not None:
            await plan.restart()
        for trial in trials:
            await trial.look_after_restart(plan)
    return [finding for trial in trials for finding in trial.findings]


@asynccontextmanager
async def _open_caller(networks: Sequence[str]) -> AsyncIterator[CheckCaller]:
    caller = HttpCaller(CallbackPolicy(parse_networks(networks)), SystemClock())
    try:
        yield caller
    finally:
        await caller.close()


class _Sent(NamedTuple):
    text: str
    headers: Mapping[str, str]


class _EndpointTrial:
    """One endpoint under trial. What it said is remembered, to be compared with what it says later."""

    def __init__(self, caller: CheckCaller, group: ProducerGroup, url: str) -> None:
        self._caller = caller
        self._group = group
        self._url = url
        self._sample = make_sample(_now_ms())
        self._first: Answer = skip("not asked")
        self._while_open: Answer = skip("not asked")
        self.findings: list[TrialFinding] = []

    async def attack(self, plan: TrialPlan) -> None:
        """Everything that needs no act of the user."""
        if not can_sign(self._group.secrets):
            remedy = f"Run `outbox-bridge group rotate-secret {self._group.name}`."
            self._note(Trial.UNKNOWN_ID, Judgement(TrialVerdict.BAD, "no secret to sign with", remedy))
            return
        self._first, reply = await self._ask(self._sample)
        self._note(Trial.UNKNOWN_ID, judge_unknown(self._first), reply)
        if reply.failure is not None:
            for trial in list(Trial)[1:]:
                self._note(trial, skip("the endpoint does not answer"))
            return
        again, reply = await self._ask(self._sample)
        self._note(Trial.SAME_ANSWER, judge_same(self._first, again), reply)
        await self._forge()
        await self._weigh_down()
        await self._look_up(plan)

    async def look_after_open(self, plan: TrialPlan) -> None:
        """What it says once the local transaction that was open has ended."""
        if not self._is_answering():
            return
        if plan.open_id is None or plan.end_open is None:
            self._note(Trial.AFTER_OPEN, skip("needs --open ID and --interactive"))
            return
        answer, reply = await self._ask(make_check_of(plan.open_id))
        self._note(Trial.AFTER_OPEN, judge_same(self._while_open, answer), reply)

    async def look_after_restart(self, plan: TrialPlan) -> None:
        """What it says once its processes were started anew."""
        if not self._is_answering():
            return
        if plan.restart is None:
            self._note(Trial.AFTER_RESTART, skip("needs --restart-command or --interactive"))
            return
        answer, reply = await self._ask_until_alive(self._sample)
        self._note(Trial.AFTER_RESTART, judge_restarted(self._first, answer), reply)

    # --- trials ---

    async def _forge(self) -> None:
        """Calls that somebody else could make."""
        sent = self._sign(make_sample(_now_ms()))
        unsigned = {name: value for name, value in sent.headers.items() if name != "webhook-signature"}
        wrong = f"v1,{base64.b64encode(bytes(32)).decode()}"
        other = self._sign(make_sample(_now_ms())).text
        forged = {
            Trial.NO_SIGNATURE: _Sent(sent.text, unsigned),
            Trial.WRONG_SIGNATURE: _Sent(sent.text, {**sent.headers, "webhook-signature": wrong}),
            Trial.CHANGED_BODY: _Sent(other, sent.headers),
            Trial.REPLAYED: self._sign(make_sample(_now_ms()), at_ms=_now_ms() - _HOUR_MS),
        }
        for trial, call in forged.items():
            reply = await self._send(call)
            self._note(trial, judge_refused(reply), reply)

    async def _weigh_down(self) -> None:
        """Calls that are no calls, or much at once; afterwards it must answer as before."""
        reply = await self._send(self._sign_text('{"type":"transaction.check","checks":[{'))
        self._note(Trial.GARBAGE, judge_garbage(reply), reply)
        large = make_sample(_now_ms(), b"x" * _LARGE_BYTES)
        answer, reply = await self._ask(large)
        self._note(Trial.LARGE_CALL, judge_unknown(answer), reply)
        reply = await self._send(_Sent("[" * _OVERSIZED_BYTES, self._sign(self._sample).headers), _PATIENT_MS)
        self._note(Trial.OVERSIZED, judge_oversized(reply), reply)
        checks = [make_sample(_now_ms()) for _ in range(min(_MANY, self._group.settings.calls.batch_size))]
        reply = await self._send(self._sign(*checks), checks=len(checks))
        self._note(Trial.MANY_CHECKS, judge_many_checks(reply, checks), reply)
        asked = await asyncio.gather(*[self._ask(make_sample(_now_ms())) for _ in range(_MANY)])
        slowest = max([reply for _, reply in asked], key=lambda reply: reply.latency_ms)
        self._note(Trial.MANY_CALLS, judge_many_calls([answer for answer, _ in asked]), slowest)

    async def _look_up(self, plan: TrialPlan) -> None:
        """Transactions that the user knows."""
        if plan.committed is None:
            self._note(Trial.COMMITTED, skip("needs --committed ID"))
        else:
            answer, reply = await self._ask(make_check_of(plan.committed))
            self._note(Trial.COMMITTED, judge_committed(answer), reply)
        if plan.open_id is None:
            self._note(Trial.OPEN, skip("needs --open ID"))
        else:
            self._while_open, reply = await self._ask(make_check_of(plan.open_id))
            self._note(Trial.OPEN, judge_open(self._while_open), reply)

    # --- calls ---

    async def _ask(self, check: Check) -> tuple[Answer, EndpointReply]:
        reply = await self._send(self._sign(check))
        return read_answer(reply, check), reply

    async def _ask_until_alive(self, check: Check) -> tuple[Answer, EndpointReply]:
        """A process that was just started may not listen yet."""
        end_ms = _now_ms() + _REVIVAL_MS
        while True:
            answer, reply = await self._ask(check)
            if reply.failure is None or _now_ms() > end_ms:
                return answer, reply
            await asyncio.sleep(_AGAIN_MS / 1000)

    def _sign(self, *checks: Check, at_ms: int | None = None) -> _Sent:
        """A call as the checker makes it, now or at another time."""
        return self._sign_text(encode_call(self._group.name, checks), at_ms)

    def _sign_text(self, text: str, at_ms: int | None = None) -> _Sent:
        headers = sign_call(self._group.secrets, f"test_{_random_text()}", at_ms or _now_ms(), text)
        assert headers is not None
        return _Sent(text, headers)

    async def _send(self, sent: _Sent, timeout_ms: int = 0, checks: int = 1) -> EndpointReply:
        most = CheckerConfig().max_answer_bytes(checks)
        timeout_ms = timeout_ms or self._group.settings.calls.call_timeout_ms
        return await self._caller.call(EndpointCall(self._url, sent.headers, sent.text.encode(), timeout_ms, most))

    # --- findings ---

    def _is_answering(self) -> bool:
        return len(self.findings) > 1 and self.findings[1].verdict is not TrialVerdict.SKIPPED

    def _note(self, trial: Trial, judged: Judgement, reply: EndpointReply | None = None) -> None:
        endpoint, latency_ms = (reply.endpoint, reply.latency_ms) if reply else (place_of(self._url), 0)
        self.findings.append(TrialFinding(endpoint, trial, *judged, latency_ms))


def make_sample(now_ms: int, value: bytes = b'{"sample":true}') -> Check:
    """A check of a transaction that nobody ever prepared."""
    return make_check_of(make_transaction_id(0, make_uuid7_bits(now_ms, int.from_bytes(os.urandom(10)))), value)


def make_check_of(transaction_id: str, value: bytes = b'{"sample":true}') -> Check:
    """The first check of a transaction, about a sample message."""
    messages = [write_message(Message(SAMPLE_TOPIC, b"sample", value))]
    return render_check(Subject(transaction_id, 1, _now_ms(), None, messages), Nonces(Keyring(), _random_text).begin())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _random_text() -> str:
    return base64.urlsafe_b64encode(os.urandom(18)).decode()
