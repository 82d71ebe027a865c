"""Which errors of a commit prove that it did not happen."""

import sqlite3

import psycopg.errors
import pymysql.err
import pytest
import sqlalchemy.exc

from outbox.client.block import load_guards
from outbox.client.errors import is_read_only, is_surely_not_committed


def wrapped(
    original: BaseException, kind: type = sqlalchemy.exc.OperationalError, *, is_lost: bool = False
) -> Exception:
    """As SQLAlchemy raises a driver's error."""
    error: Exception = kind("COMMIT", {}, original, connection_invalidated=is_lost)
    error.__cause__ = original
    return error


@pytest.mark.parametrize(
    "error",
    [
        wrapped(psycopg.errors.UniqueViolation(), sqlalchemy.exc.IntegrityError),
        wrapped(psycopg.errors.SerializationFailure()),
        wrapped(psycopg.errors.DeadlockDetected()),
        wrapped(psycopg.errors.RaiseException("unbalanced"), sqlalchemy.exc.ProgrammingError),
        wrapped(sqlite3.IntegrityError("FOREIGN KEY constraint failed"), sqlalchemy.exc.IntegrityError),
        psycopg.errors.ForeignKeyViolation(),
        wrapped(pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")),
        sqlite3.IntegrityError(),
        sqlalchemy.exc.PendingRollbackError("rolled back"),
    ],
    ids=repr,
)
def test_refusal_of_the_database_is_a_proof(error: Exception) -> None:
    """It speaks of this very transaction, and says that it is gone."""
    assert is_surely_not_committed(error)


@pytest.mark.parametrize(
    "error",
    [
        wrapped(psycopg.OperationalError("server closed the connection")),
        wrapped(psycopg.OperationalError("lost"), is_lost=True),
        wrapped(psycopg.errors.UniqueViolation(), sqlalchemy.exc.IntegrityError, is_lost=True),
        wrapped(psycopg.errors.AdminShutdown()),
        wrapped(psycopg.errors.StatementCompletionUnknown()),
        wrapped(psycopg.errors.QueryCanceled()),
        wrapped(sqlite3.OperationalError("disk I/O error")),
        sqlalchemy.exc.InterfaceError("COMMIT", {}, Exception()),
        ConnectionResetError(),
        TimeoutError(),
        ValueError(),
    ],
    ids=repr,
)
def test_all_else_proves_nothing(error: Exception) -> None:
    """The commit may have arrived before the connection broke."""
    assert not is_surely_not_committed(error)


def test_endless_causes_end() -> None:
    """Errors may refer to each other."""
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert not is_surely_not_committed(first)


def test_server_that_takes_no_writes_is_known_by_its_own_words() -> None:
    """Of PostgreSQL by the SQLSTATE, of MariaDB and MySQL by the number."""
    said = [psycopg.errors.ReadOnlySqlTransaction(), pymysql.err.OperationalError(1290, "running with --read-only")]
    assert all(is_read_only(wrapped(error)) for error in said)
    assert not is_read_only(wrapped(pymysql.err.OperationalError(1213, "Deadlock found")))


def test_database_that_cannot_be_reached_is_told_as_without_the_sdk() -> None:
    """Its listeners hear of errors of every engine of the process, also where there is no connection yet."""
    load_guards()
    with pytest.raises(sqlalchemy.exc.OperationalError, match="refused"):
        sqlalchemy.create_engine("postgresql+psycopg://shop@127.0.0.1:1/shop").connect()
