"""What a hurried programmer writes, and what is said about it: where it is written, before anything is stored."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import outbox
from outbox import AsyncBridge, Bridge, BridgeConfig, HttpConfig, Message
from outbox.check_handler import AsyncCheckHandler, CheckHandler
from outbox.enqueue import enqueue, enqueue_async
from outbox.tables import make_record_table
from outbox.transaction_record import AsyncTransactionRecord, TransactionRecord
from tests.support.socket_bridge import SocketBridge
from tests.support.source_tree import ROOT

SECRET = "whsec_" + "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXoxMjM0NTY="
RECORD_REMEDY = (
    "the database has no table outbox_transaction: make_record_table(Base.metadata) declares it for create_all and "
    "Alembic, `python -m outbox.ddl` shows its SQL"
)
OUTBOX_REMEDY = RECORD_REMEDY.replace("outbox_transaction", "outbox_message").replace("record_table", "outbox_table")


class Desk:
    """What a programmer has at hand: both faces, and databases with and without the record table."""

    def __init__(self, url: str, group: str, folder: Path) -> None:
        self.url = url
        self.group = group
        self.engine = sa.create_engine(f"sqlite:///{folder / 'shop.db'}")
        self.empty = sa.create_engine(f"sqlite:///{folder / 'empty.db'}")
        self.async_engine: AsyncEngine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'shop.db'}")
        metadata = sa.MetaData()
        make_record_table(metadata)
        metadata.create_all(self.engine)
        self.bridge = Bridge(url, group)
        self.async_bridge = AsyncBridge(url, group)

    def block(self, body: Callable[[Any], object], session: Any = None, **options: Any) -> None:
        with self.bridge.transaction(session or Session(self.engine), **options) as transaction:
            body(transaction)

    async def async_block(self, body: Callable[[Any], object], session: Any = None) -> None:
        async with self.async_bridge.transaction(session or AsyncSession(self.async_engine)) as transaction:
            body(transaction)

    async def close(self) -> None:
        self.bridge.close()
        await self.async_bridge.close()
        self.engine.dispose()
        self.empty.dispose()
        await self.async_engine.dispose()


@pytest_asyncio.fixture
async def desk(bridge: SocketBridge, group: str, tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(bridge.url, group, tmp_path)
    yield made
    await made.close()


def send(transaction: Any) -> None:
    transaction.send("orders", value="v")


def send_with(**given: Any) -> Callable[[Desk], object]:
    """One message in a block."""
    return lambda desk: desk.block(lambda transaction: transaction.send(**{"topic": "orders", "value": "v", **given}))


def again(transaction: Any) -> None:
    """Enters a block that is entered already."""
    with transaction:
        pass


def after_its_end(desk: Desk) -> None:
    with desk.bridge.transaction(Session(desk.engine)) as transaction:
        pass
    send(transaction)


def with_for_async(desk: Desk) -> None:
    with desk.async_bridge.transaction(AsyncSession(desk.async_engine)) as _:
        pass


async def async_with_for_blocking(desk: Desk) -> None:
    async with desk.bridge.transaction(Session(desk.engine)) as _:
        pass


def bridge_by_with(desk: Desk) -> None:
    with desk.async_bridge as _:
        pass


def after_close(desk: Desk) -> None:
    desk.bridge.close()
    desk.block(send)


async def in_another_loop(desk: Desk) -> None:
    await desk.async_bridge.publish(Message("orders", value="in this loop"))
    await asyncio.to_thread(asyncio.run, desk.async_bridge.publish(Message("orders", value="v")))


async def in_no_loop(desk: Desk) -> None:
    """Under trio there is none of asyncio's."""
    publishing = desk.async_bridge.publish(Message("orders", value="v"))
    await asyncio.to_thread(publishing.send, None)


async def in_a_block_of_no_loop(desk: Desk) -> None:
    """The end of the `async with` finds none either."""

    async def publish() -> None:
        async with AsyncBridge(desk.url, "shop") as bridge:
            await bridge.publish(Message("orders", value="v"))

    await asyncio.to_thread(publish().send, None)


def commit_inside(desk: Desk) -> None:
    session = Session(desk.engine)
    desk.block(lambda transaction: [send(transaction), session.commit()], session)


def roll_back_inside(desk: Desk) -> None:
    session = Session(desk.engine)
    session.execute(sa.select(1))
    desk.block(lambda transaction: [send(transaction), session.rollback()], session)


