"""outbox.client.caller: what a call may cost while the bridge is taken to be away."""

import math
from typing import Any

import pytest

from outbox.client.batcher import ThreadBatcher
from outbox.client.caller import FAILURES, FIRST_PAUSE_S, PROBE_S, SPAN_S, Breaker, Caller
from outbox.client.calls import Call, Request, claim_call, end_call, get_call
from outbox.client.config import BridgeConfig
from outbox.client.connection import run_now
from outbox.client.errors import OutboxError, Unavailable
from outbox.client.listener import Resolution
from outbox.client.replies import Answer, NoReply

ID = "0206k8e9s5ta7vo3q1m4c8b2h6dg"


class SilentBridge:
    """A transport whose requests are never answered; `allowed_s`: how long each might have taken."""

    is_closed = False

    def __init__(self) -> None:
        self.allowed_s: list[float] = []
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s

    async def exchange(self, _: Request, timeout_s: float) -> Answer | NoReply:
        self.allowed_s.append(timeout_s)
        self.now_s += timeout_s
        return NoReply(f"no answer within {timeout_s:.1f} s", is_away=True)

    async def pause(self, pause_s: float) -> None:
        self.now_s += pause_s


def take_away(breaker: Breaker, silent: SilentBridge) -> None:
    """Until the next call may find out whether it is back."""
    for _ in range(FAILURES):
        silent.now_s += SPAN_S
        breaker.note_failure(silent.now_s, "connection refused")
    assert breaker.is_open
    silent.now_s += FIRST_PAUSE_S


CALLS = {
    "a look": (get_call(ID), PROBE_S),
    "an end": (end_call(ID, Resolution.COMMIT, "shop"), PROBE_S),
    "a claim of checks": (claim_call("shop", 10, 5.0, 60.0), PROBE_S + 5.0),
}


@pytest.mark.parametrize(("call", "most_s"), CALLS.values(), ids=CALLS)
def test_call_that_finds_out_is_bounded(call: Call | Request, most_s: float) -> None:
    """Alike for whatever is asked; what the bridge was asked to wait is not taken for its absence."""
    silent: Any = SilentBridge()
    breaker = Breaker("http://bridge", silent.now)
    caller = Caller(BridgeConfig(), silent, breaker, ThreadBatcher)
    take_away(breaker, silent)
    with pytest.raises(OutboxError):
        run_now(caller.call(call, 15.0))
    assert silent.allowed_s[0] == pytest.approx(most_s)
    assert silent.allowed_s[0] < math.inf


def test_nothing_is_sent_while_another_finds_out() -> None:
    """Each kind of call is refused at once."""
    silent: Any = SilentBridge()
    breaker = Breaker("http://bridge", silent.now)
    caller = Caller(BridgeConfig(), silent, breaker, ThreadBatcher)
    take_away(breaker, silent)
    assert breaker.admit() == PROBE_S
    for call, _ in CALLS.values():
        with pytest.raises(Unavailable, match="taken to be away"):
            run_now(caller.call(call))
    assert silent.allowed_s == []
