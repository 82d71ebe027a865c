"""Transaction records on real databases: what a check may say, whatever the local transaction is doing."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outbox.check_handler import Findings
from outbox.client.checks import CheckCall
from outbox.client.errors import LocalTransactionBarred, OutboxConfigError
from outbox.client.listener import Resolution
from outbox.client.message import Message
from outbox.enqueue import enqueue
from outbox.hand_over import MemoryHandOver
from outbox.inbox import Inbox
from outbox.relay import RelayConfig
from outbox.relay_database import OutboxDatabase, SourceSpec
from outbox.tables import make_record_table, make_tables
from outbox.transaction_record import AsyncTransactionRecord, RecordConfig, TransactionRecord
from tests.support.record_checks import ask, ask_why, make_check
from tests.support.user_database import UserDatabase

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN
DAY_MS = 86_400_000


@pytest.fixture
def record() -> TransactionRecord:
    return TransactionRecord(make_record_table(sa.MetaData()))


@pytest.fixture
def engine(user_database: UserDatabase, record: TransactionRecord) -> Iterator[sa.Engine]:
    made = user_database.engine()
    sa.Table("shop", record.table.metadata, sa.Column("id", sa.Integer, primary_key=True))
    record.table.metadata.create_all(made)
    yield made
    made.dispose()


def test_each_answer_is_what_a_committed_row_says(record: TransactionRecord, engine: sa.Engine) -> None:
    """Committed: COMMIT. Rolled back, or never begun: barred, so ROLLBACK; the same again when asked again."""
    with orm.Session(engine) as session:
        record.write(session, "kept", "orders")
        session.commit()
        record.write(session, "undone", "orders")
        session.rollback()
    for _ in range(2):
        assert ask(record, engine, "kept", "undone", "never") == [COMMIT, ROLLBACK, ROLLBACK]


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_check_leaves_a_server_that_takes_no_writes_any_more(
    record: TransactionRecord, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Another has taken over, and pooled connections to this one have outlived that: no check was answered there."""
    pooled = sa.create_engine(engine.url)
    with pooled.begin() as conn:
        conn.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")  # this connection's server
    with pytest.raises(sa.exc.InternalError) as refused:
        ask(record, pooled, "never")
    Findings(CheckCall("orders", (), None)).note(refused.value)
    assert "the primary" in caplog.text
    assert ask(record, pooled, "never") == [ROLLBACK]
    pooled.dispose()


def test_trial_leaves_no_bar_behind(record: TransactionRecord, engine: sa.Engine) -> None:
    """It is told what committed rows say; a local transaction that was asked about can still be committed."""
    with orm.Session(engine) as session:
        record.write(session, "kept", "orders")
        session.commit()
    assert ask(record, engine, "kept", "soon", is_trial=True) == [COMMIT, UNKNOWN]
    with orm.Session(engine) as session:
        record.write(session, "soon", "orders")
        session.commit()
        assert session.scalar(sa.select(sa.func.count()).select_from(record.table)) == 2


def test_late_local_transaction_fails_after_its_check(record: TransactionRecord, engine: sa.Engine) -> None:
    """Whoever was told ROLLBACK must never see the local transaction commit."""
    assert ask(record, engine, "late") == [ROLLBACK]
    with orm.Session(engine) as session, pytest.raises(LocalTransactionBarred):
        record.write(session, "late", "orders")
    assert ask(record, engine, "late") == [ROLLBACK]


def test_late_local_transaction_fails_under_an_old_snapshot(
    record: TransactionRecord, user_database: UserDatabase, engine: sa.Engine
) -> None:
    """A snapshot taken before the bar does not see it; the key stops the local transaction all the same."""
    for level in user_database.isolation_levels():
        late = f"late {level}"
        with orm.Session(engine.execution_options(isolation_level=level)) as session:
            session.execute(sa.text("SELECT * FROM shop")).all()  # here a snapshot begins
            assert ask(record, engine, late) == [ROLLBACK]
            with pytest.raises((LocalTransactionBarred, sa.exc.OperationalError)):
                record.write(session, late, "orders")
            session.rollback()
        assert ask(record, engine, late) == [ROLLBACK]


