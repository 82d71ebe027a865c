"""How commands show results, and how they fail: an exit code, a reason, and what to do about it.

Piped, tables have no frames, colours or line breaks. Text from elsewhere is shown with its control characters
escaped: a key must not be able to speak to the terminal.
"""

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum, StrEnum
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from bridge.broker.ports import BrokerError, JarsUnavailable
from bridge.core.errors import (
    BatchOutcomeUnknown,
    BridgeError,
    ConfigError,
    SecretUnreadable,
    SqlUnavailable,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from bridge.core.topics import RIGHTS_REMEDY
from outbox.client.errors import DatabaseUnavailable, OutboxConfigError, TableMissing


class Exit(IntEnum):
    """Exit codes; stable."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5


class CommandFailed(Exception):
    """Ends a command. `remedy`: a sentence for the user, or nothing. `is_unknown`: it may have been done."""

    def __init__(self, code: Exit, reason: str, remedy: str = "", *, is_unknown: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.remedy = remedy
        self.is_unknown = is_unknown


Told = tuple[Exit, str, str]

_AGAIN = "Run the command again; what it had done already is not done twice."
_KAFKA_REMEDY = (
    "Does Kafka run at kafka.bootstrap.servers (`outbox-bridge config show`), and can this machine reach the addresses "
    "that its brokers give (their advertised.listeners)? "
    "`outbox-bridge doctor` looks; `outbox-bridge dev` starts one on this machine."
)
CONNECTIONS_REMEDY = (
    "Do the brokers take as many connections as the bridge's clients make (max.connections, max.connections.per.ip, "
    "max.connection.creation.rate)? They end those that are too many without a word; their logs say so."
)
TIMEOUT_REMEDY = "Set transaction.max.timeout.ms on the brokers to 10000 or more; Kafka's default is 900000."
_OUTBOX_SQL_REMEDY = "Check --database-url and that the database runs."
_SQL_REMEDY = (
    "Check database_url (`outbox-bridge config show`) and that the database runs; `outbox-bridge migrate` makes the "
    "file that is used without one."
)


def explain(error: BaseException) -> CommandFailed | None:
    """An expected error as a failure of the command; None for a surprise."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in _leaves(error) if (found := explain(inner)) is not None), None)
    if isinstance(error, CommandFailed):
        return error
    return next((CommandFailed(*tell(error)) for kind, tell in _TELLERS if isinstance(error, kind)), None)


def _tell_table(error: TableMissing) -> Told:
    remedy = f"`python -m outbox.ddl {error.database}` writes the SQL for the outbox's own tables; see docs/outbox.md."
    return Exit.FAILED, str(error), remedy


def _tell_broker(error: BrokerError) -> Told:
    code = Exit.UNREACHABLE if isinstance(error, JarsUnavailable) else Exit.FAILED
    return code, error.reason, error.remedy


def is_timeout_refused(error: StoreError) -> bool:
    """Whether the brokers let no Kafka transaction last as long as the bridge's may."""
    return "INVALID_TRANSACTION_TIMEOUT" in str(error)


def _advise(error: StoreError) -> str:
    """Kafka's names of missing rights end so."""
    if is_timeout_refused(error):
        return TIMEOUT_REMEDY
    if "no right" in str(error) or "AUTHORIZATION_FAILED" in str(error):
        return RIGHTS_REMEDY
    return _KAFKA_REMEDY


def _tell_kafka(error: StoreError) -> Told:
    """Silence is no refusal: what was asked for may have been done."""
    remedy = _advise(error)
    if isinstance(error, BatchOutcomeUnknown) and remedy is _KAFKA_REMEDY:
        reason = f"whether Kafka has taken it is not known: {error}"
        return Exit.UNREACHABLE, reason, f"{_AGAIN} {remedy} {CONNECTIONS_REMEDY}"
    return Exit.FAILED, f"Kafka refuses: {error}", remedy


# the first row that fits; what is above inherits from what is below
_TELLERS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[Any], Told]], ...] = (
    (BrokerError, _tell_broker),
    (ConfigError, lambda error: (Exit.USAGE, str(error), "")),
    ((StoreUnavailable, StoreTimeout), lambda e: (Exit.UNREACHABLE, f"Kafka cannot be used now: {e}", _advise(e))),
    (SecretUnreadable, lambda e: (Exit.USAGE, str(e), e.remedy)),
    (SqlUnavailable, lambda e: (Exit.UNREACHABLE, f"the database cannot be used now: {e}", _SQL_REMEDY)),
    (TableMissing, _tell_table),
    (DatabaseUnavailable, lambda e: (Exit.UNREACHABLE, f"the database cannot be used now: {e}", _OUTBOX_SQL_REMEDY)),
    (OutboxConfigError, lambda error: (Exit.USAGE, str(error), "")),
    (StoreError, _tell_kafka),
    (BridgeError, lambda error: (Exit.FAILED, str(error), str(getattr(error, "remedy", "")))),
)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for inner in group.exceptions:
        if isinstance(inner, BaseExceptionGroup):
            yield from _leaves(inner)
        else:
            yield inner


