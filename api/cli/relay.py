"""`relay`: hands outbox rows over, and reports its progress."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Annotated, Final

import typer

from api.cli.connect import DEFAULT_URL, YesOption, noticed_ctrl_c
from api.cli.output import (
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    ResultUnwritten,
    WholeSentences,
    encode,
    message_console,
    print_line,
    say,
    show_document,
    show_rows,
)
from outbox.client.config import read_secret
from outbox.client.errors import DatabaseUnavailable, OutboxError

if TYPE_CHECKING:
    from outbox.hand_over import HandOver
    from outbox.relay import Relay, RelayBacklog, RelayConfig, RelayCounts
    from outbox.relay_database import OutboxDatabase, SourceSpec

_LOOK_S, _INTERVAL_S = 0.2, 5.0
_TEXT, _METRICS = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"


class RelayReport:
    """Adds rounds up; they are noted in any thread, reported by one."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._began_s = self._told_s = time.monotonic()
        self._told = 0
        self._told_sums: tuple[int, ...] = ()
        self.published = self.parked = self.delayed = 0

    def note(self, counts: "RelayCounts") -> None:
        """One round."""
        with self._lock:
            self.published += counts.published
            self.parked += counts.parked
            self.delayed += counts.delayed

    def read_sums(self) -> tuple[int, int, int]:
        """Published, parked and delayed."""
        with self._lock:
            return self.published, self.parked, self.delayed

    def watch(self, thread: threading.Thread) -> None:
        """Tells until the thread has ended."""
        with message_console().status("waiting for rows") as status:
            while thread.is_alive():
                thread.join(_LOOK_S)
                status.update(self._line())
                if time.monotonic() - self._told_s >= _INTERVAL_S:
                    self.tell()
        self.tell(is_last=True)

    def tell(self, *, is_last: bool = False) -> None:
        """The sums so far, unless nothing has changed."""
        sums = (self.published, self.parked, self.delayed)
        if not is_last and sums == self._told_sums:
            return
        try:
            if self._output is not Output.TABLE:
                show_document(encode(self._members()), self._output)
            elif is_last:
                print_line(self._line())
        except ResultUnwritten as failure:
            if is_last:
                raise
            say(f"{failure.reason}; the relay goes on, and tells no more", "yellow")
        self._told, self._told_s, self._told_sums = self.published, time.monotonic(), sums

    @contextmanager
    def telling_warnings(self) -> Iterator[None]:
        """What the relay logs meanwhile goes to the user, who may have stopped reading it."""
        from api.process import LogWriter  # noqa: PLC0415  # slow to import

        log = logging.getLogger("outbox")
        handler = LogWriter(sys.stderr, lambda count: log.warning("%d lines of this log are lost", count))
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            handler.flush()

    def _rate(self) -> float:
        return (self.published - self._told) / max(time.monotonic() - self._told_s, 0.001)

    def _members(self) -> dict[str, object]:
        return {
            "published": self.published,
            "parked": self.parked,
            "delayed": self.delayed,
            "per_second": round(self._rate(), 1),
            "seconds": round(time.monotonic() - self._began_s, 1),
        }

    def _line(self) -> str:
        line = f"{self.published} rows published, {self._rate():.0f} a second"
        if self.parked:
            line += f"; {self.parked} refused: `outbox-bridge relay parked list` shows why"
        return line + (f"; {self.delayed} tries put off" if self.delayed else "")


relay = typer.Typer(cls=WholeSentences, invoke_without_command=True, help="Publish outbox rows; act on refused ones.")
parked = typer.Typer(
    cls=WholeSentences, no_args_is_help=True, help="Refused rows. Used as: relay --database-url URL parked list."
)
relay.add_typer(parked, name="parked")

