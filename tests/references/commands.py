"""docs/reference/commands.md: the help of every command."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from api.cli.main import app
from tests.references.markdown import MADE, code, table

_INTRODUCTION = """# Commands

What `--help` says of each command. [Operating](../operating.md#the-command-line) has the exit codes, and how a command
finds the bridge.
"""
_KIND = re.compile(r"<(\w+)[^|>]*>")  # of a value, as in `<int range>`


def make_commands() -> str:
    """The page."""
    parts = [MADE, _INTRODUCTION]
    for path, command in _commands_below("outbox-bridge", typer.main.get_command(app)):
        parts.append(f"\n## {path}\n\n{(command.help or '').strip()}\n")
        context = command.make_context(path.rpartition(" ")[2], [], resilient_parsing=True)
        rows = [record for parameter in command.params if (record := _record_of(parameter, context))]
        if rows:
            parts.append("\n" + table(("option", "meaning"), rows))
        if command.epilog:
            parts.append(f"\n{_shown_as_code(command.epilog)}\n")
    return "".join(parts)


def _commands_below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    if getattr(command, "invoke_without_command", False):
        yield path, command
    for name, each in inner.items():
        yield from _commands_below(f"{path} {name}", each)


def _record_of(parameter: Any, context: Any) -> tuple[str, str] | None:
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name).upper()
        return code(name), parameter.help or ""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    return code(_KIND.sub(lambda kind: kind[1].upper(), record[0])), record[1].replace("[", "(").replace("]", ")")


def _shown_as_code(epilog: str) -> str:
    word, _, examples = epilog.partition(": ")
    return f"{word}: " + ", ".join(code(example) for example in re.split(r"; (?=outbox-bridge )", examples))
