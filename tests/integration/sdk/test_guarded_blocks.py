"""Blocks around code that commits or rolls back by itself: rows and messages stay together, or the caller is told."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import AsyncBridge, Bridge, Misuse
from outbox.tables import make_record_table
from tests.support.socket_bridge import SocketBridge

METADATA = sa.MetaData()
ORDERS = sa.Table("orders", METADATA, sa.Column("id", sa.Integer, primary_key=True))
make_record_table(METADATA)

MAKERS: dict[str, Callable[[sa.Engine], Any]] = {
    "session": Session,
    "scoped": lambda engine: scoped_session(sessionmaker(engine)),
    "connection": sa.Engine.connect,
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def face(bridge: SocketBridge, group: str) -> Iterator[Bridge]:
    with Bridge(bridge.url, group) as running:
        yield running


def orders(engine: sa.Engine) -> list[int]:
    with engine.connect() as conn:
        return list(conn.scalars(sa.select(ORDERS.c.id)))


def place(face: Bridge, session: Any, then: Callable[[], object]) -> None:
    """An order, its message, and what the body does after that."""
    with face.transaction(session) as transaction:
        session.execute(ORDERS.insert())
        transaction.send("orders", value="v")
        then()


async def place_awaited(face: AsyncBridge, session: AsyncSession | AsyncConnection) -> None:
    """An order, its message, and a commit in the body."""
    async with face.transaction(session) as transaction:
        await session.execute(ORDERS.insert())
        transaction.send("orders", value="v")
        await session.commit()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_commit_in_a_block_is_refused_before_it_happens(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, make: Callable[[sa.Engine], Any]
) -> None:
    """Left in from before, it would keep the rows whatever became of the messages."""
    with closing(make(engine)) as session:
        with pytest.raises(Misuse):
            place(face, session, session.commit)
        session.execute(ORDERS.insert())
        session.commit()  # after the block it is its owner's again
    assert orders(engine) == [1]
    assert bridge.states_of(face.producer_group) == []


def test_savepoints_in_a_block_are_free(engine: sa.Engine, face: Bridge) -> None:
    """They end nothing."""
    with Session(engine) as session, face.transaction(session) as transaction:
        with session.begin_nested():
            session.execute(ORDERS.insert())
        session.begin_nested().rollback()
        transaction.send("orders", value="v")
    assert orders(engine) == [1]


@pytest.mark.parametrize("end", [Session.rollback, Session.close])
def test_message_whose_rows_are_gone_is_not_sent(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, end: Callable[[Session], None]
) -> None:
    """A swallowed error and a rollback must not leave a message about an order that is not there."""
    with Session(engine) as session, pytest.raises(Misuse):
        place(face, session, lambda: end(session))
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([], [])


def test_rollback_before_the_first_message_is_free(engine: sa.Engine, face: Bridge) -> None:
    """What comes after it is one local transaction again."""
    with Session(engine) as session, face.transaction(session) as transaction:
        session.execute(ORDERS.insert())
        session.rollback()
        session.execute(ORDERS.insert().values(id=7))
        transaction.send("orders", value="v")
    assert orders(engine) == [7]


def test_block_in_a_block_of_the_same_session_commits_neither(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge
) -> None:
    """The inner one's commit would have been that of the outer one's rows too; what it prepared is for the check."""
    with Session(engine) as session, pytest.raises(Misuse):
        place(face, session, lambda: place(face, session, lambda: None))
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([], ["PREPARED"])


def test_engine_is_no_session(engine: sa.Engine, face: Bridge) -> None:
    """Said at once, not at the end of the block."""
    with pytest.raises(Misuse, match="not Engine"):
        face.transaction(engine)  # type: ignore[arg-type]


async def test_commit_in_a_block_of_an_event_loop_is_refused(bridge: SocketBridge, tmp_path: Path, group: str) -> None:
    """For sessions and connections alike."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with engine.begin() as conn:
        await conn.run_sync(METADATA.create_all)
    made: list[AsyncSession | AsyncConnection] = [AsyncSession(engine), await engine.connect()]
    async with AsyncBridge(bridge.url, group) as face:
        for session in made:
            with pytest.raises(Misuse):
                await place_awaited(face, session)
            await session.close()
    async with engine.connect() as conn:
        assert list(await conn.scalars(sa.select(ORDERS.c.id))) == []
    await engine.dispose()
    assert bridge.states_of(group) == []
