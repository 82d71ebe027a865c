"""`with bridge.transaction(session)`: the session's rows and the messages, both or neither."""

import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from outbox.client.caller import BridgeClient, CallTime
from outbox.client.calls import PrepareOptions
from outbox.client.connection import Lifetime
from outbox.client.errors import (
    Closed,
    Conflict,
    Contradicted,
    GivenUp,
    InvalidMessage,
    LocalCommitUnknown,
    LocalTransactionBarred,
    Misuse,
    NotPrepared,
    OutboxError,
    OutcomeUnknown,
    Refused,
    is_surely_not_committed,
)
from outbox.client.listener import (
    HalfMessage,
    LocalTransactionState,
    Resolution,
    TransactionSendResult,
    TransactionState,
)
from outbox.client.message import MAX_MESSAGES, HeadersLike, Message, Text, Value, value_to_bytes
from outbox.client.replies import Prepared, TransactionView

# --- the local transaction as a block sees it: its session, its record, and the guard of both ---
# Only sessions and connections of SQLAlchemy signal that they are about to commit; of others nothing is known.


SPLIT = (
    "the block has written to more than one database, and one may commit without the other: write to the others in"
    " sessions of their own, or take one with `twophase=True`"
)


def load_guards() -> Any:  # noqa: ANN401 - a module
    """What sets up SQLAlchemy's listeners, best before there are threads; None where a session cannot be one of its."""
    return import_module("outbox.inbox") if "sqlalchemy" in sys.modules else None


class LocalSession(Protocol):
    """SQLAlchemy's Session or Connection, or anything alike.

    One of another kind may have `watch_savepoints(note_lost, count)`, called when a block begins: it then calls
    `note_lost` at each roll back of a savepoint in which `count()`, the messages that were sent, has grown.
    """

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
        self._given: Any = session
        self._session = session if guards is None else guards.find_scoped(session)
        self._record = record

    def arm(self, note_lost: Callable[[], None], count: Callable[[], int]) -> None:
        """The session is in the caller's hands: a commit raises Misuse and does not happen until `disarm`.

        `note_lost` is called at a roll back or a close, and at that of a savepoint if `count` grew in it.
        """
        if self._guard is not None:
            self._guard.arm(note_lost, measure=count)
        elif callable(watch := getattr(self._session, "watch_savepoints", None)):
            watch(note_lost, count)

    @property
    def is_moved(self) -> bool:
        """Whether a scoped session stands for another one now, as in another thread: rows may be in either."""
        if self._session is self._given:
            return False
        return not self._given.registry.has() or self._given() is not self._session

    @property
    def is_undone(self) -> bool:
        """Whether the database has rolled back by itself, as at a deadlock, and nobody since; or its driver."""
        return self._guard is not None and self._guard.is_over

    @property
    def is_split(self) -> bool:
        """Whether rows are in several databases, of which one may commit without the other."""
        return self._guard is not None and self._guard.is_split

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
        if self._guard is not None:
            self._guard.follow()
        try:
            await _settle(self._session.commit())
        finally:
            self.disarm()

    def is_surely_gone(self, error: Exception) -> bool:
        """Whether nothing was committed when `commit` raised this."""
        if self._guard is None:
            return is_surely_not_committed(error)
        if self._guard.may_be_kept:  # before something else raised
            return False
        if not self._guard.commits_begun and not self._guard.is_of_two_phases:  # of which one may stay prepared
            return True
        return is_surely_not_committed(error)

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
    if result is not None and inspect.isawaitable(result):
        await result


# --- the block ---

_LOG = logging.getLogger(__name__)


async def prepare_or_fail(
    verbs: BridgeClient, messages: Message | Sequence[Message], options: PrepareOptions, time: CallTime
) -> tuple[HalfMessage, Prepared]:
    """Raises the OutboxError that says why no local transaction may be committed."""
    try:
        with time:
            return await verbs.prepare(messages, options, time.for_prepare_s)
    except OutcomeUnknown as error:
        raise NotPrepared(f"whether the half message is stored is unknown: {error}") from error


async def end_or_leave(
    verbs: BridgeClient,
    half: HalfMessage,
    resolution: Resolution,
    time: CallTime,
    *,
    is_awaited: bool = True,
    remark: str | None = None,
) -> TransactionView | OutboxError | None:
    """The transaction as it is recorded; or why the back-check must find out, which is logged.

    None where the end is only stored: `is_awaited` says whether its settlement is waited for.
    """
    try:
        with time:
            if not is_awaited:
                await verbs.store_end(half.transaction_id, resolution, time.for_end_s)
                return None
            return await verbs.end(half.transaction_id, resolution, time.for_end_s, remark)
    except OutboxError as error:
        is_lost = is_contradiction(error) or isinstance(error, GivenUp)
        why = error.code if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        _LOG.log(
            logging.ERROR if is_lost else logging.WARNING,
            "transaction %s: %s not acknowledged%s (%s)",
            half.transaction_id,
            resolution.name,
            "" if is_lost else ", the back-check resolves it",
            why,
        )
        return error


