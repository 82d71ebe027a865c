"""Transaction records: written in the local transaction, looked up by checks, barred where they are missing.

No statement here waits for another transaction's row lock longer than its limit: a check must be answered at
once, also while the local transaction it asks about is running.

    record = TransactionRecord(make_record_table(metadata))
    record.write(session, transaction_id, "orders")      # in the local transaction
    CheckHandler(secrets, record.answers(engine))        # answers the bridge from it

Every answer is read from a committed row: COMMIT from one that a local transaction wrote, ROLLBACK from a bar
under the same key. The key is unique, so for one id there is never the one and the other, whatever is delayed,
killed or asked at the same time. Holds as long as a commit of this database is kept: point the check endpoint at
the primary, and let a fail-over lose no commits.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.util import ScopedRegistry

from outbox.client.checks import Answer, AsyncAnswer, Check, Tell
from outbox.client.errors import LocalTransactionBarred, Misuse, OutboxConfigError, TableMissing
from outbox.client.listener import Answered, Remarked, Resolution
from outbox.tables import (
    BARRED,
    CLEANED,
    CLEANED_ID,
    WRITTEN,
    leaving_read_only,
    make_record_table,
    refuse_inherited,
    refuse_unkept,
)

if TYPE_CHECKING:  # at run time it needs greenlet, which comes with `sqlalchemy[asyncio]` only
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession


_MISSING: Final = frozenset({"42P01", 1146})
_LOCKED_OUT: Final = frozenset({"55P03", "40P01", "40001", 1205, 1213, 1020})  # lock waited for, deadlock, changed
_SQLITE_BUSY: Final = frozenset({5, 6})  # SQLITE_BUSY, SQLITE_LOCKED, whatever the extended part says
_UNDOING: Final = frozenset({1020, 1206, 1213})  # changed since it was read, too many locks, deadlock
_LOCK_WAIT_TIMEOUT: Final = 1205
_SQLITE_UNDOING: Final = frozenset({7, 9, 10, 13, 19})  # no memory, interrupted, I/O, disk full, constraint


# PostgreSQL's 0, which switches synchronous_commit on where it is off, for this transaction; other settings of it stay
_DURABLY: Final = (
    "CASE WHEN current_setting('synchronous_commit') = 'off'"
    " THEN 0 * length(set_config('synchronous_commit', 'on', true)) ELSE 0 END"
)


class DatabaseNow(FunctionElement[int]):
    """The database's clock, in milliseconds since 1970 UTC; the one clock that all who use a table share."""

    type = sa.BigInteger()
    inherit_cache = True
    name = "database_now"


@compiles(DatabaseNow, "postgresql")
def _postgres_now(_: DatabaseNow, __: SQLCompiler, **___: object) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(DatabaseNow, "sqlite")
def _sqlite_now(_: DatabaseNow, __: SQLCompiler, **___: object) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@compiles(DatabaseNow, "mysql")
@compiles(DatabaseNow, "mariadb")
def _mariadb_now(_: DatabaseNow, __: SQLCompiler, **___: object) -> str:
    # UNIX_TIMESTAMP(NOW(3)) goes through the session's time zone and is an hour wrong when summer time ends
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


def durable_now(*, is_postgres: bool) -> sa.ColumnElement[int]:
    """The same in an INSERT, whose transaction then survives a crash of the server, whatever it has as a default."""
    return DatabaseNow() + sa.literal_column(_DURABLY, sa.BigInteger) if is_postgres else DatabaseNow()


def insert_record(conn: Connection, table: sa.Table, transaction_id: str, producer_group: str) -> None:
    """Writes the record in the transaction of `conn`. Raises IntegrityError if the id has one.

    Waits while another transaction has the id and has not ended.
    """
    statement = _insertion(table, is_postgres=conn.dialect.name == "postgresql")
    conn.execute(statement, {"transaction_id": transaction_id, "producer_group": producer_group})


class RecordState(NamedTuple):
    """What a record says, and since when."""

    state: str
    at_ms: int


def read_states(
    conn: Connection, table: sa.Table, transaction_ids: Collection[str]
) -> tuple[Mapping[str, RecordState], int]:
    """States by transaction id, and the time up to which records may have been deleted; of one moment."""
    query = sa.select(table.c.transaction_id, table.c.state, table.c.at_ms).where(
        table.c.transaction_id.in_([*transaction_ids, CLEANED_ID])
    )
    rows = conn.execute(query).all()
    horizon_ms = next((row.at_ms for row in rows if row.state == CLEANED), 0)
    known = {row.transaction_id: RecordState(row.state, row.at_ms) for row in rows if row.state != CLEANED}
    return known, horizon_ms


