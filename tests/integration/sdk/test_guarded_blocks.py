"""Blocks around code that commits or rolls back by itself: rows and messages stay together, or the caller is told."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import AsyncBridge, Bridge, Misuse
from outbox.tables import make_record_table
from tests.support.postgres import PostgresServer
from tests.support.socket_bridge import SocketBridge
from tests.support.source_tree import ROOT

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


async def place_awaited(
    face: AsyncBridge,
    session: AsyncSession | AsyncConnection,
    commit: Callable[[AsyncSession | AsyncConnection], Awaitable[None]],
) -> None:
    """An order, its message, and a commit in the body."""
    async with face.transaction(session) as transaction:
        await session.execute(ORDERS.insert())
        transaction.send("orders", value="v")
        await commit(session)


async def commit_session(session: AsyncSession | AsyncConnection) -> None:
    await session.commit()


async def commit_connection(session: AsyncSession | AsyncConnection) -> None:
    """A session's own, if it is one."""
    await (session if isinstance(session, AsyncConnection) else await session.connection()).commit()


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


WAYS_AROUND: dict[str, Callable[[Session], object]] = {
    "connection": lambda session: session.connection().commit(),
    "its transaction": lambda session: session.connection().get_transaction().commit(),  # type: ignore[union-attr]
    "inside a savepoint": lambda session: session.begin_nested() and session.connection().commit(),
    "the session's transaction": lambda session: session.get_transaction().commit(),  # type: ignore[union-attr]
}


@pytest.mark.filterwarnings("ignore:nested transaction already deassociated")  # the savepoint went with the rest
@pytest.mark.parametrize("was_used", [False, True], ids=["fresh", "used before"])
@pytest.mark.parametrize("commit", WAYS_AROUND.values(), ids=WAYS_AROUND)
def test_commit_behind_the_back_of_the_session_is_refused(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, commit: Callable[[Session], object], was_used: bool
) -> None:
    """On the connection that it works with, which it may have had before the block."""
    with Session(engine) as session:
        if was_used:
            session.execute(sa.select(ORDERS))
        with pytest.raises(Misuse):
            place(face, session, lambda: commit(session))
        assert orders(engine) == []
        session.execute(ORDERS.insert())
        session.connection().commit()  # after the block it is its owner's again
    assert orders(engine) == [1]
    assert bridge.states_of(face.producer_group) == []


def test_commit_on_the_connection_that_is_swallowed_keeps_nothing(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge
) -> None:
    """Neither the rows nor their messages."""

    def swallow(session: Session) -> None:
        with pytest.raises(Misuse):
            session.connection().commit()

    with Session(engine) as session, pytest.raises(Misuse):
        place(face, session, lambda: swallow(session))
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([], [])


def test_message_whose_rows_were_rolled_back_on_the_connection_is_not_sent(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge
) -> None:
    """The session hears nothing of it, and would go on."""
    with Session(engine) as session, pytest.raises(Misuse):
        place(face, session, lambda: session.connection().rollback())
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([], [])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_message_of_a_transaction_that_the_driver_ended_is_not_sent(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, end: str
) -> None:
    """On the driver's own connection, as `with connection:` of some does it; SQLAlchemy hears nothing of it."""
    act = methodcaller(end)
    with Session(engine) as session, pytest.raises(Misuse, match="driver"):
        place(face, session, lambda: act(session.connection().connection))
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([1] if end == "commit" else [], [])


@pytest.mark.parametrize(
    "statement", ["WITH one AS (SELECT 1) INSERT INTO orders SELECT * FROM one", "DROP TABLE orders"]
)
def test_first_write_of_a_block_waits_for_its_end(engine: sa.Engine, face: Bridge, statement: str) -> None:
    """Python's sqlite3 begins no transaction for one of these: it was kept, though the block failed."""
    with Session(engine) as session, suppress(ZeroDivisionError), face.transaction(session) as transaction:
        session.execute(sa.text(statement))
        transaction.send("orders", value="v")
        raise ZeroDivisionError
    assert orders(engine) == []