Use = Callable[[Desk], Any]
NOT_MESSAGES = "give a Message, or a list of them, not "
NO_FORM = (
    "has no form in JSON: give JSON's own types, datetime, date, time, UUID, Decimal, Enum, a dataclass or a Pydantic "
    "model, or an encoder"
)
OPTIONS = "ordering_key, idempotency_key, check_immunity_seconds, max_checks, max_lifetime_seconds"

USES: dict[str, tuple[Use, str, str]] = {
    # --- the bridge ---
    "address without http": (
        lambda desk: Bridge("127.0.0.1:8780", "shop"),
        "OutboxConfigError",
        "the bridge's address is http(s)://host[:port][/path]",
    ),
    "key in the address": (
        lambda desk: Bridge("http://me:obk_1@bridge:8780", "shop"),
        "OutboxConfigError",
        "a key belongs into HttpConfig.key or OUTBOX_BRIDGE_KEY, not into the address",
    ),
    "group with a space": (
        lambda desk: Bridge(desk.url, "my shop"),
        "OutboxConfigError",
        "a producer group's name has 1..120 characters of A-Z a-z 0-9 . _ -",
    ),
    "group and address exchanged": (
        lambda desk: Bridge("shop", desk.url),
        "OutboxConfigError",
        "a producer group's name has 1..120 characters of A-Z a-z 0-9 . _ -",
    ),
    "part of the settings": (
        lambda desk: Bridge(desk.url, "shop", config=HttpConfig()),  # type: ignore[arg-type]
        "OutboxConfigError",
        "config is a BridgeConfig, not HttpConfig",
    ),
    "time-out of nothing": (
        lambda desk: BridgeConfig(block_timeout_s=0),
        "OutboxConfigError",
        "block_timeout_s is a number of seconds from 0.001",
    ),
    "table as record": (
        lambda desk: Bridge(desk.url, "shop", record=make_record_table(sa.MetaData())),  # type: ignore[arg-type]
        "OutboxConfigError",
        "record is a TransactionRecord, or has a `write` like it, not Table",
    ),
    "encoder that is none": (
        lambda desk: BridgeConfig(encoder="json"),  # type: ignore[arg-type]
        "OutboxConfigError",
        "encoder is a function from a value to one that JSON has a form for",
    ),
    "closed": (after_close, "Closed", "used after close"),
    "two event loops": (in_another_loop, "Misuse", "in use in another event loop: make one for each"),
    "no event loop": (in_no_loop, "Misuse", "an AsyncBridge needs asyncio's event loop; a Bridge needs none"),
    "no event loop in a block": (
        in_a_block_of_no_loop,
        "Misuse",
        "an AsyncBridge needs asyncio's event loop; a Bridge needs none",
    ),
    "`with` for an AsyncBridge": (bridge_by_with, "Misuse", "AsyncBridge is entered by `async with`"),
    # --- the block ---
    "asyncio's session": (
        lambda desk: desk.block(send, AsyncSession(desk.async_engine)),
        "Misuse",
        "a session of asyncio needs an AsyncBridge",
    ),
    "blocking session": (
        lambda desk: desk.async_block(send, Session(desk.engine)),
        "Misuse",
        "an AsyncBridge needs a session of asyncio; Bridge takes others",
    ),
    "engine": (
        lambda desk: desk.block(send, desk.engine),
        "Misuse",
        "a block needs a session or a connection, not Engine",
    ),
    "session maker": (
        lambda desk: desk.block(send, sessionmaker(desk.engine)),
        "Misuse",
        "a block needs a session or a connection, not sessionmaker",
    ),
    "class of sessions": (
        lambda desk: desk.block(send, Session),
        "Misuse",
        "a block needs a session or a connection, not the class Session",
    ),
    "`with` for `async with`": (with_for_async, "Misuse", "AsyncTransaction is entered by `async with`"),
    "`async with` for `with`": (
        async_with_for_blocking,
        "Misuse",
        "Transaction is entered by `with`; AsyncBridge is for `async with`",
    ),
    "block entered twice": (lambda desk: desk.block(again), "Misuse", "each block needs a transaction of its own"),
    "after the block": (after_its_end, "Misuse", "messages are sent inside the `with` block"),
    "before the block": (
        lambda desk: send(desk.bridge.transaction(Session(desk.engine))),
        "Misuse",
        "messages are sent inside the `with` block",
    ),
    "commit inside": (
        commit_inside,
        "Misuse",
        "the end of the `with` block commits the session, once its messages are stored: take this commit out",
    ),
    "roll back inside": (
        roll_back_inside,
        "Misuse",
        "the session, or a savepoint, was rolled back or closed in the block after messages had been sent in it",
    ),
    "option with a typing error": (
        lambda desk: desk.block(send, orderingkey="a"),
        "Misuse",
        f"no option orderingkey: there are {OPTIONS}",
    ),
    "ordering key as number": (
        lambda desk: desk.block(send, ordering_key=7),
        "InvalidMessage",
        "an ordering key has 1..1,000 characters, without 0x00, 0x01 and 0x02",
    ),
    "idempotency key with a line end": (
        lambda desk: desk.block(send, idempotency_key="a\n"),
        "InvalidMessage",
        "an idempotency key has 1..200 printable ASCII characters",
    ),
    "early without messages": (
        lambda desk: desk.block(lambda transaction: transaction.prepare_early()),
        "Misuse",
        "`prepare_early` stores what has been sent in the `with` block, and nothing has",
    ),
    "more than fits": (
        lambda desk: desk.block(lambda transaction: [send(transaction) for _ in range(101)]),
        "InvalidMessage",
        "a transaction has at most 100 messages",
    ),
    # --- the message ---
    "message as topic": (
        send_with(topic=Message("orders")),
        "InvalidMessage",
        "a topic is its name; `add` takes a whole Message",
    ),
    "topic with a slash": (
        send_with(topic="orders/created"),
        "InvalidMessage",
        "a topic has 1..249 characters of A-Z a-z 0-9 . _ -",
    ),
    "topic to `add`": (
        lambda desk: desk.block(lambda transaction: transaction.add("orders")),
        "InvalidMessage",
        "`add` takes Messages; `send` takes a topic and what belongs to it",
    ),
    "number as key": (send_with(key=42), "InvalidMessage", "a key is str, bytes or None, not int"),
    "set": (send_with(value={"tags": {"a"}}), "InvalidMessage", f"set {NO_FORM}"),
    "bytes inside": (send_with(value={"raw": b"a"}), "InvalidMessage", f"bytes {NO_FORM}"),
    "session inside": (send_with(value=[sa.MetaData()]), "InvalidMessage", f"MetaData {NO_FORM}"),
    "not a number": (send_with(value=Decimal("NaN")), "InvalidMessage", "NaN and infinity are not JSON"),
    "number as name": (send_with(value={1: "a"}), "InvalidMessage", "a member's name must be str, not int"),
    "number in a header": (
        send_with(headers={"tries": 3}),
        "InvalidMessage",
        "a header's value is str, bytes or None, not int",
    ),
    "header of ours": (
        send_with(headers={"properties": "x"}),
        "InvalidMessage",
        "the header name properties is reserved",
    ),
    "partition as text": (send_with(partition="1"), "InvalidMessage", "partition is an integer from 0 to 2147483647"),
    "text to `publish`": (lambda desk: desk.bridge.publish("orders"), "InvalidMessage", NOT_MESSAGES + "str"),  # type: ignore[arg-type]
    "texts to `publish`": (
        lambda desk: desk.bridge.publish(["orders", "a"]),  # type: ignore[list-item]
        "InvalidMessage",
        NOT_MESSAGES + "a list with str",
    ),
    "nothing to `publish`": (
        lambda desk: desk.bridge.publish([]),
        "InvalidMessage",
        "a transaction has 1..100 messages, not 0",
    ),
    "id that is none": (
        lambda desk: desk.bridge.commit("order-42"),
        "InvalidMessage",
        "not a transaction id as the bridge gave it",
    ),
    # --- the tables and the checks ---
    "record table forgotten": (lambda desk: desk.block(send, Session(desk.empty)), "TableMissing", RECORD_REMEDY),
    "outbox table forgotten": (
        lambda desk: enqueue(Session(desk.empty), Message("orders", value="v")),
        "TableMissing",
        OUTBOX_REMEDY,
    ),
    "text to `enqueue`": (
        lambda desk: enqueue(Session(desk.engine), "orders"),  # type: ignore[arg-type]
        "InvalidMessage",
        "give a Message, not str",
    ),
    "empty ordering key to `enqueue`": (
        lambda desk: enqueue(Session(desk.engine), Message("orders"), ordering_key=""),
        "InvalidMessage",
        "an ordering key has 1..1,000 characters, without 0x00, 0x01 and 0x02",
    ),
    "number as ordering key to `enqueue`": (
        lambda desk: enqueue(Session(desk.engine), Message("orders"), ordering_key=42),  # type: ignore[arg-type]
        "InvalidMessage",
        "an ordering key has 1..1,000 characters, without 0x00, 0x01 and 0x02",
    ),
    "`enqueue` with asyncio's session": (
        lambda desk: enqueue(AsyncSession(desk.async_engine), Message("orders")),  # type: ignore[arg-type]
        "Misuse",
        "a session of asyncio needs enqueue_async",
    ),
    "`enqueue_async` with a blocking session": (
        lambda desk: enqueue_async(Session(desk.engine), Message("orders")),  # type: ignore[arg-type]
        "Misuse",
        "a session or connection of asyncio is needed, not Session: that is for enqueue",
    ),
    "record with asyncio's session": (
        lambda desk: TransactionRecord().write(AsyncSession(desk.async_engine), "a", "shop"),  # type: ignore[arg-type]
        "Misuse",
        "a session of asyncio needs AsyncTransactionRecord",
    ),
    "asyncio's record with a blocking session": (
        lambda desk: AsyncTransactionRecord().write(Session(desk.engine), "a", "shop"),  # type: ignore[arg-type]
        "Misuse",
        "a session or connection of asyncio is needed, not Session: that is for TransactionRecord",
    ),
    "answers from asyncio's engine": (
        lambda desk: TransactionRecord().answers(desk.async_engine),  # type: ignore[arg-type]
        "Misuse",
        "checks are answered from an Engine; one of asyncio needs an AsyncTransactionRecord",
    ),
    "asyncio's answers from an engine": (
        lambda desk: AsyncTransactionRecord().answers(desk.engine),  # type: ignore[arg-type]
        "Misuse",
        "checks are answered from an AsyncEngine; an Engine needs a TransactionRecord",
    ),
    "one secret": (
        lambda desk: CheckHandler(SECRET, TransactionRecord().answers(desk.engine)),
        "OutboxConfigError",
        "secrets must be a list with at least one secret",
    ),
    "handler with asyncio's answers": (
        lambda desk: CheckHandler([SECRET], AsyncTransactionRecord().answers(desk.async_engine)),  # type: ignore[arg-type]
        "Misuse",
        "an answer that is awaited needs an AsyncCheckHandler",
    ),
    "asyncio's handler with other answers": (
        lambda desk: AsyncCheckHandler([SECRET], TransactionRecord().answers(desk.engine)),  # type: ignore[arg-type]
        "Misuse",
        "an AsyncCheckHandler awaits its answer; CheckHandler takes this one",
    ),
    "listener that is a class": (
        lambda desk: outbox.TransactionProducer("shop", outbox.TransactionListener, desk.url),  # type: ignore[arg-type]
        "Misuse",
        "the listener must be a TransactionListener",
    ),
}


