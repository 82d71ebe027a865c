"""Transaction records: written in the local transaction, looked up by checks, barred where they are missing.

    record = TransactionRecord(make_record_table(metadata))
    record.write(session, transaction_id, "orders")      # in the local transaction
    CheckHandler(secrets, record.answers(engine))        # answers the bridge from it

Every answer is read from a committed row: COMMIT from one that a local transaction wrote, ROLLBACK from a bar
under the same key. The key is unique, so for one id there is never the one and the other, whatever is delayed,
killed or asked at the same time. Holds as long as a commit of this database is kept: point the check endpoint at
the primary, and let a fail-over lose no commits.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from outbox import queries
from outbox.checks import Check, Tell
from outbox.errors import LocalTransactionBarred, OutboxConfigError
from outbox.listener import Resolution
from outbox.tables import BARRED, WRITTEN, make_record_table

if TYPE_CHECKING:  # at run time it needs greenlet, which comes with `sqlalchemy[asyncio]` only
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

_DAY_MS: Final = 86_400_000
_RESOLUTIONS: Final = {WRITTEN: Resolution.COMMIT, BARRED: Resolution.ROLLBACK}


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """How long records are kept, and how long an answer may take.

    `read_wait_ms`: SQLite only, for a commit that is just being written; a bar waits for nobody.
    """

    keep_ms: int = 14 * _DAY_MS  # a transaction lives 7 days at most
    margin_ms: int = _DAY_MS  # how far the database's clock and Kafka's may be apart
    max_clean_rows: int = 1_000
    statement_timeout_ms: int = 3_000
    read_wait_ms: int = 1_000

    def __post_init__(self) -> None:
        if self.keep_ms < 2 * self.margin_ms or self.margin_ms < 1:
            raise OutboxConfigError("keep_ms must be at least twice margin_ms, and both above 0")
        if min(self.max_clean_rows, self.statement_timeout_ms) < 1 or self.read_wait_ms < 0:
            raise OutboxConfigError("limits of transaction records must be above 0")


class RecordAnswers:
    """Answers checks from the records of one database."""

    def __init__(self, engine: Engine, table: sa.Table, config: RecordConfig) -> None:
        self._engine = engine
        self._table = table
        self._config = config

    def __call__(self, checks: Sequence[Check], tell: Tell) -> None:
        """Tells what is known as it becomes known. Raises SQLAlchemyError where the database fails."""
        with self._engine.connect() as conn:
            _look_up(conn, self._table, self._config, checks, tell)


class AsyncRecordAnswers:
    """The same on an async engine."""

    def __init__(self, engine: "AsyncEngine", table: sa.Table, config: RecordConfig) -> None:
        self._engine = engine
        self._table = table
        self._config = config

    async def __call__(self, checks: Sequence[Check], tell: Tell) -> None:
        """Tells what is known as it becomes known. Raises SQLAlchemyError where the database fails."""
        async with self._engine.connect() as conn:
            await conn.run_sync(_look_up, self._table, self._config, checks, tell)


class TransactionRecord:
    """The records of one table. Its sessions and engines must be those of the local transactions' database."""

    def __init__(self, table: sa.Table | None = None, config: RecordConfig | None = None) -> None:
        """Without a table: one named as `make_record_table` names it."""
        self.table = make_record_table(sa.MetaData()) if table is None else table
        self._config = config or RecordConfig()

    def write(self, session: Session | Connection, transaction_id: str, producer_group: str) -> None:
        """Writes the record in the session's transaction; commits nothing.

        Raises LocalTransactionBarred; OutboxConfigError if the session commits each statement for itself.
        """
        conn = session if isinstance(session, Connection) else session.connection()
        if queries.is_autocommitting(conn):
            raise OutboxConfigError("with AUTOCOMMIT there is no local transaction that a record could be part of")
        try:
            queries.insert_record(conn, self.table, transaction_id, producer_group)
        except IntegrityError as error:
            raise LocalTransactionBarred(f"transaction {transaction_id} has a record already") from error

    def answers(self, engine: Engine) -> RecordAnswers:
        """What a CheckHandler asks."""
        return RecordAnswers(engine, self.table, self._config)

    def clean(self, engine: Engine) -> int:
        """Deletes a bounded number of old records; how many. Call it again while it is not 0."""
        with engine.begin() as conn:
            return _clean(conn, self.table, self._config)


