"""The command line in this process, and a bridge that answers what a test tells it."""

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from api.cli.main import run
from tests.support.canned_http import CannedServer, canned_server


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture
def bridge() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command as if it had been typed, output piped."""

    def run_it(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["outbox-bridge", *arguments])
        code = run()
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return run_it