_NOTHING = "-"
_WIDE = 10_000  # piped lines are never broken

Row = Mapping[str, Any]
Column = tuple[str, str | Callable[[Row], object]]  # title; the member's name, or what is shown of the row


class Output(StrEnum):
    """Forms of a result."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Form of the result.")]


def result_console() -> Console:
    """Standard output."""
    return _make_console(sys.stdout)


def message_console() -> Console:
    """Standard error, for everything that is not the result."""
    return _make_console(sys.stderr)


def _make_console(stream: TextIO) -> Console:
    is_terminal = stream.isatty()
    return Console(
        file=stream, width=None if is_terminal else _WIDE, highlight=False, emoji=False, soft_wrap=not is_terminal
    )


class WholeSentences(TyperGroup):
    """Commands with the whole first sentence about each, however narrow the terminal."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - of a private module
        """Called for the help."""
        shown = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(_WIDE)) for name, command in shown if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def printable(value: object) -> str:
    """A value as one line of text that is safe on a terminal."""
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in value)
    if isinstance(value, list | dict):
        return _escape(json.dumps(value, ensure_ascii=False, default=str))
    return str(value)


def show_rows(rows: Sequence[Row], columns: Sequence[Column], output: Output = Output.TABLE) -> None:
    """A table, one line a row. On a terminal without columns that hold nothing; where it would not fit, a block a row.
    Or a document for each row, as `output` says.

    The first column, a name or an id, is never broken.
    """
    if output is not Output.TABLE:
        show_documents([encode(row) for row in rows], output)
        return
    console = result_console()
    names = [name for name, _ in columns]
    lines = [[printable(row[read] if isinstance(read, str) else read(row)) for _, read in columns] for row in rows]
    if console.is_terminal and rows:
        shown = [n for n, cells in enumerate(zip(*lines, strict=True)) if n == 0 or set(cells) != {_NOTHING}]
        names, lines = [names[n] for n in shown], [[line[n] for n in shown] for line in lines]
    table = _make_table(console)
    for number, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=number == 0 or not console.is_terminal)
    for line in lines:
        table.add_row(*map(Text, line))
    if (
        console.is_terminal
        and console.measure(table, options=console.options.update(width=_WIDE)).maximum > console.width
    ):
        _print_blocks(console, names, lines)
    else:
        _print_table(console, table)


