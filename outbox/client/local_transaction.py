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
_Listen = Callable[[Any, str, Callable[..., None]], None]


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


class EventGuard:
    """By SQLAlchemy's events of one session or connection."""

    def __init__(self, watch: Callable[[NoteLost, _Listen], None]) -> None:
        self._watch = watch
        self._listeners: list[tuple[Any, str, Callable[..., None]]] = []

    def arm(self, note_lost: NoteLost) -> None:
        """As promised."""
        self._watch(note_lost, self._listen)

    def disarm(self) -> None:
        """As promised."""
        from sqlalchemy import event  # noqa: PLC0415

        for target, name, listener in self._listeners:
            event.remove(target, name, listener)
        self._listeners = []

    def _listen(self, target: Any, name: str, listener: Callable[..., None]) -> None:  # noqa: ANN401 - SQLAlchemy's own
        from sqlalchemy import event  # noqa: PLC0415 - slow to import, and here it is already

        event.listen(target, name, listener)
        self._listeners.append((target, name, listener))


def guard_of(session: object) -> SessionGuard:
    """What watches it. Raises Misuse for what is no session."""
    if not (callable(getattr(session, "commit", None)) and callable(getattr(session, "rollback", None))):
        raise Misuse(f"a block needs a session or a connection, not {type(session).__name__}")
    if "sqlalchemy" not in sys.modules:  # then it is not one of its own
        return NoGuard()
    from sqlalchemy import Connection  # noqa: PLC0415
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415

    target = session() if isinstance(session, scoped_session) else session
    for name in ("sync_session", "sync_connection"):  # asyncio's wrap them
        target = getattr(target, name, target)
    if isinstance(target, Session):
        return EventGuard(lambda note_lost, listen: _watch_session(target, note_lost, listen))
    if isinstance(target, Connection):
        return EventGuard(lambda note_lost, listen: _watch_connection(target, note_lost, listen))
    return NoGuard()


def _watch_session(session: Any, note_lost: NoteLost, listen: _Listen) -> None:  # noqa: ANN401 - SQLAlchemy's own
    """Its connections too: whoever asks for one may end its transaction behind the session's back."""
    watched: list[object] = []

    def watch(connection: Any) -> None:  # noqa: ANN401
        if not any(connection is one for one in watched):
            watched.append(connection)
            _watch_connection(connection, note_lost, listen)

    def refuse(_: object) -> None:
        if not session.in_nested_transaction():  # savepoints come and go
            _refuse()

    def note(_: object, ended: Any) -> None:  # noqa: ANN401
        if ended.parent is None:
            note_lost()

    listen(session, "before_commit", refuse)
    listen(session, "after_transaction_end", note)
    listen(session, "after_begin", lambda _session, _transaction, connection: watch(connection))
    begun = session.get_transaction()
    for connection, *_ in () if begun is None else list(begun._connections.values()):  # noqa: SLF001 - nothing else shows it
        watch(connection)


def _watch_connection(connection: Any, note_lost: NoteLost, listen: _Listen) -> None:  # noqa: ANN401
    def refuse(_: object) -> None:
        # a connection takes its transaction for over after a failed commit, and would not roll it back any more
        connection.dialect.do_rollback(connection.connection)
        note_lost()
        _refuse()

    def note(_: object) -> None:
        note_lost()

    listen(connection, "commit", refuse)
    listen(connection, "rollback", note)


def _refuse() -> None:
    raise Misuse("the end of the `with` block commits the session, once its messages are stored: take this commit out")


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
