"""The database: short SQL transactions on threads of its own, with bounded waits; errors of drivers translated."""

import asyncio
import copy
import math
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from bridge.core.check_rules import Backoff
from bridge.core.errors import ConfigError, SqlUnavailable
from bridge.fault_points import FaultPoint, reach
from bridge.sql.tables import metadata

_REPLACED = "the database file was removed or replaced under this process: restart every process that uses it"
_ENCODE = "one sign that it lacks would hold up the projection; pg_dump it into a database with ENCODING 'UTF8'"
_NOT_MIGRATED = "the database is not migrated: run `outbox-bridge migrate`"

# SQLSTATE, or its class -> what it means. Source: PostgreSQL, appendix A.
_POSTGRES: dict[str, SqlUnavailable] = {
    **dict.fromkeys(("42P01", "42703"), SqlUnavailable(_NOT_MIGRATED, retry_helps=False)),
    "42501": SqlUnavailable("the database refuses: privileges are missing", retry_helps=False),
    "57014": SqlUnavailable("a statement took too long"),
    "25006": SqlUnavailable("the database is read-only; a URL of many hosts needs target_session_attrs=read-write"),
    "25P03": SqlUnavailable("the database ended an idle SQL transaction"),
    "53": SqlUnavailable("the database is out of resources: its disk is full, or connections or memory are used up"),
    "58": SqlUnavailable("the database has a system error"),
    "28": SqlUnavailable("the database refuses the login", retry_helps=False),
    "3F": SqlUnavailable("no schema of the role's `search_path` is there, or may be used", retry_helps=False),
    "3D": SqlUnavailable("there is no such database", retry_helps=False),
}
_POSTGRES_REPEATABLE = {"40001", "40P01", "55P03"}
_LOST = {"OperationalError", "InterfaceError", "ConnectionTimeout"}  # of those without an SQLSTATE
_SQLITE_REPEATABLE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE: dict[int, SqlUnavailable] = {
    sqlite3.SQLITE_READONLY: SqlUnavailable("the database file is read-only"),
    sqlite3.SQLITE_FULL: SqlUnavailable("the disk is full"),
    sqlite3.SQLITE_IOERR: SqlUnavailable("the database file cannot be read or written"),
    sqlite3.SQLITE_CANTOPEN: SqlUnavailable("the database file cannot be opened"),
    sqlite3.SQLITE_INTERRUPT: SqlUnavailable("a read took too long"),
    sqlite3.SQLITE_CORRUPT: SqlUnavailable("the database file is damaged", retry_helps=False),
    sqlite3.SQLITE_NOTADB: SqlUnavailable("the file is not an SQLite database", retry_helps=False),
}


class RepeatableError(Exception):
    """Nothing was applied, and the same work may well succeed now."""


def translate_error(error: SQLAlchemyError, *, is_committing: bool) -> Exception:
    """SqlUnavailable, RepeatableError, or the error itself where it is a bug or a broken constraint."""
    if isinstance(error, PoolTimeoutError):
        return SqlUnavailable("no database connection is free")
    if not isinstance(error, DBAPIError) or isinstance(error, IntegrityError):
        return error
    if isinstance(error.orig, sqlite3.Error):
        return _translate_sqlite(error, error.orig)
    return _translate_postgres(error, is_committing=is_committing)


