"""Django's ORM as the bridge's session: a local transaction, its record, and the answers to checks.

with AtomicSession() as session, bridge.transaction(session) as transaction:
    Order.objects.create(...)
    transaction.send("orders.created", key=..., value=...)
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from django.conf import settings
from django.db import IntegrityError, connections, router
from django.db.transaction import atomic, on_commit
from sqlalchemy import create_engine

from outbox import Bridge, LocalTransactionBarred, Misuse
from outbox.check_handler import CheckHandler
from outbox.tables import WRITTEN
from outbox.transaction_record import TransactionRecord
from store import models


class AtomicSession:
    """An `atomic` block, the outermost, that is ended by `commit` or `rollback`; in the database of the records."""

    def __init__(self) -> None:
        self.using = router.db_for_write(models.TransactionRecord)
        self._atomic = atomic(self.using, durable=True)
        self._is_open = False
        self.is_whole = True  # until it has ended
        self._is_committed = False
        self._watch = ExitStack()
        self._sent_before: dict[str, int] = {}  # by savepoint

    def watch_savepoints(self, note_lost: Callable[[], None], count: Callable[[], int]) -> None:
        """What was sent in one that is rolled back tells of rows that are gone: the block says so, and rolls back."""

        def watch(execute: Callable[..., Any], sql: object, *rest: object) -> Any:  # noqa: ANN401 - a cursor's result
            match str(sql).upper().replace(";", " ").split():
                case ["SAVEPOINT", name]:
                    self._sent_before[name] = count()
                case ["ROLLBACK", *words, name] if "TO" in words:
                    if count() > self._sent_before.get(name, -1):
                        note_lost()
                case ["COMMIT" | "ROLLBACK", *_]:
                    self.is_whole = False
            return execute(sql, *rest)

        self._watch.enter_context(connections[self.using].execute_wrapper(watch))

    def commit(self) -> None:
        """As leaving the block: what `on_commit` was told runs. Raises HookFailed if that fails: all is committed."""
        self._is_open = self.is_whole = False
        self._watch.close()
        try:
            self._atomic.__exit__(None, None, None)
        except Exception as error:
            if not self._is_committed:
                raise
            # not `from error`: a constraint that it violates says nothing of what is committed
            raise HookFailed(f"{type(error).__name__}: {error}") from None

    def rollback(self) -> None:
        """As an exception in the block. After an end it changes nothing."""
        if self._is_open:
            self._is_open = self.is_whole = False
            self._watch.close()
            error = RolledBack()
            self._atomic.__exit__(RolledBack, error, None)

    def __enter__(self) -> Self:
        self._atomic.__enter__()
        self._is_open = True
        on_commit(self._note_commit, self.using)  # the first of them
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rollback()

    def _note_commit(self) -> None:
        self._is_committed = True


class HookFailed(Exception):
    """What was to run after the commit."""


class RolledBack(Exception):
    """Tells `atomic` to roll back."""


class OrmRecord:
    """Writes the transaction record on Django's own connection, so in its transaction."""

    def write(self, session: AtomicSession, transaction_id: str, producer_group: str) -> None:
        """Raises LocalTransactionBarred if a check came first; in a broken atomic block, what Django raises; Misuse in
        one that was ended before its end: the record would be committed alone, and say so of rows that are gone."""
        if not session.is_whole:
            raise Misuse("the session was committed or rolled back in the block")
        try:
            models.TransactionRecord.objects.using(session.using).create(
                transaction_id=transaction_id,
                producer_group=producer_group,
                state=WRITTEN,
                at_ms=time.time_ns() // 1_000_000,
            )
        except IntegrityError as error:
            raise LocalTransactionBarred(f"transaction {transaction_id} has a record already") from error


bridge = Bridge(settings.BRIDGE_URL, settings.BRIDGE_GROUP, record=OrmRecord())
checks = CheckHandler(settings.CHECK_SECRETS, TransactionRecord().answers(create_engine(settings.CHECK_DATABASE_URL)))
