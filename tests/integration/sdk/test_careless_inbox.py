"""What a hurried programmer writes around an inbox, and what is said about it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import outbox
from outbox.inbox import AsyncInbox, Inbox
from outbox.tables import make_inbox_table
from tests.support.consumed import WithMethods, make_message

INBOX_REMEDY = (
    "the database has no table outbox_inbox: make_inbox_table(Base.metadata) declares it for create_all and Alembic, "
    "`python -m outbox.ddl` shows its SQL"
)
FAILED = (
    "the `with` block of the inbox failed: roll back, a commit would keep its message as seen without what it causes,"
    " or that without the message"
)


class Desk:
    """Databases with and without the table."""

    def __init__(self, folder: Path) -> None:
        self.engine = sa.create_engine(f"sqlite:///{folder / 'shop.db'}")
        self.empty = sa.create_engine(f"sqlite:///{folder / 'empty.db'}")
        self.async_engine: AsyncEngine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'shop.db'}")
        metadata = sa.MetaData()
        self.table = make_inbox_table(metadata)
        metadata.create_all(self.engine)


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.engine.dispose()
    made.empty.dispose()
    await made.async_engine.dispose()


def seen(body: Callable[[Session], object] = lambda _: None, message: object = "m-1") -> Callable[[Desk], object]:
    """A message taken out of the inbox."""

    def use(desk: Desk) -> None:
        session = Session(desk.engine)
        with Inbox("stamps").once(session, message):
            body(session)

    return use


def seen_by_if(desk: Desk) -> None:
    if Inbox("stamps").once(Session(desk.engine), "m-1"):
        pass


def seen_twice_by_one(desk: Desk) -> None:
    once = Inbox("stamps").once(Session(desk.engine), "m-1")
    with once, once:
        pass


def seen_in(session: Callable[[Desk], Any]) -> Callable[[Desk], object]:
    def use(desk: Desk) -> None:
        with Inbox("stamps").once(session(desk), "m-1"):
            pass

    return use


async def seen_by_asyncio(desk: Desk) -> None:
    async with AsyncInbox("stamps").once(Session(desk.engine), "m-1"):  # type: ignore[arg-type]
        pass


def seen_by_with(desk: Desk) -> None:
    with AsyncInbox("stamps").once(AsyncSession(desk.async_engine), "m-1") as _:
        pass


async def seen_by_async_with(desk: Desk) -> None:
    async with Inbox("stamps").once(Session(desk.engine), "m-1") as _:
        pass


def commit_what_failed(desk: Desk) -> None:
    session = Session(desk.engine)
    with contextlib.suppress(ZeroDivisionError), Inbox("stamps").once(session, "m-1"):
        raise ZeroDivisionError
    session.commit()


def commit_what_came_after_a_roll_back(desk: Desk) -> None:
    """As a handler does that rolls back at an error and goes on, in a loop that logs what its messages raise."""
    session = Session(desk.engine)
    with contextlib.suppress(outbox.Misuse), Inbox("stamps").once(session, "m-1"):
        session.rollback()
        session.execute(desk.table.insert().values(consumer="other", message_id="m-1", at_ms=0))
    session.commit()


Use = Callable[[Desk], Any]

USES: dict[str, tuple[Use, str, str]] = {
    "inbox table forgotten": (seen_in(lambda desk: Session(desk.empty)), "TableMissing", INBOX_REMEDY),
    "consumer without a name": (
        lambda desk: Inbox(""),
        "OutboxConfigError",
        "a consumer's name has 1..120 characters of A-Z a-z 0-9 . _ -",
    ),
    "name as inbox table": (
        lambda desk: Inbox("stamps", "outbox_inbox"),  # type: ignore[arg-type]
        "OutboxConfigError",
        "table is one of make_inbox_table, not str",
    ),
    "inbox by `if`": (seen_by_if, "Misuse", "`once` is entered by `with`, and says by `as` whether the message is new"),
    "inbox entered twice": (seen_twice_by_one, "Misuse", "each `with` block of the inbox needs a call of its own"),
    "inbox with asyncio's session": (
        seen_in(lambda desk: AsyncSession(desk.async_engine)),
        "Misuse",
        "a session of asyncio needs AsyncInbox",
    ),
    "inbox in an engine": (
        seen_in(lambda desk: desk.engine),
        "Misuse",
        "a session or connection of SQLAlchemy is needed, not Engine",
    ),
    "asyncio's inbox with a blocking session": (
        seen_by_asyncio,
        "Misuse",
        "a session or connection of asyncio is needed, not Session: that is for Inbox",
    ),
    "`with` for an AsyncInbox": (seen_by_with, "Misuse", "blocks of an AsyncInbox are entered by `async with`"),
    "`async with` for an Inbox": (
        seen_by_async_with,
        "Misuse",
        "blocks of an Inbox are entered by `with`; AsyncInbox is for `async with`",
    ),
    "nothing polled": (
        seen(message=None),
        "Misuse",
        "give a message with topic, partition and offset, or its id, not NoneType",
    ),
    "value for the message": (
        seen(message={"order": 42}),
        "Misuse",
        "give a message with topic, partition and offset, or its id, not dict",
    ),
    "error for a message": (
        seen(message=WithMethods(("orders", 0, 1), failure="broker down")),
        "Misuse",
        "the consumer returned an error, not a message: broker down",
    ),
    "id with a space": (
        seen(message="order 42"),
        "Misuse",
        "a message's id has 1..320 printable ASCII characters, and no space",
    ),
    "one message for many": (
        lambda desk: Inbox("stamps").once_each(Session(desk.engine), WithMethods(("orders", 0, 1))),  # type: ignore[arg-type]
        "Misuse",
        "`once_each` takes a list of messages, not WithMethods",
    ),
    "commit in the inbox": (
        seen(lambda session: session.commit(), make_message(1)),
        "Misuse",
        "commit after the `with` block of the inbox: what comes later in the block would not belong to it",
    ),
    "roll back in the inbox": (
        seen(lambda session: session.rollback()),
        "Misuse",
        "the session was rolled back or closed in the `with` block of the inbox",
    ),
    "commit of what failed in the inbox": (commit_what_failed, "Misuse", FAILED),
    "commit of what came after a roll back": (commit_what_came_after_a_roll_back, "Misuse", FAILED),
    "inbox cleaned at once": (
        lambda desk: Inbox("stamps").clean(desk.engine, keep_days=0),
        "OutboxConfigError",
        "keep_days and max_rows must be above 0",
    ),
}


@pytest.mark.parametrize(("use", "error", "text"), USES.values(), ids=USES)
async def test_careless_use_is_told(desk: Desk, use: Use, error: str, text: str) -> None:
    """By a fault of its own kind, in words that say what to do; no message is taken for seen."""
    with pytest.raises(outbox.OutboxError) as told:
        await _run(use, desk)
    assert (type(told.value).__name__, str(told.value)) == (error, text)
    with desk.engine.connect() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(desk.table)) == 0


async def _run(use: Use, desk: Desk) -> None:
    made = use(desk)
    if asyncio.iscoroutine(made):
        await made
