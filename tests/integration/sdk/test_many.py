"""Threads and tasks in numbers: their calls share requests, connections and the end."""

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outbox import (
    AsyncBridge,
    Bridge,
    BridgeConfig,
    Closed,
    HttpConfig,
    LocalTransactionState,
    Message,
    OutcomeUnknown,
    TransactionState,
    Unavailable,
)
from outbox.client import caller
from tests.support.bridge_process import wait_until
from tests.support.faulty_front import (
    Front,
    let_through,
    lose_answer,
    lose_request,
    reply,
    reply_problem,
    shorten_answer,
    truncate_answer,
)
from tests.support.sdk_twins import MakeTwin
from tests.support.socket_bridge import SocketBridge

FAULTS = [
    lose_answer,
    lose_request,
    truncate_answer,
    shorten_answer,
    reply(502, b"<html>"),
    reply_problem(503, "unavailable", "not_applied", retry_after=0),
    reply_problem(504, "outcome-unknown", "unknown"),
]


def values_of(bridge: SocketBridge, group: str) -> Counter[str]:
    """Values of a group's messages and how often each is there."""
    texts = [value.decode() for value in bridge.read_values("orders") if value is not None]
    return Counter(text for text in texts if text.startswith(f"{group}/"))


async def test_tasks_travel_together(bridge: SocketBridge, front: Front, group: str) -> None:
    """All that is asked at one moment is one request, without waiting for more."""
    async with AsyncBridge(front.url, group) as face:
        views = await asyncio.gather(*[face.publish(Message("orders", value=f"{group}/{n}")) for n in range(200)])
    assert front.paths() == ["/v1/messages/batch"]
    assert len({view.transaction_id for view in views}) == 200
    assert values_of(bridge, group) == {f"{group}/{n}": 1 for n in range(200)}


async def test_requests_in_flight_gather_the_next(front: Front, group: str) -> None:
    """While as many are on their way as may be, calls wait, and travel together in the next."""
    arrived, going_on = threading.Event(), threading.Event()

    def hold(exchange: Any) -> None:
        arrived.set()
        assert going_on.wait(10)
        let_through(exchange)

    front.spoil(hold)
    async with AsyncBridge(front.url, group, config=BridgeConfig(max_in_flight=1)) as face:
        first = asyncio.create_task(face.publish(Message("orders")))
        await asyncio.to_thread(arrived.wait, 10)
        others = []
        for _ in range(50):
            others.append(asyncio.create_task(face.publish(Message("orders"))))
            for _ in range(5):  # turns of the loop
                await asyncio.sleep(0)
        going_on.set()
        await asyncio.gather(first, *others)
    assert front.paths() == ["/v1/messages", "/v1/messages/batch"]


async def test_batches_keep_their_bounds(front: Front, group: str) -> None:
    """Neither more items nor more bytes than are set, unless one alone has more."""
    config = BridgeConfig(max_batch_items=10, max_batch_bytes=5_000)
    async with AsyncBridge(front.url, group, config=config) as face:
        await asyncio.gather(*[face.publish(Message("orders", value="v" * size)) for size in [10] * 25 + [4_000] * 4])
    sizes = [(asked.body.count(b'"producer_group"'), len(asked.body)) for asked in front.asked]
    assert sum(items for items, _ in sizes) == 29
    assert max(items for items, _ in sizes) == 10
    assert max(size for items, size in sizes if items > 1) < 5_100


def test_threads_share_requests(bridge: SocketBridge, front: Front, group: str) -> None:
    """Far fewer requests than calls, and every thread hears of its own transaction."""

    def send(number: int) -> tuple[int, bytes | None]:
        view = face.publish(Message("orders", key=str(number), value=f"{group}/{number}"))
        shown = face.get(view.transaction_id, with_messages=True)
        return number, shown.messages[0].value

    with Bridge(front.url, group) as face, ThreadPoolExecutor(48) as threads:
        answers = list(threads.map(send, range(300)))
    assert answers == [(n, f"{group}/{n}".encode()) for n in range(300)]
    assert values_of(bridge, group) == {f"{group}/{n}": 1 for n in range(300)}
    assert len([path for path in front.paths() if path.startswith("/v1/messages")]) < 200


