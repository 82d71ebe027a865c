"""What is said of first tries, and what becomes of one that arrives after its repeat."""

import asyncio
from typing import Any

from outbox import BridgeConfig, HttpConfig, Message, TransactionState
from tests.support.faulty_front import Front, let_through, lose_answer, lose_request
from tests.support.sdk_twins import MakeTwin
from tests.support.socket_bridge import SocketBridge

HASTY = BridgeConfig(call_timeout_s=8.0, block_timeout_s=10.0, close_timeout_s=1.0, http=HttpConfig(slack_s=0.3))


def told_times(front: Front) -> list[int | None]:
    """What each prepare and publish said of itself."""
    calls = [asked for asked in front.asked if not asked.path.startswith("/v1/resolutions")]
    told = [{name.lower(): value for name, value in asked.headers.items()} for asked in calls]
    return [int(headers["outbox-first-try"]) if "outbox-first-try" in headers else None for headers in told]


async def test_only_keys_made_for_a_call_are_called_new(front: Front, make_twin: MakeTwin, group: str) -> None:
    """Not the caller's own: another process may have used them. Time is known from the first answer on."""
    twin = make_twin(front.url, group)
    for verb in ("prepare", "publish", "prepare"):
        await twin.do(verb, Message("orders", value=group))
        await twin.do(verb, Message("orders", value=group), idempotency_key=f"{group}-{verb}")
    first, own, second, *others = told_times(front)
    assert (first, own) == (0, None)
    assert second is not None
    assert second > 1_600_000_000_000
    assert [time is None for time in others] == [True, False, True]


async def test_repeats_are_not_called_new(front: Front, make_twin: MakeTwin, group: str) -> None:
    """Whatever became of the first try."""
    twin = make_twin(front.url, group, config=HASTY)
    front.spoil(lose_answer, lose_request)
    await twin.do("prepare", Message("orders", value=group))
    front.spoil(lose_request, lose_answer)
    await twin.do("publish", Message("orders", value=group))
    assert [time is None for time in told_times(front)] == [False, True, True] * 2


async def test_time_of_a_clock_that_was_set_back_is_forgotten(front: Front, make_twin: MakeTwin, group: str) -> None:
    """The last time that was told counts: what is dated ahead is looked up, for as long as the process lives."""

    def tell_an_hour_ahead(exchange: Any) -> None:
        answer = exchange.forward()
        told = int(answer.headers["outbox-kafka-time"]) + 3_600_000
        exchange.answer(answer.status_code, answer.content, {**answer.headers, "outbox-kafka-time": str(told)})

    twin = make_twin(front.url, group)
    front.spoil(tell_an_hour_ahead)
    for _ in range(3):
        await twin.do("prepare", Message("orders", value=group))
    _, ahead, third = told_times(front)
    assert ahead is not None
    assert third is not None
    assert 3_500_000 < ahead - third < 3_700_000


async def test_first_try_may_arrive_after_its_repeat(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str
) -> None:
    """Whose transaction has ended by then: nothing is published twice, nothing is open again."""
    late: list[Any] = []

    def hold(exchange: Any) -> None:
        late.append(exchange)
        exchange.gone.wait(0.6)
        exchange.cut()

    twin = make_twin(front.url, group, config=HASTY)
    await twin.do("prepare", Message("orders", value="before"), idempotency_key=f"{group}-other")
    for verb in ("block", "publish"):
        front.spoil(hold, let_through)
        if verb == "block":
            block = await twin.block(twin.session(), lambda transaction: transaction.send("orders", value=group))
            assert block.result.state is TransactionState.COMMITTED
        else:
            view = await twin.do(verb, Message("orders", value=group))
            assert view.state is TransactionState.COMMITTED
    for exchange in late:
        await asyncio.to_thread(exchange.forward)
    await twin.do("publish", Message("orders", value="after"))
    assert len(late) == 2
    assert sorted(bridge.states_of(group)) == ["COMMITTED"] * 3 + ["PREPARED"]
    assert bridge.read_values("orders").count(group.encode()) == 2
