"""Logs: one JSON object a line when piped, text on a terminal, all libraries through one pipe."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from api.process import REQUESTS, configure_logging
from api.web import road


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """Other tests see the logging they expect."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    logging.getLogger(REQUESTS).setLevel(logging.NOTSET)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """As it says."""
        return True


def test_lines_are_json_when_piped() -> None:
    """Event, level, time, fields; also those of other libraries."""
    stream = io.StringIO()
    configure_logging("info", "auto", stream)
    structlog.get_logger().info("batch_settled", count=3)
    structlog.get_logger().debug("hidden")
    logging.getLogger("uvicorn.error").warning("Unsupported %s", "thing")
    ours, theirs = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (ours["event"], ours["level"], ours["count"]) == ("batch_settled", "info", 3)
    assert ours["time"].endswith("Z")
    assert (theirs["event"], theirs["text"]) == ("uvicorn_log", "Unsupported thing")


def test_lines_are_text_on_a_terminal() -> None:
    """For people."""
    stream = Terminal()
    configure_logging("debug", "auto", stream)
    structlog.get_logger().debug("batch_settled", count=3)
    assert "batch_settled" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_frames_are_logged_without_their_variables() -> None:
    """They could hold keys and values."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    body = "".join(["ge", "heim"])
    try:
        int(body * 0)
    except ValueError:
        structlog.get_logger().exception("loop_failed")
    (line,) = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert "ValueError: invalid literal" in line["exception"]
    assert body not in stream.getvalue()


def test_requests_are_lines_if_they_are_wanted() -> None:
    """Below the level of all else, and with the request id that a problem shows as `instance`."""
    stream = io.StringIO()
    assert road.__name__ == REQUESTS  # structlog names a logger by its module
    for is_wanted in (False, True):
        configure_logging("warning", "json", stream, requests=is_wanted)
        structlog.get_logger("another").debug("hidden")
        structlog.get_logger(REQUESTS).debug("request_answered", request_id=f"asked {is_wanted}")
    (line,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["event"], line["request_id"]) == ("request_answered", "asked True")
