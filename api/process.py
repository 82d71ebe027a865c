"""What every process sets up for itself: its log, no core dumps, a bound of its end, and how it gives memory back."""

import asyncio
import ctypes
import faulthandler
import gc
import logging
import os
import resource
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TextIO

import psutil
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from bridge.clock import Clock

_LOG = structlog.get_logger()

# --- logging of a process: structlog and the standard library's loggers through one pipe to standard error ---

LogFormat = Literal["auto", "json", "pretty"]
LogLevel = Literal["debug", "info", "warning", "error"]

REQUESTS = "api.web.road"  # the logger of lines for requests

# Loggers that would show addresses, SQL or payloads of ours below this level.
_QUIET = {
    "aiohttp": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "alembic": logging.WARNING,
    "asyncio": logging.ERROR,
}


_HELD_BYTES = 4 * 1024 * 1024
_FLUSH_S = 1.0


class LogWriter(logging.Handler):
    """Lines to a file, written by a thread of its own: a pipe that nobody reads any more holds up that thread alone.

    What cannot be written is counted, and told once something can.
    """

    def __init__(self, stream: TextIO, on_lost: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._stream = stream  # kept, so that it stays open
        self._on_lost = on_lost or (lambda count: _LOG.warning("log_lines_lost", count=count))
        self._lines: deque[bytes] = deque()
        self._held_bytes = 0
        self._lost = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_forever, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the library."""
        try:
            self.write(self.format(record))
        except Exception:  # noqa: BLE001 - a line that cannot be made harms nobody; as in every handler
            self.handleError(record)

    def write(self, text: str) -> None:
        """A line. Never waits for the file."""
        line = f"{text}\n".encode("utf-8", "backslashreplace")
        with self._changed:
            if self._held_bytes + len(line) > _HELD_BYTES:
                self._lost += 1
                return
            self._lines.append(line)
            self._held_bytes += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until everything is written, but not for a file that takes nothing."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held_bytes, _FLUSH_S)

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                piece = self._take_piece()
            is_written = self._write_piece(piece)
            with self._changed:
                self._held_bytes -= len(piece)
                self._lost += 0 if is_written else piece.count(b"\n")
                lost, self._lost = (self._lost, 0) if is_written else (0, self._lost)
                self._changed.notify_all()
            if lost:
                self._on_lost(lost)

    def _take_piece(self) -> bytes:
        """As many lines as a pipe takes whole, else they would be mixed with those of others who write to it."""
        piece = self._lines.popleft()
        while self._lines and len(piece) + len(self._lines[0]) <= select.PIPE_BUF:
            piece += self._lines.popleft()
        return piece

    def _write_piece(self, piece: bytes) -> bool:
        left = memoryview(piece)
        while left:
            try:
                left = left[os.write(self._stream.fileno(), left) :]
            except BlockingIOError:  # of somebody who shares it and wants not to wait
                select.select([], [self._stream], [])
            except OSError:
                return False
        return True


def configure_logging(
    level: LogLevel = "info", log_format: LogFormat = "auto", stream: TextIO | None = None, *, requests: bool = False
) -> LogWriter:
    """JSON lines when piped, coloured text on a terminal. Called once, before anything is logged.

    `requests`: a line for each, whatever the level.
    """
    stream = stream or sys.stderr
    is_pretty = log_format == "pretty" or (log_format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = LogWriter(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_foreign],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(is_pretty)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.getLogger(REQUESTS).setLevel(logging.DEBUG if requests else logging.NOTSET)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    return handler


def _renderers(is_pretty: bool) -> list[Processor]:
    if is_pretty:
        return [_escape_signs, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    # Frames without their variables: those could hold keys and values.
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _escape_signs(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """What an issuer or a broker has said must not speak to the terminal."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = ascii(value)[1:-1]
    return event


def _name_foreign(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Lines of other libraries become one event with their text beside it."""
    record: logging.LogRecord = event["_record"]
    event["text"] = event["event"]
    event["event"] = record.name.partition(".")[0] + "_log"
    return event


def forbid_core_dumps() -> None:
    """They would hold keys, secrets and messages."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


# --- ends in bounded time ---

_END_S = 25
_AFTER_DRAIN_S = 15
_AT_ONCE_S = 3


class Ending(asyncio.Event):
    """That a process is to end. Once set, it ends within a bound, whatever hangs; that is as safe as any kill."""

    def __init__(self, drain_s: int) -> None:
        super().__init__()
        self._most_s = max(_END_S, drain_s + _AFTER_DRAIN_S)

    def set(self) -> None:
        """From now on time runs, also while the interpreter itself ends, where no thread of Python runs any more."""
        if not self.is_set():
            asyncio.get_running_loop().call_later(self._most_s - 1, _LOG.error, "ending_takes_too_long")
            signal.alarm(self._most_s + _AT_ONCE_S)  # the last resort: nobody may take what the next line shows
            with suppress(RuntimeError):  # no thread is left
                faulthandler.dump_traceback_later(self._most_s, exit=True)  # shows where it hangs
        super().set()


# --- gives memory back to the system ---

# Pending transactions are many and acyclic, so full passes cost much: HeapLoop makes one when memory has grown.
GC_THRESHOLD = (100_000, 50, 1_000)
_INTERVAL_MS = 10_000
_LEAST_GROWTH = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HeapActs:
    """What is done to this process. `trim` blocks and runs in a thread."""

    resident_bytes: Callable[[], int]
    collect: Callable[[], int]
    trim: Callable[[], None]


def make_heap_acts() -> HeapActs:
    """For this process; without glibc nothing is trimmed, and without /proc nobody knows how large it is."""
    libc = ctypes.CDLL(None)

    def measure() -> int:
        try:
            return int(psutil.Process().memory_info().rss)
        except psutil.Error:
            return 0

    def trim() -> None:
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)

    return HeapActs(measure, gc.collect, trim)


class HeapLoop:
    """Collects when the process has grown by a quarter, so the cost stays a part of what was allocated anyway."""

    def __init__(self, clock: Clock, acts: HeapActs, interval_ms: int = _INTERVAL_MS) -> None:
        self._clock = clock
        self._acts = acts
        self._interval_ms = interval_ms
        self._settled = acts.resident_bytes()

    async def run_forever(self) -> None:
        """Every few seconds."""
        while True:
            await self._clock.sleep_ms(self._interval_ms)
            with suppress(OSError, RuntimeError):  # no file to read the size from, or no thread: the next time
                await self.run_once()

    async def run_once(self) -> bool:
        """Whether it collected. Raises OSError and RuntimeError."""
        before = self._acts.resident_bytes()
        is_grown = before > self._settled + max(_LEAST_GROWTH, self._settled // 4)
        if is_grown:
            self._acts.collect()
        # memory freed since the last time is between blocks in use, and malloc keeps it
        await asyncio.to_thread(self._acts.trim)
        after = self._acts.resident_bytes()
        self._settled = after if is_grown else min(self._settled, after)
        if is_grown:
            _LOG.debug("heap_collected", before_bytes=before, after_bytes=after)
        return is_grown
