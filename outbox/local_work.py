"""The local transaction as the block sees it: a session that writes the transaction record, commits or rolls back."""

import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Protocol

from outbox.errors import Misuse
from outbox.session_guard import SessionGuard, guard_of


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
        """Writes the record, and all else that is pending. Whatever it raises, nothing is committed."""
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
