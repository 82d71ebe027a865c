"""The consumer's inbox on real databases: each message acts once, whatever is delivered, rolled back or at it twice."""

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outbox import Misuse
from outbox.client.errors import OutboxConfigError
from outbox.client.message import identify
from outbox.inbox import AsyncInbox, Inbox
from outbox.tables import make_inbox_table
from tests.support.consumed import TRANSACTION_ID, WithAttributes, WithMethods, make_message
from tests.support.source_tree import ROOT
from tests.support.user_database import UserDatabase

metadata = sa.MetaData()
seen = make_inbox_table(metadata)
effects = sa.Table(
    "effects",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("offset", sa.Integer),
    mysql_engine="InnoDB",
)


@pytest.fixture
def engine(user_database: UserDatabase) -> Iterator[sa.Engine]:
    made = user_database.engine()
    metadata.create_all(made)
    yield made
    made.dispose()


@pytest_asyncio.fixture
async def async_engine(engine: sa.Engine, user_database: UserDatabase) -> AsyncIterator[AsyncEngine]:
    made = user_database.async_engine()
    yield made
    await made.dispose()


def act(session: Session | sa.Connection, offset: int) -> None:
    session.execute(effects.insert().values(offset=offset))


def written(engine: sa.Engine) -> list[int]:
    with engine.connect() as conn:
        return list(conn.scalars(sa.select(effects.c.offset).order_by(effects.c.offset)))


def rows(engine: sa.Engine) -> int:
    with engine.connect() as conn:
        return conn.scalar(sa.select(sa.func.count()).select_from(seen)) or 0


def take(inbox: Inbox, engine: sa.Engine, offset: int) -> bool:
    with Session(engine) as session, session.begin(), inbox.once(session, make_message(offset)) as is_new:
        if is_new:
            act(session, offset)
    return is_new


def test_message_acts_at_its_first_delivery_alone(engine: sa.Engine) -> None:
    """Each consumer for itself; a session and a connection do the same."""
    stamps, bills = Inbox("stamps"), Inbox("bills", seen)
    assert [take(stamps, engine, offset) for offset in (1, 2, 1, 2, 1)] == [True, True, False, False, False]
    with engine.begin() as conn, stamps.once(conn, make_message(1)) as is_new:
        assert not is_new
    assert take(bills, engine, 1)
    assert written(engine) == [1, 1, 2]


def test_batch_acts_once_for_each_message(engine: sa.Engine) -> None:
    """In the order given, those that are twice in it once; more than one statement takes, too."""
    inbox = Inbox("stamps")
    take(inbox, engine, 2)
    batch = [make_message(offset) for offset in (3, 2, 1, 3)]
    with Session(engine) as session, session.begin(), inbox.once_each(session, batch) as new_messages:
        assert [message.offset for message in new_messages] == [3, 1]
    with Session(engine) as session, session.begin(), inbox.once_each(session, []) as new_messages:
        assert new_messages == []
    many = [make_message(offset) for offset in range(2_500)]
    with Session(engine) as session, session.begin(), inbox.once_each(session, many) as new_messages:
        assert [message.offset for message in new_messages] == [0, *range(4, 2_500)]


def test_batch_is_one_statement(engine: sa.Engine) -> None:
    """A poll's messages cost one round trip, not one each."""
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with engine.begin() as conn, Inbox("stamps").once_each(conn, map(make_message, range(500))) as new_messages:
        assert len(new_messages) == 500
    assert len([text for text in statements if "outbox_inbox" in text]) == 1


@pytest.mark.parametrize("user_database", ["mariadb"], indirect=True)
def test_database_without_returning_is_asked_row_by_row(engine: sa.Engine) -> None:
    """MySQL has none, and is MariaDB otherwise."""
    engine.dialect.insert_executemany_returning = False
    inbox = Inbox("stamps")
    assert [take(inbox, engine, offset) for offset in (1, 1)] == [True, False]
    with Session(engine) as session, session.begin(), inbox.once_each(session, map(make_message, (2, 1, 3))) as new:
        assert [message.offset for message in new] == [2, 3]


