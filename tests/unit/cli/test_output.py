"""api.cli.output: results that programs and people can read."""

import json
import re

import pytest
from rich.console import Console

from api.cli.output import (
    CommandFailed,
    Exit,
    Output,
    printable,
    say,
    show_document,
    show_documents,
    show_failure,
    show_members,
    show_rows,
)
from tests.unit.cli.conftest import Cli

EXACT = b'{"value":{"big":123456789012345678901234567890,"decimal":1.10}}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (7, "7"),
        ("käse", "käse"),
        ("a\x1b[31mb\r\n", "a\\x1b[31mb\\r\\n"),
        ([1], "[1]"),
        ({"kä\u202e": "\x9b31m\x7f\U000e0001"}, r'{"kä\u202e": "\u009b31m\u007f\udb40\udc01"}'),
    ],
)
def test_text_cannot_speak_to_the_terminal(value: object, text: str) -> None:
    """A key with an escape sequence would colour, move or erase what an operator reads."""
    assert printable(value) == text


def test_documents_and_failures_cannot_either(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON may hold what a terminal obeys: C1 controls, DEL, signs that turn the direction. It stays the same JSON."""
    told = {"key": "\x9b31m\x7f\u202eabc\u2028", "value": "käse 奶酪"}
    document = json.dumps(told, ensure_ascii=False).encode()
    show_document(document, Output.JSON)
    show_document(document, Output.JSONL)
    show_failure(CommandFailed(Exit.FAILED, "it said \x1b[2J\u202e", "do \x9b2J\nand more"))
    say("\x1b]0;mine\x07")
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert [json.loads(out[: out.index("\n}") + 2]), json.loads(out.splitlines()[-1])] == [told, told]
    assert "käse 奶酪" in out
    assert err.splitlines()[:3] == [r"error: it said \u001b[2J\u202e", r"what to do: do \u009b2J", "and more"]


def test_documents_keep_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Big integers and decimals come through as the bridge wrote them."""
    show_document(EXACT, Output.JSONL)
    assert capsys.readouterr().out == EXACT.decode() + "\n"


def test_many_documents_are_an_array_or_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """json: one document; jsonl: one line each, none for nothing."""
    show_documents([b'{"a": 1}', b'{"b":2}'], Output.JSONL)
    assert capsys.readouterr().out == '{"a":1}\n{"b":2}\n'
    show_documents([], Output.JSONL)
    assert capsys.readouterr().out == ""
    show_documents([], Output.JSON)
    assert capsys.readouterr().out == "[]\n"


def test_piped_table_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    """No frames, colours or line breaks, whatever the length."""
    show_rows([{"id": "x" * 300}, {"id": "[bold]y[/bold]"}], [("ID", lambda row: row["id"])])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["ID", "x" * 300, "[bold]y[/bold]"]


def test_members_are_name_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a member."""
    show_members([("state", "PREPARED"), ("checks", 0)])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["state", "PREPARED"], ["checks", "0"]]


def test_narrow_terminal_gets_a_block_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An id stays whole to be copied, and what holds nothing takes no place."""
    monkeypatch.setattr(
        "api.cli.output._make_console", lambda stream: Console(file=stream, force_terminal=True, width=40)
    )
    rows = [{"id": "x" * 60, "key": "42", "why": None}]
    columns = [("ID", lambda row: row["id"]), ("KEY", lambda row: row["key"]), ("WHY", lambda row: row["why"])]
    show_rows(rows, columns)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert [line.split() for line in lines] == [["x" * 60], ["key", "42"]]


@pytest.mark.parametrize(
    "words",
    [
        (), ("group", "set"), ("tx",), ("tx", "list"), ("report", "run"), ("relay",), ("relay", "parked"),
        ("relay", "parked", "list"),
    ],
)  # fmt: skip
def test_help_cuts_nothing_off(words: tuple[str, ...], cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, examples and sentences are whole in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli(*words, "--help").out
    usage, *lines = shown.splitlines()
    assert " ".join(["outbox-bridge", *words]) in usage
    assert "..." not in (text := "\n".join(lines))
    assert "\u2026" not in text
    assert max(map(len, lines)) <= 80


def test_lists_of_commands_tell_what_each_does(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole first sentence."""
    monkeypatch.setenv("COLUMNS", "80")
    assert "End a transaction as an operator; the first recorded resolution still wins." in " ".join(
        cli("tx", "--help").out.split()
    )