_MIN_PAUSE_S, _MAX_PAUSE_S, _LONGEST_HAND_OVER_S = 0.5, 30.0, 20.0
_OF_LEASE, _OF_HAND_OVER = 1 / 3, 3 / 4  # a hand-over's part of its lease, a request's of its hand-over
_MAX_ROWS = 10_000
_INTERRUPTED = 130  # as shells show it
_NAME_IT: Final = "Say --database-url, or set OUTBOX_DATABASE_URL or OUTBOX_DATABASE_URL_FILE."

RowsArgument = Annotated[list[str] | None, typer.Argument(help="Ids as `relay parked list` shows them.")]
AllOption = Annotated[bool, typer.Option("--all", help="All parked rows.")]


@dataclass(frozen=True, slots=True)
class Outbox:
    """What the options say of the database and the table in it."""

    database_url: str
    spec: "SourceSpec"
    config: "RelayConfig"

    @property
    def request_timeout_s(self) -> float:
        """Of a request to the bridge, so that its rows are still leased when the answer comes."""
        return self.config.hand_over_ms / 1000 * _OF_HAND_OVER

    def open(self, database: "OutboxDatabase", hand_over: "HandOver") -> "Relay":
        """Raises TableMissing, DatabaseUnavailable, OutboxConfigError."""
        return database.open_relay(self.spec, hand_over, self.config)


DatabaseOption = Annotated[
    str, typer.Option("--database-url", envvar="OUTBOX_DATABASE_URL", help="The outbox's, as SQLAlchemy has it.")
]
BridgeOption = Annotated[
    str, typer.Option("--bridge", "--url", envvar="OUTBOX_BRIDGE_URL", help="Where the bridge listens.")
]
GroupOption = Annotated[str, typer.Option("--producer-group", "-g", help="Group that publishes.")]
SourceOption = Annotated[str, typer.Option("--source", metavar="own|debezium|FILE.toml", help="The table's columns.")]
TableOption = Annotated[str | None, typer.Option("--table", help="Else outbox_message, or outboxevent.")]
SchemaOption = Annotated[str | None, typer.Option("--schema", help="Schema of the tables.")]
SequenceOption = Annotated[str | None, typer.Option("--sequence", help="Debezium: column that orders the rows.")]
ArchiveOption = Annotated[
    str | None, typer.Option("--archive", help="Table with the same columns: published rows are moved into it.")
]
LeaseTableOption = Annotated[str | None, typer.Option("--lease-table", help="Else outbox_lease.")]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, max=1_000, help="Rows in a request.")]
RequestsOption = Annotated[int, typer.Option("--requests", min=1, max=16, help="Requests under way at once.")]
LeaseOption = Annotated[
    float,
    typer.Option("--lease", min=3, max=3_600, help="Seconds until the rows of a relay that died are free for others."),
]
PollOption = Annotated[
    float, typer.Option("--poll-interval", min=0.01, max=60, help="Seconds between looks if nobody wakes it.")
]
DelayOption = Annotated[
    float, typer.Option("--retry-delay", min=0.01, max=60, help="Seconds before the second try; then twice that.")
]
MaxDelayOption = Annotated[
    float, typer.Option("--max-retry-delay", min=0.01, max=3_600, help="Seconds between tries, at most.")
]
HoldsOption = Annotated[bool, typer.Option(help="Whether a refused row holds back later ones of its key.")]
HealthOption = Annotated[
    str | None, typer.Option("--health", metavar="[HOST:]PORT", help="Answer /livez, /readyz and /metrics there.")
]
OnceOption = Annotated[bool, typer.Option("--once", help="Publish what is there, then end.")]
ReportOption = Annotated[Output | None, typer.Option("--output", "-o", help="Form of reports; piped: jsonl.")]


