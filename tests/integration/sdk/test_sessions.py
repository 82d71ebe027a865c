"""Blocks around SQLAlchemy's own sessions: rows and messages, both or neither."""

import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import AsyncBridge, Bridge, LocalCommitUnknown, Message, Misuse
from outbox.tables import StatementEffect, find_effect, make_record_table
from outbox.transaction_record import TransactionRecord
from tests.support.bridge_process import wait_until
from tests.support.socket_bridge import SocketBridge
from tests.support.user_database import UserDatabase

METADATA = sa.MetaData()
CUSTOMERS = sa.Table("customers", METADATA, sa.Column("id", sa.Integer, primary_key=True))
ORDERS = sa.Table(
    "orders",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("customer", sa.ForeignKey("customers.id", deferrable=True, initially="DEFERRED")),
)
RECORDS = sa.Table("records", METADATA, sa.Column("transaction_id", sa.String, primary_key=True))


class Record:
    """The least that a transaction record can be."""

    def write(self, session: Session, transaction_id: str, producer_group: str) -> None:
        session.execute(RECORDS.insert().values(transaction_id=transaction_id))


@contextmanager
def open_database(path: Path) -> Iterator[sa.Engine]:
    """With the tables of the shop; it looks at foreign keys when a transaction is committed."""
    engine = sa.create_engine(f"sqlite:///{path}")
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """A shop's database."""
    with open_database(tmp_path / "shop.db") as engine:
        yield engine


@pytest.fixture
def face(bridge: SocketBridge, group: str) -> Iterator[Bridge]:
    """Writes records."""
    with Bridge(bridge.url, group, record=Record()) as running:
        yield running


def rows(engine: sa.Engine, table: sa.Table) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(table.c[0])))


def test_rows_record_and_message_come_together(bridge: SocketBridge, engine: sa.Engine, face: Bridge) -> None:
    """The record stands in the local transaction, under the id of the message."""
    with Session(engine) as session, face.transaction(session) as transaction:
        session.execute(ORDERS.insert().values(id=1))
        transaction.send("orders", value=face.producer_group)
    assert transaction.result is not None
    assert rows(engine, ORDERS) == [1]
    assert rows(engine, RECORDS) == [transaction.result.transaction_id]
    assert bridge.read_values("orders").count(face.producer_group.encode()) == 1


def test_session_that_is_a_block_itself_is_committed_once(engine: sa.Engine, face: Bridge) -> None:
    """Users of `session.begin()` keep their habit."""
    with Session(engine) as session, session.begin(), face.transaction(session) as transaction:
        session.execute(ORDERS.insert().values(id=1))
        transaction.send("orders", value="v")
    assert rows(engine, ORDERS) == [1]


def test_connection_will_do_as_well(engine: sa.Engine, face: Bridge) -> None:
    """SQLAlchemy Core has no session."""
    with engine.connect() as connection, face.transaction(connection) as transaction:
        connection.execute(ORDERS.insert().values(id=1))
        transaction.send("orders", value="v")
    assert rows(engine, ORDERS) == [1]


def order(engine: sa.Engine, face: Bridge, customer: int | None = None, *, fails: bool = False, **options: Any) -> None:
    """One order with its message."""
    with Session(engine) as session, face.transaction(session, **options) as transaction:
        session.execute(ORDERS.insert().values(id=1, customer=customer))
        transaction.send("orders", value="v")
        if fails:
            raise KeyError


def write(session: Session, face: Bridge, *statements: sa.Executable) -> None:
    """Rows with a message."""
    with face.transaction(session) as transaction:
        for statement in statements:
            session.execute(statement)
        transaction.send("orders", value="v")


def test_block_leaves_no_session_to_the_garbage_collector(engine: sa.Engine, face: Bridge) -> None:
    """With 64 threads it would be busy with all that a session holds; a block that is over is gone at once."""
    session = Session(engine)
    with session, face.transaction(session) as transaction:
        session.execute(ORDERS.insert().values(id=1))
        transaction.send("orders", value="v")
    seen = weakref.ref(session)
    gc.disable()
    try:
        del session, transaction
        assert seen() is None
    finally:
        gc.enable()


