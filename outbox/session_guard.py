"""Guards of blocks, by SQLAlchemy's events of sessions and connections.

Listeners are set up once, for all sessions and engines, and look for a guard: to add and remove them for each block
would take longer than its statements do, and none may be added while another thread is in one of its kind.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from outbox.client.errors import Misuse

_COMMIT_AT_END: Final = (
    "the end of the `with` block commits the session, once its messages are stored: take this commit out"
)


class EventGuard:
    """Of one session with its connections, or of one connection: whoever has a connection may end its transaction
    behind the session's back.
    """

    def __init__(self, target: Session | Connection) -> None:
        self.note_lost: Callable[[], None] = _ignore
        self.remedy = _COMMIT_AT_END
        self._target = target
        self._watched: list[Session | Connection] = []

    def is_in_savepoint(self) -> bool:
        """Whether a roll back may undo less than the whole transaction."""
        return self._target.in_nested_transaction()

    def arm(self, note_lost: Callable[[], None], remedy: str = _COMMIT_AT_END) -> None:
        """A commit from now on raises Misuse and does not happen; `note_lost` is called at a roll back or a close."""
        self.note_lost = note_lost
        self.remedy = remedy
        self.watch(self._target)
        begun = self._target.get_transaction() if isinstance(self._target, Session) else None
        for connection, *_ in () if begun is None else list(begun._connections.values()):  # noqa: SLF001 - nothing else shows it
            self.watch(connection)

    def watch(self, target: Session | Connection) -> None:
        """This one too, until `disarm`."""
        if any(target is watched for watched in self._watched):
            return
        self._watched.append(target)
        _GUARDS[target] = (*_GUARDS.get(target, ()), self)

    def disarm(self) -> None:
        """The session is its owner's again."""
        for target in self._watched:
            others = tuple(guard for guard in _GUARDS.get(target, ()) if guard is not self)
            if others:
                _GUARDS[target] = others
            else:
                _GUARDS.pop(target, None)
        self._watched = []


_GUARDS: WeakKeyDictionary[Any, tuple[EventGuard, ...]] = WeakKeyDictionary()  # more than one: a block within a block


def find_guard(session: object) -> EventGuard | None:
    """None for what is neither session nor connection of SQLAlchemy."""
    target = session() if isinstance(session, scoped_session) else session
    for name in ("sync_session", "sync_connection"):  # asyncio's wrap them
        target = getattr(target, name, target)
    return EventGuard(target) if isinstance(target, Session | Connection) else None


def _ignore() -> None:
    """Before a guard is armed."""


@event.listens_for(Session, "before_commit")
def _refuse_of_session(session: Session) -> None:
    if session in _GUARDS and not session.in_nested_transaction():  # savepoints come and go
        _refuse(_GUARDS[session])


@event.listens_for(Session, "after_transaction_end")
def _note_end(session: Session, ended: SessionTransaction) -> None:
    if ended.parent is None:
        _note_lost(session)


@event.listens_for(Session, "after_begin")
def _watch_begun(session: Session, _: SessionTransaction, connection: Connection) -> None:
    for guard in _GUARDS.get(session, ()):
        guard.watch(connection)


@event.listens_for(Engine, "commit")
def _refuse_of_connection(connection: Connection) -> None:
    if connection in _GUARDS:
        guards = _GUARDS[connection]  # of which a roll back may be the end
        # a connection takes its transaction for over after a failed commit, and would not roll it back any more
        connection.dialect.do_rollback(connection.connection)
        _note_lost(connection)
        _refuse(guards)


@event.listens_for(Engine, "rollback")
def _note_rollback(connection: Connection) -> None:
    _note_lost(connection)


def _note_lost(target: Session | Connection) -> None:
    for guard in _GUARDS.get(target, ()):
        guard.note_lost()


def _refuse(guards: Sequence[EventGuard]) -> NoReturn:
    """In the words of the innermost block."""
    raise Misuse(guards[-1].remedy)