def test_message_and_effect_are_rolled_back_together(engine: sa.Engine) -> None:
    """After a failure the message is new again; a commit that would keep it as seen is refused."""
    inbox = Inbox("stamps")
    with pytest.raises(ZeroDivisionError), engine.begin() as conn, inbox.once(conn, make_message(1)):
        act(conn, 0 // 0)
    with Session(engine) as session:
        with pytest.raises(ZeroDivisionError), inbox.once(session, make_message(1)):
            raise ZeroDivisionError
        with pytest.raises(Misuse, match="failed: roll back"):
            session.commit()
        session.rollback()
        with inbox.once(session, make_message(1)) as is_new:
            assert is_new
        session.commit()  # the session is as any other after its roll back
    assert (written(engine), rows(engine)) == ([], 1)


@pytest.mark.parametrize("make", [Session, sa.Engine.connect])
def test_message_without_a_transaction_is_refused(user_database: UserDatabase, make: Any) -> None:
    """With AUTOCOMMIT it would stay seen, whatever becomes of what it causes."""
    engine = user_database.engine(isolation_level="AUTOCOMMIT")
    metadata.create_all(engine)
    with make(engine) as session, pytest.raises(OutboxConfigError), Inbox("stamps").once(session, make_message(1)):
        raise AssertionError("entered")
    assert rows(engine) == 0
    engine.dispose()


@pytest.mark.parametrize("make", [Session, sa.Engine.connect])
def test_transactions_of_sqlite_may_be_begun_by_a_listener(tmp_path: Path, make: Any) -> None:
    """SQLAlchemy's own advice: the driver is told to begin none, and is in one all the same."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    sa.event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))
    metadata.create_all(engine)
    for is_kept, is_new in ((False, True), (True, True), (True, False)):
        with make(engine) as session:
            with Inbox("stamps").once(session, make_message(1)) as found:
                assert found is is_new
            (session.commit if is_kept else session.rollback)()
    engine.dispose()


def test_failed_message_leaves_with_its_savepoint(engine: sa.Engine) -> None:
    """A savepoint for each message lets the others of a transaction stand."""
    inbox = Inbox("stamps")
    with Session(engine) as session, session.begin():
        session.execute(effects.delete())  # SQLite's driver begins at the first write
        for offset in (1, 2, 3):
            once = inbox.once(session, make_message(offset))
            with contextlib.suppress(ZeroDivisionError), session.begin_nested(), once as is_new:
                assert is_new
                act(session, offset)
                _ = 1 // (offset - 2)
    assert written(engine) == [1, 3]
    assert take(inbox, engine, 2)


def swallow(session: Session | sa.Connection, inbox: Inbox) -> None:
    act(session, 0)  # SQLite's driver begins at the first write
    with session.begin_nested():
        with contextlib.suppress(ZeroDivisionError), inbox.once(session, make_message(1)) as is_new:
            assert is_new
            _ = 1 // 0
        act(session, 1)


def go_back(session: Session | sa.Connection, inbox: Inbox) -> None:
    act(session, 0)
    savepoint = session.begin_nested()
    with inbox.once(session, make_message(1)) as is_new:
        assert is_new
        savepoint.rollback()
        act(session, 1)


@pytest.mark.parametrize("make", [Session, sa.Engine.connect], ids=["session", "connection"])
@pytest.mark.parametrize("careless", [swallow, go_back])
def test_savepoint_parts_no_message_from_what_it_causes(engine: sa.Engine, make: Any, careless: Any) -> None:
    """Neither kept without the other: a block that failed within a savepoint cannot be committed, and one whose
    savepoint is rolled back ends as with any roll back. Savepoints within a block are free."""
    inbox = Inbox("stamps")
    with make(engine) as session:
        with pytest.raises(Misuse, match="inbox"), session.begin():
            careless(session, inbox)
        with session.begin(), inbox.once(session, make_message(2)):
            act(session, 2)
            session.begin_nested().rollback()
            session.begin_nested().commit()
    assert (written(engine), rows(engine)) == ([2], 1)
    assert take(inbox, engine, 1)


@pytest.mark.parametrize("user_database", ["mariadb"], indirect=True)
def test_table_that_takes_upper_for_lower_case_is_refused(engine: sa.Engine) -> None:
    """As MariaDB leaves it when a table is converted: what `a` caused, `A` never did."""
    with engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE outbox_inbox CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    inbox = Inbox("stamps")
    with Session(engine) as session, pytest.raises(OutboxConfigError, match="takes upper for lower case") as refused:
        inbox.once(session, "a").__enter__()
    with engine.begin() as conn:
        conn.exec_driver_sql(str(refused.value).split("`")[1])  # what is told to be done
    with Session(engine) as session, session.begin(), inbox.once_each(session, ["a", "A"]) as new_messages:
        assert new_messages == ["a", "A"]


@pytest.mark.parametrize("user_database", ["sqlite"], indirect=True)
def test_effect_in_another_database_is_refused(engine: sa.Engine, tmp_path: Path) -> None:
    """One may commit without the other: a message that is seen without what it causes."""
    other = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}", poolclass=sa.NullPool)
    metadata.create_all(other)
    inbox = Inbox("stamps")

    def careless(session: Session) -> None:
        with session.begin(), inbox.once(session, make_message(1)):
            act(session, 1)

    with Session(engine, binds={effects: other}) as session, pytest.raises(Misuse, match="more than one database"):
        careless(session)
    assert (written(other), rows(engine)) == ([], 0)


@pytest.mark.parametrize("user_database", ["mariadb"], indirect=True)
def test_statement_that_commits_parts_no_message_from_what_it_causes(engine: sa.Engine) -> None:
    """On MariaDB it had the message as seen before anything was written."""

    def careless(session: Session) -> None:
        with session.begin(), Inbox("stamps").once(session, make_message(1)):
            session.execute(sa.text("TRUNCATE TABLE effects"))

    with Session(engine) as session, pytest.raises(Misuse, match="`TRUNCATE` commits"):
        careless(session)
    assert rows(engine) == 0


def lose_a_deadlock(engine: sa.Engine, session: Session | sa.Connection) -> None:
    """Rows 1 and 2 are there. The other transaction, which has written more, waits for the one and holds the other."""
    with engine.connect() as other:
        for _ in range(30):
            act(other, 0)
        touch(other, 2)
        touch(session, 1)
        waiting = threading.Thread(target=touch, args=(other, 1))
        waiting.start()
        with contextlib.suppress(sa.exc.OperationalError):
            touch(session, 2)
        waiting.join()
        other.rollback()


def touch(session: Session | sa.Connection, row: int) -> None:
    session.execute(effects.update().where(effects.c.id == row).values(offset=9))


def meet_a_later_write(engine: sa.Engine, session: Session | sa.Connection) -> None:
    session.execute(sa.text("SET innodb_snapshot_isolation = ON"))
    session.execute(sa.select(effects)).all()
    with engine.begin() as other:
        touch(other, 1)
    with contextlib.suppress(sa.exc.OperationalError):
        touch(session, 1)


def lose_after_a_look(engine: sa.Engine, session: Session | sa.Connection) -> None:
    """SQLAlchemy leaves error events of the connection off where it has looked at a table of MariaDB."""
    sa.inspect(session if isinstance(session, sa.Connection) else session.connection()).get_columns("effects")
    lose_a_deadlock(engine, session)


@pytest.mark.parametrize("user_database", ["mariadb"], indirect=True)
@pytest.mark.parametrize("make", [Session, sa.Engine.connect], ids=["session", "connection"])
@pytest.mark.parametrize("lose", [lose_a_deadlock, meet_a_later_write, lose_after_a_look])
def test_rest_of_a_transaction_is_not_kept_without_the_message(engine: sa.Engine, make: Any, lose: Any) -> None:
    """At a deadlock MariaDB rolls the whole transaction back, and goes on in another one: what came then was kept, and
    written again with the next delivery."""
    with engine.begin() as conn:
        for offset in (1, 2):
            act(conn, offset)
    inbox = Inbox("stamps")

    def act_on(session: Any) -> None:
        with session.begin(), inbox.once(session, make_message(7)):
            lose(engine, session)
            act(session, 7)

    with make(engine) as session, pytest.raises(Misuse, match="inbox"):
        act_on(session)
    assert (7 in written(engine), rows(engine)) == (False, 0)
    assert take(inbox, engine, 7)


def divide(session: Session | sa.Connection) -> None:
    session.execute(sa.text("SELECT 1 / 0"))


def divide_by_a_cursor(session: Session | sa.Connection) -> None:
    """Of the driver's own, as for COPY: SQLAlchemy hears nothing of its errors."""
    (session if isinstance(session, sa.Connection) else session.connection()).connection.cursor().execute("SELECT 1/0")


@pytest.mark.parametrize("user_database", ["postgresql", "psycopg2"], indirect=True)
@pytest.mark.parametrize("make", [Session, sa.Engine.connect], ids=["session", "connection"])
@pytest.mark.parametrize("fail", [divide, divide_by_a_cursor])
def test_error_that_is_caught_in_the_block_loses_no_message(engine: sa.Engine, make: Any, fail: Any) -> None:
    """PostgreSQL then takes the COMMIT for a ROLLBACK without a word, and the offset was committed. With a savepoint
    around it nothing is lost."""
    inbox = Inbox("stamps")

    def act_twice(session: Session | sa.Connection, savepoint: Any) -> None:
        with session.begin(), inbox.once(session, make_message(7)):
            act(session, 7)
            with contextlib.suppress(sa.exc.DataError, engine.dialect.loaded_dbapi.DataError), savepoint():
                fail(session)

    with make(engine) as session:
        with pytest.raises(Misuse, match="inbox"):
            act_twice(session, contextlib.nullcontext)
        assert (written(engine), rows(engine)) == ([], 0)
        act_twice(session, session.begin_nested)
    assert (written(engine), rows(engine)) == ([7], 1)


@pytest.mark.parametrize("user_database", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("is_kept", [True, False])
def test_second_consumer_waits_for_the_first(engine: sa.Engine, *, is_kept: bool) -> None:
    """A rebalance gives a message to two at once: the second acts if and only if the first is rolled back."""
    inbox, second = Inbox("stamps"), list[bool]()
    waiting = threading.Thread(target=lambda: second.append(take(inbox, engine, 1)))
    with Session(engine) as session:
        with inbox.once(session, make_message(1)) as is_new:
            assert is_new
            act(session, 1)
            waiting.start()
            waiting.join(0.3)
            assert second == []
        if is_kept:
            session.commit()
    waiting.join(30)
    assert second == [not is_kept]
    assert written(engine) == [1]


def test_many_at_once_act_once(engine: sa.Engine) -> None:
    """Eight threads with the same batch in different orders: no deadlock, each message once."""
    inbox = Inbox("stamps")
    failures: list[BaseException] = []

    def work(turn: int) -> None:
        try:
            batch = [make_message((offset + turn * 7) % 50) for offset in range(50)]
            with Session(engine) as session, session.begin(), inbox.once_each(session, batch) as new_messages:
                for message in new_messages:
                    act(session, message.offset)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert written(engine) == list(range(50))


async def test_asyncio_does_the_same(engine: sa.Engine, async_engine: AsyncEngine) -> None:
    """Session and connection, one message and many, roll back and the refused commit."""
    inbox = AsyncInbox("stamps")
    for expected in (True, False):
        async with async_engine.connect() as conn:
            async with inbox.once(conn, make_message(1)) as is_new:
                assert is_new is expected
            await conn.commit()
    async with async_engine.begin() as conn, inbox.once_each(conn, map(make_message, (2, 1))) as new_messages:
        assert [message.offset for message in new_messages] == [2]
    async with AsyncSession(async_engine) as session:
        with pytest.raises(ZeroDivisionError):
            async with inbox.once(session, make_message(3)):
                raise ZeroDivisionError
        with pytest.raises(Misuse, match="failed: roll back"):
            await session.commit()
        await session.rollback()
    assert rows(engine) == 2
    assert await inbox.clean(async_engine, keep_days=1e-9) == 2


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_effect_is_durable_before_the_offset_is_committed(user_database: UserDatabase, engine: sa.Engine) -> None:
    """With synchronous_commit off, a crash of the server could take back what no consumer is told of again."""
    with engine.connect() as conn:
        conn.exec_driver_sql(f"ALTER DATABASE {sa.make_url(user_database.url).database} SET synchronous_commit = off")
        conn.commit()
    engine.dispose()
    inbox = Inbox("stamps")
    setting = sa.text("SHOW synchronous_commit")
    with Session(engine) as session:
        assert session.scalar(setting) == "off"
        with inbox.once(session, make_message(1)):
            act(session, 1)
        assert session.scalar(setting) == "on"
        session.commit()
        with inbox.once_each(session, map(make_message, (2, 3))):
            act(session, 2)
        assert session.scalar(setting) == "on"
        session.commit()
        assert session.scalar(setting) == "off"


def test_cleaning_deletes_what_is_old_of_one_consumer(engine: sa.Engine) -> None:
    """Bit by bit, and nothing of others."""
    stamps, bills = Inbox("stamps"), Inbox("bills")
    for offset in range(3):
        take(stamps, engine, offset)
        take(bills, engine, offset)
    with engine.begin() as conn:
        conn.execute(seen.update().where(seen.c.message_id != identify(make_message(0))).values(at_ms=0))
    assert [stamps.clean(engine, max_rows=1) for _ in range(3)] == [1, 1, 0]
    assert rows(engine) == 4
    assert [take(stamps, engine, offset) for offset in (0, 1)] == [False, True]
    assert not take(bills, engine, 1)


def test_clients_of_kafka_name_a_message_alike() -> None:
    """Methods or attributes, headers as list, tuple, mapping or none; the last transaction id is the bridge's."""
    place, last = ("orders", 3, 77), TRANSACTION_ID.encode()
    pairs = [("transaction-id", b"0" * 28), ("a", b"1"), ("transaction-id", last)]
    expected = f"orders/3/77/{TRANSACTION_ID}"
    assert identify(WithMethods(place, pairs)) == expected
    assert identify(WithAttributes(*place, tuple(pairs))) == expected
    assert identify(WithAttributes(*place, {"transaction-id": TRANSACTION_ID})) == expected  # type: ignore[arg-type]
    assert identify(WithMethods(place)) == identify(WithAttributes(*place)) == "orders/3/77"
    assert identify(WithAttributes(*place, [("transaction-id", b"not one of ours")])) == "orders/3/77"
    assert identify("invoice-42") == "invoice-42"


def test_documented_program_does_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands on the page."""
    sample = (ROOT / "docs" / "consumers.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(sample, names)
    assert [names["act"](make_message(offset), "ann") for offset in (1, 1, 2)] == [True, False, True]
    names["engine"].dispose()
