"""The local transaction as a block sees it: its session, its record, and the guard of both.

Only sessions and connections of SQLAlchemy signal that they are about to commit; of others nothing is known.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Protocol

from outbox.client.errors import Misuse

NoteLost = Callable[[], None]


class SessionGuard(Protocol):
    """Watches from `arm` to `disarm`; each may be called again."""

    def arm(self, note_lost: NoteLost) -> None:
        """A commit in between raises Misuse and does not happen; `note_lost` is called at a roll back or a close."""
        ...

    def disarm(self) -> None:
        """The session is its owner's again."""
        ...


class NoGuard:
    """For sessions without events."""

    def arm(self, note_lost: NoteLost) -> None:
        """Nothing."""

    def disarm(self) -> None:
        """Nothing."""


def guard_of(session: object) -> SessionGuard:
    """What watches it. Raises Misuse for what is no session."""
    if not (callable(getattr(session, "commit", None)) and callable(getattr(session, "rollback", None))):
        raise Misuse(f"a block needs a session or a connection, not {type(session).__name__}")
    guards = load_guards()
    guard: SessionGuard | None = None if guards is None else guards.find_guard(session)
    return guard or NoGuard()


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


class LocalWork(Protocol):
    """A session of either kind. `guard`: for as long as the session is in the caller's hands."""

    guard: SessionGuard

    async def write(self, transaction_id: str, group: str) -> None:
        """Writes the record, and all else that is pending. If it raises, nothing is committed."""
        ...

    async def commit(self) -> None:
        """Commits."""
        ...

    async def rollback(self) -> None:
        """Rolls back."""
        ...


class SessionWork:
    """A session whose methods return when they are done."""

    def __init__(self, session: LocalSession, record: RecordWriter) -> None:
        self.guard = guard_of(session)
        if inspect.iscoroutinefunction(session.commit):
            raise Misuse("a session of asyncio needs an AsyncBridge")
        self._session = session
        self._record = record

    async def write(self, transaction_id: str, group: str) -> None:
        """Writes and flushes, so that a violated constraint shows before the commit."""
        self._record.write(self._session, transaction_id, group)
        flush = _flush_of(self._session)
        if flush is not None:
            flush()

    async def commit(self) -> None:
        self._session.commit()

    async def rollback(self) -> None:
        self._session.rollback()


class AsyncSessionWork:
    """A session whose methods are awaited."""

    def __init__(self, session: AsyncLocalSession, record: RecordWriter) -> None:
        self.guard = guard_of(session)
        self._session = session
        self._record = record

    async def write(self, transaction_id: str, group: str) -> None:
        """Writes and flushes, so that a violated constraint shows before the commit."""
        await _settle(self._record.write(self._session, transaction_id, group))
        flush = _flush_of(self._session)
        if flush is not None:
            await _settle(flush())

    async def commit(self) -> None:
        await _settle(self._session.commit())

    async def rollback(self) -> None:
        await _settle(self._session.rollback())


def default_record(*, is_async: bool) -> RecordWriter:
    """The ready-made one; needs SQLAlchemy, so it is imported only here."""
    module = import_module("outbox.transaction_record")
    record: RecordWriter = module.AsyncTransactionRecord() if is_async else module.TransactionRecord()
    return record


def _flush_of(session: object) -> Callable[[], object] | None:
    flush = getattr(session, "flush", None)
    return flush if callable(flush) else None


async def _settle(result: object) -> None:
    if inspect.isawaitable(result):
        await result
