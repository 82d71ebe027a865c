"""The table of the drivers' errors."""

import sqlite3

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from bridge.core.errors import SqlUnavailable
from bridge.sql.engine import RepeatableError, translate_error


def wrap(orig: Exception, *, is_lost: bool = False) -> DBAPIError:
    return OperationalError("statement", {}, orig, connection_invalidated=is_lost)


def lite(code: int, text: str = "x") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "orig",
    [
        lite(sqlite3.SQLITE_BUSY), lite(sqlite3.SQLITE_BUSY_SNAPSHOT), lite(sqlite3.SQLITE_LOCKED),
        psycopg.errors.DeadlockDetected(), psycopg.errors.SerializationFailure(), psycopg.errors.LockNotAvailable(),
    ],
)  # fmt: skip
def test_conflicts_are_repeated(orig: Exception) -> None:
    """The database took everything back; the same work may well succeed now."""
    assert isinstance(translate_error(wrap(orig), is_committing=True), RepeatableError)


@pytest.mark.parametrize(
    ("orig", "retry_helps"),
    [
        (lite(sqlite3.SQLITE_FULL), True),
        (lite(sqlite3.SQLITE_READONLY_DBMOVED), True),
        (lite(sqlite3.SQLITE_IOERR_WRITE), True),
        (lite(sqlite3.SQLITE_CANTOPEN), True),
        (lite(sqlite3.SQLITE_INTERRUPT), True),
        (lite(sqlite3.SQLITE_NOTADB), False),
        (lite(sqlite3.SQLITE_CORRUPT), False),
        (lite(sqlite3.SQLITE_ERROR, "no such table: x"), False),
        (psycopg.errors.UndefinedTable(), False),
        (psycopg.errors.QueryCanceled(), True),
        (psycopg.errors.ReadOnlySqlTransaction(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.errors.DiskFull(), True),
        (psycopg.errors.InvalidPassword(), False),
        (psycopg.errors.InvalidCatalogName(), False),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.OperationalError("connection refused"), True),
    ],
)
def test_outages_are_unavailable(orig: Exception, retry_helps: bool) -> None:
    """503, with the wisdom whether to wait or to call somebody (65, 66)."""
    translated = translate_error(wrap(orig), is_committing=False)
    assert isinstance(translated, SqlUnavailable)
    assert (translated.retry_helps, translated.is_outcome_unknown) == (retry_helps, False)


def test_connection_lost_in_commit_is_an_unknown_outcome() -> None:
    """The server may have committed before it went."""
    translated = translate_error(wrap(psycopg.OperationalError("lost"), is_lost=True), is_committing=True)
    assert isinstance(translated, SqlUnavailable)
    assert translated.is_outcome_unknown


@pytest.mark.parametrize(
    "error",
    [
        IntegrityError("statement", {}, sqlite3.IntegrityError("UNIQUE")),
        ProgrammingError("statement", {}, psycopg.errors.SyntaxError()),
        wrap(lite(sqlite3.SQLITE_ERROR, "near x: syntax error")),
    ],
)
def test_bugs_stay_bugs(error: DBAPIError) -> None:
    """An outage is waited for; a bug must be seen."""
    assert translate_error(error, is_committing=False) is error


def test_pool_without_connection_is_unavailable() -> None:
    """Bounded wait, then 503 (66)."""
    assert isinstance(translate_error(PoolTimeoutError(), is_committing=False), SqlUnavailable)
