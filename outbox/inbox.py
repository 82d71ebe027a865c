"""The consumer's half: what a message causes is written once, however often Kafka delivers it.

inbox = Inbox("stamps")
    with Session(engine) as session, session.begin():
        with inbox.once(session, message) as is_new:
            if is_new:
                session.add(Stamp(customer))
    consumer.commit(message)

A row for each message, in the same database transaction as what the message causes: both or neither. The row is
inserted first, so a second consumer that has the message at the same time waits for the first one's end.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar
from weakref import WeakKeyDictionary, ref

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, ExceptionContext, TwoPhaseTransaction, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from outbox.client.block import SPLIT
from outbox.client.errors import Misuse, OutboxConfigError
from outbox.client.message import identify
from outbox.tables import (
    StatementEffect,
    begin_on_sqlite,
    find_effect,
    is_ended,
    make_inbox_table,
    name_savepoint,
    refuse_unkept,
)
from outbox.transaction_record import (
    durable_now,
    find_connection,
    find_run,
    find_scoped,
    is_autocommitting,
    is_older,
    is_undone,
    make_insert_missing,
    raise_missing,
)

if TYPE_CHECKING:  # at run time it needs greenlet, which comes with `sqlalchemy[asyncio]` only
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession


# --- guards of blocks, by SQLAlchemy's events of sessions and connections ---
# Listeners are set up once, for all sessions and engines, and look for a guard: to add and remove them for each block
# would take longer than its statements do, and none may be added while another thread is in one of its kind.

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
        self.measure: Callable[[], int] = int  # which is 0
        self.marks: dict[object, int] = {}  # what it measured when a savepoint began, by that or by its name
        self.is_refusing = True
        self.is_undone = False  # by the database, which nobody may have noticed
        self.is_committed = False
        self.commits_begun = 0
        self.written: set[Connection] = set()  # connections by which rows were written that a commit keeps
        self._target = target
        self.is_of_two_phases = bool(getattr(target, "twophase", False))
        self._watched: list[Session | Connection] = []

    def arm(
        self, note_lost: Callable[[], None], remedy: str = _COMMIT_AT_END, measure: Callable[[], int] | None = None
    ) -> None:
        """A commit from now on raises Misuse and does not happen; `note_lost` is called at a roll back or a close, and
        at that of a savepoint from whose beginning on `measure` has grown.
        """
        self.note_lost = note_lost
        self.remedy = remedy
        self.measure = measure or int
        self.is_refusing = True
        self._watch_all()

    def follow(self) -> None:
        """Its owner commits now; how far that comes is noted, until `disarm`."""
        self.is_refusing = False
        self._watch_all()

    @property
    def may_be_kept(self) -> bool:
        """Whether something was committed before the commit that was followed raised, if it did.

        By listeners of others that are called after it, or because a later one of several databases refused.
        """
        return self.is_committed or self.commits_begun > 1

    @property
    def is_split(self) -> bool:
        """Whether rows are in several databases, of which one may commit without the other."""
        begun = [one.get_transaction() for one in self.written if one.in_transaction()]
        return len(begun) > 1 and not any(isinstance(one, TwoPhaseTransaction) for one in begun)

    @property
    def is_over(self) -> bool:
        """Whether what was written is gone, or kept already, though the session was not told."""
        return self.is_undone or any(is_ended(one) for one in self.written)

    def fail(self, note_lost: Callable[[], None], remedy: str) -> None:
        """What was guarded must go: no commit until a savepoint of its beginning is rolled back, or everything."""
        self.note_lost = note_lost
        self.remedy = remedy

    def watch(self, target: Session | Connection) -> None:
        """This one too, until `disarm`."""
        if any(target is watched for watched in self._watched):
            return
        self._watched.append(target)
        _GUARDS[target] = (*_GUARDS.get(target, ()), self)

    def _watch_all(self) -> None:
        self.watch(self._target)
        begun = self._target.get_transaction() if isinstance(self._target, Session) else None
        for connection, *_ in () if begun is None else list(begun._connections.values()):  # noqa: SLF001 - nothing else shows it
            self.watch(connection)

    def disarm(self) -> None:
        """The session is its owner's again."""
        for target in self._watched:
            others = tuple(guard for guard in _GUARDS.get(target, ()) if guard is not self)
            if others:
                _GUARDS[target] = others
            else:
                _GUARDS.pop(target, None)
        self._watched = []
        self.marks = {}
        self.is_undone = False
        self.written = set()
        self.measure = int
        self.note_lost = _ignore  # it leads back to here: the session would be left to the garbage collector


