"""Logging of a process: structlog and the standard library's loggers through one pipe to standard error."""

import logging
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

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
