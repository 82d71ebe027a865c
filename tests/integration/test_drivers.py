"""PostgreSQL by other drivers: each has its own place for what the server says."""

import contextlib
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outbox.client.errors import Misuse, OutboxConfigError, TableMissing
from outbox.client.listener import Resolution
from outbox.inbox import AsyncInbox, Inbox
from outbox.tables import make_record_table
from outbox.transaction_record import AsyncTransactionRecord, TransactionRecord
from tests.support.record_checks import ask, make_check
from tests.support.user_database import UserDatabase

ROLLBACK, COMMIT, UNKNOWN = Resolution.ROLLBACK, Resolution.COMMIT, Resolution.UNKNOWN
pytestmark = pytest.mark.parametrize("user_database", ["psycopg2", "pg8000"], indirect=True)


@pytest.fixture
def engine(user_database: UserDatabase) -> Iterator[sa.Engine]:
    made = user_database.engine()
    yield made
    made.dispose()


def test_local_transaction_that_runs_is_unknown_and_disturbs_no_other(engine: sa.Engine) -> None:
    """A check gives way to it; asked after its commit it is COMMIT."""
    record = TransactionRecord(make_record_table(sa.MetaData()))
    record.table.metadata.create_all(engine)
    with Session(engine) as session:
        record.write(session, "running", "orders")
        assert ask(record, engine, "gone", "running") == [ROLLBACK, UNKNOWN]
        session.commit()
    assert ask(record, engine, "gone", "running") == [ROLLBACK, COMMIT]


def test_table_that_is_forgotten_is_named(engine: sa.Engine) -> None:
    """With what makes it."""
    with (
        Session(engine) as session,
        pytest.raises(TableMissing, match="make_inbox_table"),
        Inbox("stamps").once(session, "id"),
    ):
        pass


def test_error_that_is_caught_keeps_no_message_as_seen(engine: sa.Engine) -> None:
    """PostgreSQL takes the COMMIT for a ROLLBACK without a word."""
    inbox = Inbox("stamps")
    inbox.table.metadata.create_all(engine)

    def act(statement: str) -> bool:
        with Session(engine) as session, session.begin(), inbox.once(session, "id") as is_new:
            with contextlib.suppress(sa.exc.DBAPIError):
                session.execute(sa.text(statement))
            return is_new

    with pytest.raises(Misuse, match="inbox"):
        act("SELECT 1 / 0")
    assert act("SELECT 1")


async def test_asyncpg_does_the_same(user_database: UserDatabase) -> None:
    """All three."""
    engine = user_database.async_engine()
    record, inbox = AsyncTransactionRecord(make_record_table(sa.MetaData())), AsyncInbox("stamps")
    async with AsyncSession(engine) as session:
        with pytest.raises(TableMissing, match="make_inbox_table"):
            async with inbox.once(session, "id"):
                pass
    async with engine.begin() as conn:
        await conn.run_sync(record.table.metadata.create_all)
        await conn.run_sync(inbox.table.metadata.create_all)
    told: dict[str, Resolution] = {}
    async with AsyncSession(engine) as session:
        await record.write(session, "running", "orders")
        checks = [make_check(name) for name in ("gone", "running")]
        await record.answers(engine)(checks, lambda check, word: told.update({check.transaction_id: word}))
        await session.commit()
    assert told == {"gone": ROLLBACK, "running": UNKNOWN}

    async def act(statement: str) -> bool:
        async with AsyncSession(engine) as session, session.begin(), inbox.once(session, "id") as is_new:
            with contextlib.suppress(sa.exc.DBAPIError):
                await session.execute(sa.text(statement))
            return is_new

    with pytest.raises(Misuse, match="inbox"):
        await act("SELECT 1 / 0")
    assert await act("SELECT 1")
    await engine.dispose()


async def test_unlogged_table_is_refused_by_asyncpg_too(user_database: UserDatabase) -> None:
    """It reads some of PostgreSQL's own types as bytes."""
    engine, inbox = user_database.async_engine(), AsyncInbox("stamps")
    async with engine.begin() as conn:
        await conn.run_sync(inbox.table.metadata.create_all)
        await conn.exec_driver_sql("ALTER TABLE outbox_inbox SET UNLOGGED")
    async with AsyncSession(engine) as session:
        with pytest.raises(OutboxConfigError, match="unlogged"):
            async with inbox.once(session, "id"):
                pass
    await engine.dispose()