def test_running_local_transaction_is_unknown_and_disturbs_no_other(
    record: TransactionRecord, user_database: UserDatabase, engine: sa.Engine
) -> None:
    """Asked in one call with others, only the running one is UNKNOWN; asked after its commit it is COMMIT."""
    others = UNKNOWN if user_database.name == "sqlite" else ROLLBACK  # there a writer locks the whole file
    for level in user_database.isolation_levels():
        gone, running, lost = [f"{name} {level}" for name in ("gone", "running", "lost")]
        with orm.Session(engine.execution_options(isolation_level=level)) as session:
            record.write(session, running, "orders")
            assert ask(record, engine, gone, running, lost) == [others, UNKNOWN, others]
            session.commit()
        assert ask(record, engine, gone, running, lost) == [ROLLBACK, COMMIT, ROLLBACK]


UNKEPT = {"postgresql": "ALTER TABLE {} SET UNLOGGED", "mariadb": "ALTER TABLE {} ENGINE=MyISAM"}


def test_tables_that_go_other_ways_than_the_local_transaction_are_refused(
    user_database: UserDatabase, engine: sa.Engine
) -> None:
    """What was rolled back would be answered COMMIT, and published; what a crash took alone would be ROLLBACK."""
    tables = make_tables(sa.MetaData())
    for table in tables:
        table.create(engine, checkfirst=True)
        if user_database.name != "sqlite":
            with engine.begin() as conn:
                conn.exec_driver_sql(UNKEPT[user_database.name].format(table.name))
    with orm.Session(engine) as session:
        if user_database.name == "sqlite":
            session.connection().exec_driver_sql("PRAGMA journal_mode=OFF")
        for act in (
            lambda: TransactionRecord().write(session, "undone", "orders"),
            lambda: enqueue(session, Message("orders")),
            lambda: Inbox("stamps").once(session, "orders/0/1").__enter__(),
        ):
            with pytest.raises(OutboxConfigError, match=r"ALTER TABLE .* (SET LOGGED|ENGINE=InnoDB)|journal_mode=WAL"):
                act()
    if user_database.name != "sqlite":
        opened = OutboxDatabase(user_database.url)
        with pytest.raises(OutboxConfigError, match="ALTER TABLE outbox_message"):
            opened.open_relay(SourceSpec(), MemoryHandOver(), RelayConfig())
        opened.close()


COPIES = {
    "sqlite": ("CREATE TABLE copy AS SELECT * FROM {0}", "DROP TABLE {0}", "ALTER TABLE copy RENAME TO {0}"),
    "postgresql": (
        "ALTER TABLE {0} RENAME TO copy",
        "CREATE TABLE {0} (LIKE copy) PARTITION BY RANGE (at_ms)",
        "DROP TABLE copy",
        "CREATE TABLE {0}_all PARTITION OF {0} DEFAULT",
        "ALTER TABLE {0} ADD PRIMARY KEY ({1}, at_ms)",
        "CREATE UNIQUE INDEX ON {0}_all ({1}) WHERE at_ms < 0",
    ),
    "mariadb": (
        "ALTER TABLE {0} DROP PRIMARY KEY, ADD PRIMARY KEY ({1}, at_ms)",
        "ALTER TABLE {0} PARTITION BY RANGE (at_ms) (PARTITION every VALUES LESS THAN MAXVALUE)",
    ),
}


def test_tables_that_take_two_rows_of_one_key_are_refused(
    user_database: UserDatabase, record: TransactionRecord, engine: sa.Engine
) -> None:
    """Divided by time, say: a bar beside a record, so that what was answered ROLLBACK is committed all the same; and a
    message that is new whenever it comes."""
    tables = {table.name: table for table in make_tables(sa.MetaData())}
    tables["outbox_inbox"].create(engine)
    for name in ("outbox_transaction", "outbox_inbox"):
        key = ", ".join(column.name for column in tables[name].primary_key)
        with engine.begin() as conn:
            for statement in COPIES[user_database.name]:
                conn.exec_driver_sql(statement.format(name, key))
    with orm.Session(engine) as session:
        with pytest.raises(OutboxConfigError, match=r"PRIMARY KEY \(transaction_id\)"):
            record.write(session, "kept", "orders")
        with pytest.raises(OutboxConfigError, match=r"PRIMARY KEY \(consumer, message_id\)"):
            Inbox("stamps").once(session, "orders/0/1").__enter__()
    with pytest.raises(OutboxConfigError, match=r"PRIMARY KEY \(transaction_id\)"):
        ask(record, engine, "never")