def is_contradiction(error: object) -> bool:
    """Whether the bridge has recorded the opposite, or can no longer do what is asked."""
    return isinstance(error, Conflict) and error.code in {"already-resolved", "body-expired"}


def result_of(
    half: HalfMessage,
    prepared: Prepared,
    local: LocalTransactionState,
    told: TransactionView | OutboxError | None,
    error: BaseException | None = None,
) -> TransactionSendResult:
    """What became of a send."""
    view = told if isinstance(told, TransactionView) else None
    state = view.state if view is not None else _recorded_state(told)
    return TransactionSendResult(
        half.transaction_id,
        local,
        is_settled=state is not None and state is not TransactionState.PREPARED,
        state=state,
        is_blocked=view is not None and view.is_blocked,
        is_abandoned=view is not None and view.is_abandoned,
        receipts=view.receipts if view is not None else (),
        queue_id=prepared.queue_id,
        queue_offset=prepared.queue_offset,
        error=error,
        is_accepted=told is None,
    )


def _recorded_state(told: object) -> TransactionState | None:
    state = told.problem.state if is_contradiction(told) and isinstance(told, Refused) else None
    return TransactionState(state) if state in set(TransactionState) else None


class TransactionBlock:
    """Collects messages; at its end they are prepared, the session is committed, and then they are published.

    `result` shows afterwards what became of it; None while it is open, if it failed, and if nothing was sent.
    """

    def __init__(
        self, verbs: BridgeClient, work: LocalWork, lifetime: Lifetime, options: PrepareOptions, *, is_awaited: bool
    ) -> None:
        self.result: TransactionSendResult | None = None
        self._verbs = verbs
        self._work = work
        self._lifetime = lifetime
        self._options = options
        self._is_awaited = is_awaited
        self._time = CallTime(verbs.config.block_timeout_s)
        self._early: tuple[HalfMessage, Prepared] | None = None  # what `prepare_early` has stored
        self._messages: list[Message] = []
        self._is_open = False
        self._pid = os.getpid()
        self._is_torn = False  # rows that belonged to messages here are gone

    @property
    def ordering_key(self) -> str | None:
        """Transactions with one ordering key are published in the order of their commits."""
        return self._options.get("ordering_key")

    @ordering_key.setter
    def ordering_key(self, key: str | None) -> None:
        self._refuse_early()
        self._options["ordering_key"] = key

    @property
    def idempotency_key(self) -> str | None:
        """The same key and messages are one transaction."""
        return self._options.get("idempotency_key")

    @idempotency_key.setter
    def idempotency_key(self, key: str | None) -> None:
        self._refuse_early()
        self._options["idempotency_key"] = key

    def _refuse_early(self) -> None:
        """What is stored can be changed no more, and ends as it was stored."""
        if self._early is not None:
            raise Misuse("keys are set before `prepare_early`, which has stored what was said until then")

    def send(
        self,
        topic: str,
        *,
        key: Text = None,
        value: Value = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Message:
        """A message that is published if the session is committed. Raises InvalidMessage."""
        raw = value_to_bytes(value, self._verbs.config.encoder)
        message = Message(topic, key=key, value=raw, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        self.add(message)
        return message

    def add(self, *messages: Message) -> None:
        """Messages that are published if the session is committed. Raises InvalidMessage."""
        if not self._is_open:
            raise Misuse("messages are sent inside the `with` block")
        if self._early is not None:
            raise Misuse("messages are sent before `prepare_early`, which has stored those that were there")
        if not all(isinstance(message, Message) for message in messages):
            raise InvalidMessage("`add` takes Messages; `send` takes a topic and what belongs to it")
        if len(self._messages) + len(messages) > MAX_MESSAGES:
            raise InvalidMessage(f"a transaction has at most {MAX_MESSAGES} messages")
        self._messages += messages

    def _enter(self) -> None:
        if self._is_open or self._messages or self.result is not None:
            raise Misuse("each block needs a transaction of its own")
        self._is_open = True
        self._work.arm(self._note_lost, self._messages.__len__)

    def _note_lost(self) -> None:
        self._is_torn = self._is_torn or bool(self._messages)

    async def _leave(self, error: BaseException | None) -> None:
        self._is_open = False
        if self._pid != os.getpid():  # the transaction, and what was prepared early, are the parent's to end
            self._work.disarm()
            raise Misuse("the block began in the process that this one was forked from: leave a child by `os._exit`")
        if error is not None:
            await self._abandon(error)
            return
        try:
            self._check_rows()
        except Misuse:
            await self._abandon(None)
            raise
        if self._messages:
            await self._complete()
        else:
            await self._work.commit()

    def _check_rows(self) -> None:
        """Raises Misuse if those that belong to the messages may be gone."""
        if self._is_torn:
            raise Misuse(
                "the session, or a savepoint, was rolled back or closed in the block after messages had been sent in it"
            )
        if self._work.is_undone:
            raise Misuse(
                "the database rolled the session back, at an error that was caught in the block: let it pass; or the"
                " session's transaction was ended by the driver's own connection"
            )
        if self._messages and self._work.is_split:
            raise Misuse(SPLIT)
        if self._work.is_moved:
            raise Misuse("the scoped session stands for another one than when the block began: leave it in its scope")

    async def _complete(self) -> None:
        """`close` waits from here on: what is prepared should also be ended."""
        try:
            with self._lifetime:
                half, prepared = self._early or await self._prepare()
                await self._write(half)
                await self._commit(half)
                self.result = await self._end(half, prepared)
        except Closed:
            await self._roll_back()
            raise

    async def _prepare_now(self) -> None:
        if not self._is_open or not self._messages:
            raise Misuse("`prepare_early` stores what has been sent in the `with` block, and nothing has")
        if self._early is not None:
            raise Misuse("`prepare_early` has been called already")
        with self._lifetime:
            self._early = await prepare_or_fail(self._verbs, self._messages, self._options, self._time)

    async def _abandon(self, error: BaseException | None) -> None:
        """Rolls back, and says so of what was prepared early; a caller that is being cancelled waits for no answer."""
        is_over = await self._roll_back()
        if self._early is not None and is_over and (error is None or isinstance(error, Exception)):
            await self._withdraw(self._early[0], error)

    async def _prepare(self) -> tuple[HalfMessage, Prepared]:
        """If this fails, nothing is committed, and nothing needs an end."""
        try:
            return await prepare_or_fail(self._verbs, self._messages, self._options, self._time)
        except BaseException:
            await self._roll_back()
            raise

    async def _write(self, half: HalfMessage) -> None:
        """The session has not begun to commit, so nothing is committed whatever is raised."""
        try:
            await self._work.write(half.transaction_id, half.producer_group)
            self._check_rows()  # somebody who has the session too may have ended it while the bridge was asked
        except Exception as error:
            if await self._roll_back():
                await self._withdraw(half, error)
            raise
        except BaseException:
            await self._roll_back()
            raise

    async def _commit(self, half: HalfMessage) -> None:
        try:
            await self._work.commit()
        except Exception as error:
            is_over = await self._roll_back()
            if self._work.is_surely_gone(error):
                if is_over:
                    await self._withdraw(half, error)
                raise
            why = f"the commit of the local transaction raised {type(error).__name__}"
            raise LocalCommitUnknown(why, half.transaction_id) from error

    async def _end(self, half: HalfMessage, prepared: Prepared) -> TransactionSendResult:
        told = await end_or_leave(self._verbs, half, Resolution.COMMIT, self._time, is_awaited=self._is_awaited)
        if is_contradiction(told) and isinstance(told, Refused):
            raise Contradicted(half.transaction_id, told.problem.state, told.code) from told
        if isinstance(told, GivenUp):  # no back-check will come
            raise told
        return result_of(half, prepared, LocalTransactionState.COMMIT_MESSAGE, told)

    async def _withdraw(self, half: HalfMessage, error: Exception | None = None) -> None:
        """Ends what certainly is not committed here.

        A key of the caller's own may name a transaction that another run has committed: that one's record answers.
        The same holds where the record was there already. The remark is the error's class alone: messages of drivers
        quote values.
        """
        if self._options.get("idempotency_key") is None and not isinstance(error, LocalTransactionBarred):
            remark = None if error is None else type(error).__name__
            await end_or_leave(self._verbs, half, Resolution.ROLLBACK, self._time, remark=remark)

    async def _roll_back(self) -> bool:
        """Whether the local transaction is over. Another error is on its way to the caller: this one is only logged."""
        self._work.disarm()
        try:
            await self._work.rollback()
        except Exception as error:  # noqa: BLE001 - of any driver; the other error says what matters
            _LOG.warning("rollback of the local transaction raised %s", type(error).__name__)
            return False
        return True
