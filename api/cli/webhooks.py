"""`webhook`: who is told of the bridge's own events."""

import json
from pathlib import Path

import typer

from api.cli.http_calls import DEFAULT_URL, HttpReply, UrlOption, call, quoted
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    say,
    show_document,
    show_members,
    show_rows,
)

webhook = typer.Typer(no_args_is_help=True, help="Receivers of the bridge's own events; the settings name them.")

_PATH = "/v1/webhooks"


@webhook.command("list", epilog="Example: outbox-bridge webhook list -o json")
def list_webhooks(url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """All receivers, and what waits for them."""
    reply = call(url, "GET", _PATH)
    if output is not Output.TABLE:
        show_document(reply.raw, output)
        return
    columns: list[Column] = [
        ("NAME", lambda row: row["name"]),
        ("URL", lambda row: row["url"]),
        ("EVENTS", lambda row: ", ".join(row["events"])),
        ("WAITING", lambda row: row["waiting"]),
        ("OLDEST", lambda row: row["oldest_at"]),
        ("LAST FAILURE", lambda row: row["last_failure"]),
    ]
    show_rows(reply.members["webhooks"], columns)


@webhook.command("test", epilog="Example: outbox-bridge webhook test pager")
def try_webhook(
    name: str = typer.Argument(metavar="NAME", help="Name of the receiver."),
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send a test event to a receiver now, once. Exit code 1: it did not take it."""
    reply = call(url, "POST", f"{_PATH}/{quoted(name)}/test", body={})
    if output is Output.TABLE:
        show_members(reply.members.items())
    else:
        show_document(reply.raw, output)
    if not reply.members["told"]:
        remedy = "Look at the receiver's log: it must answer 2xx within ten seconds."
        raise CommandFailed(Exit.FAILED, f"{name} did not take the event: {reply.members['failure']}", remedy)


def tell_findings(url: str, run_folder: Path) -> None:
    """Has the bridge tell its receivers what a run has found, if it has; a bridge that cannot is no failure here."""
    summary = json.loads((run_folder / "summary.json").read_text(encoding="utf-8"))
    by_kind = {kind: count for kind, count in summary["findings"]["by_kind"].items() if count}
    if not by_kind:
        return
    found = {
        "run": int(run_folder.name),
        "taken_at": summary["window"]["taken_at"],
        "sentence": summary["sentence"][:2_000],
        "findings": by_kind,
    }
    try:
        reply: HttpReply = call(url, "POST", f"{_PATH}/findings", body=found)
    except CommandFailed as failure:
        say(f"no webhook was told ({failure.reason})", "yellow")
        return
    if told := reply.members["webhooks"]:
        say(f"{told} webhook{'s are' if told > 1 else ' is'} told of the findings")