def insert_bars(conn: Connection, table: sa.Table, transaction_ids: Sequence[str], producer_group: str) -> None:
    """Bars those that have no record. Raises an error that `is_locked_out` if one may have, uncommitted."""
    rest = {"producer_group": producer_group, "state": BARRED, "at_ms": DatabaseNow()}
    rows = [{"transaction_id": transaction_id, **rest} for transaction_id in transaction_ids]
    conn.execute(make_insert_missing(conn, table).values(rows))


def clean_records(conn: Connection, table: sa.Table, older_than_ms: int, margin_ms: int, max_rows: int) -> int:
    """Deletes at most `max_rows` records written so long ago; how many. Says beforehand, in the same transaction,
    up to which time a missing record proves nothing any more.
    """
    horizon = DatabaseNow() - sa.literal(older_than_ms - margin_ms, sa.BigInteger)
    mark = {"transaction_id": CLEANED_ID, "producer_group": "", "state": CLEANED, "at_ms": 0}
    conn.execute(make_insert_missing(conn, table).values(mark))
    is_mark = table.c.transaction_id == CLEANED_ID
    conn.execute(sa.update(table).where(is_mark, table.c.at_ms < horizon).values(at_ms=horizon))
    query = sa.select(table.c.transaction_id).where(is_older(table, older_than_ms), sa.not_(is_mark))
    found = conn.scalars(query.order_by(table.c.at_ms).limit(max_rows)).all()  # MariaDB takes no LIMIT in a subquery
    if found:
        conn.execute(sa.delete(table).where(table.c.transaction_id.in_(found)))
    return len(found)


def is_older(table: sa.Table, than_ms: int) -> sa.ColumnElement[bool]:
    """Whether a row was written so long ago. The clock is read once, in a subquery: PostgreSQL's moves on within a
    statement, so that no index could be used. Where rows come in the order of `at_ms` one is, however many there are.
    """
    then = sa.select(DatabaseNow() - sa.literal(than_ms, sa.BigInteger)).scalar_subquery()
    return table.c.at_ms < then


def make_insert_missing(conn: Connection, table: sa.Table) -> sa.Insert:
    """An INSERT that steps over rows whose key is taken, in the dialect of the connection."""
    match conn.dialect.name:
        case "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        case "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing()
        case "mysql" | "mariadb":
            return sa.insert(table).prefix_with("IGNORE")
        case other:
            raise OutboxConfigError(f"{other} is no database this package knows")


@contextmanager
def short_transaction(conn: Connection, wait_ms: int, timeout_ms: int) -> Iterator[sa.RootTransaction]:
    """A transaction that waits for each lock `wait_ms` at most; each statement lasts `timeout_ms` at most."""
    with leaving_read_only(conn), _session_limits(conn, wait_ms, timeout_ms), conn.begin() as transaction:
        if conn.dialect.name == "postgresql":
            conn.execute(sa.select(*_postgres_limits(wait_ms, timeout_ms)))
        yield transaction


def is_autocommitting(conn: Connection) -> bool:
    """Whether each statement commits for itself."""
    raw = conn.connection
    if conn.dialect.name != "sqlite":
        return raw.dbapi_connection is not None and conn.dialect.detect_autocommit_setting(raw.dbapi_connection)
    driver: Any = raw.driver_connection
    if getattr(getattr(driver, "_conn", driver), "autocommit", None) is True:  # from Python 3.12 on; aiosqlite wraps it
        return True
    if driver.isolation_level is not None:  # it begins a transaction at the first write
        return False
    conn.exec_driver_sql("SELECT 1")  # who begins them with a listener, as SQLAlchemy advises, has done so now
    return not driver.in_transaction


def find_connection(session: Session | Connection, table: sa.Table, other: str) -> Connection:
    """That of a session with the database of the table. Raises Misuse. `other`: what takes sessions of asyncio."""
    if hasattr(find_scoped(session), "run_sync"):
        raise Misuse(f"a session of asyncio needs {other}")
    if isinstance(session, type) or not hasattr(session, "connection"):
        raise Misuse(f"a session or connection of SQLAlchemy is needed, not {type(session).__name__}")
    if isinstance(session, Connection):
        return refuse_inherited(session)
    return refuse_inherited(session.connection({"clause": sa.update(table)}))  # some read elsewhere than they write


def find_scoped(session: Any) -> Any:  # noqa: ANN401 - of any kind
    """The one that a scoped session, also of asyncio, stands for now; others as they are."""
    is_scoped = isinstance(getattr(session, "registry", None), ScopedRegistry)
    return session() if is_scoped else session


def find_run(session: object, other: str) -> Callable[..., Awaitable[Any]]:
    """What runs a function in a session of asyncio. Raises Misuse. `other`: what takes other sessions."""
    run = getattr(find_scoped(session), "run_sync", None)  # a scoped one does not hand it on
    if run is None:
        raise Misuse(f"a session or connection of asyncio is needed, not {type(session).__name__}: that is for {other}")
    found: Callable[..., Awaitable[Any]] = run
    return found