def test_scoped_session_is_not_left_in_another_thread(bridge: SocketBridge, engine: sa.Engine, face: Bridge) -> None:
    """As a dependency with `yield` is by FastAPI: the session there is another, without the rows of the messages."""
    scoped: Any = scoped_session(sessionmaker(engine))
    transaction = face.transaction(scoped).__enter__()
    scoped.execute(ORDERS.insert())
    transaction.send("orders", value="v")
    with ThreadPoolExecutor(1) as other:
        left = other.submit(transaction.__exit__, None, None, None)
        with pytest.raises(Misuse, match="scope"):
            left.result()
    scoped.remove()
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([], [])


def test_commits_of_others_are_free(engine: sa.Engine, face: Bridge) -> None:
    """Another connection of the same engine belongs to somebody else."""
    other = sa.create_engine("sqlite://")
    with Session(engine) as session, other.connect() as conn, face.transaction(session) as transaction:
        session.execute(sa.select(ORDERS))
        with engine.connect() as read:
            read.execute(sa.select(ORDERS))
            read.commit()
        conn.execute(sa.text("SELECT 1"))
        conn.commit()
        session.execute(ORDERS.insert())
        transaction.send("orders", value="v")
    assert orders(engine) == [1]


def test_savepoints_in_a_block_are_free(engine: sa.Engine, face: Bridge) -> None:
    """They end nothing."""
    with Session(engine) as session, face.transaction(session) as transaction:
        with session.begin_nested():
            session.execute(ORDERS.insert())
        session.begin_nested().rollback()
        transaction.send("orders", value="v")
    assert orders(engine) == [1]


def try_second(session: Any, transaction: Any) -> None:
    """An order that is there already, in a savepoint of its own, as one of many that are taken over."""
    with suppress(sa.exc.IntegrityError), session.begin_nested():
        transaction.send("orders", value="second")
        session.execute(ORDERS.insert().values(id=1))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_message_sent_in_a_savepoint_does_not_outlive_it(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, make: Callable[[sa.Engine], Any]
) -> None:
    """Its rows went with the savepoint: nobody may hear of them."""

    def take_over(session: Any) -> None:
        with face.transaction(session) as transaction:
            session.execute(ORDERS.insert())
            try_second(session, transaction)

    with closing(make(engine)) as session, pytest.raises(Misuse, match="savepoint"):
        take_over(session)
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([], [])


def test_message_sent_before_a_savepoint_outlives_it(engine: sa.Engine, face: Bridge) -> None:
    """As its rows do; so does one of a savepoint that is kept."""
    with Session(engine) as session, face.transaction(session) as transaction:
        with session.begin_nested():
            session.execute(ORDERS.insert())
            transaction.send("orders", value="v")
        with suppress(sa.exc.IntegrityError), session.begin_nested():
            session.execute(ORDERS.insert().values(id=1))
    assert orders(engine) == [1]
    assert transaction.result is not None


@pytest.mark.parametrize("end", [Session.rollback, Session.close])
def test_message_whose_rows_are_gone_is_not_sent(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, end: Callable[[Session], None]
) -> None:
    """A swallowed error and a rollback must not leave a message about an order that is not there."""
    with Session(engine) as session, pytest.raises(Misuse):
        place(face, session, lambda: end(session))
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([], [])