def _print_blocks(console: Console, names: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    width = max(map(len, names))
    for first, *others in lines:
        console.print(Text(first, style="bold"), no_wrap=True, overflow="ignore", crop=False)
        for name, text in zip(names[1:], others, strict=True):
            if text != _NOTHING:
                console.print(Text.assemble(("  " + name.lower().ljust(width + 2), "dim"), text))


def show_members(members: Iterable[tuple[str, object]]) -> None:
    """A table of names and values."""
    console = result_console()
    table = _make_table(console, with_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold", no_wrap=not console.is_terminal)
    for name, value in members:
        table.add_row(name, Text(printable(value)))
    _print_table(console, table)


def show_record(members: Iterable[tuple[str, object]], document: bytes, output: Output) -> None:
    """One thing: its members as a table, or the document that has them."""
    if output is Output.TABLE:
        show_members(members)
    else:
        show_document(document, output)


def show_documents(documents: Sequence[bytes | msgspec.Raw], output: Output) -> None:
    """JSON documents as they came, numbers untouched: one array, or a line each."""
    if output is Output.JSONL:
        for document in documents:
            _write(msgspec.json.format(bytes(document), indent=-1))
    else:
        _write(msgspec.json.format(b"[" + b",".join(bytes(document) for document in documents) + b"]", indent=2))


def show_document(document: bytes, output: Output) -> None:
    """One JSON document as it came."""
    _write(msgspec.json.format(document, indent=2 if output is Output.JSON else -1))


def encode(value: object) -> bytes:
    """A document of ours."""
    return msgspec.json.encode(value)


def print_line(text: str) -> None:
    """A line of the result, a document too: JSON has the same escapes."""
    sys.stdout.write(_make_harmless(text) + "\n")
    sys.stdout.flush()


def say(text: str, style: str = "") -> None:
    """A line to the user, on standard error."""
    message_console().print(Text(_make_harmless(text), style=style))


def show_failure(failure: CommandFailed) -> None:
    """Why a command failed and what to do."""
    console = message_console()
    console.print(Text.assemble(("error: ", "bold red"), _make_harmless(failure.reason)))
    if failure.remedy:
        console.print(Text.assemble(("what to do: ", "bold"), _make_harmless(failure.remedy)))


def _make_harmless(text: str) -> str:
    """What moves no cursor and turns no direction: JSON leaves C1 controls, DEL and directions as they are."""
    return "\n".join(line if line.isprintable() else _escape(line) for line in text.split("\n"))


def _escape(text: str) -> str:
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)


def _make_table(console: Console, *, with_header: bool = True) -> Table:
    if console.is_terminal:
        return Table(box=box.SIMPLE_HEAD if with_header else None, show_header=with_header, pad_edge=False)
    return Table(box=None, show_header=with_header, pad_edge=False, padding=(0, 2, 0, 0), header_style="")


def _print_table(console: Console, table: Table) -> None:
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        print_line(line.rstrip())


def _write(document: bytes) -> None:
    print_line(document.decode())


# --- standard streams: one that is closed or full is told, or not minded, but ends in no traceback ---

_UNWRITTEN = (
    "If the command changes something, that is done: look before you repeat it. A key or a secret that it made is "
    "shown nowhere."
)


class ResultUnwritten(CommandFailed):
    """Standard output takes nothing more. What is written to it from now on is dropped."""

    def __init__(self, error: OSError) -> None:
        super().__init__(Exit.FAILED, f"the result cannot be written: {error.strerror}", _UNWRITTEN, is_unknown=True)


class ResultStream(io.TextIOWrapper):
    """Standard output. Writing raises ResultUnwritten; BrokenPipeError where the reader has seen enough."""

    def write(self, text: str, /) -> int:
        """The number of characters."""
        with self._telling():
            return super().write(text)

    def flush(self) -> None:
        """Hands over what was written."""
        with self._telling():
            super().flush()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            number = self.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
            raise ResultUnwritten(error) from error


class MessageStream(io.TextIOWrapper):
    """Standard error. What it does not take is dropped."""

    def write(self, text: str, /) -> int:
        """The number of characters."""
        with suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        """Hands over what was written."""
        with suppress(OSError):
            super().flush()


def open_standard_streams() -> None:
    """Gives this process its streams. One that is closed is opened, so that no connection gets its number.

    Else Kafka's client would log into that connection. A closed standard output goes on taking nothing.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    out, err = (io.BufferedWriter(io.FileIO(number, "w", closefd=False)) for number in (1, 2))
    sys.stdout = ResultStream(out, "utf-8", "backslashreplace", line_buffering=True)
    sys.stderr = MessageStream(err, "utf-8", "backslashreplace", line_buffering=True)