@relay.callback(epilog="Example: outbox-bridge relay --database-url postgresql+psycopg://shop@localhost/shop -g orders")
def run(  # noqa: PLR0913, PLR0917 - a setting is an option
    context: typer.Context,
    database_url: DatabaseOption = "",
    bridge: BridgeOption = DEFAULT_URL,
    producer_group: GroupOption = "",
    source: SourceOption = "own",
    table: TableOption = None,
    schema: SchemaOption = None,
    sequence: SequenceOption = None,
    archive: ArchiveOption = None,
    lease_table: LeaseTableOption = None,
    batch_size: BatchOption = 1_000,
    requests: RequestsOption = 2,
    lease: LeaseOption = 60,
    poll_interval: PollOption = 0.5,
    retry_delay: DelayOption = 0.5,
    max_retry_delay: MaxDelayOption = 60,
    parked_holds: HoldsOption = True,
    health: HealthOption = None,
    once: OnceOption = False,
    output: ReportOption = None,
) -> None:
    """Publish the rows of an outbox table until Ctrl-C or SIGTERM; the batch in hand is finished. Any number may run.

    Exit codes with --once: 0 all is published, 1 rows were refused or are left, 5 bridge or database is away.
    """
    from outbox.hand_over import HttpHandOver  # noqa: PLC0415  # slow to import
    from outbox.relay import RelayConfig  # noqa: PLC0415  # SQLAlchemy is slow to import
    from outbox.relay_database import SourceSpec  # noqa: PLC0415
    from outbox.tables import LEASE_TABLE  # noqa: PLC0415

    database_url = database_url or read_secret("OUTBOX_DATABASE_URL") or ""
    if not database_url and context.invoked_subcommand is None:  # the help of the others needs none
        raise CommandFailed(Exit.USAGE, "no database is named", _NAME_IT)
    config = RelayConfig(
        max_rows=batch_size,
        max_requests=requests,
        lease_ms=round(lease * 1000),
        hand_over_ms=round(min(lease * _OF_LEASE, _LONGEST_HAND_OVER_S) * 1000),
        poll_ms=round(poll_interval * 1000),
        min_delay_ms=round(min(retry_delay, max_retry_delay) * 1000),
        max_delay_ms=round(max_retry_delay * 1000),
        parked_holds=parked_holds,
    )
    spec = SourceSpec(source, table, schema, sequence, lease_table or LEASE_TABLE, archive)
    outbox = Outbox(database_url, spec, config)
    if context.invoked_subcommand is not None:
        context.obj = outbox
        return
    if not producer_group:
        raise CommandFailed(Exit.USAGE, "a relay needs --producer-group", "Name the group whose messages they are.")
    report = RelayReport(output or (Output.TABLE if sys.stdout.isatty() else Output.JSONL))
    say(f"relay of {source} rows to {bridge} as {producer_group}; Ctrl-C stops it after the batch in hand")
    made = closing(HttpHandOver(bridge, producer_group, timeout_s=outbox.request_timeout_s))
    with noticed_ctrl_c(signal.SIGTERM) as stop, report.telling_warnings(), made as taker:
        if once:
            _run_once(outbox, taker, stop, report)
        else:
            _run_until(outbox, taker, stop, report, health)


@parked.command("list", epilog="Example: outbox-bridge relay parked list -o json")
def list_parked(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_MAX_ROWS, help="At most so many.")] = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """Rows that the bridge refused, and its words."""
    with _parked_of(context) as opened:
        rows = [{"row_id": row_id, "reason": reason} for row_id, reason in opened.read_parked(limit)]
    show_rows(rows, [("ROW", "row_id"), ("REASON", "reason")], output)


@parked.command(epilog="Example: outbox-bridge relay parked retry --all")
def retry(context: typer.Context, row_ids: RowsArgument = None, every: AllOption = False) -> None:
    """Let relays try parked rows again, once what was wrong is mended."""
    with _parked_of(context) as opened:
        _tell_count(opened.release_parked(_choose(opened, row_ids, every)), "will be tried again")


