"""Standard streams as a shell gives them: full, closed, of another encoding."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from outbox.ddl import write_sql

_SAID = "the result cannot be written: "


def run(folder: Path, words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """What is typed after `outbox-bridge`, redirections and all."""
    line = f"exec {sys.executable} -m api {words}"
    environment = {"PYTHONPATH": ":".join(sys.path), **settings}
    return subprocess.run(
        ["/bin/sh", "-c", line], check=False, capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("key new >/dev/full", "No space left on device"),
        ("key new >&-", "Bad file descriptor"),
        ("config show >/dev/full", "No space left on device"),  # a table
        ("version -h >/dev/full", "No space left on device"),
    ],
)
def test_result_that_cannot_be_written_fails_the_command(tmp_path: Path, words: str, reason: str) -> None:
    """It is told what is lost with it, in place of a traceback."""
    ended = run(tmp_path, words)
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (1, f"error: {_SAID}{reason}")
    assert "look before you repeat it" in ended.stderr
    assert len(ended.stderr.splitlines()) == 2


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_message_that_cannot_be_written_changes_nothing(tmp_path: Path, redirection: str) -> None:
    """The result comes, and the exit code is that of the command."""
    ended = run(tmp_path, f"acl --role settler {redirection}")
    assert ended.returncode == 0
    assert "User:outbox-bridge-settler" in ended.stdout
    assert run(tmp_path, f"acl --role nobody {redirection}").returncode == 2


def test_nothing_is_read_where_nothing_can_be(tmp_path: Path) -> None:
    """A closed standard input answers no question."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.executescript(write_sql("sqlite"))
    ended = run(tmp_path, "relay --database-url sqlite:///shop.db parked discard 1 <&-")
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended.stderr


def test_names_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    """On the command line and in what is said about them."""
    ended = run(tmp_path, "ä", LC_ALL="C", PYTHONUTF8="0")
    assert ("'ä'" in ended.stderr, ended.returncode) == (True, 2), ended.stderr
    assert "argument 1 is not UTF-8" in run(tmp_path, "$(printf '\\344')").stderr