@pytest.mark.parametrize("end", [Session.rollback, Session.close, Session.commit])
def test_session_that_another_ends_while_the_bridge_is_asked(
    bridge: SocketBridge,
    engine: sa.Engine,
    face: Bridge,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Session], None],
) -> None:
    """As greenlets and tasks do that share one: rows that are gone have no message, and nobody else commits them."""
    told: list[str] = []

    async def prepare(*arguments: Any) -> object:
        prepared = await stored(*arguments)
        try:
            end(session)
        except Misuse as error:
            told.append(str(error))
        return prepared

    stored = face._verbs.prepare
    monkeypatch.setattr(face._verbs, "prepare", prepare)
    is_refused = end is Session.commit
    with Session(engine) as session, nullcontext() if is_refused else pytest.raises(Misuse):
        place(face, session, lambda: None)
    assert bool(told) == is_refused
    assert len(orders(engine)) == is_refused
    assert bridge.states_of(face.producer_group) == ["COMMITTED" if is_refused else "ROLLED_BACK"]


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
    """The inner one's commit would have been that of the outer one's rows too; what it prepared is withdrawn."""
    with Session(engine) as session, pytest.raises(Misuse):
        place(face, session, lambda: place(face, session, lambda: None))
    assert (orders(engine), bridge.states_of(face.producer_group)) == ([], ["ROLLED_BACK"])


def test_engine_is_no_session(engine: sa.Engine, face: Bridge) -> None:
    """Said at once, not at the end of the block."""
    with pytest.raises(Misuse, match="not Engine"):
        face.transaction(engine)  # type: ignore[arg-type]


@pytest.mark.parametrize("commit", [commit_session, commit_connection])
async def test_commit_in_a_block_of_an_event_loop_is_refused(
    bridge: SocketBridge,
    tmp_path: Path,
    group: str,
    commit: Callable[[AsyncSession | AsyncConnection], Awaitable[None]],
) -> None:
    """For sessions, scoped ones and connections alike."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with engine.begin() as conn:
        await conn.run_sync(METADATA.create_all)
    scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    made: list[Any] = [AsyncSession(engine), await engine.connect(), scoped]
    async with AsyncBridge(bridge.url, group) as face:
        for session in made:
            with pytest.raises(Misuse):
                await place_awaited(face, session, commit)
            await session.close()
    async with engine.connect() as conn:
        assert list(await conn.scalars(sa.select(ORDERS.c.id))) == []
    await engine.dispose()
    assert bridge.states_of(group) == []


async def test_scoped_session_of_an_event_loop_will_do(bridge: SocketBridge, tmp_path: Path, group: str) -> None:
    """It stands for the session of its task: for the record, too."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with engine.begin() as conn:
        await conn.run_sync(METADATA.create_all)
    scoped: Any = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)

    async def nothing_more(_: AsyncSession | AsyncConnection) -> None: ...

    async with AsyncBridge(bridge.url, group) as face:
        await place_awaited(face, scoped, nothing_more)
        assert list(await scoped.scalars(sa.select(ORDERS.c.id))) == [1]
        await scoped.remove()
    await engine.dispose()
    assert bridge.states_of(group) == ["COMMITTED"]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_rows_of_a_savepoint_wait_for_the_end_of_the_block(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, make: Callable[[sa.Engine], Any]
) -> None:
    """SQLite's driver begins at the first write: a savepoint before it was a transaction of its own, and committed."""
    with closing(make(engine)) as session, suppress(ZeroDivisionError), face.transaction(session) as transaction:
        with session.begin_nested():
            session.execute(ORDERS.insert())
        transaction.send("orders", value="v")
        _ = 1 // 0
    assert orders(engine) == []
    with closing(make(engine)) as session, face.transaction(session) as transaction:
        with session.begin_nested():
            session.execute(ORDERS.insert())
        transaction.send("orders", value="v")
    assert orders(engine) == [1]
    assert bridge.states_of(face.producer_group) == ["COMMITTED"]


def roll_back_by_the_database(session: Any) -> None:
    with suppress(sa.exc.IntegrityError):
        session.execute(ORDERS.insert().prefix_with("OR ROLLBACK").values(id=1))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_message_is_not_sent_whose_rows_the_database_took_back(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, make: Callable[[sa.Engine], Any]
) -> None:
    """What comes behind such an error is a transaction of its own, without the rows before it."""
    with engine.begin() as conn:
        conn.execute(ORDERS.insert().values(id=1))
    with closing(make(engine)) as session:
        with pytest.raises(Misuse, match="database"):
            place(face, session, lambda: roll_back_by_the_database(session))
        with face.transaction(session) as transaction:
            roll_back_by_the_database(session)
            session.rollback()  # noticed: what comes now is the block's
            session.execute(ORDERS.insert().values(id=3))
            transaction.send("orders", value="v")
    assert orders(engine) == [1, 3]
    assert bridge.states_of(face.producer_group) == ["COMMITTED"]