@parked.command(epilog="Example: outbox-bridge relay parked discard --all --yes")
def discard(
    context: typer.Context, row_ids: RowsArgument = None, every: AllOption = False, yes: YesOption = False
) -> None:
    """Delete parked rows: they are never published, and what they held back goes on."""
    with _parked_of(context) as opened:
        chosen = _choose(opened, row_ids, every)
        if not yes:
            if not sys.stdin.isatty():
                raise CommandFailed(Exit.USAGE, f"{len(chosen)} rows would be deleted", "Say --yes.")
            typer.confirm(f"delete {len(chosen)} rows for ever?", abort=True, err=True)
        _tell_count(opened.discard_parked(chosen), "deleted")


def _run_once(outbox: Outbox, hand_over: "HandOver", stop: threading.Event, report: RelayReport) -> None:
    """Rounds until nothing more can be claimed. Raises what keeps it from that."""
    from outbox.relay_database import told_errors  # noqa: PLC0415  # SQLAlchemy is slow to import

    is_away = False
    with _opened_database(outbox) as database, told_errors():
        opened = outbox.open(database, hand_over)
        while not stop.is_set() and not is_away and (counts := opened.run_once()).claimed:
            report.note(counts)
            is_away = counts.wait_ms > 0
        opened.clean_leases()
        left = opened.count_rows()
    report.tell(is_last=True)
    if is_away:
        raise CommandFailed(Exit.UNREACHABLE, "the bridge did not take the rows", "Is it running? Check --bridge.")
    if left.parked or left.waiting:
        remedy = "`outbox-bridge relay parked list` shows why rows were refused; the next run tries the others."
        raise CommandFailed(Exit.FAILED, f"{left.parked} rows refused, {left.waiting} left", remedy)


def _run_until(
    outbox: Outbox, hand_over: "HandOver", stop: threading.Event, report: RelayReport, health: str | None
) -> None:
    """Until the stop, in a thread of its own: a signal must not find the relay under one of its locks."""
    began = _BegunRelay()
    probes = RelayProbes(began.is_alive, report.read_sums, began.count)
    with serving_health(health, probes), _opened_database(outbox) as database:
        opened = _open_when_there(outbox, database, hand_over, stop)
        if opened is not None:
            thread = threading.Thread(target=opened.run_forever, args=(stop, report.note), name="outbox-relay")
            thread.start()
            began.note(opened, thread)
            try:
                report.watch(thread)
            except KeyboardInterrupt:  # the second: what is in hand is handed over again when its lease ends
                os._exit(_INTERRUPTED)
            finally:  # also if nobody reads its reports any more
                stop.set()
                thread.join()


class _BegunRelay:
    """What a health check may ask, also while the database has not answered yet."""

    def __init__(self) -> None:
        self._relay: Relay | None = None
        self._thread: threading.Thread | None = None

    def note(self, opened: "Relay", thread: threading.Thread) -> None:
        """It runs."""
        self._relay, self._thread = opened, thread

    def is_alive(self) -> bool:
        """It runs, or waits for its database."""
        return self._thread is None or self._thread.is_alive()

    def count(self) -> "RelayBacklog | None":
        """None while the database cannot be used."""
        from outbox.relay_database import told_errors  # noqa: PLC0415  # SQLAlchemy is slow to import

        try:
            with told_errors():
                return None if self._relay is None else self._relay.count_rows()
        except OutboxError:
            return None


def _open_when_there(
    outbox: Outbox, database: "OutboxDatabase", hand_over: "HandOver", stop: threading.Event
) -> "Relay | None":
    """The relay, once the database answers; None if it is stopped before."""
    pause_s = _MIN_PAUSE_S
    while not stop.is_set():
        try:
            return outbox.open(database, hand_over)
        except DatabaseUnavailable as error:
            say(f"the database cannot be used now: {error}; next try in {pause_s:g} s", "yellow")
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    return None