def test_database_in_memory_keeps_its_journal_there() -> None:
    """As tests have it: nothing of it outlives a crash."""
    engine, record = sa.create_engine("sqlite://"), TransactionRecord(make_record_table(sa.MetaData()))
    record.table.create(engine)
    with orm.Session(engine) as session:
        record.write(session, "kept", "orders")
        session.commit()
    engine.dispose()


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_records_and_bars_are_durable_before_they_are_seen(
    record: TransactionRecord, user_database: UserDatabase, engine: sa.Engine
) -> None:
    """With synchronous_commit off, a crash of the server could take back what the bridge has already been told."""
    settings: list[str] = []

    def after_statement(conn: sa.Connection, _: object, statement: str, *__: object) -> None:
        if statement.startswith("INSERT"):
            with conn.connection.cursor() as cursor:
                cursor.execute("SHOW synchronous_commit")
                settings.append(cursor.fetchone()[0])

    with engine.connect() as conn:
        conn.exec_driver_sql(f"ALTER DATABASE {sa.make_url(user_database.url).database} SET synchronous_commit = off")
        conn.commit()
    sa.event.listen(engine, "after_cursor_execute", after_statement)
    with orm.Session(engine) as session:
        assert session.scalar(sa.text("SHOW synchronous_commit")) == "off"
        record.write(session, "kept", "orders")
        session.commit()
    assert ask(record, engine, "gone") == [ROLLBACK]
    assert settings == ["on", "on"]


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_table_that_is_being_restored_answers_no_rollback(
    record: TransactionRecord, user_database: UserDatabase, engine: sa.Engine
) -> None:
    """pg_restore makes a table, fills it, and gives it its key last. It had been looked at before."""
    with orm.Session(engine) as session:
        record.write(session, "done", "orders")
        session.commit()
    assert ask(record, engine, "done", "undone") == [COMMIT, ROLLBACK]
    name = record.table.name
    with engine.begin() as conn:
        conn.exec_driver_sql(f"ALTER TABLE {name} RENAME TO dumped")
        conn.exec_driver_sql(f"CREATE TABLE {name} (LIKE dumped)")
    with pytest.raises(OutboxConfigError, match="PRIMARY KEY"):
        ask(record, engine, "done")
    with engine.begin() as conn:
        conn.exec_driver_sql(f"INSERT INTO {name} SELECT * FROM dumped")
        conn.exec_driver_sql(f"ALTER TABLE {name} ADD PRIMARY KEY (transaction_id)")
    assert ask(record, engine, "done") == [COMMIT]


def test_record_without_a_transaction_is_refused(record: TransactionRecord, user_database: UserDatabase) -> None:
    """With AUTOCOMMIT it would stand, and be answered COMMIT, whatever becomes of what it speaks for."""
    engine = user_database.engine(isolation_level="AUTOCOMMIT")
    record.table.metadata.create_all(engine)
    with orm.Session(engine) as session, pytest.raises(OutboxConfigError):
        record.write(session, "alone", "orders")
    assert ask(record, engine, "alone") == [ROLLBACK]
    with orm.Session(engine) as session, pytest.raises(OutboxConfigError):
        enqueue(session, Message("orders"))  # published, whatever becomes of what it tells of
    engine.dispose()


class Committing(sqlite3.Connection):
    """What `sqlite3.connect(autocommit=True)` gives from Python 3.12 on, by what it says of itself."""

    autocommit = True


async def test_record_on_a_connection_of_sqlite_that_commits_by_itself_is_refused(tmp_path: Path) -> None:
    """Its isolation level says nothing of that."""
    made: dict[str, Any] = {"connect_args": {"factory": Committing}, "poolclass": sa.NullPool}
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}", **made)
    awaited = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}", **made)
    for table in make_tables(sa.MetaData()):
        table.create(engine)
    with orm.Session(engine) as session:
        for act in (
            lambda: TransactionRecord().write(session, "alone", "orders"),
            lambda: enqueue(session, Message("orders")),
            lambda: Inbox("stamps").once(session, "orders/0/1").__enter__(),
        ):
            with pytest.raises(OutboxConfigError, match="AUTOCOMMIT"):
                act()
    async with AsyncSession(awaited) as session_of_asyncio:
        with pytest.raises(OutboxConfigError, match="AUTOCOMMIT"):
            await AsyncTransactionRecord().write(session_of_asyncio, "alone", "orders")
    engine.dispose()
    await awaited.dispose()