class NoRecord:
    """Where rows of the service's own are what a check looks for."""

    def write(self, session: Session, transaction_id: str, producer_group: str) -> None:
        """Nothing."""


def fail_unnoticed(session: Session) -> None:
    with suppress(sa.exc.DataError):
        session.execute(sa.text("SELECT 1 / 0"))


def test_message_is_not_sent_behind_an_error_that_was_caught(
    bridge: SocketBridge, group: str, postgres: PostgresServer
) -> None:
    """PostgreSQL takes the COMMIT for a ROLLBACK then, without a word."""
    engine = sa.create_engine(postgres.create(), poolclass=sa.NullPool)
    METADATA.create_all(engine)
    with Bridge(bridge.url, group, record=NoRecord()) as face, Session(engine) as session:
        with pytest.raises(Misuse, match="database"):
            place(face, session, lambda: fail_unnoticed(session))
        with face.transaction(session) as transaction:
            session.execute(ORDERS.insert().values(id=2))
            with suppress(sa.exc.IntegrityError), session.begin_nested():
                session.execute(ORDERS.insert().values(id=2))
            transaction.send("orders", value="v")
    assert orders(engine) == [2]
    assert bridge.states_of(group) == ["COMMITTED"]


FORKED = """
import os, sys, warnings
import sqlalchemy as sa
from sqlalchemy.orm import Session
from outbox import Bridge, Misuse
warnings.simplefilter("ignore", DeprecationWarning)  # newer versions warn of every fork with threads
_, address, group, database = sys.argv
engine, face = sa.create_engine(database, pool_pre_ping=True), Bridge(address, group)
def place(session, number):
    with face.transaction(session) as transaction:
        session.execute(sa.text(f"INSERT INTO orders VALUES ({number})"))
        transaction.send("orders", value=str(number))
def find(session):
    return session.scalar(sa.text("SELECT pg_backend_pid()"))
def fork(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except Misuse as error:
            print(error, flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


def run_forked(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", FORKED + script, *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def test_child_has_database_connections_of_its_own(bridge: SocketBridge, group: str, postgres: PostgresServer) -> None:
    """A server that makes tables as it loads the application, and then forks: on one connection two workers would
    commit and roll back each other's rows."""
    engine = sa.create_engine(postgres.create(), poolclass=sa.NullPool)
    METADATA.create_all(engine)
    script = """
with Session(engine) as session:
    of_parent = find(session)
def work():
    engine.dialect.do_ping = lambda _: print("asks on the connection of its parent", flush=True)
    with Session(engine) as session:
        print(find(session) == of_parent, flush=True)
        place(session, 2)
fork(work)
with Session(engine) as session:
    print(find(session) == of_parent)
    place(session, 1)
"""
    told = run_forked(script, bridge.url, group, engine.url.render_as_string(hide_password=False))
    assert told == "False\nTrue\n"
    assert sorted(orders(engine)) == [1, 2]
    assert bridge.states_of(group) == ["COMMITTED", "COMMITTED"]


def test_session_that_was_in_use_at_a_fork_is_refused(
    bridge: SocketBridge, group: str, postgres: PostgresServer
) -> None:
    """Its connection is its parent's."""
    engine = sa.create_engine(postgres.create(), poolclass=sa.NullPool)
    METADATA.create_all(engine)
    script = """
session = Session(engine)
find(session)
fork(lambda: place(session, 1))
"""
    told = run_forked(script, bridge.url, group, engine.url.render_as_string(hide_password=False))
    assert "call `engine.dispose(close=False)` in the child" in told
    assert orders(engine) == []
    assert bridge.states_of(group) == ["ROLLED_BACK"]
