"""The relay: claims outbox rows under leases, hands them over, marks them. Any number may run.

    relay = Relay(engine, HttpHandOver("http://bridge:8780", "orders"), OwnSource(table), leases)
    relay.run_forever(stop)                              # in a thread of its own, until `stop` is set

A row is published once: its idempotency key makes each hand-over after the first a repeat (for the 7 days that the
bridge knows one by). Rows of one ordering key are published in order, one at a time; others side by side.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

from outbox.client.connection import submit_or_run
from outbox.client.errors import HandOverUnavailable, OutboxConfigError
from outbox.enqueue import NOTIFY_CHANNEL
from outbox.hand_over import HandOver, OutboxRow, PublishResult, PublishStatus, make_token
from outbox.relay_queries import (
    LONGEST_LEASE_MS,
    PARKED,
    WAITING,
    Mark,
    ReadPosition,
    Tables,
    claim_rows,
    clean_leases,
    count_rows,
    delete_published,
    discard_parked,
    note_failures,
    read_parked,
    release_claim,
    release_parked,
)
from outbox.sources import OutboxSource
from outbox.tables import begin_on_sqlite, leaving_read_only
from outbox.transaction_record import code_of

_LOG: Final = logging.getLogger("outbox")
_PSYCOPG: Final = ("postgresql", "psycopg")
_LOOK_S: Final = 0.5  # for the stop, by whoever waits for notifications
_SESSION_LOOKS: Final = 5  # a pooler with other clients gives one the same session seldom so often
_SHARED: Final = (
    "a pooler shares its sessions among its clients; the address of PostgreSQL itself lets rows wake the relay"
)


class _SessionShared(Exception):
    """What it is told goes to whoever has it then."""


_TOO_LATE: Final = "claiming them took what their lease leaves for it: the database is slow, or this process was frozen"
_STAYED: Final = (
    "published, but its row stays when it is deleted: a trigger, a rule, row level security or another table's"
    " reference keeps it; let the relay delete, then discard the row"
)


class Notifier:
    """Listens on a connection of its own, for one thread; it is opened anew after it was lost."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._can_listen = (engine.dialect.name, engine.dialect.driver) == _PSYCOPG
        self._connection: sa.PoolProxiedConnection | None = None

    def wait(self, stop: threading.Event, timeout_ms: int) -> None:
        """Returns at a notification, when the time is over, or soon after the stop; may return early."""
        if not self._can_listen:
            stop.wait(timeout_ms / 1000)
            return
        dbapi_error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        try:
            driver, end_s = self._listen(), time.monotonic() + timeout_ms / 1000
            while not stop.is_set() and (left_s := end_s - time.monotonic()) > 0:
                for _ in driver.notifies(timeout=min(left_s, _LOOK_S), stop_after=1):
                    return
        except _SessionShared:
            self._can_listen = False
            self.close()
            _LOG.warning("relay_not_notified poll_ms=%d reason=%s", timeout_ms, _SHARED)
        except (dbapi_error, SQLAlchemyError):
            self.close()
            stop.wait(timeout_ms / 1000)

    def close(self) -> None:
        """Gives the connection up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # whatever it is in, nobody needs it any more
                connection.invalidate()

    def _listen(self) -> Any:  # noqa: ANN401 - psycopg's own connection
        if self._connection is None:
            self._connection = self._engine.raw_connection()
            driver: Any = self._connection.driver_connection
            driver.autocommit = True
            if self._shares_session(driver):
                raise _SessionShared
            driver.execute(f"LISTEN {NOTIFY_CHANNEL}")
        return self._connection.driver_connection

    def _shares_session(self, driver: Any) -> bool:  # noqa: ANN401 - psycopg's own connection
        """Whether each transaction may be in another one, or another client's in the same."""
        query = "SELECT pg_backend_pid()"
        own = {driver.execute(query).fetchone()[0] for _ in range(_SESSION_LOOKS)}
        with self._engine.connect() as conn:
            return len(own) > 1 or conn.scalar(sa.text(query)) in own


