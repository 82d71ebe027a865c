"""When a bridge is taken to be away, and when it is tried again."""

import logging

import pytest

from outbox.client.caller import FAILURES, FIRST_PAUSE_S, MAX_PAUSE_S, PROBE_S, SPAN_S, Breaker, breaker_of

URL = "http://bridge.invalid"


class Clock:
    """`now_s` is what it shows."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(URL, clock)


def fail(breaker: Breaker, clock: Clock, times: int = FAILURES, over_s: float = SPAN_S) -> None:
    """So many exchanges that began now end without an answer, after so long."""
    began_s = clock.now_s
    clock.now_s += over_s
    for _ in range(times):
        breaker.note_failure(began_s, "connection refused")


def test_some_failures_in_a_row_are_enough(breaker: Breaker, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Fewer prove nothing. It is logged once."""
    fail(breaker, clock, FAILURES - 1)
    assert not breaker.is_open
    fail(breaker, clock, 3)
    assert (breaker.is_open, breaker.admit()) == (True, 0.0)
    assert caplog.messages == [f"bridge_away url={URL} failures={FAILURES} reason=connection refused"]


def test_failures_of_one_moment_prove_nothing(breaker: Breaker, clock: Clock) -> None:
    """One of several bridges behind an address has ended, with all its connections."""
    fail(breaker, clock, 30, over_s=SPAN_S / 2)
    assert not breaker.is_open
    fail(breaker, clock, 1)
    assert breaker.is_open


def test_answer_in_between_begins_anew(breaker: Breaker, clock: Clock) -> None:
    """And what had begun before it says nothing of the time after."""
    began_s = clock.now_s
    fail(breaker, clock, FAILURES - 1)
    breaker.note_answer()
    fail(breaker, clock, FAILURES - 1)
    breaker.note_failure(began_s, "no answer within 2.0 s")
    assert not breaker.is_open


def test_one_call_at_a_time_finds_out(breaker: Breaker, clock: Clock) -> None:
    """The others go on failing at once; if it is never heard of, another may try."""
    fail(breaker, clock)
    clock.now_s += FIRST_PAUSE_S
    assert [breaker.admit() for _ in range(3)] == [PROBE_S, 0.0, 0.0]
    clock.now_s += PROBE_S
    assert [breaker.admit() for _ in range(2)] == [PROBE_S, 0.0]


def test_pauses_grow_to_a_limit(breaker: Breaker, clock: Clock) -> None:
    """Each time that it is still away."""
    fail(breaker, clock)
    pauses = []
    for _ in range(6):
        paused_s = 0.0
        while not breaker.admit():
            paused_s += 0.0625
            clock.now_s += 0.0625
        pauses.append(paused_s)
        fail(breaker, clock, 1)
    assert pauses == pytest.approx([min(FIRST_PAUSE_S * 2**n, MAX_PAUSE_S) for n in range(6)], abs=0.07)


def test_any_answer_says_that_it_is_back(breaker: Breaker, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Everybody may send again."""
    fail(breaker, clock)
    with caplog.at_level(logging.WARNING):
        breaker.note_answer()
    assert not breaker.is_open
    assert breaker.admit() > 1_000
    assert caplog.messages[-1] == f"bridge_back url={URL}"


def test_refusal_says_why_and_was_not_sent(breaker: Breaker, clock: Clock) -> None:
    """Nothing of it can have been applied."""
    fail(breaker, clock)
    refused = breaker.refuse()
    assert (refused.is_sent, refused.is_final) == (False, True)
    assert refused.why == (
        "taken to be away: 3 tries in a row failed, the last with: connection refused; tried again in 0.2 s"
    )


def test_refusal_keeps_what_the_network_said_last(breaker: Breaker, clock: Clock) -> None:
    """For whoever looks for a cause; nothing of it is kept once the bridge has answered."""
    fail(breaker, clock)
    cause = ConnectionRefusedError("nobody listens")
    breaker.note_failure(clock.now_s, "connection refused", cause)
    assert breaker.refuse().cause is cause
    breaker.note_answer()
    assert breaker.refuse().cause is None


def test_one_for_each_address() -> None:
    """Whoever in this process finds out, finds out for all."""
    assert breaker_of(URL) is breaker_of(URL)
    assert breaker_of(URL) is not breaker_of(f"{URL}:1")
