"""Asks a group's endpoints about a transaction that never was, and judges the answers as strictly as the checker."""

import base64
import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bridge.clock import SystemClock
from bridge.core.message import Message
from bridge.core.record import HalfMessage, Resolution
from bridge.core.transaction import Transaction
from bridge.core.transaction_id import make_transaction_id, make_uuid7_bits
from bridge.directory import ProducerGroup
from bridge.settler.observer import Body
from checker.caller import Call, CheckCaller, Failure, Reply
from checker.check_call import Check, decode_answers, encode_call, make_check
from checker.config import CheckerConfig
from checker.endpoint_guard import CallbackPolicy, parse_networks
from checker.http_caller import HttpCaller
from checker.signing import sign_call

SAMPLE_TOPIC = "outbox-bridge.sample"


class Finding(NamedTuple):
    """What one endpoint did. `remedy` is empty where nothing is wrong."""

    endpoint: str
    is_ok: bool
    found: str
    remedy: str
    latency_ms: int


_REMEDIES: Mapping[Failure, str] = {
    Failure.FORBIDDEN: "Use https on port 443 or 8443, or list its network in callbacks.allow_networks.",
    Failure.DNS: "Correct the host name; the settlers' machines must be able to resolve it.",
    Failure.REFUSED: "Start the producer, or correct host and port; the settlers' machines must reach it.",
    Failure.TLS: "Give the endpoint a certificate for its name that the settlers' machines trust.",
    Failure.TIMEOUT: "Answer faster, or raise check.call_timeout_seconds of the group.",
    Failure.CLOSED: "Answer each call before closing the connection.",
    Failure.MALFORMED: "Answer with HTTP/1.1 as RFC 9112 says.",
    Failure.TOO_LARGE: "Answer with the resolutions only.",
    Failure.COMPRESSED: "Do not compress the answer.",
    Failure.REDIRECT: "Register the final URL; redirects are not followed.",
    Failure.RATE_LIMITED: "Do not limit the rate of checks.",
    Failure.GONE: "Take the endpoint out of the group, or let it answer again.",
    Failure.STATUS: "Answer 200 to every call with a valid signature; 401 here often means another secret.",
}
_SHAPE = 'Answer {"resolutions": [{"transaction_id", "nonce", "resolution"}]} with exactly these members.'


async def try_endpoints(group: ProducerGroup, secrets: Sequence[str], networks: Sequence[str]) -> list[Finding]:
    """One signed call to each endpoint, one after the other. `networks`: also allowed, as in the settings."""
    caller = HttpCaller(CallbackPolicy(parse_networks(networks)), SystemClock())
    try:
        return [await _try_one(caller, group, secrets, endpoint.url) for endpoint in group.endpoints]
    finally:
        await caller.close()


async def _try_one(caller: CheckCaller, group: ProducerGroup, secrets: Sequence[str], url: str) -> Finding:
    now_ms = time.time_ns() // 1_000_000
    check = make_sample(group.name, now_ms)
    text = encode_call(group.name, [check])
    headers = sign_call(secrets, f"test_{_random_text()}", now_ms, text)
    if headers is None:
        return Finding(
            url, False, "no secret to sign with", f"Run `outbox-bridge group rotate-secret {group.name}`.", 0
        )
    most = CheckerConfig().max_answer_bytes(1)
    reply = await caller.call(Call(url, headers, text.encode(), group.settings.calls.call_timeout_ms, most))
    is_ok, found, remedy = judge_reply(reply, check)
    return Finding(reply.endpoint, is_ok, found, remedy, reply.latency_ms)


def make_sample(group: str, now_ms: int) -> Check:
    """A check of a transaction that nobody ever prepared."""
    transaction_id = make_transaction_id(0, make_uuid7_bits(now_ms, int.from_bytes(os.urandom(10))))
    half = HalfMessage(transaction_id, group, 1, now_ms, SAMPLE_TOPIC)
    body = Body(half, [Message(SAMPLE_TOPIC, b"sample", b'{"sample":true}')])
    return make_check(Transaction(transaction_id, group, 0, now_ms, 0), body, _random_text())


def judge_reply(reply: Reply, check: Check) -> tuple[bool, str, str]:
    """Whether it is right, what it is, and what to do. COMMIT would publish what the group knows nothing of."""
    if reply.failure is not None:
        status = f" {reply.status}" if reply.status else ""
        return False, f"no answer: {reply.failure}{status}", _REMEDIES.get(reply.failure, _SHAPE)
    answers = decode_answers(reply.body, {check.transaction_id: check.nonce})
    if not answers.is_well_formed:
        return False, "status 200, but not the document that is expected", _SHAPE
    resolution = answers.resolutions.get(check.transaction_id)
    if resolution is None:
        return False, "the transaction is missing from the answer, or its entry has another shape", _SHAPE
    if resolution is Resolution.COMMIT:
        remedy = "Look the transaction up: COMMIT only what the local transaction has committed."
        return False, "COMMIT of a transaction that never was", remedy
    if answers.strange:
        return False, f"{answers.strange} entries that nobody asked for", _SHAPE
    return True, f"answers {resolution.name}, as it should", ""


def _random_text() -> str:
    return base64.urlsafe_b64encode(os.urandom(18)).decode()
