"""The bridge's log while a test has one: to the standard library's, where pytest shows it with a test that failed."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Leaves the settings of an application that logs with structlog, too, as they are."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        processors=[structlog.stdlib.add_log_level, structlog.processors.KeyValueRenderer(key_order=["event"])],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    ours = structlog.get_config()["processors"]
    try:
        yield
    finally:
        if structlog.get_config()["processors"] is ours:
            structlog.reset_defaults()
