"""A bridge that is away: refusing, in a black hole, hanging up, frozen. It must not take its users down with it."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from outbox import (
    Bridge,
    BridgeConfig,
    Check,
    HttpConfig,
    LocalTransactionState,
    Message,
    Misuse,
    NotPrepared,
    OutcomeUnknown,
    Resolution,
    TransactionState,
    Unavailable,
)
from outbox.client.caller import FAILURES, SPAN_S, breaker_of
from outbox.client.checks import Tell
from outbox.client.errors import Outcome
from outbox.tables import make_record_table
from outbox.testing.bridge import MemoryOutboxBridge
from outbox.testing.process import BridgeProcess
from tests.support.away import black_holed, frozen, hanging_up, refusing
from tests.support.sdk_twins import MakeTwin, Twin
from tests.support.sdk_twins import Session as Local

HURRY = BridgeConfig(
    call_timeout_s=1.0, block_timeout_s=1.0, close_timeout_s=0.5, http=HttpConfig(connect_timeout_s=0.3, slack_s=0.3)
)

# where the bridge is there for the first call, also on a busy machine
PATIENT = BridgeConfig(call_timeout_s=5.0, block_timeout_s=5.0, close_timeout_s=0.5, http=HttpConfig(slack_s=3.0))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge that can be frozen."""
    with BridgeProcess("memory", tmp_path_factory.mktemp("frozen")) as running:
        yield running


@pytest.fixture
def own(process: BridgeProcess) -> Iterator[MemoryOutboxBridge]:
    """A bridge of the test's own, with the topic `orders`."""
    bridge = MemoryOutboxBridge(process)
    bridge.open()
    bridge.create_topic("orders")
    yield bridge
    bridge.close()


@pytest.fixture(params=["refusing", "black-holed", "hanging up", "frozen"])
def away(request: pytest.FixtureRequest, own: MemoryOutboxBridge, process: BridgeProcess) -> Iterator[str]:
    """The address of a bridge that is away. Ends with an answer of the bridge that was frozen."""
    with ExitStack() as stack:
        match request.param:
            case "refusing":
                yield stack.enter_context(refusing())
            case "black-holed":
                yield stack.enter_context(black_holed())
            case "hanging up":
                yield stack.enter_context(hanging_up()).url
            case _:
                stack.enter_context(frozen(process._popen.pid))
                yield own.url


def send(transaction: Any) -> None:
    transaction.send("orders", key="1", value="v")


async def fail_until_open(twin: Twin, url: str) -> list[Exception]:
    """Blocks until the bridge is taken to be away; what they raised."""
    raised: list[Exception] = []
    while not breaker_of(url).is_open:
        with pytest.raises((Unavailable, NotPrepared)) as failed:
            await twin.block(twin.session(), send)
        raised.append(failed.value)
        assert len(raised) <= FAILURES + 1
    return raised