_GUARDS: WeakKeyDictionary[Any, tuple[EventGuard, ...]] = WeakKeyDictionary()  # more than one: a block within a block


def find_guard(session: object) -> EventGuard | None:
    """None for what is neither session nor connection of SQLAlchemy."""
    target = find_scoped(session)
    for name in ("sync_session", "sync_connection"):  # asyncio's wrap them
        target = getattr(target, name, target)
    return EventGuard(target) if isinstance(target, Session | Connection) else None


def _ignore() -> None:
    """Before a guard is armed."""


@event.listens_for(Session, "before_commit")
def _refuse_of_session(session: Session) -> None:
    if session in _GUARDS and not session.in_nested_transaction():  # savepoints come and go
        _refuse(_GUARDS[session])


@event.listens_for(Session, "after_commit", insert=True)  # before those of others, which may raise
def _note_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        for guard in _GUARDS.get(session, ()):
            guard.is_committed = True


@event.listens_for(Session, "after_transaction_end")
def _note_end(session: Session, ended: SessionTransaction) -> None:
    if ended.parent is None:
        _note_lost(session)


@event.listens_for(Session, "after_transaction_create")
def _note_nested(session: Session, begun: SessionTransaction) -> None:
    if begun.nested:  # the connection hears of it only once it is used in there
        _mark(session, ref(begun))


@event.listens_for(Session, "after_soft_rollback")
def _note_nested_rollback(session: Session, ended: SessionTransaction) -> None:
    _note_lost_since(session, ref(ended))


@event.listens_for(Session, "after_begin")
def _watch_begun(session: Session, _: SessionTransaction, connection: Connection) -> None:
    for guard in _GUARDS.get(session, ()):
        guard.watch(connection)


@event.listens_for(Engine, "commit")
def _refuse_of_connection(connection: Connection) -> None:
    _take_commit(connection, lambda: connection.dialect.do_rollback(connection.connection))


@event.listens_for(Engine, "commit_twophase")
def _refuse_of_two_phases(connection: Connection, xid: object, is_prepared: bool) -> None:
    _take_commit(connection, lambda: connection.dialect.do_rollback_twophase(connection, xid, is_prepared))


def _take_commit(connection: Connection, roll_back: Callable[[], None]) -> None:
    guards = _GUARDS.get(connection, ())  # of which a roll back may be the end
    if any(guard.is_refusing for guard in guards):
        roll_back()  # a connection takes its transaction for over after a failed commit, and would not do it any more
        _note_lost(connection)
        _refuse(guards)
    for guard in guards:
        guard.commits_begun += 1


@event.listens_for(Engine, "rollback")
@event.listens_for(Engine, "rollback_twophase")
def _note_lost(target: Session | Connection, *_: object) -> None:
    for guard in _GUARDS.get(target, ()):
        guard.is_undone = False
        guard.written -= {target}
        guard.note_lost()


def _note_rollback_to(connection: Connection, name: str) -> None:
    """Of what is guarded, all goes with a savepoint that began before it, of which nothing is known here."""
    for guard in _GUARDS.get(connection, ()):
        guard.is_undone = guard.is_undone and connection.dialect.name != "postgresql"  # others have it no more by then
        if guard.measure() > guard.marks.get(name, -1):
            guard.note_lost()


def _mark(target: Session | Connection, savepoint: object) -> None:
    for guard in _GUARDS.get(target, ()):
        guard.marks[savepoint] = guard.measure()


def _note_lost_since(target: Session | Connection, savepoint: object) -> None:
    for guard in _GUARDS.get(target, ()):
        if guard.measure() > guard.marks.get(savepoint, math.inf):
            guard.note_lost()


@event.listens_for(Engine, "before_cursor_execute")
def _note_statement(connection: Connection, _: object, statement: str, *__: object) -> None:
    guards = _GUARDS.get(connection, ())
    if not guards:
        return
    if connection.get_execution_options().get("skip_user_error_events"):  # left by a look at a table of MariaDB
        connection.execution_options(skip_user_error_events=False)
    match find_effect(statement, connection.dialect.name):
        case StatementEffect.COMMIT_BEFORE if not any(connection in guard.written for guard in guards):
            pass
        case StatementEffect.COMMIT | StatementEffect.COMMIT_BEFORE:
            _refuse(guards, f"`{statement.split(maxsplit=1)[0]}` commits: ")
        case StatementEffect.ROLL_BACK:
            _note_lost(connection)
        case StatementEffect.SAVEPOINT:
            begin_on_sqlite(connection)
            _mark(connection, name_savepoint(statement))
        case StatementEffect.ROLL_BACK_TO:
            _note_rollback_to(connection, name_savepoint(statement))
        case StatementEffect.WRITE if not is_autocommitting(connection):
            begin_on_sqlite(connection)
            for guard in guards:
                guard.written.add(connection)


