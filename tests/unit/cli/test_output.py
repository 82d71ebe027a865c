"""api.cli.output: results that programs and people can read."""

import re

import pytest
from rich.console import Console

from api.cli.output import Output, printable, show_document, show_documents, show_members, show_rows
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