def test_exception_leaves_neither(bridge: SocketBridge, engine: sa.Engine, face: Bridge) -> None:
    """Nothing is even prepared."""
    with pytest.raises(KeyError):
        order(engine, face, fails=True)
    assert (rows(engine, ORDERS), rows(engine, RECORDS)) == ([], [])
    assert bridge.states_of(face.producer_group) == []


def test_constraint_checked_at_the_commit_leaves_neither(bridge: SocketBridge, engine: sa.Engine, face: Bridge) -> None:
    """The database refused, so the half message is rolled back at once."""
    with pytest.raises(IntegrityError):
        order(engine, face, customer=7)
    assert (rows(engine, ORDERS), rows(engine, RECORDS)) == ([], [])
    assert bridge.states_of(face.producer_group) == ["ROLLED_BACK"]


@pytest.mark.parametrize("name", ["after_commit", "after_transaction_end"])
def test_listener_that_raises_after_the_commit_takes_no_message_back(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, name: str
) -> None:
    """It may meet a refusal of its own, such as a search index that has the row: the order is there all the same."""

    def index(session: Session, *_: object) -> None:
        if not session.info.setdefault("is_indexed", False):
            session.info["is_indexed"] = True
            with engine.begin() as connection:
                connection.execute(CUSTOMERS.insert().values(id=1))

    with engine.begin() as connection:
        connection.execute(CUSTOMERS.insert().values(id=1))
    with Session(engine) as session:
        sa.event.listen(session, name, index)
        with pytest.raises(LocalCommitUnknown):
            write(session, face, ORDERS.insert().values(id=1))
    assert (rows(engine, ORDERS), len(rows(engine, RECORDS))) == ([1], 1)
    assert bridge.states_of(face.producer_group) == ["PREPARED"]


def test_listener_that_refuses_a_commit_is_heard(bridge: SocketBridge, engine: sa.Engine, face: Bridge) -> None:
    """The database was not asked yet: the caller gets the listener's own word, and nothing waits for a back-check."""
    with Session(engine) as session:
        sa.event.listen(session, "before_commit", refuse_amount)
        with pytest.raises(ValueError, match="no such amount"):
            write(session, face, ORDERS.insert().values(id=1))
    assert (rows(engine, ORDERS), rows(engine, RECORDS)) == ([], [])
    assert bridge.states_of(face.producer_group) == ["ROLLED_BACK"]


def refuse_amount(_: Session) -> None:
    raise ValueError("no such amount")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[sa.Engine]:
    """Another database of the shop."""
    with open_database(tmp_path / "other.db") as other:
        yield other


@pytest.mark.filterwarnings("ignore:transaction already deassociated")  # the one that has committed
def test_refusal_of_a_second_database_takes_no_message_back(
    bridge: SocketBridge, engine: sa.Engine, other: sa.Engine, face: Bridge
) -> None:
    """The other one has committed by then, perhaps the order and the record: the back-check finds out."""
    begun = []

    def refuse_second(connection: sa.Connection) -> None:
        begun.append(connection)
        if len(begun) == 2:
            connection.connection.cursor().execute("INSERT INTO orders VALUES (9, 9)")  # of a customer who is not there

    for one in (engine, other):
        sa.event.listen(one, "commit", refuse_second)
    with Session(engine, binds={CUSTOMERS: other}) as session, pytest.raises(LocalCommitUnknown):
        write(session, face, ORDERS.insert().values(id=1), sa.select(CUSTOMERS))
    assert bridge.states_of(face.producer_group) == ["PREPARED"]


def test_rows_in_two_databases_are_refused(
    bridge: SocketBridge, engine: sa.Engine, other: sa.Engine, face: Bridge
) -> None:
    """One may commit without the other, and the record is in one alone: a message without its order, or the reverse."""
    with Session(engine, binds={ORDERS: other}) as session, pytest.raises(Misuse, match="more than one database"):
        write(session, face, ORDERS.insert().values(id=1))
    assert [rows(one, table) for one in (engine, other) for table in (ORDERS, RECORDS)] == [[]] * 4
    assert bridge.states_of(face.producer_group) == ["ROLLED_BACK"]
    with Session(engine, binds={ORDERS: other}) as session, face.transaction(session):
        session.execute(ORDERS.insert().values(id=1))
        session.execute(CUSTOMERS.insert().values(id=1))  # without a message there is nothing to keep together
    assert rows(other, ORDERS) == [1]


