"""What an endpoint must do under each trial, and what to do where it does not. Pure: replies in, findings out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from bridge.core.record import Resolution
from checker.call import Check, EndpointReply, Failure, decode_answers, is_echo


class TrialVerdict(StrEnum):
    """SKIPPED: the trial needs something that was not given, or an endpoint that answers."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"


class Trial(StrEnum):
    """What is tried, in this order; PROBE for itself."""

    UNKNOWN_ID = "unknown id"
    SAME_ANSWER = "same answer twice"
    NO_SIGNATURE = "no signature"
    WRONG_SIGNATURE = "wrong signature"
    CHANGED_BODY = "changed body"
    REPLAYED = "replayed after an hour"
    GARBAGE = "signed garbage"
    LARGE_CALL = "call of 1 MiB"
    OVERSIZED = "body of 16 MiB"
    MANY_CHECKS = "many checks in a call"
    MANY_CALLS = "100 calls at once"
    COMMITTED = "committed transaction"
    OPEN = "open local transaction"
    AFTER_OPEN = "after it has ended"
    AFTER_RESTART = "after a restart"
    PROBE = "signed call"


class TrialFinding(NamedTuple):
    """What one endpoint did in one trial. `remedy` is empty where nothing is wrong."""

    endpoint: str
    trial: Trial
    verdict: TrialVerdict
    found: str
    remedy: str = ""
    latency_ms: int = 0


class Judgement(NamedTuple):
    """A finding before it is known where."""

    verdict: TrialVerdict
    found: str
    remedy: str = ""


Answer = Resolution | Judgement
"""A resolution that counts, or why there is none."""

REMEDIES: Mapping[Failure, str] = {
    Failure.FORBIDDEN: "Use https on port 443 or 8443, or list its network in callbacks.allow_networks.",
    Failure.DNS: "Correct the host name; the settlers' machines must be able to resolve it.",
    Failure.REFUSED: "Start the producer, or correct host and port; the settlers' machines must reach it.",
    Failure.NO_SOCKET: "Raise `ulimit -n` of the settlers: nothing is wrong with the endpoint.",
    Failure.TLS: "Give the endpoint a certificate for its name that the settlers' machines trust.",
    Failure.TIMEOUT: "Answer faster, or raise check.call_timeout_seconds of the group.",
    Failure.CLOSED: "Answer each call before closing the connection.",
    Failure.MALFORMED: "Answer with HTTP/1.1 as RFC 9112 says.",
    Failure.TOO_LARGE: "Answer with the resolutions only.",
    Failure.COMPRESSED: "Do not compress the answer.",
    Failure.REDIRECT: "Register the final URL; redirects are not followed.",
    Failure.RATE_LIMITED: "Do not limit the rate of checks.",
    Failure.GONE: "Take the endpoint out of the group, or let it answer again.",
    Failure.STATUS: "Answer 200 to every call with a valid signature. 401 often means another secret, or clocks that "
    "are minutes apart, 404 another path, 503 a database that is away or locked.",
}
_SHAPE = 'Answer {"resolutions": [{"transaction_id", "nonce", "resolution"}]} with exactly these members.'
_LOOK_UP = "Look the transaction up: COMMIT only what the local transaction has committed."
_VERIFY = "Verify the signature before anything else, as Standard Webhooks says, and answer 401."
_STABLE = "Keep what was answered: write the resolution down beside the transaction id before answering it."
_DURABLE = "Answer from the database, not from the memory of a process."
_TOOK_TOO_MUCH = "Serve calls side by side; lower check.concurrency of the group if that is not possible."


def read_answer(reply: EndpointReply, check: Check) -> Answer:
    """The resolution of the one check that was asked, as strictly as the checker reads it."""
    if reply.failure is not None:
        return _no_answer(reply)
    answers = decode_answers(reply.body, {check.transaction_id: check.nonce})
    if not answers.is_well_formed:
        return _bad("status 200, but not the document that is expected", _SHAPE)
    resolution = answers.resolutions.get(check.transaction_id)
    if resolution is None:
        return _bad("the transaction is missing from the answer, or its entry has another shape", _SHAPE)
    if answers.strange:
        return _bad(f"{answers.strange} entries that nobody asked for", _SHAPE)
    return resolution


def judge_unknown(answer: Answer) -> Judgement:
    """Of a transaction that never was: COMMIT would publish what the group knows nothing of."""
    if isinstance(answer, Judgement):
        return answer
    if answer is Resolution.COMMIT:
        return _bad("COMMIT of a transaction that never was", _LOOK_UP)
    return _good(f"answers {answer.name}, as it should")