def _translate_sqlite(error: DBAPIError, orig: sqlite3.Error) -> Exception:
    code = getattr(orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the primary code of an extended one
    if code in _SQLITE_REPEATABLE:
        return RepeatableError("the database is busy")
    if str(orig).startswith(("no such table", "no such column")):
        return SqlUnavailable(_NOT_MIGRATED, retry_helps=False)
    return copy.copy(_SQLITE[code]) if code in _SQLITE else error


def _translate_postgres(error: DBAPIError, *, is_committing: bool) -> Exception:
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _POSTGRES_REPEATABLE:
        return RepeatableError(f"the database gave up ({state})")
    is_lost = error.connection_invalidated or not state or state[:2] == "08" or state[:3] == "57P"
    known = _POSTGRES.get(state) or (None if is_lost else _POSTGRES.get(state[:2]))
    if known is not None or (state and not is_lost):
        return error if known is None else copy.copy(known)
    if error.connection_invalidated or state or type(error.orig).__name__ in _LOST:
        refusal = str(error.orig).partition("FATAL:")[2].partition("\n")[0].strip()  # of a login: without an SQLSTATE
        unreached = f"the database cannot be reached: {refusal}".removesuffix(": ")
        told = f"the database's pooler refuses: {error.orig}" if state == "08P01" else unreached
        return SqlUnavailable(told, is_outcome_unknown=is_committing)
    return error


T = TypeVar("T")
_ATTEMPTS = 5
# else drivers take the database's encoding, and wait two hours for what a host that is gone was to answer
_USUAL = {"client_encoding": "utf8", "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
# with synchronous_commit off, a crash takes back what was acted upon: audits, secrets, given-up queues
_DURABLY = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",  # a loss of power may not take back what was acted upon: keys, secrets, audits
    "foreign_keys=ON",
    "cache_size=-32768",
    "wal_autocheckpoint=8000",  # pages: copying them back less often made the projector a fifth faster
)
_PROGRESS_STEPS = 20_000  # of SQLite's machine between two looks at the clock: about 1 ms


@dataclass(frozen=True, slots=True)
class SqlConfig:
    """Bounds of everything that can wait."""

    statement_timeout_ms: int = 2_000
    admission_timeout_ms: int = 2_000
    call_timeout_ms: int = 10_000
    threads: int = 4

    def __post_init__(self) -> None:
        if min(self.statement_timeout_ms, self.admission_timeout_ms, self.call_timeout_ms, self.threads) < 1:
            raise ConfigError("SQL time-outs and threads must be positive")


class Database:
    """Runs work, a function of a connection, in one SQL transaction each. Work must not keep the connection.

    SQLite has one writer thread and several readers; PostgreSQL one pool for both. Work may be run
    again after a deadlock or a busy database, so it must do nothing but SQL. `options`: for its connections.
    """

    def __init__(self, url: str, config: SqlConfig = SqlConfig(), options: Mapping[str, object] | None = None) -> None:
        self.url = _parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._config = config
        self.list_turns = asyncio.Semaphore(max(1, config.threads // 2))  # see `read_list`
        if self.is_sqlite:
            self.engine = _make_sqlite_engine(self.url, config, is_reader=False).execution_options(**options or {})
            self._reader = _make_sqlite_engine(self.url, config, is_reader=True).execution_options(**options or {})
            self._write_lane = _Lane(1, config, "sql-write")
            self._read_lane = _Lane(config.threads, config, "sql-read")
        else:
            self.engine = _make_postgres_engine(self.url, config).execution_options(**options or {})
            self._reader = self.engine.execution_options(is_reader=True)
            self._write_lane = self._read_lane = _Lane(config.threads, config, "sql")

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        """The result of `work` once it is committed. Raises SqlUnavailable."""
        return await self._call(self._write_lane, partial(_transact, self.engine, work), timeout_ms)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`, which changes nothing, in one consistent view. Raises SqlUnavailable."""
        return await self._call(self._read_lane, partial(_transact, self._reader, work), None)

    def addresses(self) -> list[tuple[str, int]]:
        """Hosts of the server with each of its ports; none of a file or of a socket in the file system."""
        if self.is_sqlite:
            return []
        query = self.url.normalized_query
        named = ",".join((self.url.host or "", *query.get("host", ()), *query.get("hostaddr", ()))).split(",")
        ports = [p for p in ",".join(query.get("port", ())).split(",") if p] or [str(self.url.port or 5432)]
        found = []
        for host in named:
            name, _, port = host.partition(":") if host.count(":") == 1 else (host, "", "")
            if name and not name.startswith(("/", "@")):
                found += [(name, int(number)) for number in ([port] if port else ports) if number.isdecimal()]
        return found

    @property
    def is_overloaded(self) -> bool:
        """Whether callers are sent away now: one was, and no thread has been free since."""
        return self._read_lane.is_overloaded or self._write_lane.is_overloaded

    async def close(self) -> None:
        """Waits for what runs, then gives everything back."""
        for lane in (self._write_lane, self._read_lane):
            await lane.close()
        self.dispose()

    def dispose(self) -> None:
        """Gives connections and files back."""
        self.engine.dispose()
        self._reader.dispose()

    async def _call(self, lane: "_Lane", work: Callable[[], T], timeout_ms: int | None) -> T:
        backoff = Backoff(20, 1_000)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await lane.call(work, timeout_ms or self._config.call_timeout_ms)
            except RepeatableError as error:
                if attempt == _ATTEMPTS:
                    raise SqlUnavailable(str(error)) from error
            await asyncio.sleep(random.uniform(0.5, 1.0) * backoff.next_ms() / 1000)  # noqa: S311 - jitter
        raise AssertionError("unreachable")


class _Lane:
    """Threads that are entered one caller each; who cannot enter in time is sent away, so nothing piles up."""

    def __init__(self, threads: int, config: SqlConfig, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = asyncio.Semaphore(threads)
        self._admission_s = config.admission_timeout_ms / 1000
        self._has_refused = False  # since a thread was free

    @property
    def is_overloaded(self) -> bool:
        return self._has_refused and self._free.locked()

    async def call(self, work: Callable[[], T], timeout_ms: int) -> T:
        """Runs `work` in a thread. After `timeout_ms` nobody waits for it any more, and its outcome is unknown."""
        if not self._free.locked():
            self._has_refused = False
        try:
            async with asyncio.timeout(self._admission_s):
                await self._free.acquire()
        except TimeoutError as error:
            self._has_refused = True
            raise SqlUnavailable("the database is overloaded") from error
        loop = asyncio.get_running_loop()
        try:
            running = self._executor.submit(work)
        except RuntimeError as error:
            self._free.release()
            raise SqlUnavailable("the database is closed", retry_helps=False) from error
        running.add_done_callback(partial(self._leave, loop))  # not before the thread is free, whoever waits
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.wrap_future(running)
        except TimeoutError as error:
            raise SqlUnavailable("the database does not answer", is_outcome_unknown=True) from error

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)

    def _leave(self, loop: asyncio.AbstractEventLoop, _: "Future[Any]") -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._free.release)


def _transact(engine: Engine, work: Callable[[Connection], T]) -> T:
    is_committing = False
    try:
        with engine.connect() as conn, conn.begin():
            result = work(conn)
            is_committing = True
    except SQLAlchemyError as error:
        translated = translate_error(error, is_committing=is_committing)
        if translated is error:
            raise
        raise translated from error
    return result


def _parse_url(text: str) -> URL:
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):  # of the last one's text a part may be the password
        raise ConfigError("the database URL cannot be read") from None
    if backend == "sqlite":
        if url.database in {None, "", ":memory:"}:
            raise ConfigError("SQLite needs a file: sqlite:///path")
        return url.set(drivername="sqlite")
    if backend in {"postgresql", "postgres"}:
        return url.set(drivername="postgresql+psycopg")
    raise ConfigError(f"the database must be sqlite or postgresql, not {backend}")


def open_migration_engine(text: str) -> Engine:
    """One connection whose statements may take long, for migrations alone."""
    url = _parse_url(text)
    if url.get_backend_name() == "sqlite":
        return _make_sqlite_engine(url, SqlConfig(statement_timeout_ms=60_000, threads=1), is_reader=False)
    engine = sa.create_engine(url, pool_size=1, hide_parameters=True, connect_args={"connect_timeout": 5, **_USUAL})
    _begin_postgres(engine, 0, 60_000, 0)
    return engine


def _make_sqlite_engine(url: URL, config: SqlConfig, *, is_reader: bool) -> Engine:
    """Writers begin IMMEDIATE, so that two processes wait for each other instead of failing half-way."""
    threads = config.threads if is_reader else 1
    engine = sa.create_engine(url, pool_size=threads, max_overflow=0, hide_parameters=True)
    deadline = _ReadDeadline(config.statement_timeout_ms)

    @event.listens_for(engine, "connect")
    def configure(dbapi: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        dbapi.isolation_level = None  # BEGIN is ours: sqlite3 would begin late and not for reads
        for pragma in (f"busy_timeout={config.statement_timeout_ms}", *_PRAGMAS):
            dbapi.execute(f"PRAGMA {pragma}")
        if is_reader:
            dbapi.execute("PRAGMA query_only=ON")
            dbapi.set_progress_handler(deadline.is_over, _PROGRESS_STEPS)
        record.info["file"] = _identify(url)

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
        if conn.info["file"] != _identify(url):
            raise SqlUnavailable(_REPLACED, retry_helps=False)
        deadline.start()
        conn.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")

    return engine


def _identify(url: URL) -> tuple[int, int] | None:
    """The file that has this name now: who has another one open writes what nobody will ever read."""
    try:
        found = os.stat(url.database or "")  # noqa: PTH116 - twice as fast, for each SQL transaction
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _ReadDeadline:
    """Stops a read that takes too long; each thread runs one SQL transaction at a time."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._ends = threading.local()

    def start(self) -> None:
        self._ends.at = time.monotonic() + self._timeout_s

    def is_over(self) -> bool:
        return time.monotonic() > getattr(self._ends, "at", math.inf)


def _make_postgres_engine(url: URL, config: SqlConfig) -> Engine:
    timeout = config.statement_timeout_ms
    engine = sa.create_engine(
        url,
        pool_size=config.threads,
        max_overflow=0,
        pool_timeout=config.admission_timeout_ms / 1000,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args={"connect_timeout": 3, "tcp_user_timeout": 5 * timeout, **_USUAL},
    )
    _begin_postgres(engine, timeout, timeout, 5 * timeout)
    return engine


def _begin_postgres(engine: Engine, statement_ms: int, lock_ms: int, idle_ms: int) -> None:
    """Settings come with BEGIN and end with the SQL transaction: behind a pooler, each may be in another session."""
    limits = f"SET LOCAL statement_timeout = {statement_ms}; SET LOCAL lock_timeout = {lock_ms};"
    limits += f" SET LOCAL idle_in_transaction_session_timeout = {idle_ms};"  # these limit all there is to wait for
    limits += " SELECT set_config('transaction_timeout', '0', true)"
    limits += " WHERE current_setting('transaction_timeout', true) <> '0';"
    limits += " SET LOCAL standard_conforming_strings = on;"  # where it is off, psycopg's COPY writes other bytes
    # each statement of what writes sees what was committed before it, whatever level is the role's default
    read = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {limits}"
    write = f"BEGIN ISOLATION LEVEL READ COMMITTED; {limits} {_DURABLY}"

    @event.listens_for(engine, "connect")
    def configure(dbapi: Any, _: object) -> None:  # noqa: ANN401 - psycopg's own connection
        dbapi.autocommit = True  # BEGIN is ours
        if dbapi.execute("SELECT pg_backend_pid()").fetchone() != (dbapi.info.backend_pid,):
            dbapi.prepare_threshold = None  # a pooler is between: what one session has prepared, others do not know

    @event.listens_for(engine, "handle_error")
    def leave(context: sa.ExceptionContext) -> None:  # the next one may lead to the server that has taken over
        context.is_disconnect |= getattr(context.original_exception, "sqlstate", None) == "25006"

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
        conn.exec_driver_sql(read if conn.get_execution_options().get("is_reader") else write)


class InlineDatabase(Database):
    """Each piece of work whole, at one moment of the clock."""

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        return await self.read(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        await asyncio.sleep(0)
        with self.engine.begin() as connection:
            return work(connection)


class NewDatabase(InlineDatabase):
    """A file of its own, which ends with it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self._path = path

    def dispose(self) -> None:
        """Nothing of it is left."""
        super().dispose()
        for file in self._path.parent.glob(f"{self._path.name}*"):
            file.unlink()


def open_new_database(folder: Path) -> NewDatabase:
    """An empty database with the bridge's tables, in `folder`, beside those of others."""
    with NamedTemporaryFile(dir=folder, prefix="bridge-", suffix=".db", delete=False) as copy:
        copy.write(make_empty_file())
    return NewDatabase(Path(copy.name))


@cache  # making the tables anew each time would cost more than a test's story
def make_empty_file() -> bytes:
    """What a file of SQLite holds that has the bridge's tables, and no rows."""
    with NamedTemporaryFile(suffix=".db") as file:
        metadata.create_all(sa.create_engine(f"sqlite:///{file.name}", poolclass=sa.NullPool))
        return Path(file.name).read_bytes()


# --- brings a database to the revision this release needs ---

_LOCK_KEY = 0x6F_75_74_62_6F_78  # any number, the same in every release
_one_at_a_time = threading.Lock()  # alembic keeps its context in module globals


class Revisions(NamedTuple):
    """The revision a database has, None before the first; and the one this release needs."""

    current: str | None
    needed: str

    @property
    def is_current(self) -> bool:
        """Whether nothing is to be done."""
        return self.current == self.needed

    @property
    def is_newer(self) -> bool:
        """Whether a later release has migrated. What it changed leaves this one able to work: see CONTRIBUTING.md."""
        return self.current is not None and self.current.isdigit() and int(self.current) > int(self.needed)


def upgrade(url: str) -> Revisions:
    """Runs what is missing, all or nothing; `current` is what was found. Raises SqlUnavailable."""
    with _one_at_a_time, open_connection(url) as connection:
        before = _read(connection)
        if before.is_newer:
            return before
        _run(connection)
        reach(FaultPoint.MIGRATE_WRITTEN)
    reach(FaultPoint.MIGRATE_COMMITTED)
    return before


def read_revisions(url: str) -> Revisions:
    """What the database has and what it needs. Raises SqlUnavailable."""
    with open_connection(url) as connection:
        return _read(connection)


@contextmanager
def open_connection(url: str) -> Iterator[Connection]:
    """A connection in one SQL transaction that no other migration can be in."""
    engine = open_migration_engine(url)
    try:
        with engine.connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
                if (encoding := connection.exec_driver_sql("SHOW server_encoding").scalar_one()) != "UTF8":
                    raise SqlUnavailable(f"the database has the encoding {encoding}: {_ENCODE}", retry_helps=False)
            yield connection
    except SQLAlchemyError as error:
        translated = translate_error(error, is_committing=False)
        if translated is error:
            raise
        raise (SqlUnavailable(str(translated)) if isinstance(translated, RepeatableError) else translated) from error
    finally:
        engine.dispose()


def _read(connection: Connection) -> Revisions:
    """Without Alembic, which every process would load for it; revisions are numbers, in the names of their files."""
    needed = max(path.name.partition("_")[0] for path in (find_scripts() / "versions").glob("[0-9]*.py"))
    if not sa.inspect(connection).has_table("alembic_version"):
        return Revisions(None, needed)
    return Revisions(connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar(), needed)


def _run(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - nobody else needs it
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(find_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, "head")


def find_scripts() -> Path:
    """The migrations, beside the package."""
    return Path(__file__).parents[2] / "alembic"