def test_record_goes_where_its_table_is(bridge: SocketBridge, group: str, engine: sa.Engine, other: sa.Engine) -> None:
    """A session that is bound by tables alone, and one that takes whatever is no write to a copy of the database."""
    records = make_record_table(METADATA)
    records.create(other)

    class Router(Session):
        def get_bind(self, mapper: object = None, *, clause: object = None, **_: object) -> sa.Engine:
            return other if isinstance(clause, sa.Update | sa.Insert) else engine

    by_table = Session(binds={ORDERS: other, records: other})
    with Bridge(bridge.url, group, record=TransactionRecord(records)) as face:
        for number, made in enumerate((by_table, Router()), 1):
            with made as session:
                write(session, face, ORDERS.insert().values(id=number))
    assert (rows(other, ORDERS), len(rows(other, records))) == ([1, 2], 2)
    assert bridge.states_of(group) == ["COMMITTED"] * 2


SHOP = sa.MetaData()
PLAIN_ORDERS = sa.Table("orders", SHOP, sa.Column("id", sa.Integer, primary_key=True), mysql_engine="InnoDB")
make_record_table(SHOP)


@pytest.fixture
def shop(user_database: UserDatabase) -> Iterator[sa.Engine]:
    """On each of the three."""
    engine = user_database.engine()
    SHOP.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def plain_face(bridge: SocketBridge, group: str) -> Iterator[Bridge]:
    """Writes the records that come with it."""
    with Bridge(bridge.url, group) as running:
        yield running


def test_commit_that_is_a_statement_is_refused(bridge: SocketBridge, shop: sa.Engine, plain_face: Bridge) -> None:
    """No method of the session is called: its rows were kept whatever became of the messages."""
    for text in ("COMMIT", " -- done\n commit work", "/* x */ END"):
        with Session(shop) as session, pytest.raises(Misuse, match="commits"):
            write(session, plain_face, PLAIN_ORDERS.insert(), sa.text(text))
    assert rows(shop, PLAIN_ORDERS) == []
    assert bridge.states_of(plain_face.producer_group) == []


def roll_back(session: Session, face: Bridge) -> None:
    with face.transaction(session) as transaction:
        session.execute(PLAIN_ORDERS.insert())
        transaction.send("orders", value="v")
        session.execute(sa.text("ROLLBACK"))


def test_roll_back_that_is_a_statement_is_heard(bridge: SocketBridge, shop: sa.Engine, plain_face: Bridge) -> None:
    """A message would be sent without its rows; a savepoint of the body's own may go."""
    with Session(shop) as session, pytest.raises(Misuse, match="rolled back"):
        roll_back(session, plain_face)
    with Session(shop) as session, plain_face.transaction(session) as transaction:
        session.execute(PLAIN_ORDERS.insert().values(id=7))
        session.execute(sa.text("SAVEPOINT own"))
        session.execute(PLAIN_ORDERS.insert().values(id=8))
        session.execute(sa.text("ROLLBACK TO SAVEPOINT own"))
        transaction.send("orders", value="v")
    assert rows(shop, PLAIN_ORDERS) == [7]
    assert bridge.states_of(plain_face.producer_group) == ["COMMITTED"]


COMMITTING = {StatementEffect.COMMIT, StatementEffect.COMMIT_BEFORE}
ON_MARIADB = (
    "CREATE TABLE made (id INTEGER)",
    "CREATE OR REPLACE TABLE made (id INTEGER)",
    "ALTER TABLE made ADD COLUMN more INTEGER",
    "TRUNCATE TABLE made",
    "RENAME TABLE made TO other",
    "ANALYZE TABLE other",
    "OPTIMIZE NO_WRITE_TO_BINLOG TABLE other",
    "LOCK TABLES other WRITE, orders WRITE",
    "DROP TABLE other",
    "FLUSH TABLES",
    "SET autocommit = 1",
    "SET @@session.autocommit=1",
    "SET @x = 1, autocommit = ON",
    "START TRANSACTION",
    "BEGIN",
    "RESET QUERY CACHE",
    "BEGIN NOT ATOMIC SELECT 1; END",
    "SET autocommit = 0",
    "CREATE TEMPORARY TABLE made (id INTEGER)",
    "CREATE OR REPLACE TEMPORARY TABLE made (id INTEGER)",
    "DROP TEMPORARY TABLE IF EXISTS made",
    "ANALYZE SELECT 1",
    "SELECT 1 /* COMMIT */",
    "SET @commit = 1",
    "DELETE FROM orders WHERE id < 0",
)