@pytest.mark.parametrize(("use", "error", "text"), USES.values(), ids=USES)
async def test_careless_use_is_told(
    bridge: SocketBridge, desk: Desk, group: str, use: Use, error: str, text: str
) -> None:
    """By a fault of its own kind, in words that say what to do; nothing is published, and nothing waits for a check."""
    with pytest.raises(outbox.OutboxError) as told:
        await _run(use, desk)
    assert (type(told.value).__name__, str(told.value)) == (error, text)
    states = bridge.states_of(group)
    assert "PREPARED" not in states
    assert states.count("COMMITTED") == (use is in_another_loop)


async def _run(use: Use, desk: Desk) -> None:
    made = use(desk)
    if asyncio.iscoroutine(made):
        await made


async def test_encoder_of_the_bridge_counts_in_its_blocks(bridge: SocketBridge, desk: Desk, group: str) -> None:
    """Once for all that is sent."""
    with Bridge(bridge.url, group, config=BridgeConfig(encoder=sorted)) as face:  # noqa: SIM117
        with face.transaction(Session(desk.engine)) as transaction:
            transaction.send("orders", value={"tags": {"b", "a"}, "group": group})
    assert f'{{"tags":["a","b"],"group":"{group}"}}'.encode() in bridge.read_values("orders")


def test_forgotten_async_is_seen_by_a_type_checker() -> None:
    """Before anybody runs it: an `__enter__` that only raises would be one to it."""
    text = """
from outbox import AsyncBridge, Bridge
def forgotten(bridge: AsyncBridge) -> None:
    with bridge as _: pass
async def too_much(bridge: Bridge) -> None:
    async with bridge as _: pass
"""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", os.devnull, "-c", text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    found = [line.partition('"')[2] for line in done.stdout.splitlines()]
    assert [line for line in found if "enter__" in line] == [
        'AsyncBridge" has no attribute "__enter__"; maybe "__aenter__"?  [attr-defined]',
        'Bridge" has no attribute "__aenter__"; maybe "__enter__"?  [attr-defined]',
    ], done.stdout + done.stderr
