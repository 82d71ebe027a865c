"""Threads and tasks whose calls travel together."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox.client import batcher as batcher_module
from outbox.client.batcher import BatcherLimits, LoopBatcher, ThreadBatcher, _Thread
from outbox.client.calls import END, Call
from outbox.client.connection import run_now
from outbox.client.replies import CallResult, NoReply, Reply
from tests.support.bridge_process import wait_until


class Sending:
    """Takes requests, and answers each call with its own text once it is let. `raised`: what the next one raises."""

    def __init__(self) -> None:
        self.requests: list[list[bytes]] = []
        self.going_on = threading.Event()
        self.raised: BaseException | None = None

    async def __call__(self, calls: Sequence[Call], _: float) -> Sequence[CallResult]:
        raised, self.raised = self.raised, None
        self.requests.append([call.item for call in calls])
        assert self.going_on.wait(20)
        if raised is not None:
            raise raised
        return [Reply(200, {"item": call.item}) for call in calls]


@pytest.fixture
def sending() -> Sending:
    return Sending()


@pytest.fixture
def threads(sending: Sending) -> Iterator[ThreadPoolExecutor]:
    """Whoever still waits at the end of the test is let go on."""
    with ThreadPoolExecutor(10) as pool:
        yield pool
        sending.going_on.set()


def make_batcher(sending: Sending, waiting: int = 100, in_flight: int = 1) -> ThreadBatcher:
    return ThreadBatcher(sending, BatcherLimits(in_flight, items=3, batch_bytes=1_000, waiting=waiting))


def ask(batcher: ThreadBatcher, item: bytes, timeout_s: float = 20) -> CallResult:
    return run_now(batcher.ask(Call(END, item), timeout_s))


def wait_for_waiting(batcher: ThreadBatcher, count: int) -> None:
    wait_until(lambda: len(batcher._waiting) == count, name=f"{count} waiting calls")


def test_calls_that_find_no_request_free_go_in_the_next(sending: Sending, threads: ThreadPoolExecutor) -> None:
    """In the order they came, as many as fit; each has its own answer."""
    batcher = make_batcher(sending)
    asking = []
    for number in range(6):
        asking.append(threads.submit(ask, batcher, b"%d" % number))
        wait_until(lambda: bool(sending.requests), name="the first request")
        wait_for_waiting(batcher, number)
    sending.going_on.set()
    assert [asked.result(20) for asked in asking] == [Reply(200, {"item": b"%d" % number}) for number in range(6)]
    assert sending.requests == [[b"0"], [b"1", b"2", b"3"], [b"4", b"5"]]


def test_interrupted_sender_leaves_the_next_request_to_another(sending: Sending, threads: ThreadPoolExecutor) -> None:
    """What was in its own request is not known to have come to nothing."""
    batcher = make_batcher(sending)
    sending.raised = KeyboardInterrupt()
    first = threads.submit(ask, batcher, b"first")
    wait_until(lambda: bool(sending.requests), name="the first request")
    second = threads.submit(ask, batcher, b"second")
    wait_for_waiting(batcher, 1)
    sending.going_on.set()
    with pytest.raises(KeyboardInterrupt):
        first.result(20)
    assert second.result(20) == Reply(200, {"item": b"second"})


def test_thread_that_goes_before_it_has_sent_leaves_its_batch(sending: Sending, threads: ThreadPoolExecutor) -> None:
    """Interrupted just when it was its turn: the others' calls must not wait for ever."""
    batcher = make_batcher(sending)
    sending.going_on.set()
    leaving, other = _waiting_in(batcher, b"leaving", 30), _waiting_in(batcher, b"other", 20)
    with batcher._lock:
        batcher._pass_on()
    assert leaving.batch == [leaving, other]
    batcher._leave(leaving)
    assert other.batch == [other]
    assert ask(batcher, b"late", timeout_s=0.01) == NoReply("no answer within 0.0 s", is_sent=False)
    run_now(batcher._run(other))
    assert other.told == Reply(200, {"item": b"other"})
    assert ask(batcher, b"last") == Reply(200, {"item": b"last"})