def judge_same(first: Answer, second: Answer) -> Judgement:
    """Once COMMIT or ROLLBACK was said, nothing else may be said ever after; UNKNOWN may become either."""
    for answer in (first, second):
        if isinstance(answer, Judgement):
            return answer
    assert isinstance(first, Resolution)
    assert isinstance(second, Resolution)
    if first is Resolution.UNKNOWN or first is second:
        return _good(f"answers {first.name}, then {second.name}")
    return _bad(f"answers {first.name}, then {second.name}", _STABLE)


def judge_refused(reply: EndpointReply) -> Judgement:
    """Of a call that the bridge did not send: a status of 4xx, and no resolution."""
    if 400 <= reply.status < 500:
        return _good(f"refuses it with {reply.status}")
    if reply.failure is None:
        return _bad("answers it with 200", _VERIFY)
    return _bad(_describe(reply), _VERIFY)


def judge_garbage(reply: EndpointReply) -> Judgement:
    """Of a signed body that is no call: refused with 4xx; neither answered nor a reason to fall over."""
    judged = judge_refused(reply)
    return judged._replace(remedy="Answer 400 to a body that is no call.") if judged.remedy else judged


def judge_oversized(reply: EndpointReply) -> Judgement:
    """Of a body far too large: refused with 4xx, or cut off."""
    if reply.failure is Failure.CLOSED:
        return _good("cuts it off")
    judged = judge_refused(reply)
    return judged._replace(remedy="Limit how much of a body is read.") if judged.remedy else judged


def judge_many_checks(reply: EndpointReply, checks: Sequence[Check]) -> Judgement:
    """Of one call about many: every one is answered, none with COMMIT."""
    if reply.failure is not None:
        return _no_answer(reply)
    answers = decode_answers(reply.body, {check.transaction_id: check.nonce for check in checks})
    if not answers.is_well_formed:
        return _bad("status 200, but not the document that is expected", _SHAPE)
    if Resolution.COMMIT in answers.resolutions.values():
        return _bad("COMMIT of a transaction that never was", _LOOK_UP)
    if len(answers.resolutions) < len(checks) or answers.strange:
        return _bad(f"{len(answers.resolutions)} of {len(checks)} are answered", _SHAPE)
    return _good(f"all {len(checks)} are answered")


def judge_many_calls(answers: Sequence[Answer]) -> Judgement:
    """Of many calls at once: each is answered."""
    failed = [answer for answer in answers if isinstance(answer, Judgement)]
    if failed:
        ((found, remedy), count), *_ = Counter((each.found, each.remedy) for each in failed).most_common(1)
        return _bad(
            f"{len(failed)} of {len(answers)} have no answer, most: {found} ({count})", remedy or _TOOK_TOO_MUCH
        )
    if Resolution.COMMIT in answers:
        return _bad("COMMIT of a transaction that never was", _LOOK_UP)
    return _good(f"all {len(answers)} are answered")


def judge_committed(answer: Answer) -> Judgement:
    """Of a transaction whose local transaction is committed."""
    if isinstance(answer, Judgement):
        return answer
    if answer is Resolution.COMMIT:
        return _good("answers COMMIT, as it should")
    return _bad(f"answers {answer.name} for what is committed", _LOOK_UP)


def judge_open(answer: Answer) -> Judgement:
    """While the local transaction is open: nobody knows yet that it will be committed."""
    if isinstance(answer, Judgement):
        return answer
    if answer is Resolution.COMMIT:
        return _bad("answers COMMIT before the local transaction is committed", _LOOK_UP)
    return _good(f"answers {answer.name}, as it may")


def judge_probe(reply: EndpointReply, challenge: str) -> Judgement:
    """Of a signed call about nothing: the text that it wants back, or at least no resolution."""
    if reply.failure is not None:
        return _no_answer(reply)
    if is_echo(reply.body, challenge):
        return _good("answers a signed call")
    if decode_answers(reply.body, {}).is_well_formed:
        return _good("answers a signed call, without its challenge")
    return _bad("status 200, but not the document that is expected", _SHAPE)


def skip(reason: str) -> Judgement:
    """Not tried."""
    return Judgement(TrialVerdict.SKIPPED, reason)


def judge_restarted(before: Answer, after: Answer) -> Judgement:
    """What was said must outlive the process that said it."""
    judged = judge_same(before, after)
    if judged.remedy == _STABLE:
        return judged._replace(remedy=_DURABLE)
    return judged


def _no_answer(reply: EndpointReply) -> Judgement:
    assert reply.failure is not None
    return _bad(f"no answer: {_describe(reply)}", REMEDIES.get(reply.failure, _SHAPE))


def _describe(reply: EndpointReply) -> str:
    return f"{reply.failure} {reply.status}" if reply.status else f"{reply.failure}"


def _good(found: str) -> Judgement:
    return Judgement(TrialVerdict.GOOD, found)


def _bad(found: str, remedy: str) -> Judgement:
    return Judgement(TrialVerdict.BAD, found, remedy)