@pytest.mark.parametrize("user_database", ["mariadb"], indirect=True)
def test_statements_are_refused_that_mariadb_commits_at(
    bridge: SocketBridge, shop: sa.Engine, plain_face: Bridge
) -> None:
    """Those and no others: a table that is emptied in a block had its rows kept, whatever became of the messages."""
    committed = []
    for number, text in enumerate(ON_MARIADB, 1):
        with Session(shop) as session:
            session.execute(PLAIN_ORDERS.insert().values(id=number))
            session.execute(sa.text(text))
            session.rollback()
        if number in rows(shop, PLAIN_ORDERS):
            committed.append(text)
    assert committed == [text for text in ON_MARIADB if find_effect(text, "mariadb") in COMMITTING]
    with Session(shop) as session, pytest.raises(Misuse, match="`BEGIN` commits"):
        write(session, plain_face, PLAIN_ORDERS.insert(), sa.text("BEGIN"))
    with Session(shop) as session, pytest.raises(Misuse, match="`TRUNCATE` commits"):
        write(session, plain_face, PLAIN_ORDERS.insert(), sa.text("TRUNCATE TABLE outbox_transaction"))
    assert len(rows(shop, PLAIN_ORDERS)) == len(committed)
    assert bridge.states_of(plain_face.producer_group) == []


def test_second_run_under_one_key_meets_the_record_of_the_first(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge
) -> None:
    """The first committed and then lost its end: the second must neither do the work again nor roll it back."""
    prepared = face.prepare(Message("orders", value="v"), idempotency_key="order-1")
    with Session(engine) as session:  # what the first run left, killed before it could end the transaction
        Record().write(session, prepared.transaction_id, face.producer_group)
        session.commit()
    with pytest.raises(IntegrityError):
        order(engine, face, idempotency_key="order-1")
    assert rows(engine, ORDERS) == []
    assert bridge.states_of(face.producer_group) == ["PREPARED"]


class AwaitedRecord:
    """The same in an AsyncSession."""

    async def write(self, session: AsyncSession, transaction_id: str, producer_group: str) -> None:
        await session.execute(RECORDS.insert().values(transaction_id=transaction_id))


@pytest_asyncio.fixture
async def async_engine(postgres: Any) -> AsyncIterator[AsyncEngine]:
    """A shop's database on PostgreSQL."""
    engine = create_async_engine(postgres.create())
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("end", [sa.Connection.commit, sa.Connection.rollback])
def test_end_of_two_phases_in_a_block_is_heard(
    bridge: SocketBridge, postgres: Any, face: Bridge, end: Callable[[sa.Connection], None]
) -> None:
    """A commit would keep rows without their message, a roll back would send a message without its rows."""
    engine = sa.create_engine(postgres.create())
    METADATA.create_all(engine)

    def block(connection: sa.Connection) -> None:
        with face.transaction(connection) as transaction:
            connection.execute(ORDERS.insert().values(id=1))
            transaction.send("orders", value="v")
            end(connection)

    with engine.connect() as connection, connection.begin_twophase(), pytest.raises(Misuse):
        block(connection)
    assert rows(engine, ORDERS) == []
    assert bridge.states_of(face.producer_group) == []
    with engine.connect() as connection, connection.begin_twophase(), face.transaction(connection) as transaction:
        connection.execute(ORDERS.insert().values(id=1))
        transaction.send("orders", value="v")
    assert rows(engine, ORDERS) == [1]
    engine.dispose()