async def test_every_call_through_a_storm_of_faults_is_applied_once(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of all requests go wrong somehow; no message is lost, none is there twice.

    By chance that looks like a bridge that is away: calls would fail at once, which is not what is asked here.
    """
    monkeypatch.setattr(caller, "FAILURES", 1_000_000)
    chances = random.Random(group)

    def spoil(exchange: Any) -> None:
        (chances.choice(FAULTS) if chances.random() < 0.5 else let_through)(exchange)

    config = BridgeConfig(call_timeout_s=40.0, block_timeout_s=40.0, max_batch_items=7, http=HttpConfig(slack_s=2.0))
    twin = make_twin(front.url, group, config=config, execute=lambda *_: LocalTransactionState.COMMIT_MESSAGE)
    front.fault = spoil
    results = await asyncio.gather(
        *[twin.do("send_message_in_transaction", Message("orders", value=f"{group}/{n}")) for n in range(60)],
        *[twin.do("publish", Message("orders", value=f"{group}/{n}")) for n in range(60, 90)],
    )
    assert {result.state for result in results} == {TransactionState.COMMITTED}
    assert values_of(bridge, group) == {f"{group}/{n}": 1 for n in range(90)}
    assert Counter(bridge.states_of(group)) == {"COMMITTED": 90}


async def test_close_waits_for_what_is_under_way(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str
) -> None:
    """A transaction that has begun is ended; only then are the connections closed."""
    running, going_on = threading.Event(), threading.Event()

    def hold_prepare(exchange: Any) -> None:
        running.set()
        assert going_on.wait(10)
        let_through(exchange)

    twin = make_twin(front.url, group)
    front.spoil(hold_prepare)
    session = twin.session()
    block = asyncio.create_task(twin.block(session, lambda t: t.send("orders", value=f"{group}/0")))
    await asyncio.to_thread(running.wait, 10)
    closing = asyncio.create_task(twin.do("close"))
    await asyncio.to_thread(wait_until, lambda: twin.face._link.lifetime.is_closing)
    with pytest.raises(Closed):
        await twin.do("publish", Message("orders", value=f"{group}/1"))
    going_on.set()
    assert (await block).result.state is TransactionState.COMMITTED
    await closing
    assert values_of(bridge, group) == {f"{group}/0": 1}


async def test_close_cuts_off_what_takes_too_long(front: Front, make_twin: MakeTwin, group: str) -> None:
    """Its caller hears that the outcome is unknown, at once."""
    running = threading.Event()

    def hold(exchange: Any) -> None:
        running.set()
        exchange.gone.wait()

    front.fault = hold
    twin = make_twin(front.url, group, config=BridgeConfig(call_timeout_s=60.0, close_timeout_s=0.1))
    call = asyncio.create_task(twin.do("publish", Message("orders", value="v")))
    await asyncio.to_thread(running.wait, 10)
    await twin.do("close")
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(call, 10)


async def test_cancelled_task_leaves_the_others_their_answers(bridge: SocketBridge, group: str) -> None:
    """It was in one request with them."""
    async with AsyncBridge(bridge.url, group) as face:
        tasks = [asyncio.create_task(face.publish(Message("orders", value=f"{group}/{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [3]
    assert isinstance(answers[3], asyncio.CancelledError)


async def test_too_many_waiting_calls_are_refused_at_once(front: Front, group: str) -> None:
    """Nothing grows without limit; what found no place was certainly not sent."""
    config = BridgeConfig(call_timeout_s=1.0, max_waiting=5, max_in_flight=1, max_batch_items=1)
    front.fault = lambda exchange: exchange.gone.wait() and None
    async with AsyncBridge(front.url, group, config=config) as face:
        answers = await asyncio.gather(*[face.publish(Message("orders")) for _ in range(30)], return_exceptions=True)
    kinds = Counter(type(answer) for answer in answers)
    assert kinds[Unavailable] >= 24
    assert set(kinds) == {Unavailable, OutcomeUnknown}


def test_one_slow_queue_does_not_hold_up_the_rest(front: Front, group: str) -> None:
    """An end that was not settled in time is asked for again apart from the others' first tries."""
    repeated, going_on = threading.Event(), threading.Event()

    def hold_repeat(exchange: Any) -> None:
        repeated.set()
        assert going_on.wait(20)
        let_through(exchange)

    config = BridgeConfig(call_timeout_s=15.0, max_in_flight=1, http=HttpConfig(slack_s=60.0))
    with Bridge(front.url, group, config=config) as face, ThreadPoolExecutor(1) as threads:
        slow, fast = face.prepare(Message("orders", value="a")), face.prepare(Message("orders", value="b"))
        front.spoil(reply_problem(504, "outcome-unknown", "unknown"), hold_repeat)
        waiting = threads.submit(face.commit, slow.transaction_id)
        assert repeated.wait(10)
        assert face.commit(fast.transaction_id).state is TransactionState.COMMITTED
        going_on.set()
        assert waiting.result(20).state is TransactionState.COMMITTED
