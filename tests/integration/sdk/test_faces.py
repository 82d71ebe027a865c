"""What both faces promise, on a whole bridge with nothing in the way."""

from typing import Any

import pytest

from outbox import (
    AlreadyEnded,
    AlreadyResolved,
    Closed,
    InvalidMessage,
    KeyReused,
    LocalCommitUnknown,
    LocalTransactionState,
    Message,
    Misuse,
    NotFound,
    RequestRefused,
    TransactionState,
)
from tests.support.sdk_twins import MakeTwin, Session
from tests.support.socket_bridge import SocketBridge

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE


class IntegrityError(Exception):
    """As drivers name it."""


def published(bridge: SocketBridge, transaction_id: str) -> list[bytes | None]:
    """The values that consumers see of a transaction."""
    header = ("transaction-id", transaction_id.encode())
    return [m.value for m in bridge.read_messages("orders") if header in list(m.headers)]


async def test_local_transaction_runs_between_prepare_and_end(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """It sees the id under which the half message is stored, and its argument; then the messages are published."""
    seen: list[Any] = []

    def execute(half: Any, arg: object) -> LocalTransactionState:
        seen.append((half.transaction_id, half.key, arg, published(bridge, half.transaction_id)))
        return COMMIT

    twin = make_twin(bridge.url, group, execute=execute)
    result = await twin.do("send_message_in_transaction", Message("orders", key="k", value="v"), "argument")
    assert seen == [(result.transaction_id, b"k", "argument", [])]
    assert (result.is_settled, result.state) == (True, TransactionState.COMMITTED)
    assert [receipt.topic for receipt in result.receipts] == ["orders"]
    assert published(bridge, result.transaction_id) == [b"v"]


def remarks(bridge: SocketBridge, transaction_id: str) -> list[str]:
    """Those of the timeline."""
    events = bridge.get_json(f"/v1/transactions/{transaction_id}/timeline")["events"]
    return [event["remark"] for event in events if event.get("remark")]


async def test_remark_of_an_end_is_in_the_timeline(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """What the producer says, what a listener raised as with RocketMQ, and of a block no more than the class."""

    def fail(*_: object) -> LocalTransactionState:
        raise IntegrityError("no stock\x00 for 42")

    twin = make_twin(bridge.url, group, execute=fail)
    prepared = await twin.do("prepare", Message("orders", value="v"))
    await twin.do("rollback", prepared.transaction_id, remark="sold out")
    assert remarks(bridge, prepared.transaction_id) == ["sold out"]
    result = await twin.do("send_message_in_transaction", Message("orders", value="v"))
    assert remarks(bridge, result.transaction_id) == ["IntegrityError: no stock  for 42"]
    told: list[str] = []
    session = twin.session(write=IntegrityError("secret"))
    session.on_write = told.append
    with pytest.raises(IntegrityError):
        await twin.block(session, lambda transaction: transaction.send("orders", value="v"))
    assert remarks(bridge, told[0]) == ["IntegrityError"]


@pytest.mark.parametrize(
    ("returned", "local", "state"),
    [
        (ROLLBACK, ROLLBACK, TransactionState.ROLLED_BACK),
        (LocalTransactionState.UNKNOW, LocalTransactionState.UNKNOWN, TransactionState.PREPARED),
        (None, LocalTransactionState.UNKNOWN, TransactionState.PREPARED),
        (8, LocalTransactionState.UNKNOWN, TransactionState.PREPARED),
    ],
    ids=["rollback", "unknown", "none", "number"],
)
async def test_what_the_listener_returns_is_told(
    bridge: SocketBridge,
    make_twin: MakeTwin,
    group: str,
    returned: object,
    local: LocalTransactionState,
    state: TransactionState,
) -> None:
    """Only a LocalTransactionState counts; None and all else is UNKNOWN, which changes nothing."""
    twin = make_twin(bridge.url, group, execute=lambda *_: returned)
    result = await twin.do("send_message_in_transaction", Message("orders", value="v"))
    assert (result.local_transaction_state, result.state) == (local, state)
    assert (await twin.do("get", result.transaction_id)).state is state


async def test_exception_of_the_local_transaction_is_unknown(
    bridge: SocketBridge, make_twin: MakeTwin, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The call returns; the exception is in the result, and what it says does not get into the log."""

    def execute(*_: object) -> LocalTransactionState:
        raise ValueError("secret of the customer")

    twin = make_twin(bridge.url, group, execute=execute)
    result = await twin.do("send_message_in_transaction", Message("orders", value="v"))
    assert (result.local_transaction_state, result.is_settled) == (LocalTransactionState.UNKNOWN, False)
    assert str(result.error) == "secret of the customer"
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


async def test_refused_message_runs_no_local_transaction(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """The bridge's words arrive whole; the listener is not called."""
    twin = make_twin(bridge.url, group)
    with pytest.raises(RequestRefused) as refused:
        await twin.do("send_message_in_transaction", Message("no-such-topic"))
    problem = refused.value.problem
    assert (problem.code, problem.status, problem.errors[0][0]) == ("unknown-topic", 422, "/messages/0/topic")
    assert len(problem.request_id) > 10
    assert "no-such-topic" in problem.detail


async def test_block_commits_session_then_publishes(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """One half message for all that was sent, written beside the local transaction before its commit."""
    twin = make_twin(bridge.url, group)
    session = twin.session()

    def body(transaction: Any) -> None:
        transaction.send("orders", key="k", value={"order": 1})
        transaction.send("orders", key="k", value="two", headers={"source": "shop"})
        transaction.ordering_key = "k"

    block = await twin.block(session, body)
    assert session.called == [f"write {group} 28", "flush", "commit"]
    assert published(bridge, block.result.transaction_id) == [b'{"order":1}', b"two"]
    view = await twin.do("get", block.result.transaction_id, with_messages=True)
    assert (view.ordering_key, [message.value for message in view.messages]) == ("k", [b'{"order":1}', b"two"])


async def test_changes_after_send_are_not_published(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """A value is fixed when it is sent."""
    twin = make_twin(bridge.url, group)
    order = {"order": 1}

    def body(transaction: Any) -> None:
        transaction.send("orders", value=order)
        order["order"] = 2

    block = await twin.block(twin.session(), body)
    assert published(bridge, block.result.transaction_id) == [b'{"order":1}']


async def test_exception_in_the_block_rolls_back_and_prepares_nothing(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """The caller's own exception arrives; nothing was sent."""
    twin = make_twin(bridge.url, group)
    session = twin.session()

    def body(transaction: Any) -> None:
        transaction.send("orders", value="never")
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        await twin.block(session, body)
    assert session.called == ["rollback"]
    assert b"never" not in bridge.read_values("orders")


async def test_block_that_sends_nothing_only_commits(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """No half message, no record."""
    twin = make_twin(bridge.url, group)
    session = twin.session()
    block = await twin.block(session, lambda _: None)
    assert (session.called, block.result) == (["commit"], None)


@pytest.mark.parametrize("failing", ["write", "flush"])
async def test_failure_before_the_commit_rolls_both_back(
    bridge: SocketBridge, make_twin: MakeTwin, group: str, failing: str
) -> None:
    """Whatever was raised, no commit was sent: the half message is rolled back at once."""
    twin = make_twin(bridge.url, group)
    session = twin.session(**{failing: ConnectionError("lost")})
    with pytest.raises(ConnectionError):
        await twin.block(session, lambda transaction: transaction.send("orders", value="never", key=group))
    assert "commit" not in session.called
    assert session.called[-1] == "rollback"
    assert bridge.states_of(group) == [TransactionState.ROLLED_BACK]


async def test_session_that_cannot_be_rolled_back_is_left_to_the_back_check(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """Its caller might still commit it, against what the bridge was told."""
    twin = make_twin(bridge.url, group)
    session = twin.session(flush=IntegrityError("constraint"), rollback=ConnectionError("lost"))
    with pytest.raises(IntegrityError):
        await twin.block(session, lambda transaction: transaction.send("orders", value="never"))
    assert bridge.states_of(group) == [TransactionState.PREPARED]


async def test_commit_that_the_database_refused_rolls_back(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """A constraint that is checked at the commit."""
    twin = make_twin(bridge.url, group)
    session = twin.session(commit=IntegrityError("deferred"))
    with pytest.raises(IntegrityError):
        await twin.block(session, lambda transaction: transaction.send("orders", value="never", key=group))
    assert bridge.states_of(group) == [TransactionState.ROLLED_BACK]


async def test_commit_that_may_have_happened_is_left_to_the_back_check(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """A lost connection proves nothing: a rollback here could contradict the database."""
    twin = make_twin(bridge.url, group)
    session = twin.session(commit=ConnectionError("lost"))
    with pytest.raises(LocalCommitUnknown) as unknown:
        await twin.block(session, lambda transaction: transaction.send("orders", value="maybe", key=group))
    assert not unknown.value.retry_helps
    assert (await twin.do("get", unknown.value.transaction_id)).state is TransactionState.PREPARED
    assert session.called[-1] == "rollback"


async def test_key_of_the_caller_is_never_rolled_back(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """Another run under the same key may have committed: its record is what this write met."""
    twin = make_twin(bridge.url, group)
    session = twin.session(write=IntegrityError("record exists"))
    with pytest.raises(IntegrityError):
        await twin.block(
            session, lambda transaction: transaction.send("orders", value="v", key=group), idempotency_key="order-1"
        )
    assert bridge.states_of(group) == [TransactionState.PREPARED]


async def test_repeat_of_an_ended_block_commits_nothing(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """The same key and content once more: the first run counts, and this one says so."""
    twin = make_twin(bridge.url, group)

    def body(transaction: Any) -> None:
        transaction.idempotency_key = "order-7"
        transaction.send("orders", value="once", key=group)

    first = await twin.block(twin.session(), body)
    session = twin.session()
    with pytest.raises(AlreadyEnded) as ended:
        await twin.block(session, body)
    assert session.called == ["rollback"]
    assert (ended.value.transaction_id, ended.value.state) == (first.result.transaction_id, "COMMITTED")
    assert published(bridge, first.result.transaction_id) == [b"once"]


async def test_key_of_a_run_that_came_to_nothing_names_the_remedy(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """Rolled back by a check, say: a task that is retried under this key would be taken for done."""
    twin = make_twin(bridge.url, group)
    message = Message("orders", value="v", key=group)
    prepared = await twin.do("prepare", message, idempotency_key="task-1")
    await twin.do("rollback", prepared.transaction_id)
    with pytest.raises(AlreadyEnded, match="under another key"):
        await twin.block(twin.session(), lambda transaction: transaction.add(message), idempotency_key="task-1")
    again = await twin.block(twin.session(), lambda transaction: transaction.add(message), idempotency_key="task-1-2")
    assert again.result.state is TransactionState.COMMITTED


async def test_each_block_needs_a_transaction_of_its_own(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """What is sent behind the block, or in a second one, would be lost in silence."""
    twin = make_twin(bridge.url, group)
    block = await twin.block(twin.session(), lambda transaction: transaction.send("orders", value="v"))
    with pytest.raises(Misuse):
        block.send("orders", value="late")
    with pytest.raises(Misuse):
        block._enter()


async def test_plain_calls_prepare_and_end(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """And the first recorded resolution wins, which the second hears."""
    twin = make_twin(bridge.url, group)
    prepared = await twin.do("prepare", [Message("orders", value="a"), Message("orders", value="b")])
    assert published(bridge, prepared.transaction_id) == []
    rolled_back = await twin.do("rollback", prepared.transaction_id)
    assert (rolled_back.state, rolled_back.resolved_by) == (TransactionState.ROLLED_BACK, "producer")
    with pytest.raises(AlreadyResolved) as contradicted:
        await twin.do("commit", prepared.transaction_id)
    assert contradicted.value.problem.state == "ROLLED_BACK"


async def test_publish_with_a_key_is_one_transaction(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """However often it is called; other content under the key is refused."""
    twin = make_twin(bridge.url, group)
    message = Message("orders", value="once", key=group)
    first, second = [await twin.do("publish", message, idempotency_key="p-1") for _ in range(2)]
    assert first.transaction_id == second.transaction_id
    assert published(bridge, first.transaction_id) == [b"once"]
    with pytest.raises(KeyReused):
        await twin.do("publish", Message("orders", value="other", key=group), idempotency_key="p-1")


async def test_unknown_id_is_not_found(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """And what cannot be an id is not even asked for."""
    twin = make_twin(bridge.url, group)
    with pytest.raises(NotFound):
        await twin.do("get", "00" + "7" * 25 + "0")
    with pytest.raises(InvalidMessage):
        await twin.do("commit", "../../admin")


async def test_closed_face_says_so(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """Every use after close; a block is rolled back."""
    twin = make_twin(bridge.url, group)
    await twin.do("close")
    with pytest.raises(Closed):
        await twin.do("publish", Message("orders"))
    session: Session = twin.session()
    with pytest.raises(Closed):
        await twin.block(session, lambda transaction: transaction.send("orders", value="v"))
    assert session.called == ["rollback"]