async def test_session_of_an_event_loop(bridge: SocketBridge, async_engine: AsyncEngine, group: str) -> None:
    """Rows, record and message come together; a constraint that is checked at the commit leaves none of them."""

    async def order(number: int, customer: int | None) -> None:
        async with AsyncSession(async_engine) as session, face.transaction(session) as transaction:
            await session.execute(ORDERS.insert().values(id=number, customer=customer))
            transaction.send("orders", value=group)

    async with AsyncBridge(bridge.url, group, record=AwaitedRecord()) as face:
        await order(1, None)
        with pytest.raises(IntegrityError):
            await order(2, 7)
    async with async_engine.connect() as connection:
        assert list(await connection.scalars(sa.select(ORDERS.c.id))) == [1]
    assert bridge.read_values("orders").count(group.encode()) == 1
    assert bridge.states_of(group) == ["ROLLED_BACK", "COMMITTED"]


async def test_connection_lost_at_the_commit_is_left_to_the_back_check(
    bridge: SocketBridge, async_engine: AsyncEngine, group: str
) -> None:
    """From here nobody can tell whether the commit arrived first."""

    async def order() -> None:
        async with AsyncSession(async_engine) as session, face.transaction(session) as transaction:
            backend = await session.scalar(sa.text("SELECT pg_backend_pid()"))
            kill = sa.text(f"SELECT pg_terminate_backend({backend}, 10000)")
            sa.event.listen(session.sync_session, "before_commit", lambda _: run_apart(kill))
            transaction.send("orders", value=group)

    def run_apart(statement: sa.TextClause) -> None:
        with witness.begin() as connection:
            connection.execute(statement)

    witness = sa.create_engine(async_engine.url)
    async with AsyncBridge(bridge.url, group, record=AwaitedRecord()) as face:
        with pytest.raises(LocalCommitUnknown):
            await order()
    witness.dispose()
    assert bridge.states_of(group) == ["PREPARED"]


def test_block_is_left_once_its_commit_is_stored(bridge: SocketBridge, engine: sa.Engine, face: Bridge) -> None:
    """`respond_async`: nobody waited, no back-check is needed, and consumers read it soon."""
    with Session(engine) as session, face.transaction(session, respond_async=True) as transaction:
        session.execute(ORDERS.insert().values(id=1))
        transaction.send("orders", value=face.producer_group)
    told = transaction.result
    assert told is not None
    assert (told.is_accepted, told.is_settled, told.state, told.receipts) == (True, False, None, ())
    assert rows(engine, ORDERS) == [1]
    wait_until(lambda: face.get(told.transaction_id).receipts)
    assert bridge.read_values("orders").count(face.producer_group.encode()) == 1


async def test_asyncio_leaves_a_block_once_its_commit_is_stored(
    bridge: SocketBridge, group: str, engine: sa.Engine, tmp_path: Path
) -> None:
    """The same with an AsyncBridge."""
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with AsyncBridge(bridge.url, group, record=AwaitedRecord()) as face:
        async with AsyncSession(async_engine) as session, face.transaction(session, respond_async=True) as transaction:
            await session.execute(ORDERS.insert().values(id=1))
            transaction.send("orders", value=group)
        assert transaction.result is not None
        assert transaction.result.is_accepted
        view = await face.commit(transaction.result.transaction_id)  # the same end again waits
    await async_engine.dispose()
    assert len(view.receipts) == 1
    assert rows(engine, ORDERS) == [1]


@pytest.mark.parametrize("back", ["ROLLBACK TO SAVEPOINT a", "rollback to a", '/* b */ ROLLBACK  TRANSACTION TO "A";'])
def test_savepoint_that_is_a_statement_takes_its_message_along(
    bridge: SocketBridge, engine: sa.Engine, face: Bridge, back: str
) -> None:
    """No method of the session is called; nor does SQLite's driver begin a transaction for it."""

    def place(session: Session, *statements: str | sa.Insert) -> None:
        with face.transaction(session) as transaction:
            for statement in statements:
                session.execute(sa.text(statement) if isinstance(statement, str) else statement)
                if statement is kept:
                    transaction.send("orders", value="v")

    kept, gone = ORDERS.insert().values(id=1), ORDERS.insert().values(id=2)
    with Session(engine) as session, pytest.raises(Misuse, match="savepoint"):
        place(session, "SAVEPOINT a", kept, back)
    with Session(engine) as session:
        place(session, "savepoint A", gone, back, kept, "SAVEPOINT b", gone, "ROLLBACK TO b")
    assert (rows(engine, ORDERS), bridge.states_of(face.producer_group)) == ([1], ["COMMITTED"])
