"""What both faces make of lost, late, cut and foreign answers, with a whole bridge behind them."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from outbox import (
    AlreadyEnded,
    BridgeConfig,
    Contradicted,
    GivenUp,
    HttpConfig,
    LocalTransactionState,
    Message,
    NotPrepared,
    OutcomeUnknown,
    TransactionState,
    Unavailable,
)
from tests.support.faulty_front import (
    Fault,
    Front,
    hold_answer,
    let_through,
    lose_answer,
    lose_request,
    reply,
    reply_problem,
    shorten_answer,
    trickle_answer,
    truncate_answer,
)
from tests.support.sdk_twins import MakeTwin
from tests.support.socket_bridge import SocketBridge

HTML = {"Content-Type": "text/html"}
PAGE = b"<html><h1>Bad Gateway</h1></html>"
SHORT = BridgeConfig(call_timeout_s=1.0, block_timeout_s=1.0, close_timeout_s=1.0, http=HttpConfig(slack_s=0.5))
PATIENT = BridgeConfig(call_timeout_s=8.0, block_timeout_s=10.0, close_timeout_s=1.0, http=HttpConfig(slack_s=0.3))

PASSING = {
    "lost answer": lose_answer,
    "lost request": lose_request,
    "answer cut off": truncate_answer,
    "answer too short": shorten_answer,
    "answer held": hold_answer,
    "answer trickles": trickle_answer,
    "page of a gateway": reply(502, PAGE, HTML),
    "not found by a proxy": reply(404, PAGE, HTML),
    "success of a proxy": reply(200, PAGE, HTML),
    "another service": reply(200, b'{"ok":true}'),
    "problem of a stranger": reply(422, b'{"type":"about:blank","title":"No","status":422}'),
    "redirect": reply(307, b"", {"Location": "http://127.0.0.1:9/"}),
    "overload": reply_problem(503, "unavailable", "not_applied", retry_after=0),
    "rate": reply_problem(429, "rate-limited", "not_applied", retry_after=0),
    "not settled": reply_problem(504, "outcome-unknown", "unknown"),
    "bug": reply_problem(500, "internal", "unknown"),
}
FOREIGN = ["page of a gateway", "not found by a proxy", "success of a proxy", "problem of a stranger", "redirect"]


def spoken(front: Front, path: str) -> list[Any]:
    """Bodies that were sent to a path, read."""
    return [json.loads(asked.body) for asked in front.asked if asked.path == path]


def count(bridge: SocketBridge, group: str) -> dict[str, int]:
    """Transactions of a group by state, as the bridge has them."""
    return dict(Counter(bridge.states_of(group)))


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_passing_fault_at_prepare_makes_one_transaction(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str, fault: Fault
) -> None:
    """The repeat names the same transaction, for the key is the same; the local transaction runs once."""
    ran: list[str] = []

    def execute(half: Any, _: object) -> LocalTransactionState:
        ran.append(half.transaction_id)
        return LocalTransactionState.COMMIT_MESSAGE

    twin = make_twin(front.url, group, execute=execute, config=PATIENT)
    front.spoil(fault)
    result = await twin.do("send_message_in_transaction", Message("orders", value=group))
    assert ran == [result.transaction_id]
    assert count(bridge, group) == {"COMMITTED": 1}
    keys = [body["idempotency_key"] for body in spoken(front, "/v1/transactions")]
    keys += [body["transactions"][0]["idempotency_key"] for body in spoken(front, "/v1/transactions/batch")]
    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_passing_fault_at_the_end_is_repeated(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str, fault: Fault
) -> None:
    """The recorded state is told in the end; the message is there once."""
    twin = make_twin(front.url, group, config=PATIENT)
    front.spoil(let_through, fault)
    block = await twin.block(twin.session(), lambda transaction: transaction.send("orders", value=group))
    assert (block.result.is_settled, block.result.state) == (True, TransactionState.COMMITTED)
    assert bridge.read_values("orders").count(group.encode()) == 1
    assert len(spoken(front, "/v1/resolutions")) == 2


@pytest.mark.parametrize("fault", [lose_answer, hold_answer, shorten_answer], ids=["lost", "held", "short"])
async def test_publish_whose_answer_is_lost_is_there_once(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str, fault: Fault
) -> None:
    """The bridge did it; its repeat is known as one."""
    twin = make_twin(front.url, group, config=PATIENT)
    front.spoil(fault)
    view = await twin.do("publish", Message("orders", value=group))
    assert view.state is TransactionState.COMMITTED
    assert bridge.read_values("orders").count(group.encode()) == 1


@pytest.mark.parametrize("name", FOREIGN)
async def test_foreign_answer_is_no_refusal(front: Front, make_twin: MakeTwin, group: str, name: str) -> None:
    """Who it was that answered cannot know what the bridge did."""
    twin = make_twin(front.url, group, config=SHORT)
    front.fault = PASSING[name]
    with pytest.raises(OutcomeUnknown) as unknown:
        await twin.do("publish", Message("orders", value="v"))
    assert unknown.value.retry_helps
    assert "html" not in str(unknown.value)


@pytest.mark.parametrize("fault", [hold_answer, trickle_answer, lose_answer], ids=["held", "trickles", "lost"])
async def test_unknown_prepare_rolls_back_and_commits_nothing(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str, fault: Fault
) -> None:
    """The half message may be stored; without a local commit it is never published, so running again is safe."""
    twin = make_twin(front.url, group, config=SHORT)
    front.fault = fault
    session = twin.session()
    with pytest.raises(NotPrepared) as failed:
        await twin.block(session, lambda transaction: transaction.send("orders", value=group))
    assert failed.value.retry_helps
    assert session.called == ["rollback"]
    assert count(bridge, group) == {"PREPARED": 1}


async def test_unknown_prepare_runs_no_local_transaction(front: Front, make_twin: MakeTwin, group: str) -> None:
    """The listener of this face fails if it is called."""
    twin = make_twin(front.url, group, config=SHORT)
    front.fault = lose_answer
    with pytest.raises(NotPrepared):
        await twin.do("send_message_in_transaction", Message("orders", value="v"))


@pytest.mark.parametrize("fault", [hold_answer, lose_request], ids=["held", "lost"])
async def test_unknown_end_is_no_error(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """The local transaction stands, and the back-check will publish; nothing of the message gets into the log."""
    twin = make_twin(front.url, group, config=SHORT)
    session = twin.session()

    def body(transaction: Any) -> None:
        transaction.send("orders", key="the-key", value="the-value", headers={"h": "the-header"})

    front.spoil(let_through)
    front.fault = fault
    block = await twin.block(session, body)
    assert (block.result.is_settled, block.result.state) == (False, None)
    assert session.called[-1] == "commit"
    assert block.result.transaction_id in caplog.text
    assert not [word for word in ("the-key", "the-value", "the-header") if word in caplog.text]


async def test_unreachable_bridge_is_not_unknown(make_twin: MakeTwin, group: str) -> None:
    """No connection, so certainly nothing happened."""
    twin = make_twin("http://127.0.0.1:9", group, config=SHORT)
    session = twin.session()
    with pytest.raises(Unavailable) as away:
        await twin.block(session, lambda transaction: transaction.send("orders", value="v"))
    assert away.value.retry_helps
    assert session.called == ["rollback"]


async def test_overloaded_bridge_says_when(front: Front, make_twin: MakeTwin, group: str) -> None:
    """A wait beyond the deadline is not begun: the caller is told at once, with the time."""
    twin = make_twin(front.url, group, config=PATIENT)
    front.fault = reply_problem(503, "unavailable", "not_applied", retry_after=3_000)
    with pytest.raises(Unavailable) as away:
        await twin.do("publish", Message("orders", value="v"))
    assert away.value.retry_after_s == 3_000
    assert len(front.asked) == 1


async def test_refusal_after_a_lost_answer_is_unknown(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str
) -> None:
    """The first try was applied: that the repeat is refused must not be told as "nothing happened"."""
    twin = make_twin(front.url, group, config=PATIENT)
    front.spoil(lose_answer, reply_problem(422, "unknown-topic", "not_applied"))
    with pytest.raises(OutcomeUnknown):
        await twin.do("publish", Message("orders", value=group))
    assert bridge.read_values("orders").count(group.encode()) == 1


async def test_contradiction_after_the_local_commit_is_loud(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """An operator rolled it back meanwhile: committed here, never published there."""
    twin = make_twin(bridge.url, group, config=PATIENT)
    session = twin.session()
    note = session._note

    def force_first(name: str) -> None:
        if name == "commit" or name.startswith("write"):
            note(name)
        if name == "flush":
            for transaction in bridge.get_json(f"/v1/transactions?producer_group={group}")["transactions"]:
                bridge.post_json(
                    f"/v1/transactions/{transaction['transaction_id']}/force", {"resolution": "ROLLBACK", "reason": "x"}
                )

    session._note = force_first
    with pytest.raises(Contradicted) as contradicted:
        await twin.block(session, lambda transaction: transaction.send("orders", value=group))
    assert (contradicted.value.state, contradicted.value.outcome) == ("ROLLED_BACK", "partly")
    assert session.called[-1] == "commit"


async def test_log_given_up_after_the_local_commit_is_loud(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str
) -> None:
    """No back-check will find out what became of it, so the caller must; also after an answer that was lost."""
    twin = make_twin(front.url, group, config=PATIENT)
    front.spoil(let_through, lose_request, reply_problem(409, "given-up", state="PREPARED"))
    session = twin.session()
    with pytest.raises(GivenUp) as given_up:
        await twin.block(session, lambda transaction: transaction.send("orders", value=group))
    assert (given_up.value.outcome, given_up.value.retry_helps) == ("unknown", False)
    assert session.called[-1] == "commit"


async def test_prepare_without_a_key_is_not_repeated_blindly(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str
) -> None:
    """A second one would be a second half message."""
    config = BridgeConfig(call_timeout_s=5.0, are_prepares_keyed=False)
    twin = make_twin(front.url, group, config=config)
    front.spoil(lose_answer)
    with pytest.raises(NotPrepared):
        await twin.block(twin.session(), lambda transaction: transaction.send("orders", value="v"))
    assert count(bridge, group) == {"PREPARED": 1}
    front.spoil(reply_problem(503, "unavailable", "not_applied", retry_after=0))
    await twin.block(twin.session(), lambda transaction: transaction.send("orders", value="v"))
    assert count(bridge, group) == {"COMMITTED": 1, "PREPARED": 1}


async def test_prepare_that_was_checked_meanwhile_runs_nothing(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str
) -> None:
    """Its answer was lost, and before the repeat it was rolled back: running the block again makes a new one."""
    twin = make_twin(front.url, group, config=PATIENT)

    def end_and_lose(exchange: Any) -> None:
        told = exchange.forward().json()
        bridge.post_json(f"/v1/transactions/{told['transaction_id']}/rollback", {})
        exchange.cut()

    front.spoil(end_and_lose)
    session = twin.session()
    with pytest.raises(NotPrepared) as failed:
        await twin.block(session, lambda transaction: transaction.send("orders", value="v"))
    assert isinstance(failed.value.__cause__, AlreadyEnded)
    assert session.called == ["rollback"]


@pytest.mark.parametrize(
    "refusal",
    [reply_problem(413, "body-too-large", "not_applied"), reply(413, PAGE, HTML), reply(403, PAGE, HTML)],
    ids=["by the bridge", "by a proxy", "by a firewall"],
)
async def test_one_spoilt_request_does_not_refuse_its_neighbours(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str, refusal: Fault
) -> None:
    """A refusal of a whole batch says nothing of its items: each is asked alone."""
    twin = make_twin(front.url, group, config=PATIENT)
    front.fault = lambda exchange: (refusal if "batch" in exchange.asked.path else let_through)(exchange)
    values = [f"{group}-{n}" for n in range(8)]
    views = await asyncio.gather(*[twin.do("publish", Message("orders", value=value)) for value in values])
    assert {view.state for view in views} == {TransactionState.COMMITTED}
    found = [value.decode() for value in bridge.read_values("orders") if value is not None]
    assert sorted(text for text in found if text.startswith(f"{group}-")) == values


async def test_message_too_large_for_a_proxy_takes_no_bridge_away(
    bridge: SocketBridge, front: Front, make_twin: MakeTwin, group: str
) -> None:
    """It fails at once, and whoever sends what passes is not told that the bridge is away."""
    twin = make_twin(front.url, group, config=PATIENT)
    refuse = reply(413, PAGE, HTML)
    front.fault = lambda exchange: (refuse if len(exchange.asked.body) > 10_000 else let_through)(exchange)
    for n in range(4):
        with pytest.raises(OutcomeUnknown, match=r"client_max_body_size\) \(1 try, "):
            await twin.do("publish", Message("orders", value="x" * 20_000))
        view = await twin.do("publish", Message("orders", value=f"{group}-{n}"))
        assert view.state is TransactionState.COMMITTED
    assert len(front.asked) == 8
