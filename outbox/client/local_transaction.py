"""The local transaction as a block sees it: its session, its record, and the guard of both.

Only sessions and connections of SQLAlchemy signal that they are about to commit; of others nothing is known.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Protocol

from outbox.client.errors import Misuse


def load_guards() -> Any:  # noqa: ANN401 - a module
    """What sets up SQLAlchemy's listeners, best before there are threads; None where a session cannot be one of its."""
    return import_module("outbox.session_guard") if "sqlalchemy" in sys.modules else None


class LocalSession(Protocol):
    """SQLAlchemy's Session or Connection, or anything alike."""

    def commit(self) -> object:
        """Commits the local transaction."""
        ...

    def rollback(self) -> object:
        """Rolls it back."""
        ...


class AsyncLocalSession(Protocol):
    """SQLAlchemy's AsyncSession or AsyncConnection, or anything alike."""

    def commit(self) -> Awaitable[object]:
        """Commits the local transaction."""
        ...

    def rollback(self) -> Awaitable[object]:
        """Rolls it back."""
        ...


class RecordWriter(Protocol):
    """What is written beside the local transaction's own rows, so that a check can find out what became of it."""

    def write(self, session: Any, transaction_id: str, producer_group: str) -> object:  # noqa: ANN401 - of any kind
        """Writes it in the session's transaction, without a commit; raises if a check has barred it.

        With an AsyncBridge it may be a coroutine function.
        """
        ...


class LocalWork:
    """A session of either kind; of one whose methods return when they are done, none of these suspends."""

    def __init__(self, session: LocalSession | AsyncLocalSession, record: RecordWriter) -> None:
        """Raises Misuse for what is no session."""
        is_session = callable(getattr(session, "commit", None)) and callable(getattr(session, "rollback", None))
        if isinstance(session, type) or not is_session:
            raise Misuse(f"a block needs a session or a connection, not {name_kind(session)}")
        guards = load_guards()
        self._guard = None if guards is None else guards.find_guard(session)
        self._session = session
        self._record = record

    def arm(self, note_lost: Callable[[], None]) -> None:
        """The session is in the caller's hands: a commit raises Misuse and does not happen until `disarm`.

        `note_lost` is called at a roll back or a close.
        """
        if self._guard is not None:
            self._guard.arm(note_lost)

    def disarm(self) -> None:
        """The session is its owner's again."""
        if self._guard is not None:
            self._guard.disarm()

    async def write(self, transaction_id: str, group: str) -> None:
        """Writes the record and all else that is pending, so that a violated constraint shows before the commit.

        If it raises, nothing is committed.
        """
        await _settle(self._record.write(self._session, transaction_id, group))
        flush = getattr(self._session, "flush", None)
        if callable(flush):
            await _settle(flush())

    async def commit(self) -> None:
        """Commits."""
        await _settle(self._session.commit())

    async def rollback(self) -> None:
        """Rolls back."""
        await _settle(self._session.rollback())


def default_record(*, is_async: bool) -> RecordWriter:
    """The ready-made one; needs SQLAlchemy, so it is imported only here."""
    module = import_module("outbox.transaction_record")
    record: RecordWriter = module.AsyncTransactionRecord() if is_async else module.TransactionRecord()
    return record


def name_kind(given: object) -> str:
    """What was given, without its content."""
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


async def _settle(result: object) -> None:
    if inspect.isawaitable(result):
        await result