class AsyncTransactionRecord:
    """The same for async sessions and engines."""

    def __init__(self, table: sa.Table | None = None, config: RecordConfig | None = None) -> None:
        """Without a table: one named as `make_record_table` names it."""
        self._config = config or RecordConfig()
        self._record = TransactionRecord(table, self._config)
        self.table = self._record.table

    async def write(self, session: "AsyncSession | AsyncConnection", transaction_id: str, producer_group: str) -> None:
        """As TransactionRecord.write."""
        run: Callable[..., Awaitable[None]] = session.run_sync
        await run(partial(_write_swapped, self._record, transaction_id, producer_group))

    def answers(self, engine: "AsyncEngine") -> AsyncRecordAnswers:
        """What an AsyncCheckHandler asks."""
        return AsyncRecordAnswers(engine, self.table, self._config)

    async def clean(self, engine: "AsyncEngine") -> int:
        """Deletes a bounded number of old records; how many. Call it again while it is not 0."""
        async with engine.begin() as conn:
            return await conn.run_sync(_clean, self.table, self._config)


def _write_swapped(
    record: TransactionRecord, transaction_id: str, producer_group: str, session: Session | Connection
) -> None:
    record.write(session, transaction_id, producer_group)


def _clean(conn: Connection, table: sa.Table, config: RecordConfig) -> int:
    return queries.clean_records(conn, table, config.keep_ms, config.margin_ms, config.max_clean_rows)


def _look_up(conn: Connection, table: sa.Table, config: RecordConfig, checks: Sequence[Check], tell: Tell) -> None:
    """Reads; bars what is missing; reads that again. Told is only what a committed row says.

    Still missing after that: a local transaction that has not ended holds the key, UNKNOWN.
    """
    if conn.dialect.name != "sqlite":  # each statement must see what has been committed before it
        conn = conn.execution_options(isolation_level="READ COMMITTED")
    missing, horizon_ms = _tell_known(conn, table, config, checks, tell)
    barrable = [check for check in missing if check.born_ms > horizon_ms]
    if barrable:
        _bar(conn, table, config, barrable)
        missing = [check for check in missing if check.born_ms <= horizon_ms]
        missing += _tell_known(conn, table, config, barrable, tell)[0]
    for check in missing:
        tell(check, Resolution.UNKNOWN)


def _tell_known(
    conn: Connection, table: sa.Table, config: RecordConfig, checks: Sequence[Check], tell: Tell
) -> tuple[list[Check], int]:
    with queries.short_transaction(conn, config.read_wait_ms, config.statement_timeout_ms):
        states, horizon_ms = queries.read_states(conn, table, [check.transaction_id for check in checks])
    for check in checks:
        if check.transaction_id in states:
            tell(check, _RESOLUTIONS[states[check.transaction_id]])
    return [check for check in checks if check.transaction_id not in states], horizon_ms


def _bar(conn: Connection, table: sa.Table, config: RecordConfig, checks: Sequence[Check]) -> None:
    """All at once; if a running local transaction has one of the keys, one by one, without that one."""
    transaction_ids = [check.transaction_id for check in checks]
    if _try_bars(conn, table, config, transaction_ids, checks[0].producer_group):
        return
    for check in checks if len(checks) > 1 else ():
        _try_bars(conn, table, config, [check.transaction_id], check.producer_group)


def _try_bars(
    conn: Connection, table: sa.Table, config: RecordConfig, transaction_ids: Sequence[str], group: str
) -> bool:
    """False: locked out by another transaction, and nothing written."""
    try:
        with queries.short_transaction(conn, 0, config.statement_timeout_ms):
            queries.insert_bars(conn, table, transaction_ids, group)
    except DBAPIError as error:
        if not queries.is_locked_out(error):
            raise
        return False
    return True