def raise_missing(error: DBAPIError, conn: Connection, table: sa.Table, maker: str) -> None:
    """Raises TableMissing if that is what the error says."""
    if code_of(error.orig) in _MISSING or str(error.orig).startswith("no such table"):
        remedy = f"{maker}(Base.metadata) declares it for create_all and Alembic, `python -m outbox.ddl` shows its SQL"
        raise TableMissing(table.fullname, conn.dialect.name, remedy) from error


def is_locked_out(error: DBAPIError) -> bool:
    """Whether a statement gave way to another transaction: nothing of it was done, and nothing is known."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code_of(error.orig) in _LOCKED_OUT if code is None else code & 0xFF in _SQLITE_BUSY


def is_undone(error: BaseException, conn: Connection) -> bool:
    """Whether the database has rolled back the whole transaction at this error: what comes next begins another one.

    PostgreSQL refuses what comes next, and takes a COMMIT for a ROLLBACK without a word. Source: MariaDB,
    row_mysql_handle_errors; SQLite, "Response To Errors".
    """
    match conn.dialect.name:
        case "postgresql":
            return isinstance(code_of(error), str)
        case "sqlite":
            driver: Any = conn.connection.driver_connection
            return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_UNDOING and not driver.in_transaction
        case "mysql" | "mariadb":
            code = code_of(error)
            if code == _LOCK_WAIT_TIMEOUT:
                return bool(_run(conn, "SELECT @@innodb_rollback_on_timeout")[0])
            return code in _UNDOING
    return False


def code_of(error: BaseException | None) -> str | int | None:
    """MariaDB's number, or PostgreSQL's SQLSTATE; None if the server has said neither. Drivers differ in its place."""
    first = error.args[0] if error is not None and error.args else None
    number = getattr(error, "errno", first)  # mariadb, mysql-connector; the others
    if isinstance(number, int):
        return number
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)  # psycopg, asyncpg; psycopg2
    return first.get("C") if isinstance(first, dict) else state  # pg8000


@lru_cache(maxsize=16)  # building it costs five times what executing it does, in every local transaction
def _insertion(table: sa.Table, *, is_postgres: bool) -> sa.Insert:
    """What a record says besides its key and group; in SQL's own words, for a parameter or a result costs more."""
    # with synchronous_commit off, a check could see a local transaction that a crash then takes back
    at_ms = durable_now(is_postgres=is_postgres)
    return sa.insert(table).values(state=sa.literal_column(f"'{WRITTEN}'"), at_ms=at_ms)


def _postgres_limits(wait_ms: int, timeout_ms: int) -> Sequence[sa.ColumnElement[Any]]:
    """Settings that end with the transaction, so that nothing leaks through a pooler."""
    limits = {
        "lock_timeout": max(1, wait_ms),  # 0 would mean: for ever
        "statement_timeout": timeout_ms,
        "idle_in_transaction_session_timeout": timeout_ms,  # a frozen process would hold up the local transaction
    }
    switches = [sa.func.set_config(name, f"{value}ms", True) for name, value in limits.items()]
    return [*switches, sa.literal_column(_DURABLY, sa.BigInteger)]


@contextmanager
def _session_limits(conn: Connection, wait_ms: int, timeout_ms: int) -> Iterator[None]:
    """The same where settings belong to the session: they are put back, for the connection goes back to its pool."""
    match conn.dialect.name:
        case "sqlite":
            read, change = "PRAGMA busy_timeout", f"PRAGMA busy_timeout = {wait_ms}"
            restore = "PRAGMA busy_timeout = {}"
        case "mysql" | "mariadb":
            read = "SELECT @@SESSION.innodb_lock_wait_timeout"
            change = f"SET SESSION innodb_lock_wait_timeout = {wait_ms // 1000}"
            restore = "SET SESSION innodb_lock_wait_timeout = {}"
            if getattr(conn.dialect, "is_mariadb", False):  # MySQL has none, and waits a second at least
                read += ", @@SESSION.max_statement_time, @@SESSION.idle_write_transaction_timeout"
                change += f", max_statement_time = {timeout_ms / 1000}"
                change += f", idle_write_transaction_timeout = {-(-timeout_ms // 1000)}"  # as for PostgreSQL above
                restore += ", max_statement_time = {}, idle_write_transaction_timeout = {}"
        case _:
            yield
            return
    before = _run(conn, read)
    _run(conn, change)
    try:
        yield
    finally:
        if not conn.invalidated:
            _run(conn, restore.format(*before))


def _run(conn: Connection, command: str) -> Sequence[Any]:
    """Straight to the driver: SQLAlchemy would begin a transaction."""
    cursor = conn.connection.cursor()
    try:
        cursor.execute(command)
        row: Sequence[Any] | None = cursor.fetchone() if cursor.description else None
        return row or ()
    finally:
        cursor.close()


