"""What every process sets up for itself: its log, no core dumps, and how it gives memory back."""

import asyncio
import ctypes
import gc
import logging
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TextIO

import psutil
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from bridge.clock import Clock

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


def configure_logging(
    level: LogLevel = "info", log_format: LogFormat = "auto", stream: TextIO | None = None, *, requests: bool = False
) -> None:
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
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
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


def _renderers(is_pretty: bool) -> list[Processor]:
    if is_pretty:
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    # Frames without their variables: those could hold keys and values.
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _name_foreign(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Lines of other libraries become one event with their text beside it."""
    record: logging.LogRecord = event["_record"]
    event["text"] = event["event"]
    event["event"] = record.name.partition(".")[0] + "_log"
    return event


def forbid_core_dumps() -> None:
    """They would hold keys, secrets and messages."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


# --- gives memory back to the system ---

_LOG = structlog.get_logger()

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
    """For this process; without glibc nothing is trimmed."""
    process, libc = psutil.Process(), ctypes.CDLL(None)

    def trim() -> None:
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)

    return HeapActs(lambda: int(process.memory_info().rss), gc.collect, trim)


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
