"""Keeps the body of a block from ending its local transaction by itself: rows would be there without their messages.

Only sessions and connections of SQLAlchemy tell when they are about to commit; of others nothing is known.
"""

import sys
from collections.abc import Callable
from typing import Any, Protocol

from outbox.errors import Misuse

NoteLost = Callable[[], None]
_Listener = tuple[Any, str, Callable[..., None]]


class SessionGuard(Protocol):
    """Watches from `arm` to `disarm`; each may be called again."""

    def arm(self, note_lost: NoteLost) -> None:
        """A commit in between raises Misuse and does not happen; `note_lost` hears of a roll back or a close."""
        ...

    def disarm(self) -> None:
        """The session is its owner's again."""
        ...


class NoGuard:
    """Of sessions that tell nothing."""

    def arm(self, note_lost: NoteLost) -> None:
        """Nothing."""

    def disarm(self) -> None:
        """Nothing."""


class EventGuard:
    """By SQLAlchemy's events of one session or connection."""

    def __init__(self, make_listeners: Callable[[NoteLost], list[_Listener]]) -> None:
        self._make_listeners = make_listeners
        self._listeners: list[_Listener] = []

    def arm(self, note_lost: NoteLost) -> None:
        """As promised."""
        from sqlalchemy import event  # noqa: PLC0415 - slow to import, and here it is already

        self._listeners = self._make_listeners(note_lost)
        for target, name, listener in self._listeners:
            event.listen(target, name, listener)

    def disarm(self) -> None:
        """As promised."""
        from sqlalchemy import event  # noqa: PLC0415

        for target, name, listener in self._listeners:
            event.remove(target, name, listener)
        self._listeners = []


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
        return EventGuard(lambda note_lost: _session_listeners(target, note_lost))
    if isinstance(target, Connection):
        return EventGuard(lambda note_lost: _connection_listeners(target, note_lost))
    return NoGuard()


def _session_listeners(session: Any, note_lost: NoteLost) -> list[_Listener]:  # noqa: ANN401 - SQLAlchemy's own
    def refuse(_: object) -> None:
        if not session.in_nested_transaction():  # savepoints come and go
            _refuse()

    def note(_: object, ended: Any) -> None:  # noqa: ANN401
        if ended.parent is None:
            note_lost()

    return [(session, "before_commit", refuse), (session, "after_transaction_end", note)]


def _connection_listeners(connection: Any, note_lost: NoteLost) -> list[_Listener]:  # noqa: ANN401
    def refuse(_: object) -> None:
        # a connection takes its transaction for over after a failed commit, and would not roll it back any more
        connection.dialect.do_rollback(connection.connection)
        note_lost()
        _refuse()

    def note(_: object) -> None:
        note_lost()

    return [(connection, "commit", refuse), (connection, "rollback", note)]


def _refuse() -> None:
    raise Misuse("the end of the `with` block commits the session, once its messages are stored: take this commit out")
