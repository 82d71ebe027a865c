"""Calls that no transaction asks for: proof that an endpoint belongs to a group, and attacks on it as a test."""

import asyncio
import base64
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.clock import Clock
from bridge.core.keyring import Keyring
from bridge.core.message import Message, write_message
from bridge.core.record import Resolution
from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from bridge.directory import ProducerGroup, place_of
from checker.call import (
    Check,
    CheckCaller,
    CheckerConfig,
    EndpointCall,
    EndpointReply,
    Nonces,
    Subject,
    can_sign,
    encode_call,
    encode_challenge,
    is_echo,
    render_check,
    sign_call,
)
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
    judge_probe,
    judge_refused,
    judge_restarted,
    judge_same,
    judge_unknown,
    read_answer,
    skip,
)

# --- proof that an endpoint belongs to a producer group: it sends back a text that only a signed call told it ---
# Without it, whoever may register endpoints could have the bridge call any server on the internet, again and again.

_TIMEOUT_MS = 3_000
_MOST_BYTES = 4_096


class OwnershipProof:
    """Asks endpoints for it."""

    def __init__(self, caller: CheckCaller, clock: Clock, make_text: Callable[[], str]) -> None:
        self._caller = caller
        self._clock = clock
        self._make_text = make_text

    async def find_flaw(self, group: ProducerGroup, url: str) -> str | None:
        """Why the endpoint may not be called for this group; None: it has proved that it may."""
        challenge = self._make_text()
        body = encode_challenge(group.name, challenge)
        headers = sign_call(group.secrets, self._make_text(), self._clock.now_ms(), body)
        if headers is None:
            return "the group has no secret that calls can be signed with"
        call = EndpointCall(url, headers, body.encode(), _TIMEOUT_MS, _MOST_BYTES, group.name)
        reply = await self._caller.call(call)
        if reply.failure is not None:
            status = f" {reply.status}" if reply.status else ""
            return f"the endpoint did not answer the challenge: {reply.failure}{status}"
        return None if is_echo(reply.body, challenge) else "the endpoint did not send the challenge back"


# --- attacks a group's endpoints with calls as the checker makes them, and with calls that it would never make ---

SAMPLE_TOPIC = "outbox-bridge.sample"
_MANY = 100
_HOUR_MS = 3_600_000
_LARGE_BYTES = 1024 * 1024
_OVERSIZED_BYTES = 16 * _LARGE_BYTES
_PATIENT_MS = 60_000  # for bodies that take their time on the way
_AGAIN_MS = 250
_REVIVAL_MS = 60_000
_AT_ONCE = 2
_PROBES_AT_ONCE = 8  # groups; their endpoints are called all at once


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """Transactions whose state is known: one whose local transaction is committed, and one where it is open."""

    committed: str | None = None
    open_id: str | None = None


class EarlierAnswer(NamedTuple):
    """What an endpoint said before something happened: the end of a local transaction, or a restart.

    `trial`: which one compares it with what it says afterwards. `answer`: the name of the resolution.
    """

    endpoint: str
    trial: Trial
    transaction_id: str
    answer: str


class TrialReport(NamedTuple):
    """Findings, and what can be asked again afterwards."""

    findings: list[TrialFinding]
    later: list[EarlierAnswer]


class EndpointTrials:
    """Trials at the endpoints of groups. They leave nothing behind: no answer counts, and each call says that it is
    a trial. A few at once; the others wait, probes for probes alone."""

    def __init__(self, caller: CheckCaller) -> None:
        self._caller = caller
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._probes = asyncio.Semaphore(_PROBES_AT_ONCE)

    async def attack(self, group: ProducerGroup, plan: TrialPlan) -> TrialReport:
        """All trials at each endpoint, one endpoint after the other."""
        report = TrialReport([], [])
        async with self._turns:
            for endpoint in group.endpoints:
                trial = _EndpointTrial(self._caller, group, endpoint.url)
                await trial.attack(plan)
                report.findings.extend(trial.findings)
                report.later.extend(trial.later)
        return report

    async def ask_again(self, group: ProducerGroup, earlier: Sequence[EarlierAnswer]) -> TrialReport:
        """Whether endpoints say what they have said; one that the group no longer has is left out."""
        report = TrialReport([], [])
        urls = {place_of(endpoint.url): endpoint.url for endpoint in group.endpoints}
        async with self._turns:
            for one in earlier:
                if url := urls.get(one.endpoint):
                    trial = _EndpointTrial(self._caller, group, url)
                    await trial.ask_again(one)
                    report.findings.extend(trial.findings)
        return report

    async def probe(self, group: ProducerGroup) -> TrialReport:
        """One signed call to each endpoint, all at once, about no transaction."""
        async with self._probes:
            trials = [_EndpointTrial(self._caller, group, endpoint.url) for endpoint in group.endpoints]
            await asyncio.gather(*[trial.probe() for trial in trials])
        return TrialReport([finding for trial in trials for finding in trial.findings], [])


