"""What an endpoint says under trial is judged as strictly as the checker would read it."""

import json

import pytest

from bridge.core.record import Resolution
from checker.call import EndpointReply, Failure, Subject, render_check
from checker.conformance import (
    Answer,
    Judgement,
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

URL = "http://x/check"
CHECKS = [
    render_check(Subject(f"{n:028}", 1, 1_700_000_000_000, None, []), lambda _, number: f"{number}-" + "r" * 22)
    for n in range(3)
]
CHECK = CHECKS[0]
COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN
NOTHING = Judgement(TrialVerdict.BAD, "no answer: timeout", "Answer faster.")


def reply(**entry: object) -> EndpointReply:
    members = {"transaction_id": CHECK.transaction_id, "nonce": CHECK.nonce, "resolution": "ROLLBACK", **entry}
    return said([members])


def said(entries: object) -> EndpointReply:
    return EndpointReply(URL, 3, 200, json.dumps({"resolutions": entries}).encode())


def refusing(status: int) -> EndpointReply:
    return EndpointReply(URL, 3, status, failure=Failure.STATUS)


@pytest.mark.parametrize("resolution", ["ROLLBACK", "UNKNOWN", 12])
def test_unknown_transaction_may_be_rolled_back_or_unknown(resolution: object) -> None:
    """Both are right about what never was."""
    assert judge_unknown(read_answer(reply(resolution=resolution), CHECK)).verdict is TrialVerdict.GOOD


@pytest.mark.parametrize(
    "wrong",
    [
        reply(resolution="COMMIT"),
        reply(resolution="MAYBE"),
        reply(nonce="1-other"),
        reply(extra=1),
        said([*json.loads(reply().body)["resolutions"], {"transaction_id": "1" * 28}]),
        EndpointReply(URL, 3, 200, b"ok"),
        EndpointReply(URL, 3, 200, b'{"resolutions": []}'),
        refusing(401),
        EndpointReply(URL, 0, failure=Failure.REFUSED),
    ],
)
def test_anything_else_is_wrong_and_has_a_remedy(wrong: EndpointReply) -> None:
    """COMMIT would publish what the group knows nothing of; the rest would never count."""
    judged = judge_unknown(read_answer(wrong, CHECK))
    assert judged.verdict is TrialVerdict.BAD
    assert judged.found
    assert judged.remedy


def test_every_failure_of_a_call_has_a_remedy() -> None:
    """A new kind of failure must say what to do, too."""
    for failure in Failure:
        judged = judge_unknown(read_answer(EndpointReply(URL, 0, failure=failure), CHECK))
        assert (judged.verdict, bool(judged.remedy)) == (TrialVerdict.BAD, True)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (ROLLBACK, ROLLBACK, TrialVerdict.GOOD),
        (UNKNOWN, UNKNOWN, TrialVerdict.GOOD),
        (UNKNOWN, COMMIT, TrialVerdict.GOOD),
        (ROLLBACK, COMMIT, TrialVerdict.BAD),
        (COMMIT, ROLLBACK, TrialVerdict.BAD),
        (ROLLBACK, UNKNOWN, TrialVerdict.BAD),
        (ROLLBACK, NOTHING, TrialVerdict.BAD),
        (NOTHING, ROLLBACK, TrialVerdict.BAD),
    ],
)
def test_what_was_said_stands(first: Answer, second: Answer, verdict: TrialVerdict) -> None:
    """UNKNOWN may become anything, a decision nothing else; after a restart too, with another remedy."""
    assert judge_same(first, second).verdict is verdict
    assert judge_restarted(first, second).verdict is verdict
    if NOTHING not in {first, second} and verdict is TrialVerdict.BAD:
        assert judge_same(first, second).remedy != judge_restarted(first, second).remedy


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (refusing(400), TrialVerdict.GOOD),
        (refusing(401), TrialVerdict.GOOD),
        (refusing(499), TrialVerdict.GOOD),
        (refusing(500), TrialVerdict.BAD),
        (refusing(302), TrialVerdict.BAD),
        (reply(), TrialVerdict.BAD),
        (EndpointReply(URL, 3, failure=Failure.TIMEOUT), TrialVerdict.BAD),
    ],
)
def test_forged_calls_and_garbage_are_refused_with_4xx(answer: EndpointReply, verdict: TrialVerdict) -> None:
    """Neither a resolution nor a crash."""
    for judge in (judge_refused, judge_garbage, judge_oversized):
        judged = judge(answer)
        assert (judged.verdict, bool(judged.remedy)) == (verdict, verdict is TrialVerdict.BAD)


def test_oversized_body_may_be_cut_off() -> None:
    """Closing the connection is a way to read no further; to a forged or broken call it is a crash."""
    cut = EndpointReply(URL, 3, failure=Failure.CLOSED)
    assert judge_oversized(cut).verdict is TrialVerdict.GOOD
    for judge in (judge_refused, judge_garbage):
        assert judge(cut).verdict is TrialVerdict.BAD


def test_many_checks_are_all_answered() -> None:
    """One that is left out, or committed, is found."""
    entries = [{"transaction_id": c.transaction_id, "nonce": c.nonce, "resolution": "ROLLBACK"} for c in CHECKS]
    assert judge_many_checks(said(entries), CHECKS).verdict is TrialVerdict.GOOD
    assert judge_many_checks(said(entries[:2]), CHECKS).found == "2 of 3 are answered"
    assert judge_many_checks(said([*entries, {}]), CHECKS).verdict is TrialVerdict.BAD
    committed = [*entries[:2], {**entries[2], "resolution": "COMMIT"}]
    assert "COMMIT" in judge_many_checks(said(committed), CHECKS).found
    for wrong in (refusing(503), EndpointReply(URL, 3, 200, b"[]")):
        assert judge_many_checks(wrong, CHECKS).verdict is TrialVerdict.BAD


def test_many_calls_tell_what_most_of_them_met() -> None:
    """One bad one is enough."""
    assert judge_many_calls([ROLLBACK, UNKNOWN]).verdict is TrialVerdict.GOOD
    other = Judgement(TrialVerdict.BAD, "no answer: status 503", "")
    judged = judge_many_calls([ROLLBACK, other, NOTHING, NOTHING])
    assert (judged.verdict, judged.remedy) == (TrialVerdict.BAD, "Answer faster.")
    assert judged.found == "3 of 4 have no answer, most: no answer: timeout (2)"
    assert judge_many_calls([other]).remedy
    assert "COMMIT" in judge_many_calls([ROLLBACK, COMMIT]).found


@pytest.mark.parametrize(
    ("answer", "committed", "is_open"),
    [
        (COMMIT, TrialVerdict.GOOD, TrialVerdict.BAD),
        (ROLLBACK, TrialVerdict.BAD, TrialVerdict.GOOD),
        (UNKNOWN, TrialVerdict.BAD, TrialVerdict.GOOD),
        (NOTHING, TrialVerdict.BAD, TrialVerdict.BAD),
    ],
)
def test_transactions_the_user_knows_are_looked_up(
    answer: Answer, committed: TrialVerdict, is_open: TrialVerdict
) -> None:
    """Committed ones are COMMIT; open ones anything else."""
    assert judge_committed(answer).verdict is committed
    assert judge_open(answer).verdict is is_open


def test_skipped_trials_say_what_they_need() -> None:
    """They are neither good nor bad."""
    assert skip("needs --open ID") == (TrialVerdict.SKIPPED, "needs --open ID", "")
