"""When a call is sent again, and what its caller hears."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.client.calls import end_call, get_call, prepare_call
from outbox.client.errors import (
    AlreadyResolved,
    OutboxError,
    Outcome,
    OutcomeUnknown,
    Problem,
    RequestRefused,
    Unavailable,
)
from outbox.client.listener import Resolution
from outbox.client.message import Message
from outbox.client.replies import MAX_PAUSE_S, BatchRejected, CallResult, NoReply, Reply, RetryAfter, RetryPolicy

ID = "0206k8e9s5ta7vo3q1m4c8b2h6dg"
KEYED = prepare_call("shop", [Message("orders")], {"idempotency_key": "k"})
UNKEYED = prepare_call("shop", [Message("orders")], {})
END = end_call(ID, Resolution.COMMIT, "shop")
GET = get_call(ID)

LOST, UNSENT = NoReply("lost"), NoReply("away", is_sent=False)
REFUSED = NoReply("refused", is_sent=False, is_away=True)
AWAY = NoReply("taken to be away", is_sent=False, is_final=True)
BUSY = Problem("unavailable", 503, outcome=Outcome.NOT_APPLIED, retry_after_s=1.0)
DOUBTFUL = Problem("unavailable", 503, outcome=Outcome.UNKNOWN)
UNSETTLED = Problem("outcome-unknown", 504, outcome=Outcome.UNKNOWN, transaction_id=ID)
BUG = Problem("internal", 500, outcome=Outcome.UNKNOWN)
WRONG = Problem("invalid-request", 422, outcome=Outcome.NOT_APPLIED)
RESOLVED = Problem("already-resolved", 409, outcome=Outcome.NOT_APPLIED, state="ROLLED_BACK")
DONE = Reply(200, {})
FOREIGN = BatchRejected(NoReply("status 413", is_away=True))
TELLING = [LOST, UNSENT, BUSY, DOUBTFUL, UNSETTLED, BUG, WRONG, RESOLVED, DONE, BatchRejected(WRONG), FOREIGN]
MAY_BE_APPLIED = (LOST, DOUBTFUL, UNSETTLED, BUG, FOREIGN)


def course(call: Any, deadline_s: float = 100.0, chance: float = 0.5) -> RetryPolicy:
    return RetryPolicy(call, deadline_s, lambda: chance)


def fate(call: Any, *told: CallResult) -> Any:
    """What the caller hears if the bridge says this, and nothing more until the deadline."""
    its_course = course(call)
    try:
        for one in told:
            step = its_course.take(one, 0.0)
            if isinstance(step, Reply):
                return step
    except OutboxError as error:
        return error
    return its_course.give_up()


@pytest.mark.parametrize(
    ("call", "told", "expected"),
    [
        (KEYED, [LOST, DONE], Reply),
        (KEYED, [LOST], OutcomeUnknown),
        (KEYED, [UNSENT], Unavailable),
        (KEYED, [AWAY, DONE], Unavailable),
        (KEYED, [LOST, AWAY, DONE], OutcomeUnknown),
        (END, [LOST, AWAY], OutcomeUnknown),
        (GET, [LOST, AWAY], Unavailable),
        (KEYED, [UNSENT, BUSY, UNSENT], Unavailable),
        (KEYED, [LOST, BUSY], OutcomeUnknown),
        (KEYED, [BUSY, WRONG], RequestRefused),
        (KEYED, [LOST, WRONG], OutcomeUnknown),
        (KEYED, [UNSETTLED, UNSETTLED], OutcomeUnknown),
        (KEYED, [BatchRejected(WRONG), DONE], Reply),
        (KEYED, [BatchRejected(WRONG), WRONG], RequestRefused),
        (KEYED, [FOREIGN, DONE], Reply),
        (KEYED, [FOREIGN, WRONG], OutcomeUnknown),
        (UNKEYED, [FOREIGN, DONE], OutcomeUnknown),
        (UNKEYED, [LOST, DONE], OutcomeUnknown),
        (UNKEYED, [BUG, DONE], OutcomeUnknown),
        (UNKEYED, [UNSENT, BUSY, DONE], Reply),
        (END, [LOST, RESOLVED], AlreadyResolved),
        (END, [LOST, UNSETTLED, DONE], Reply),
        (GET, [LOST, BUSY], Unavailable),
        (GET, [Problem("projection-behind", 503)], Unavailable),
    ],
)
def test_caller_hears_the_truth(call: Any, told: list[CallResult], expected: type) -> None:
    """A try that may have been applied is never forgotten; only an end's refusal tells what is recorded."""
    assert type(fate(call, *told)) is expected