class _Sent(NamedTuple):
    text: str
    headers: Mapping[str, str]


class _EndpointTrial:
    """One endpoint under trial."""

    def __init__(self, caller: CheckCaller, group: ProducerGroup, url: str) -> None:
        self._caller = caller
        self._group = group
        self._url = url
        self.findings: list[TrialFinding] = []
        self.later: list[EarlierAnswer] = []

    async def attack(self, plan: TrialPlan) -> None:
        """Everything that needs no act of the user."""
        if not self._can_sign(Trial.UNKNOWN_ID):
            return
        sample = make_sample(_now_ms())
        first, reply = await self._ask(sample)
        self._note(Trial.UNKNOWN_ID, judge_unknown(first), reply)
        if reply.failure is not None:
            for trial in list(Trial)[1:-1]:
                self._note(trial, skip("the endpoint does not answer"))
            return
        again, reply = await self._ask(sample)
        self._note(Trial.SAME_ANSWER, judge_same(first, again), reply)
        await self._forge()
        await self._weigh_down()
        await self._look_up(plan)
        self._remember(Trial.AFTER_RESTART, sample.transaction_id, first)

    async def ask_again(self, earlier: EarlierAnswer) -> None:
        """The same question as before. A process that was just started may not listen yet."""
        if self._can_sign(earlier.trial):
            before, is_restart = Resolution[earlier.answer], earlier.trial is Trial.AFTER_RESTART
            end_ms = _now_ms() + (_REVIVAL_MS if is_restart else 0)
            answer, reply = await self._ask_until_alive(make_check_of(earlier.transaction_id), end_ms)
            judge = judge_restarted if is_restart else judge_same
            self._note(earlier.trial, judge(before, answer), reply)

    async def probe(self) -> None:
        """Whether it takes the group's signature, and answers as endpoints do. Nothing is asked that it could note."""
        if self._can_sign(Trial.PROBE):
            challenge = _random_text()
            reply = await self._send(self._sign_text(encode_challenge(self._group.name, challenge)))
            self._note(Trial.PROBE, judge_probe(reply, challenge), reply)

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
        headers = self._sign(make_sample(_now_ms())).headers
        reply = await self._send(_Sent("[" * _OVERSIZED_BYTES, headers), _PATIENT_MS)
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
            self._note(Trial.AFTER_OPEN, skip("needs --open ID and --interactive"))
            return
        while_open, reply = await self._ask(make_check_of(plan.open_id))
        self._note(Trial.OPEN, judge_open(while_open), reply)
        self._remember(Trial.AFTER_OPEN, plan.open_id, while_open)

    # --- calls ---

    async def _ask(self, check: Check) -> tuple[Answer, EndpointReply]:
        reply = await self._send(self._sign(check))
        return read_answer(reply, check), reply

    async def _ask_until_alive(self, check: Check, end_ms: int) -> tuple[Answer, EndpointReply]:
        while True:
            answer, reply = await self._ask(check)
            if reply.failure is None or _now_ms() > end_ms:
                return answer, reply
            await asyncio.sleep(_AGAIN_MS / 1000)

    def _sign(self, *checks: Check, at_ms: int | None = None) -> _Sent:
        """A call as the checker makes it, now or at another time."""
        return self._sign_text(encode_call(self._group.name, checks, is_trial=True), at_ms)

    def _sign_text(self, text: str, at_ms: int | None = None) -> _Sent:
        headers = sign_call(self._group.secrets, f"test_{_random_text()}", at_ms or _now_ms(), text)
        assert headers is not None
        return _Sent(text, headers)

    async def _send(self, sent: _Sent, timeout_ms: int = 0, checks: int = 1) -> EndpointReply:
        most = CheckerConfig().max_answer_bytes(checks)
        timeout_ms = timeout_ms or self._group.settings.calls.call_timeout_ms
        call = EndpointCall(self._url, sent.headers, sent.text.encode(), timeout_ms, most, self._group.name)
        return await self._caller.call(call)

    # --- findings ---

    def _can_sign(self, trial: Trial) -> bool:
        if can_sign(self._group.secrets):
            return True
        remedy = f"Run `outbox-bridge group rotate-secret {self._group.name}`."
        self._note(trial, Judgement(TrialVerdict.BAD, "no secret to sign with", remedy))
        return False

    def _remember(self, trial: Trial, transaction_id: str, answer: Answer) -> None:
        """What it says now, for later; if that is no answer, the trial before this one said so."""
        if isinstance(answer, Resolution):
            self.later.append(EarlierAnswer(place_of(self._url), trial, transaction_id, answer.name))
        else:
            self._note(trial, skip("it gave no answer that could be compared"))

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