@event.listens_for(Engine, "handle_error")
def _note_undone(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is None or connection not in _GUARDS:  # None: there was none to be had
        return
    if is_undone(context.original_exception, connection):
        for guard in _GUARDS[connection]:
            guard.is_undone = True


def _refuse(guards: Sequence[EventGuard], why: str = "") -> None:
    """In the words of the innermost block that allows no commit, if there is one."""
    for guard in reversed(guards):
        if guard.is_refusing:
            raise Misuse(why + guard.remedy)


# --- the inbox ---

T = TypeVar("T")
Given = TypeVar("Given")

KEEP_DAYS: Final = 14
_CONSUMER: Final = re.compile(r"[A-Za-z0-9._-]{1,120}")
_COMMIT_INSIDE: Final = (
    "commit after the `with` block of the inbox: what comes later in the block would not belong to it"
)
_COMMIT_FAILED: Final = (
    "the `with` block of the inbox failed: roll back, a commit would keep its message as seen without what it causes,"
    " or that without the message"
)


class _OnceBlock(Generic[T]):
    """Rows of messages in the caller's database transaction, and a watch that both stay together."""

    def __init__(self, inbox: "_Inbox", session: object, ids: Sequence[str], pick: Callable[[set[str]], T]) -> None:
        self._inbox = inbox
        self._session = session
        self._ids = ids
        self._pick = pick
        self._guard: EventGuard | None = None
        self._is_lost = False

    def __bool__(self) -> NoReturn:
        raise Misuse("`once` is entered by `with`, and says by `as` whether the message is new")

    def _enter(self, session: Session | Connection) -> T:
        if self._guard is not None:
            raise Misuse("each `with` block of the inbox needs a call of its own")
        conn = find_connection(session, self._inbox.table, "AsyncInbox")
        if is_autocommitting(conn):
            raise OutboxConfigError("with AUTOCOMMIT a message would be seen before what it causes is written")
        refuse_unkept(conn, self._inbox.table, ["consumer", "message_id"], "message_id")
        self._guard = guard = find_guard(session)
        new = _insert_new(conn, self._inbox.table, self._inbox.consumer, self._ids)
        if guard is not None:
            guard.arm(self._note_lost, _COMMIT_INSIDE)
            guard.written.update([conn] if self._ids else [])  # of none it is not begun
        return self._pick(new)

    def _leave(self, error: BaseException | None) -> None:
        guard = self._guard
        if guard is None:
            return
        is_over, is_split = guard.is_over, guard.is_split
        if guard.written if self._is_lost else error is not None or is_over or is_split:
            guard.fail(guard.disarm, _COMMIT_FAILED)
        else:
            guard.disarm()
        if error is None and (self._is_lost or is_over):
            raise Misuse("the session was rolled back or closed in the `with` block of the inbox")
        if error is None and is_split:
            raise Misuse(SPLIT)

    def _note_lost(self) -> None:
        self._is_lost = True
        if self._guard is not None:
            self._guard.written = set()  # what comes now is without the message


class Once(_OnceBlock[T]):
    """A block of `Inbox.once` and `Inbox.once_each`."""

    _session: Session | Connection

    def __enter__(self) -> T:
        return self._enter(self._session)

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        self._leave(error)

    def __aenter__(self) -> NoReturn:
        raise Misuse("blocks of an Inbox are entered by `with`; AsyncInbox is for `async with`")

    async def __aexit__(self, *_: object) -> None:
        """Never come to."""


class AsyncOnce(_OnceBlock[T]):
    """A block of `AsyncInbox.once` and `AsyncInbox.once_each`."""

    async def __aenter__(self) -> T:
        entered: T = await find_run(self._session, "Inbox")(self._enter)
        return entered

    async def __aexit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        self._leave(error)

    def __enter__(self) -> NoReturn:
        raise Misuse("blocks of an AsyncInbox are entered by `async with`")

    def __exit__(self, *_: object) -> None:
        """Never come to."""


class _Inbox:
    """Messages that one consumer has seen. Several consumers may share a table.

    `consumer`: usually the consumer group's id. Under a new name everything is new.
    """

    def __init__(self, consumer: str, table: sa.Table | None = None) -> None:
        """Without a table: one named as `make_inbox_table` names it."""
        if not isinstance(consumer, str) or not _CONSUMER.fullmatch(consumer):
            raise OutboxConfigError("a consumer's name has 1..120 characters of A-Z a-z 0-9 . _ -")
        if table is not None and not isinstance(table, sa.Table):
            raise OutboxConfigError(f"table is one of make_inbox_table, not {type(table).__name__}")
        self.consumer = consumer
        self.table = make_inbox_table(sa.MetaData()) if table is None else table


class Inbox(_Inbox):
    """For blocking sessions, connections and engines of SQLAlchemy."""

    def once(self, session: Session | Connection, message: object) -> Once[bool]:
        """`with inbox.once(session, message) as is_new:` commits nothing.

        `message`: of any Kafka client, or a text that names it. Raises Misuse; at its entry TableMissing.
        """
        message_id = identify(message)
        return Once(self, session, [message_id], lambda new: message_id in new)

    def once_each(self, session: Session | Connection, messages: Iterable[Given]) -> Once[list[Given]]:
        """`with inbox.once_each(session, messages) as new_messages:`, in one statement for all of them."""
        by_id = _identify_each(messages)
        return Once(self, session, [*by_id], lambda new: [by_id[one] for one in by_id if one in new])

    def clean(self, engine: Engine, *, keep_days: float = KEEP_DAYS, max_rows: int = 1_000) -> int:
        """Deletes old rows of this consumer; how many. Call it again while it is not 0.

        `keep_days`: longer than the topics keep messages. One that comes again later would be new.
        """
        _check_cleaning(keep_days, max_rows)
        with engine.begin() as conn:
            return _clean(conn, self.table, self.consumer, keep_days, max_rows)


class AsyncInbox(_Inbox):
    """The same for those of asyncio."""

    def once(self, session: "AsyncSession | AsyncConnection", message: object) -> AsyncOnce[bool]:
        """`async with inbox.once(session, message) as is_new:`; as Inbox.once."""
        message_id = identify(message)
        return AsyncOnce(self, session, [message_id], lambda new: message_id in new)

    def once_each(self, session: "AsyncSession | AsyncConnection", messages: Iterable[Given]) -> AsyncOnce[list[Given]]:
        """`async with inbox.once_each(session, messages) as new_messages:`; as Inbox.once_each."""
        by_id = _identify_each(messages)
        return AsyncOnce(self, session, [*by_id], lambda new: [by_id[one] for one in by_id if one in new])

    async def clean(self, engine: "AsyncEngine", *, keep_days: float = KEEP_DAYS, max_rows: int = 1_000) -> int:
        """As Inbox.clean."""
        _check_cleaning(keep_days, max_rows)
        async with engine.begin() as conn:
            return await conn.run_sync(_clean, self.table, self.consumer, keep_days, max_rows)


def _identify_each(messages: Iterable[Given]) -> dict[str, Given]:
    if isinstance(messages, str) or not isinstance(messages, Iterable):
        raise Misuse(f"`once_each` takes a list of messages, not {type(messages).__name__}")
    by_id: dict[str, Given] = {}
    for message in messages:
        by_id.setdefault(identify(message), message)
    return by_id


def _insert_new(conn: Connection, table: sa.Table, consumer: str, ids: Sequence[str]) -> set[str]:
    """Those that had no row. In one order for all, so that two consumers never wait for each other."""
    rows = [{"consumer": consumer, "message_id": message_id} for message_id in sorted(ids)]
    if not rows:
        return set()
    # the offset is committed next: what a crash of the database took back then would never be delivered again
    now = durable_now(is_postgres=conn.dialect.name == "postgresql")
    statement = make_insert_missing(conn, table).values(at_ms=now)
    try:
        if conn.dialect.insert_executemany_returning:
            return set(conn.scalars(statement.returning(table.c.message_id), rows))
        statement = statement.execution_options(preserve_rowcount=True)  # else it is read from a closed cursor
        return {row["message_id"] for row in rows if conn.execute(statement, row).rowcount == 1}
    except DBAPIError as error:
        raise_missing(error, conn, table, "make_inbox_table")
        raise


def _check_cleaning(keep_days: float, max_rows: int) -> None:
    if keep_days <= 0 or max_rows < 1:
        raise OutboxConfigError("keep_days and max_rows must be above 0")


def _clean(conn: Connection, table: sa.Table, consumer: str, keep_days: float, max_rows: int) -> int:
    own = table.c.consumer == consumer
    query = sa.select(table.c.message_id).where(own, is_older(table, int(keep_days * 86_400_000)))
    found = conn.scalars(query.order_by(table.c.at_ms).limit(max_rows)).all()  # MariaDB takes no LIMIT in a subquery
    if found:
        conn.execute(sa.delete(table).where(own, table.c.message_id.in_(found)))
    return len(found)