def _waiting_in(batcher: ThreadBatcher, item: bytes, deadline_s: float) -> _Thread:
    waiting = _Thread(Call(END, item), deadline_s)
    batcher._waiting.append(waiting)
    return waiting


def test_calls_wait_while_many_are_under_way(
    sending: Sending, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though another request would be free: with many callers few requests of many calls cost the least."""
    monkeypatch.setattr(batcher_module, "PATIENCE_S", 20)
    batcher = make_batcher(sending, in_flight=2)
    sending.going_on.set()
    sender = _send_two(batcher)
    late = threads.submit(ask, batcher, b"late", 30)
    wait_for_waiting(batcher, 1)
    run_now(batcher._run(sender))
    assert late.result(20) == Reply(200, {"item": b"late"})
    assert sending.requests == [[b"0", b"1"], [b"late"]]


def test_slow_request_holds_nobody_up_while_another_is_free(sending: Sending, threads: ThreadPoolExecutor) -> None:
    """Nobody waits longer for it than for what an idle bridge answers."""
    batcher = make_batcher(sending, in_flight=2)
    sending.going_on.set()
    _send_two(batcher)
    assert ask(batcher, b"late") == Reply(200, {"item": b"late"})


def _send_two(batcher: ThreadBatcher) -> _Thread:
    """In one request, which is under way until its sender runs it."""
    sender, _ = _waiting_in(batcher, b"0", 1e9), _waiting_in(batcher, b"1", 20)
    with batcher._lock:
        batcher._pass_on()
    return sender


@pytest.mark.parametrize(("patience_s", "sent_beside"), [(20.0, False), (0.01, True)], ids=["patient", "slow request"])
async def test_tasks_wait_while_many_are_under_way(
    patience_s: float, *, sent_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As threads do: for a request of many calls, but not for one that is slow."""
    monkeypatch.setattr(batcher_module, "PATIENCE_S", patience_s)
    requests: list[list[bytes]] = []
    going_on = asyncio.Event()

    async def send(calls: Sequence[Call], _: float) -> Sequence[CallResult]:
        requests.append([call.item for call in calls])
        if b"late" not in requests[-1]:
            await going_on.wait()
        return [Reply(200, {"item": call.item}) for call in calls]

    batcher = LoopBatcher(send, BatcherLimits(in_flight=2, items=3, batch_bytes=1_000, waiting=100))
    first = [asyncio.create_task(batcher.ask(Call(END, item), 20)) for item in (b"0", b"1")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    late = asyncio.create_task(batcher.ask(Call(END, b"late"), 20))
    await asyncio.wait([late], timeout=20 if sent_beside else 0.05)
    assert late.done() is sent_beside
    going_on.set()
    assert await late == Reply(200, {"item": b"late"})
    assert await asyncio.gather(*first) == [Reply(200, {"item": item}) for item in (b"0", b"1")]
    assert requests == [[b"0", b"1"], [b"late"]]
    await batcher.close()


def test_time_that_is_over_is_told(sending: Sending, threads: ThreadPoolExecutor) -> None:
    """Whether the call was sent makes the difference between "not" and "not known"."""
    batcher = make_batcher(sending)
    threads.submit(ask, batcher, b"first")
    wait_until(lambda: bool(sending.requests), name="the first request")
    assert ask(batcher, b"second", timeout_s=0.01) == NoReply("no answer within 0.0 s", is_sent=False)
    assert not batcher._waiting


def test_waiting_calls_have_a_limit_and_an_end(sending: Sending, threads: ThreadPoolExecutor) -> None:
    """Nothing grows without limit; `close` answers those that wait."""
    batcher = make_batcher(sending, waiting=1)
    threads.submit(ask, batcher, b"first")
    wait_until(lambda: bool(sending.requests), name="the first request")
    second = threads.submit(ask, batcher, b"second")
    wait_for_waiting(batcher, 1)
    assert ask(batcher, b"third") == NoReply("1 calls are waiting", is_sent=False)
    run_now(batcher.close())
    closed = NoReply("closed before it was sent", is_sent=False)
    assert (second.result(20), ask(batcher, b"fourth")) == (closed, closed)