_T = TypeVar("_T")
_MOST_COUNTED = 100_000
_LONGEST_PAUSE_MS: Final = 10_000  # of a relay whose bridge or database is away: rows wait so long when it is back


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Bounds and rhythms. `lease_ms` must be well above the longest hand-over."""

    max_rows: int = 1_000  # as many as the bridge takes in a request: each costs it, and all behind it, a fixed part
    max_requests: int = 2  # the next claim while one is under way
    lease_ms: int = 60_000
    hand_over_ms: int = 20_000  # what a hand-over may take; none is begun later before the lease's end
    poll_ms: int = 500
    min_delay_ms: int = 500
    max_delay_ms: int = 60_000
    clean_ms: int = 60_000  # between looks at a thousand leases for those whose rows were deleted by hand
    parked_holds: bool = True  # a parked row holds back the later ones of its ordering key

    def __post_init__(self) -> None:
        if min(self.max_rows, self.max_requests, self.hand_over_ms, self.poll_ms, self.min_delay_ms) < 1:
            raise OutboxConfigError("limits of the relay must be above 0")
        if self.hand_over_ms >= self.lease_ms or self.min_delay_ms > self.max_delay_ms:
            raise OutboxConfigError("hand_over_ms must be below lease_ms, min_delay_ms not above max_delay_ms")
        if max(self.lease_ms, self.max_delay_ms) > LONGEST_LEASE_MS:
            raise OutboxConfigError("no lease or delay of the relay may be longer than two hours")


class RelayCounts(NamedTuple):
    """What one round did. `lost`: rows whose lease was over; whoever has them now publishes them."""

    claimed: int = 0
    published: int = 0
    parked: int = 0
    delayed: int = 0
    lost: int = 0
    wait_ms: int = 0  # the bridge could not be asked: not before this


class Claim(NamedTuple):
    """Rows leased under a token. `unread`: marks of those not to be handed over; `unsure`: ids of those that may have
    been published before."""

    token: str
    rows: Sequence[OutboxRow]
    unread: Sequence[Mark]
    unsure: frozenset[str]
    until_ms: int


class RelayBacklog(NamedTuple):
    """Rows to be published, 100,000 at most, and parked ones."""

    waiting: int
    parked: int


class Relay:
    """Publishes the rows of one table."""

    def __init__(
        self,
        engine: sa.Engine,
        hand_over: HandOver,
        source: OutboxSource,
        leases: sa.Table,
        config: RelayConfig | None = None,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """`leases`: made by `make_lease_table`, in the same database; one for any number of sources."""
        self._engine = engine
        self._hand_over = hand_over
        self._config = config or RelayConfig()
        self._tables = Tables(source, leases, self._config.parked_holds)
        self._now_ms = monotonic_ms
        self._place = ReadPosition()
        self._is_read_whole = False
        self._cleaned_after: str | None = None
        self._cleaned_ms = 0

    def run_once(self) -> RelayCounts:
        """One claim, one hand-over, one marking. Raises SQLAlchemyError."""
        claim = self._claim()
        return self._carry_out(claim) if claim is not None else RelayCounts()

    def run_forever(self, stop: threading.Event, note: Callable[[RelayCounts], object] = lambda _: None) -> None:
        """Rounds until `stop`; the last ones are carried out. No error ends it. `note` is called after each round."""

        failures = 0
        self._cleaned_ms = self._now_ms()
        pool = ThreadPoolExecutor(self._config.max_requests, thread_name_prefix="outbox-relay")
        with closing(Notifier(self._engine)) as waker, pool:
            under_way: set[Future[RelayCounts]] = set()

            def begin(claim: Claim) -> None:
                under_way.add(submit_or_run(pool, self._carry_out_noted, claim, stop, note))

            while not stop.is_set():
                try:
                    self._clean_when_due()
                    pause_ms = self._step(begin, under_way, waker, stop)
                    if pause_ms is not None:
                        failures = failures + 1 if pause_ms else 0
                except Exception as error:  # noqa: BLE001 - the loop that runs for ever
                    failures += 1
                    pause_ms = self._config.min_delay_ms
                    _LOG.warning("relay_failed error=%s failures=%d", _describe(error), failures)
                if pause_ms:
                    stop.wait(max(pause_ms, self._pause_ms(failures - 1)) / 1000)

    def read_parked(self, max_rows: int = 100) -> Sequence[tuple[str, str]]:
        """Rows that the bridge refused, by id, and why."""
        with self._engine.connect() as conn, relay_transaction(conn):
            return read_parked(conn, self._tables, max_rows)

    def count_rows(self) -> RelayBacklog:
        """What there is in the table. Raises SQLAlchemyError."""
        with self._engine.connect() as conn, relay_transaction(conn):
            return RelayBacklog(*count_rows(conn, self._tables, _MOST_COUNTED))

    def release_parked(self, row_ids: Sequence[str]) -> int:
        """Tries these parked rows again; how many there were."""
        with self._engine.connect() as conn, relay_transaction(conn):
            return release_parked(conn, self._tables, row_ids)

    def discard_parked(self, row_ids: Sequence[str]) -> int:
        """Deletes these parked rows unpublished; how many there were."""
        with self._engine.connect() as conn, relay_transaction(conn):
            return discard_parked(conn, self._tables, row_ids)

    def clean_leases(self, max_leases: int = 1_000) -> int:
        """Deletes leases of rows that were deleted by hand, among the next so many; how many. `run_forever` does it."""
        with self._engine.connect() as conn, relay_transaction(conn):
            count, self._cleaned_after = clean_leases(conn, self._tables, self._cleaned_after, max_leases)
        return count

    def _clean_when_due(self) -> None:
        if self._now_ms() >= self._cleaned_ms + self._config.clean_ms:
            self._cleaned_ms = self._now_ms()
            self.clean_leases()

    def _step(
        self,
        begin: Callable[[Claim], None],
        under_way: set[Future[RelayCounts]],
        waker: Notifier,
        stop: threading.Event,
    ) -> int | None:
        """Begins one more round, or waits for one to end or rows to come; how long to pause, if that is known now."""
        claim = self._claim() if len(under_way) < self._config.max_requests else None
        if claim is not None:
            begin(claim)
            return None
        if not under_way:
            waker.wait(stop, self._config.poll_ms)
            return 0
        ended, _ = wait(under_way, self._config.poll_ms / 1000, FIRST_COMPLETED)
        under_way -= ended
        return max(future.result().wait_ms for future in ended) if ended else None

    def _claim(self) -> Claim | None:
        # counted from before the statement, so that the lease in the database never ends before this one
        until_ms = self._now_ms() + self._config.lease_ms - self._config.hand_over_ms
        token = make_token(getattr(self._hand_over, "publisher", None))
        with self._engine.connect() as conn, relay_transaction(conn):
            if not self._is_read_whole:
                refuse_charset(conn)
                _refuse_without_rights(conn, self._tables)
                self._is_read_whole = True
            found = claim_rows(conn, self._tables, token, self._config.lease_ms, self._config.max_rows, self._place)
        self._place = found.place
        if not found.rows and not found.unread:
            return None
        return Claim(token, found.rows, found.unread, found.unsure, until_ms)

    def _carry_out_noted(
        self, claim: Claim, stop: threading.Event, note: Callable[[RelayCounts], object]
    ) -> RelayCounts:
        counts = self._carry_out(claim, stop)
        note(counts)
        return counts

    def _carry_out(self, claim: Claim, stop: threading.Event | None = None) -> RelayCounts:
        """`stop`: until then it waits for a database that is away; None: that is an error at once."""
        if self._now_ms() >= claim.until_ms:
            _LOG.warning("relay_claim_too_late rows=%d reason=%s", len(claim.rows), _TOO_LATE)
            return RelayCounts(len(claim.rows), lost=len(claim.rows))
        try:
            fates = self._hand_over.publish(claim.rows) if claim.rows else ()
        except HandOverUnavailable as error:
            _LOG.warning("hand_over_unavailable reason=%s rows=%d", error, len(claim.rows))
            unsure = {row.row_id for row in claim.rows} if error.is_sent else claim.unsure
            self._write(lambda conn: release_claim(conn, self._tables, claim.token, unsure), claim, stop)
            return RelayCounts(len(claim.rows), wait_ms=max(error.retry_after_ms, self._config.min_delay_ms))
        return self._mark(claim, fates, stop)

    def _mark(self, claim: Claim, fates: Sequence[PublishResult], stop: threading.Event | None) -> RelayCounts:
        judged = list(zip(claim.rows, fates, strict=True))
        published = [row for row, handed in judged if handed.fate is PublishStatus.PUBLISHED]
        found = [decide_mark(row, handed, self._config, is_unsure=row.row_id in claim.unsure) for row, handed in judged]
        marks = [mark for mark in found if mark is not None]
        marks += claim.unread

        def write(take_away: _TakeAway, conn: sa.Connection) -> tuple[int, list[Mark]]:
            stayed = take_away(conn, self._tables, published) if published else {}
            noted = [*marks, *(Mark(row_id, PARKED, 0, why) for row_id, why in stayed.items())]
            return note_failures(conn, self._tables, claim.token, noted), noted

        try:
            noted, marks = self._write(partial(write, _take_away), claim, stop)
        except DBAPIError as error:
            if not _is_refused(error):
                raise
            noted, marks = self._write(partial(write, _take_away_singly), claim, stop)
        parked = sum(mark.state == PARKED for mark in marks)
        if len(marks) > parked:
            reason = next(mark.reason for mark in marks if mark.state != PARKED)
            _LOG.warning("outbox_rows_put_off rows=%d first_reason=%s", len(marks) - parked, reason)
        if parked:
            _LOG.error("outbox_rows_parked rows=%d source=%s", parked, self._tables.source.name)
        return RelayCounts(
            len(claim.rows) + len(claim.unread), len(published), parked, len(marks) - parked, len(marks) - noted
        )

    def _pause_ms(self, failures: int) -> int:
        return min(delay_ms(failures, self._config), _LONGEST_PAUSE_MS)

    def _write(self, write: Callable[[sa.Connection], _T], claim: Claim, stop: threading.Event | None) -> _T:
        """A transaction, repeated while the database is away and the lease lasts: nobody else takes the rows before.

        What was committed without an answer is repeated too; it then changes nothing.
        """
        failures = 0
        while True:
            try:
                with self._engine.connect() as conn, relay_transaction(conn):
                    return write(conn)
            except (OperationalError, InterfaceError) as error:
                pause_ms = self._pause_ms(failures)
                failures += 1
                is_over = self._now_ms() + pause_ms >= claim.until_ms + self._config.hand_over_ms
                if stop is None or is_over or _is_refused(error) or stop.wait(pause_ms / 1000):
                    raise
                _LOG.warning(
                    "relay_database_away error=%s rows=%d failures=%d", _describe(error), len(claim.rows), failures
                )


@contextmanager
def relay_transaction(conn: sa.Connection) -> Iterator[None]:
    """A transaction in which each statement sees what was committed before it."""
    if conn.dialect.name != "sqlite":
        conn = conn.execution_options(isolation_level="READ COMMITTED")
    with leaving_read_only(conn), conn.begin():
        yield


# --- published rows are taken away; what stays would be handed over again and again ---

_TakeAway: TypeAlias = Callable[[sa.Connection, Tables, Sequence[OutboxRow]], dict[str, str]]
_REFUSED: Final = frozenset({"42501", "P0001", 1142, 1143, 1644})  # no right to, and what triggers raise


def _is_refused(error: DBAPIError) -> bool:
    """Whether it will be, however often it is tried."""
    return isinstance(error, IntegrityError) or code_of(error.orig) in _REFUSED


def _take_away(conn: sa.Connection, tables: Tables, rows: Sequence[OutboxRow]) -> dict[str, str]:
    """Of those that stay, why."""
    return dict.fromkeys(delete_published(conn, tables, rows), _STAYED)


def _take_away_singly(conn: sa.Connection, tables: Tables, rows: Sequence[OutboxRow]) -> dict[str, str]:
    """The same if some are refused: halves of them, and halves of these, until those are alone."""
    if conn.dialect.name == "postgresql":  # else some are refused at the commit only
        conn.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    begin_on_sqlite(conn)
    try:
        with conn.begin_nested():
            return _take_away(conn, tables, rows)
    except DBAPIError as error:
        if not _is_refused(error):
            raise
        if len(rows) == 1:
            return {rows[0].row_id: f"{_STAYED} ({_describe(error)})"}
    half = len(rows) // 2
    return _take_away_singly(conn, tables, rows[:half]) | _take_away_singly(conn, tables, rows[half:])


def _refuse_without_rights(conn: sa.Connection, tables: Tables) -> None:
    """Raises what the database says where no published row could be taken away."""
    source = tables.source
    if source.archive is not None:
        nothing = sa.select(source.table).where(sa.false())
        conn.execute(sa.insert(source.archive).from_select([column.name for column in source.table.c], nothing))
    for table in (source.table, tables.leases):
        conn.execute(sa.delete(table).where(sa.false()))


def refuse_charset(conn: sa.Connection) -> None:
    """The server writes a ? for each sign that the connection's character set lacks, and says nothing."""
    if conn.dialect.name in {"mysql", "mariadb"}:
        charset = conn.scalar(sa.text("SELECT @@character_set_results"))
        if charset != "utf8mb4":
            raise OutboxConfigError(
                f"messages would be read in {charset}, with a ? for other signs: add charset=utf8mb4 to the URL"
            )


def decide_mark(row: OutboxRow, handed: PublishResult, config: RelayConfig, *, is_unsure: bool = False) -> Mark | None:
    """What to note of a row; None if it was published. A refused one is parked, another tried again. `is_unsure`: it
    may have been published before."""
    if handed.fate is PublishStatus.PUBLISHED:
        return None
    if handed.fate is PublishStatus.REFUSED:
        return Mark(row.row_id, PARKED, 0, handed.reason)
    is_unsure = is_unsure or handed.fate is PublishStatus.UNKNOWN
    return Mark(row.row_id, WAITING, delay_ms(row.attempts, config), handed.reason, is_unsure)


def delay_ms(attempts: int, config: RelayConfig) -> int:
    """Twice as long each time, up to the longest."""
    return min(config.min_delay_ms << min(max(attempts, 0), 30), config.max_delay_ms)


def first_line(error: BaseException) -> str:
    """Drivers name host and user; the statement and its values are on later lines."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _describe(error: Exception) -> str:
    """Of a database's error, and of ours, the words; of all else the kind, for nobody knows what its text has in it."""
    original = error if isinstance(error, OutboxConfigError) else getattr(error, "orig", None)
    kind = type(error).__name__
    return kind if original is None else f"{kind}: {first_line(original)}"
