"""Processes killed with SIGKILL at every step of a local transaction and of a check."""

import os
import signal
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from outbox.client.errors import LocalTransactionBarred
from outbox.client.listener import Resolution
from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord
from tests.support.bridge_process import wait_until
from tests.support.local_transaction_process import CHECK_STEPS, WRITE_STEPS
from tests.support.process_pool import Child, shared_pool
from tests.support.record_checks import ask, ask_until_known
from tests.support.user_database import UserDatabase


@pytest.fixture
def record(user_database: UserDatabase) -> TransactionRecord:
    made = TransactionRecord(make_record_table(sa.MetaData()))
    made.table.metadata.create_all(user_database.engine())
    return made


def start(role: str, database: UserDatabase, stop_at: str, folder: Path) -> Child:
    """A process that has come to that step."""
    command = ["tests.support.local_transaction_process", role, database.url, stop_at, stop_at]
    log = folder / "log"
    child = shared_pool().start(command, os.environ, folder, log)
    wait_until(lambda: log.read_text() == f"at {stop_at}\n", name=stop_at)
    return child


def kill(process: Child) -> None:
    process.kill()
    process.wait(30)


@pytest.mark.parametrize("stop_at", WRITE_STEPS)
def test_killed_local_transaction_is_known_for_what_it_was(
    record: TransactionRecord, user_database: UserDatabase, stop_at: str, tmp_path: Path
) -> None:
    """Killed before its commit: ROLLBACK, for ever. After: COMMIT. While it lives and holds the key: UNKNOWN."""
    process = start("write", user_database, stop_at, tmp_path)
    try:
        if stop_at == "written":
            assert ask(record, user_database.engine(), stop_at) == [Resolution.UNKNOWN]
    finally:
        kill(process)
    expected = Resolution.COMMIT if stop_at == "committed" else Resolution.ROLLBACK
    assert ask_until_known(record, user_database.engine(), stop_at) is expected


@pytest.mark.parametrize("stop_at", CHECK_STEPS)
def test_killed_check_leaves_no_half_answer(
    record: TransactionRecord, user_database: UserDatabase, stop_at: str, tmp_path: Path
) -> None:
    """Killed before its bar has committed, it has decided nothing: the local transaction may go on. After: barred."""
    process = start("check", user_database, stop_at, tmp_path)
    kill(process)
    engine = user_database.engine()
    with orm.Session(engine) as session:
        if stop_at == "committed":
            with pytest.raises(LocalTransactionBarred):
                record.write(session, stop_at, "orders")
        else:
            record.write(session, stop_at, "orders")
            session.commit()
    expected = Resolution.ROLLBACK if stop_at == "committed" else Resolution.COMMIT
    assert ask(record, user_database.engine(), stop_at) == [expected]
    engine.dispose()


@pytest.mark.parametrize("user_database", ["postgresql", "mariadb"], indirect=True)
def test_frozen_check_holds_up_nobody_for_long(
    record: TransactionRecord, user_database: UserDatabase, tmp_path: Path
) -> None:
    """Stopped between its bar and the commit, it is thrown out by the server; the local transaction goes on."""
    process = start("check", user_database, "barred", tmp_path)
    try:
        process.send_signal(signal.SIGSTOP)
        with orm.Session(user_database.engine()) as session:
            record.write(session, "barred", "orders")  # waits for the server's verdict on the other session
            session.commit()
        process.send_signal(signal.SIGCONT)
        assert ask(record, user_database.engine(), "barred") == [Resolution.COMMIT]
    finally:
        kill(process)