_DAY_MS: Final = 86_400_000
_EARLY: Final = Remarked(Resolution.UNKNOWN, "its record is older than it: an earlier run's, or a clock is wrong")
_GONE: Final = Remarked(Resolution.UNKNOWN, "its record may have been cleaned away: it is old, or a clock was ahead")
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
        conn = find_connection(session, self.table, "AsyncTransactionRecord")
        if is_autocommitting(conn):
            raise OutboxConfigError("with AUTOCOMMIT there is no local transaction that a record could be part of")
        refuse_unkept(conn, self.table, ["transaction_id"])
        try:
            insert_record(conn, self.table, transaction_id, producer_group)
        except IntegrityError as error:
            raise LocalTransactionBarred(f"transaction {transaction_id} has a record already") from error
        except DBAPIError as error:
            raise_missing(error, conn, self.table, "make_record_table")
            raise

    def answers(self, engine: Engine) -> Answer:
        """What a CheckHandler asks. It raises SQLAlchemyError where the database fails."""
        if hasattr(engine, "sync_engine") or not hasattr(engine, "connect"):
            raise Misuse("checks are answered from an Engine; one of asyncio needs an AsyncTransactionRecord")

        def answer(checks: Sequence[Check], tell: Tell) -> None:
            with engine.connect() as conn:
                _look_up(conn, self.table, self._config, checks, tell)

        return answer

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
        run = find_run(session, "TransactionRecord")
        await run(lambda given: self._record.write(given, transaction_id, producer_group))

    def answers(self, engine: "AsyncEngine") -> AsyncAnswer:
        """What an AsyncCheckHandler asks. It raises SQLAlchemyError where the database fails."""
        if not hasattr(engine, "sync_engine"):
            raise Misuse("checks are answered from an AsyncEngine; an Engine needs a TransactionRecord")

        async def answer(checks: Sequence[Check], tell: Tell) -> None:
            async with engine.connect() as conn:
                await conn.run_sync(_look_up, self.table, self._config, checks, tell)

        return answer

    async def clean(self, engine: "AsyncEngine") -> int:
        """Deletes a bounded number of old records; how many. Call it again while it is not 0."""
        async with engine.begin() as conn:
            return await conn.run_sync(_clean, self.table, self._config)


def _clean(conn: Connection, table: sa.Table, config: RecordConfig) -> int:
    return clean_records(conn, table, config.keep_ms, config.margin_ms, config.max_clean_rows)


def _look_up(conn: Connection, table: sa.Table, config: RecordConfig, checks: Sequence[Check], tell: Tell) -> None:
    """Reads; bars what is missing; reads that again. Told is only what a committed row says.

    Still missing after that: a local transaction that has not ended holds the key, UNKNOWN; or it is a trial, which
    leaves no bar behind.
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
        tell(check, Resolution.UNKNOWN if check.born_ms > horizon_ms else _GONE)


def _tell_known(
    conn: Connection, table: sa.Table, config: RecordConfig, checks: Sequence[Check], tell: Tell
) -> tuple[list[Check], int]:
    with short_transaction(conn, config.read_wait_ms, config.statement_timeout_ms):
        states, horizon_ms = read_states(conn, table, [check.transaction_id for check in checks])
    for check in checks:
        if check.transaction_id in states:
            tell(check, _resolve(states[check.transaction_id], check.born_ms - config.margin_ms))
    return [check for check in checks if check.transaction_id not in states], horizon_ms


def _resolve(found: RecordState, earliest_ms: int) -> Answered:
    """What a local transaction wrote before then was another run's, of an idempotency key that the bridge has forgotten
    since: it does not say that anything is to be published once more."""
    return _EARLY if found.state == WRITTEN and found.at_ms < earliest_ms else _RESOLUTIONS[found.state]


def _bar(conn: Connection, table: sa.Table, config: RecordConfig, checks: Sequence[Check]) -> None:
    """All at once; if a running local transaction has one of the keys, one by one, without that one."""
    if not _try_bars(conn, table, config, checks) and len(checks) > 1:
        for check in checks:
            _try_bars(conn, table, config, [check])


def _try_bars(conn: Connection, table: sa.Table, config: RecordConfig, checks: Sequence[Check]) -> bool:
    """False: locked out by another transaction, and nothing written. A trial only shows that they can be written."""
    transaction_ids = [check.transaction_id for check in checks]
    try:
        with short_transaction(conn, 0, config.statement_timeout_ms) as transaction:
            refuse_unkept(conn, table, ["transaction_id"], is_anew=True)
            insert_bars(conn, table, transaction_ids, checks[0].producer_group)
            if checks[0].is_trial:
                transaction.rollback()
    except DBAPIError as error:
        if not is_locked_out(error):
            raise
        return False
    return True
