"""Errors of the two drivers -> ours. The one place that knows their codes."""

import sqlite3

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from bridge.sql.errors import SqlUnavailable

_NOT_MIGRATED = "the database is not migrated: run `outbox-bridge migrate`"

# SQLSTATE, or its class -> what it means. Source: PostgreSQL, appendix A.
_POSTGRES: dict[str, SqlUnavailable] = {
    "42P01": SqlUnavailable(_NOT_MIGRATED, retry_helps=False),
    "42703": SqlUnavailable(_NOT_MIGRATED, retry_helps=False),
    "42501": SqlUnavailable("the database refuses: privileges are missing", retry_helps=False),
    "57014": SqlUnavailable("a statement took too long"),
    "25006": SqlUnavailable("the database is read-only"),
    "25P03": SqlUnavailable("the database ended an idle SQL transaction"),
    "53": SqlUnavailable("the database is out of resources"),
    "58": SqlUnavailable("the database has a system error"),
    "28": SqlUnavailable("the database refuses the login", retry_helps=False),
    "3D": SqlUnavailable("there is no such database", retry_helps=False),
}
_POSTGRES_REPEATABLE = {"40001", "40P01", "55P03"}

_SQLITE_REPEATABLE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE: dict[int, SqlUnavailable] = {
    sqlite3.SQLITE_READONLY: SqlUnavailable("the database file is read-only"),
    sqlite3.SQLITE_FULL: SqlUnavailable("the disk is full"),
    sqlite3.SQLITE_IOERR: SqlUnavailable("the database file cannot be read or written"),
    sqlite3.SQLITE_CANTOPEN: SqlUnavailable("the database file cannot be opened"),
    sqlite3.SQLITE_INTERRUPT: SqlUnavailable("a read took too long"),
    sqlite3.SQLITE_CORRUPT: SqlUnavailable("the database file is damaged", retry_helps=False),
    sqlite3.SQLITE_NOTADB: SqlUnavailable("the file is not an SQLite database", retry_helps=False),
}


class RepeatableError(Exception):
    """Nothing was applied, and the same work may well succeed now."""


def translate_error(error: SQLAlchemyError, *, is_committing: bool) -> Exception:
    """SqlUnavailable, RepeatableError, or the error itself where it is a bug or a broken constraint."""
    if isinstance(error, PoolTimeoutError):
        return SqlUnavailable("no database connection is free")
    if not isinstance(error, DBAPIError) or isinstance(error, IntegrityError):
        return error
    if isinstance(error.orig, sqlite3.Error):
        return _translate_sqlite(error, error.orig)
    return _translate_postgres(error, is_committing=is_committing)


def _translate_sqlite(error: DBAPIError, orig: sqlite3.Error) -> Exception:
    code = getattr(orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the primary code of an extended one
    if code in _SQLITE_REPEATABLE:
        return RepeatableError("the database is busy")
    if str(orig).startswith(("no such table", "no such column")):
        return SqlUnavailable(_NOT_MIGRATED, retry_helps=False)
    return _copy(_SQLITE[code]) if code in _SQLITE else error


def _translate_postgres(error: DBAPIError, *, is_committing: bool) -> Exception:
    state = getattr(error.orig, "sqlstate", None)
    if state in _POSTGRES_REPEATABLE:
        return RepeatableError(f"the database gave up ({state})")
    is_lost = error.connection_invalidated or state is None or state[:2] == "08" or state[:3] == "57P"
    if state is not None and not is_lost:
        known = _POSTGRES.get(state) or _POSTGRES.get(state[:2])
        return error if known is None else _copy(known)
    if _is_connection_error(error):
        return SqlUnavailable("the database cannot be reached", is_outcome_unknown=is_committing)
    return error


def _is_connection_error(error: DBAPIError) -> bool:
    return error.connection_invalidated or type(error.orig).__name__ in {
        "OperationalError",
        "InterfaceError",
        "ConnectionTimeout",
        "AdminShutdown",
        "CrashShutdown",
        "CannotConnectNow",
    }


def _copy(known: SqlUnavailable) -> SqlUnavailable:
    return SqlUnavailable(str(known), retry_helps=known.retry_helps)