@given(st.sampled_from([KEYED, UNKEYED, END]), st.lists(st.sampled_from(TELLING), max_size=6))
def test_nothing_applied_is_said_only_when_nothing_can_be(call: Any, told: list[CallResult]) -> None:
    """By hand: doubt arises with the first try that may have arrived, and stays."""
    heard: list[CallResult] = []
    for one in told:
        heard.append(one)
        if one is DONE or one in (WRONG, RESOLVED) or (call is UNKEYED and one in MAY_BE_APPLIED):
            break
    is_doubtful = any(one in MAY_BE_APPLIED for one in heard)
    outcome = fate(call, *told)
    if isinstance(outcome, OutboxError) and outcome.outcome is Outcome.NOT_APPLIED and call is not END:
        assert not is_doubtful
    if isinstance(outcome, OutcomeUnknown):
        assert is_doubtful


@given(st.floats(0, 0.999), st.integers(1, 40))
def test_pauses_grow_with_chance_and_have_an_end(chance: float, tries: int) -> None:
    """Full jitter: between nothing and twice as much each time, at most two seconds."""
    its_course = course(KEYED, deadline_s=1e9, chance=chance)
    pauses = [step.pause_s for _ in range(tries) if isinstance(step := its_course.take(UNSENT, 0.0), RetryAfter)]
    assert pauses == [min(0.05 * 2**n, MAX_PAUSE_S) * chance for n in range(tries)]


def test_time_of_retry_after_is_waited_for() -> None:
    """And a little more, so that not all come back at once."""
    step = course(KEYED).take(BUSY, 0.0)
    assert step == RetryAfter(1.0 + 0.05 * 0.5)


def test_pause_beyond_the_deadline_is_not_begun() -> None:
    """Waiting would change nothing for the caller."""
    with pytest.raises(Unavailable) as away:
        course(KEYED, deadline_s=10.5).take(BUSY, 9.8)
    assert away.value.retry_after_s == 1.0


def test_refused_connection_is_tried_for_a_second() -> None:
    """However much time the call has; the error says where, why, how often and for how long, and keeps its cause."""
    its_course = RetryPolicy(KEYED, 100.0, lambda: 0.999, 0.0, "http://bridge:8780")
    cause, now_s = ConnectionRefusedError(), 0.0

    def wait_and_try() -> None:
        nonlocal now_s
        step = its_course.take(replace(REFUSED, cause=cause), now_s)
        assert isinstance(step, RetryAfter)
        now_s += step.pause_s
        wait_and_try()

    with pytest.raises(Unavailable) as away:
        wait_and_try()
    assert now_s < 1.0
    assert str(away.value) == f"http://bridge:8780: refused ({its_course.tries} tries, {now_s:.2f} s)"
    assert away.value.__cause__ is cause


def test_call_of_a_spoilt_batch_goes_alone_at_once() -> None:
    """Without counting as a failure of its own."""
    its_course = course(KEYED)
    assert not its_course.is_alone
    assert its_course.take(BatchRejected(WRONG), 0.0) == RetryAfter(0.0)
    assert its_course.is_alone


def test_unknown_outcome_names_the_transaction() -> None:
    """So that its caller can ask for it later."""
    unknown = fate(KEYED, UNSETTLED)
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.transaction_id == ID