def _opened_database(outbox: Outbox) -> "closing[OutboxDatabase]":
    """Closed at the end."""
    from outbox.relay_database import OutboxDatabase  # noqa: PLC0415  # SQLAlchemy is slow to import

    if not outbox.database_url:
        raise CommandFailed(Exit.USAGE, "no database is named", _NAME_IT)
    return closing(OutboxDatabase(outbox.database_url))


@contextmanager
def _parked_of(context: typer.Context) -> "Iterator[Relay]":
    from outbox.hand_over import MemoryHandOver  # noqa: PLC0415  # slow to import
    from outbox.relay_database import told_errors  # noqa: PLC0415

    outbox: Outbox = context.obj
    with _opened_database(outbox) as database, told_errors():
        yield outbox.open(database, MemoryHandOver())  # nothing is handed over


def _choose(opened: "Relay", row_ids: list[str] | None, every: bool) -> list[str]:
    if bool(row_ids) == every:
        raise CommandFailed(Exit.USAGE, "name rows, or say --all", "`outbox-bridge relay parked list` shows them.")
    return row_ids or [row_id for row_id, _ in opened.read_parked(_MAX_ROWS)]


def _tell_count(count: int, what: str) -> None:
    if count == 0:
        raise CommandFailed(Exit.NOT_FOUND, "no such parked row", "`outbox-bridge relay parked list` shows them.")
    say(f"{count} rows {what}")


# --- what a relay tells of itself over HTTP: /livez, /readyz and /metrics ---


@dataclass(frozen=True, slots=True)
class RelayProbes:
    """What is asked. `read_sums`: published, parked and delayed rows so far. `count`: None if the database is away."""

    is_alive: Callable[[], bool]
    read_sums: Callable[[], tuple[int, int, int]]
    count: "Callable[[], RelayBacklog | None]"

    def answer(self, path: str) -> tuple[int, str, str]:
        """Status, content type and text."""
        match path:
            case "/livez":
                is_alive = self.is_alive()
                return (200 if is_alive else 503), _TEXT, "ok\n" if is_alive else "the relay has ended\n"
            case "/readyz":
                is_there = self.count() is not None
                return (200 if is_there else 503), _TEXT, "ok\n" if is_there else "the database cannot be used now\n"
            case "/metrics":
                return 200, _METRICS, self._render()
            case _:
                return 404, _TEXT, "there are /livez, /readyz and /metrics\n"

    def _render(self) -> str:
        published, parked, delayed = self.read_sums()
        families = [
            ("outbox_relay_published_rows_total", "counter", "Rows published by this process.", published),
            ("outbox_relay_refused_rows_total", "counter", "Rows that the bridge refused.", parked),
            ("outbox_relay_delayed_rows_total", "counter", "Tries that were put off.", delayed),
        ]
        rows = self.count()
        if rows is not None:
            families += [
                ("outbox_relay_waiting_rows", "gauge", "Rows to be published, 100000 at most.", rows.waiting),
                ("outbox_relay_parked_rows", "gauge", "Rows that wait for an operator.", rows.parked),
            ]
        families.append(("outbox_relay_database_up", "gauge", "Whether the database answers.", int(rows is not None)))
        return "".join(
            f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value}\n" for name, kind, text, value in families
        )


@contextmanager
def serving_health(address: str | None, probes: RelayProbes) -> Iterator[None]:
    """Answers at HOST:PORT, or at a port of loopback, while the block runs. Raises CommandFailed."""
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), _make_handler(probes))
    except (OSError, ValueError, OverflowError) as error:
        raise CommandFailed(Exit.USAGE, f"--health {address} cannot be used: {error}", "Say [HOST:]PORT.") from error
    thread = threading.Thread(target=server.serve_forever, name="outbox-relay-health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _make_handler(probes: RelayProbes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # of a caller that says nothing

        def answer(self) -> None:
            """Called by the server."""
            status, kind, text = probes.answer(self.path.partition("?")[0])
            raw = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = answer  # noqa: N815 - the library's name

        def log_message(self, *_: object) -> None:
            """No line for each."""

    return Handler