def hold_open(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """From now on no call may find out that the bridge is back, however slow this machine is."""
    monkeypatch.setattr(breaker_of(url), "_now", lambda: 0.0)


async def test_block_commits_nothing_and_says_why(make_twin: MakeTwin, group: str, away: str) -> None:
    """What may have been sent is not called refused; the address, the reason and the time are named."""
    twin = make_twin(away, group, config=HURRY)
    session = twin.session()
    with pytest.raises((Unavailable, NotPrepared)) as failed:
        await twin.block(session, send)
    error = failed.value
    assert session.called == ["rollback"]
    assert error.outcome is Outcome.NOT_APPLIED
    assert error.retry_helps
    assert away in str(error)
    assert " s)" in str(error)
    if isinstance(error, NotPrepared):
        assert isinstance(error.__cause__, OutcomeUnknown)
    causes = [error, error.__cause__, getattr(error.__cause__, "__cause__", None)]
    assert any(isinstance(cause, OSError) or "Broken" in type(cause).__name__ for cause in causes)


async def test_kind_of_error_says_whether_it_was_sent(own: MemoryOutboxBridge, process: BridgeProcess) -> None:
    """Unknown only where a frozen bridge may still read it."""
    with refusing() as url, pytest.raises(Unavailable, match="connection refused"):
        Bridge(url, "shop", config=HURRY).publish(Message("orders", value="v"))
    with black_holed() as url, pytest.raises(Unavailable, match="no connection in time"):
        Bridge(url, "shop", config=HURRY).publish(Message("orders", value="v"))
    patient = BridgeConfig(call_timeout_s=4.0, http=HttpConfig(connect_timeout_s=4.0))  # names may take their time
    with pytest.raises(Unavailable, match="unknown host"):
        Bridge("http://bridge.invalid", "shop", config=patient).publish(Message("orders", value="v"))
    with frozen(process._popen.pid), pytest.raises(OutcomeUnknown, match="no answer within"):
        Bridge(own.url, "shop", config=HURRY).publish(Message("orders", value="v"))


async def test_after_some_failures_nothing_is_sent(
    make_twin: MakeTwin, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any face of this process to that address; whoever hears of it hears that nothing was applied."""
    with hanging_up() as door:
        twin, other = make_twin(door.url, group, config=HURRY), make_twin(door.url + "/", group, config=HURRY)
        await fail_until_open(twin, door.url)
        hold_open(monkeypatch, door.url)
        before = door.calls
        for face in (twin, other):
            with pytest.raises(Unavailable, match=r"taken to be away: \d+ tries in a row failed") as failed:
                await face.block(face.session(), send)
            assert failed.value.outcome is Outcome.NOT_APPLIED
            assert failed.value.__cause__ is not None
        assert door.calls == before


async def test_one_call_finds_out_that_it_is_back(
    make_twin: MakeTwin, group: str, own: MemoryOutboxBridge, process: BridgeProcess
) -> None:
    """Without a restart, and without a word from anybody."""
    twin = make_twin(own.url, group, config=HURRY)
    with frozen(process._popen.pid):
        await fail_until_open(twin, own.url)
    block = None
    deadline = time.monotonic() + 20
    while block is None:
        assert time.monotonic() < deadline
        try:
            block = await twin.block(twin.session(), send)
        except (Unavailable, NotPrepared):
            await asyncio.sleep(0.05)
    assert block.result.state is TransactionState.COMMITTED
    assert not breaker_of(own.url).is_open


@pytest.mark.parametrize("is_open", [False, True])
async def test_commit_that_is_not_acknowledged_is_left_to_the_back_check(
    make_twin: MakeTwin,
    group: str,
    own: MemoryOutboxBridge,
    process: BridgeProcess,
    caplog: pytest.LogCaptureFixture,
    is_open: bool,
) -> None:
    """The rows stay, nothing is raised, and the log says who publishes: also where nothing is sent any more."""
    twin = make_twin(own.url, group, config=PATIENT)
    session = twin.session()
    note = session._note
    with ExitStack() as stack:

        def note_and_freeze(name: str) -> None:
            note(name)
            if name == "commit":
                stack.enter_context(frozen(process._popen.pid))
                if is_open:
                    take_for_away(own.url)
                    hold_open(stack.enter_context(pytest.MonkeyPatch.context()), own.url)

        session._note = note_and_freeze  # type: ignore[method-assign]
        block = await twin.block(session, send)
    assert [call.split()[0] for call in session.called] == ["write", "flush", "commit"]
    result = block.result
    assert (result.local_transaction_state, result.is_settled) == (LocalTransactionState.COMMIT_MESSAGE, False)
    (told,) = [text for text in caplog.messages if "not acknowledged" in text]
    assert result.transaction_id in told
    assert "the back-check resolves it" in told
    if is_open:
        assert "taken to be away" in told
        breaker_of(own.url).note_answer()  # somebody has found out that it is back
        assert own.published("orders") == []
        own.answer_checks(group, commit_all)
        (checked,) = own.run_checks(group)
        assert checked.resolved_by == "check"
    assert len(own.published("orders", at_least=1)) == 1


def take_for_away(url: str) -> None:
    """What others of this process have found out."""
    began_s = time.monotonic()
    time.sleep(SPAN_S)
    for _ in range(FAILURES):
        breaker_of(url).note_failure(began_s, "no answer within 1.0 s")


def commit_all(checks: Sequence[Check], tell: Tell) -> None:
    for check in checks:
        tell(check, Resolution.COMMIT)


async def test_early_prepare_comes_before_the_rows(make_twin: MakeTwin, group: str, own: MemoryOutboxBridge) -> None:
    """And is published like any other."""
    twin = make_twin(own.url, group, config=PATIENT)
    session = twin.session()

    def body(transaction: Any) -> Any:
        send(transaction)
        own_time = transaction.prepare_early()
        session.called.append("rows")
        return own_time

    block = await twin.block(session, body)
    assert block.result.state is TransactionState.COMMITTED
    assert len(own.published("orders")) == 1


async def test_early_prepare_is_withdrawn_by_an_exception(
    make_twin: MakeTwin, group: str, own: MemoryOutboxBridge
) -> None:
    """Nobody need ask what became of it."""
    twin = make_twin(own.url, group, config=PATIENT)
    session = twin.session(write=ValueError("no such customer"))
    with pytest.raises(ValueError, match="no such customer"):
        await twin.block(session, prepare)
    assert session.called[-1] == "rollback"
    assert own.pending(group) == []
    assert own.published("orders") == []


def prepare(transaction: Any) -> Any:
    send(transaction)
    return transaction.prepare_early()


@pytest.mark.parametrize(
    ("words", "error"),
    [(["early"], "nothing has"), (["send", "early", "early"], "already"), (["send", "early", "send"], "before")],
)
def test_early_prepare_is_the_last_word(group: str, own: MemoryOutboxBridge, words: list[str], error: str) -> None:
    """What was stored is what is published."""
    session: Any = Local()

    def block(bridge: Bridge) -> None:
        with bridge.transaction(session) as transaction:
            for word in words:
                transaction.prepare_early() if word == "early" else send(transaction)

    with Bridge(own.url, group, record=session) as bridge, pytest.raises(Misuse, match=error):
        block(bridge)
    assert session.called == ["rollback"]
    assert own.pending(group) == []


@pytest.mark.parametrize("name", ["ordering_key", "idempotency_key"])
def test_key_that_comes_after_an_early_prepare_is_refused(group: str, own: MemoryOutboxBridge, name: str) -> None:
    """It would be left out silently, and with it the order, or what keeps two runs apart."""
    session: Any = Local()

    def block(bridge: Bridge) -> None:
        with bridge.transaction(session) as transaction:
            send(transaction)
            transaction.prepare_early()
            setattr(transaction, name, "k")

    with Bridge(own.url, group, record=session) as bridge, pytest.raises(Misuse, match="keys are set before"):
        block(bridge)
    assert session.called == ["rollback"]
    assert own.pending(group) == []


def test_requests_that_prepare_early_leave_the_pool_alone(tmp_path: Path, away: str) -> None:
    """None of thirty at once takes one of fifteen connections while it waits for a bridge that is away."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}", poolclass=QueuePool, pool_size=15, max_overflow=0)
    metadata = sa.MetaData()
    make_record_table(metadata)
    metadata.create_all(engine)
    taken: list[object] = []
    sa.event.listen(engine, "checkout", lambda *_: taken.append(1))

    def request(bridge: Bridge) -> None:
        with Session(engine) as session, bridge.transaction(session) as transaction:
            send(transaction)
            transaction.prepare_early()
            session.execute(sa.select(1))

    with Bridge(away, "shop", config=HURRY) as bridge, ThreadPoolExecutor(30) as pool:
        asked = [pool.submit(request, bridge) for _ in range(30)]
        assert {type(one.exception()) for one in asked} <= {Unavailable, NotPrepared}
    assert taken == []
    engine.dispose()
