"""Logs: one JSON object a line when piped, text on a terminal, all libraries through one pipe."""

import fcntl
import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

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


class LogFile(io.FileIO):
    """Where lines go. `is_terminal`: what it says of itself."""

    def __init__(self, path: Path, *, is_terminal: bool = False) -> None:
        super().__init__(path, "a+")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """As it was told."""
        return self._is_terminal

    def read_text(self) -> str:
        """All lines so far."""
        for handler in logging.getLogger().handlers:
            handler.flush()
        self.seek(0)
        return self.read().decode()


def test_lines_are_json_when_piped(tmp_path: Path) -> None:
    """Event, level, time, fields; also those of other libraries."""
    stream = LogFile(tmp_path / "log")
    configure_logging("info", "auto", stream)
    structlog.get_logger().info("batch_settled", count=3)
    structlog.get_logger().debug("hidden")
    logging.getLogger("uvicorn.error").warning("Unsupported %s", "thing")
    ours, theirs = [json.loads(line) for line in stream.read_text().splitlines()]
    assert (ours["event"], ours["level"], ours["count"]) == ("batch_settled", "info", 3)
    assert ours["time"].endswith("Z")
    assert (theirs["event"], theirs["text"]) == ("uvicorn_log", "Unsupported thing")


def test_lines_are_text_on_a_terminal(tmp_path: Path) -> None:
    """For people."""
    stream = LogFile(tmp_path / "log", is_terminal=True)
    configure_logging("debug", "auto", stream)
    structlog.get_logger().debug("batch_settled", count=3)
    assert "batch_settled" in stream.read_text()
    assert not stream.read_text().startswith("{")


def test_text_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    """An escape sequence in what somebody else has said would move, colour or retitle it."""
    stream = LogFile(tmp_path / "log", is_terminal=True)
    configure_logging("info", "auto", stream)
    structlog.get_logger().warning("issuer_keys_not_read", reason="\x1b]0;mine\x07\x9b2J\u202e")
    logging.getLogger("uvicorn.error").warning("\x1b]0;mine\x07\nlines")
    text = stream.read_text()
    assert r"\x1b]0;mine\x07\x9b2J\u202e" in text
    assert r"\x1b]0;mine\x07\nlines" in text
    assert not {"\x1b]", "\x07", "\x9b", "\u202e"} & {*text, *[text[n : n + 2] for n in range(len(text))]}


def test_frames_are_logged_without_their_variables(tmp_path: Path) -> None:
    """They could hold keys and values."""
    stream = LogFile(tmp_path / "log")
    configure_logging("info", "json", stream)
    body = "".join(["ge", "heim"])
    try:
        int(body * 0)
    except ValueError:
        structlog.get_logger().exception("loop_failed")
    (line,) = [json.loads(text) for text in stream.read_text().splitlines()]
    assert "ValueError: invalid literal" in line["exception"]
    assert body not in stream.read_text()


def test_requests_are_lines_if_they_are_wanted(tmp_path: Path) -> None:
    """Below the level of all else, and with the request id that a problem shows as `instance`."""
    stream = LogFile(tmp_path / "log")
    assert road.__name__ == REQUESTS  # structlog names a logger by its module
    for is_wanted in (False, True):
        configure_logging("warning", "json", stream, requests=is_wanted)
        structlog.get_logger("another").debug("hidden")
        structlog.get_logger(REQUESTS).debug("request_answered", request_id=f"asked {is_wanted}")
    (line,) = [json.loads(line) for line in stream.read_text().splitlines()]
    assert (line["event"], line["request_id"]) == ("request_answered", "asked True")


def test_process_goes_on_where_nobody_reads_its_log() -> None:
    """Each line that a full pipe did not take held up the event loop, and so every answer. What is lost is told."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    log = configure_logging("info", "json", os.fdopen(writer, "w"))
    for number in range(20_000):
        structlog.get_logger().info("batch_settled", count=number, text="x" * 500)
    with os.fdopen(reader, "rb") as lines:
        read = [json.loads(next(lines))["count"] for _ in range(2_000)]
        log.flush()
        assert read == list(range(2_000))
        lost = next(line for line in map(json.loads, lines) if line["event"] == "log_lines_lost")
    assert (lost["level"], lost["count"] > 1_000) == ("warning", True)
