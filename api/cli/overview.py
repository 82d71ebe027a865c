"""`stats` and `version`: the whole bridge at a glance."""

from importlib.metadata import version as version_of
from operator import itemgetter
from typing import Any

from api.cli.http_calls import DEFAULT_URL, UrlOption, call
from api.cli.output import Column, Output, OutputOption, Row, encode, print_line, show_document, show_members, show_rows

_COUNTS = ("prepared", "pending", "committed", "blocked", "abandoned", "rolled_back", "parked")


def stats(url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """How many transactions there are in each state, in all and for each producer group."""
    reply = call(url, "GET", "/v1/stats")
    if output is not Output.TABLE:
        show_document(reply.raw, output)
        return
    members: dict[str, Any] = reply.members
    show_members((name.replace("_", " "), value) for name, value in members.items() if name.endswith("_lag_seconds"))
    rows: list[Row] = [{"name": name, **counts} for name, counts in sorted(members["groups"].items())]
    columns: list[Column] = [("GROUP", itemgetter("name"))]
    columns += [(name.replace("_", " ").upper(), itemgetter(name)) for name in _COUNTS]
    columns.append(("OLDEST PENDING (s)", itemgetter("oldest_pending_seconds")))
    show_rows([*rows, {**members, "name": "all"}] if len(rows) != 1 else rows, columns)


def version(output: OutputOption = Output.TABLE) -> None:
    """The version of this command; that of a running bridge is in its OpenAPI document."""
    number = version_of("outbox-bridge")
    if output is Output.TABLE:
        print_line(f"outbox-bridge {number}")
    else:
        show_document(encode({"version": number}), output)