def test_settings_of_a_pooled_connection_are_put_back(record: TransactionRecord, user_database: UserDatabase) -> None:
    """A connection that waits for nobody would fail the next one who gets it from the pool."""
    settings = {
        "sqlite": "PRAGMA busy_timeout",
        "postgresql": "SELECT current_setting('lock_timeout') || current_setting('statement_timeout')",
        "mariadb": "SELECT CONCAT(@@innodb_lock_wait_timeout, @@max_statement_time, @@idle_write_transaction_timeout)",
    }
    engine = sa.create_engine(user_database.url, pool_size=1, max_overflow=0)
    record.table.metadata.create_all(engine)

    def read() -> object:
        with engine.connect() as conn:
            return conn.exec_driver_sql(settings[user_database.name]).scalar_one()

    before = read()
    assert ask(record, engine, "gone") == [ROLLBACK]
    assert read() == before
    engine.dispose()


async def test_async_twin_says_the_same(user_database: UserDatabase) -> None:
    """Written, barred and running ones, through an async driver."""
    engine = user_database.async_engine()
    record = AsyncTransactionRecord(make_record_table(sa.MetaData()))
    async with engine.begin() as conn:
        await conn.run_sync(record.table.metadata.create_all)
    told: dict[str, Resolution] = {}
    checks = [make_check(name) for name in ("kept", "running", "gone")]

    async def ask_again() -> list[Resolution]:
        told.clear()
        await record.answers(engine)(checks, lambda check, word: told.update({check.transaction_id: word}))
        return [told[check.transaction_id] for check in checks]

    async with AsyncSession(engine) as session:
        await record.write(session, "kept", "orders")
        await session.commit()
        await record.write(session, "running", "orders")
        others = UNKNOWN if user_database.name == "sqlite" else ROLLBACK
        assert await ask_again() == [COMMIT, UNKNOWN, others]
        await session.commit()
        assert await ask_again() == [COMMIT, COMMIT, ROLLBACK]
        with pytest.raises(LocalTransactionBarred):
            await record.write(session, "gone", "orders")
    assert await record.clean(engine) == 0
    await engine.dispose()


def test_record_of_days_before_is_of_another_run(record: TransactionRecord, engine: sa.Engine) -> None:
    """An idempotency key repeated after the bridge forgot it names a new transaction, whose local one finds the record
    of the first and is barred. What the first has published is not published again; what was barred stays so."""
    with orm.Session(engine) as session:
        record.write(session, "kept", "orders")
        session.commit()
    assert ask(record, engine, "gone") == [ROLLBACK]
    with engine.begin() as conn:
        written = sa.select(record.table.c.at_ms).where(record.table.c.transaction_id == "kept")
        conn.execute(sa.update(record.table).values(at_ms=record.table.c.at_ms - 8 * DAY_MS))
        at_ms = conn.scalar(written)
    with orm.Session(engine) as session, pytest.raises(LocalTransactionBarred):
        record.write(session, "kept", "orders")
    assert ask(record, engine, "kept", "gone", born_ms=at_ms + 8 * DAY_MS) == [UNKNOWN, ROLLBACK]
    assert "a clock is wrong" in ask_why(record, engine, "kept", at_ms + 8 * DAY_MS)
    assert ask(record, engine, "kept", born_ms=at_ms + DAY_MS) == [COMMIT]  # clocks may be a day apart


def test_cleaning_forgets_without_lying(user_database: UserDatabase) -> None:
    """A record that may have been deleted proves nothing by its absence: UNKNOWN, and no bar."""
    record = TransactionRecord(make_record_table(sa.MetaData()), RecordConfig(max_clean_rows=3))
    engine = user_database.engine()
    record.table.metadata.create_all(engine)
    with orm.Session(engine) as session:
        for number in range(5):
            record.write(session, f"old-{number}", "orders")
        session.execute(sa.update(record.table).values(at_ms=record.table.c.at_ms - 15 * DAY_MS))
        record.write(session, "new", "orders")
        session.commit()
        now_ms = session.scalar(sa.select(sa.func.max(record.table.c.at_ms)))
    assert [record.clean(engine) for _ in range(3)] == [3, 2, 0]
    assert ask(record, engine, "old-1", born_ms=now_ms - 15 * DAY_MS) == [UNKNOWN]
    assert ask(record, engine, "old-1", born_ms=now_ms - 13 * DAY_MS - 60_000) == [UNKNOWN]
    assert "a clock was ahead" in ask_why(record, engine, "old-1", now_ms - 15 * DAY_MS)
    assert ask(record, engine, "new", "young", born_ms=now_ms - 12 * DAY_MS) == [COMMIT, ROLLBACK]
    engine.dispose()
