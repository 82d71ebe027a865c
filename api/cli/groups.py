"""`group` and `webhook`: whom the bridge asks, and whom it tells."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.connect import DEFAULT_URL, HttpReply, ReasonOption, UrlOption, call, find_all, quoted
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    Row,
    WholeSentences,
    say,
    show_document,
    show_documents,
    show_record,
    show_rows,
)
from bridge.directory import HIDDEN_QUERY, GroupSwitch

# --- `group`: producer groups, and whether their endpoints answer checks as they must ---

group = typer.Typer(
    cls=WholeSentences, no_args_is_help=True, help="Producer groups: who may answer checks, and how they are asked."
)

NameArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Producer group.")]
CheckOption = Annotated[
    list[str], typer.Option("--check", metavar="NAME=VALUE", help="How it is asked, e.g. interval_seconds=10.")
]
EndpointOption = Annotated[list[str], typer.Option("--endpoint", "-e", metavar="URL", help="Where it answers checks.")]
AcceptOption = Annotated[
    bool | None, typer.Option("--accept-prepares/--no-accept-prepares", help="Whether new ones may be prepared.")
]
WhatOption = Annotated[GroupSwitch, typer.Option("--what", help="Its checks, or what it prepares.")]

_PATH = "/v1/producer-groups"
_STDERR = 2
_TRIALS_S = 1_800.0
_AFTER_OPEN, _AFTER_RESTART = "after it has ended", "after a restart"
_LACKS = {_AFTER_OPEN: "needs --interactive", _AFTER_RESTART: "needs --restart-command or --interactive"}
_END_OPEN = "Commit the local transaction of --open now"
_RESTART = "Restart all processes behind the endpoints"
_ALL = 100_000


@group.command("list", epilog="Example: outbox-bridge group list -o json")
def list_groups(url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """All producer groups with what is pending."""
    documents, _ = find_all(url, _PATH, "producer_groups", {}, _ALL)
    if output is not Output.TABLE:
        show_documents(documents, output)
        return
    columns: list[Column] = [
        ("GROUP", "name"),
        ("ENDPOINTS", lambda row: len(row["endpoints"])),
        ("PENDING", lambda row: row["counts"]["pending"]),
        ("OLDEST (s)", lambda row: row["counts"]["oldest_pending_seconds"]),
        ("BLOCKED", lambda row: row["counts"]["blocked"]),
        ("PARKED", lambda row: row["counts"]["parked"]),
    ]
    show_rows([HttpReply(200, bytes(document)).members for document in documents], columns)


@group.command(epilog="Example: outbox-bridge group get orders")
def get(name: NameArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Settings, endpoints with their health, what is pending, and how checks went."""
    _show(call(url, "GET", f"{_PATH}/{quoted(name)}"), output)


@group.command(epilog="Example: outbox-bridge group put orders -e https://orders.example.com/check")
def put(
    name: NameArgument,
    endpoint: EndpointOption = [],  # noqa: B006 - typer reads the default
    check: CheckOption = [],  # noqa: B006
    accept_prepares: AcceptOption = True,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create or replace a group: settings not named here get their defaults (`group set` keeps them).

    What that resets is shown; a new secret is shown once.
    """
    named = _parse(check)
    before = _look_up(url, name)
    reply = _put(url, name, endpoint, named, accept_prepares=accept_prepares)
    _show(reply, output)
    for reset in _find_resets(before, reply.members, named):
        say(f"reset: {reset}; `group set` would have kept it", "yellow")
    if reply.members.get("secret"):
        say("keep the secret: it is shown only now", "yellow")


def _look_up(url: str, name: str) -> Row:
    """The group as it is; nothing where there is none, or none that may be seen."""
    try:
        return call(url, "GET", f"{_PATH}/{quoted(name)}").members
    except CommandFailed:
        return {}


def _find_resets(before: Row, after: Row, named: Mapping[str, object]) -> Iterator[str]:
    """Settings that nobody named and that are others now, and endpoints that are gone."""
    for setting, value in before.get("check", {}).items():
        now = after.get("check", {}).get(setting, value)
        if setting not in named and now != value:
            yield f"check {setting} from {value} to {now}"
    remaining = {one["url"] for one in after.get("endpoints", ())}
    for one in before.get("endpoints", ()):
        if not one["leased"] and one["url"] not in remaining:
            yield f"endpoint {one['url']} is gone"


@group.command("set", epilog="Example: outbox-bridge group set orders --check interval_seconds=10")
def set_group(
    name: NameArgument,
    endpoint: EndpointOption = [],  # noqa: B006 - typer reads the default
    check: CheckOption = [],  # noqa: B006
    accept_prepares: AcceptOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a group that is there: what is not named stays as it is."""
    if not endpoint and not check and accept_prepares is None:
        remedy = "Give --endpoint, --check or --no-accept-prepares."
        raise CommandFailed(Exit.USAGE, "nothing is to be changed", remedy)
    known = call(url, "GET", f"{_PATH}/{quoted(name)}").members
    urls = endpoint or [one["url"] for one in known["endpoints"] if not one["leased"]]
    if not endpoint and any(one.endswith(HIDDEN_QUERY) for one in urls):
        raise CommandFailed(Exit.USAGE, "an endpoint has a query, which the bridge does not show",
                            "Name the endpoints too, with --endpoint.")  # fmt: skip
    wanted = known.get("accept_prepares") if accept_prepares is None else accept_prepares
    _show(_put(url, name, urls, {**known["check"], **_parse(check)}, accept_prepares=wanted), output)


def _put(
    url: str, name: str, endpoints: Iterable[str], check: Mapping[str, object], *, accept_prepares: bool | None
) -> HttpReply:
    body: dict[str, object] = {"endpoints": [{"url": one} for one in endpoints], "check": check}
    if accept_prepares is False:
        body["accept_prepares"] = False
    return call(url, "PUT", f"{_PATH}/{quoted(name)}", body=body)


@group.command(epilog="Example: outbox-bridge group delete orders")
def delete(name: NameArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Remove a group that has no pending, parked or blocked transactions."""
    call(url, "DELETE", f"{_PATH}/{quoted(name)}")
    say(f"deleted {name}", "green")


@group.command(epilog='Example: outbox-bridge group pause orders --reason "its database is being moved"')
def pause(
    name: NameArgument,
    reason: ReasonOption,
    what: WhatOption = GroupSwitch.CHECKS,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask nobody of the group, or take nothing new of it, until `group resume`.

    While checks are paused nothing is used up, and nothing is parked for its age.
    """
    _show(_switch(url, name, "pause", what, reason), output)


@group.command(epilog='Example: outbox-bridge group resume orders --reason "its database is there again"')
def resume(
    name: NameArgument,
    reason: ReasonOption,
    what: WhatOption = GroupSwitch.CHECKS,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let go on what was paused: what came of age meanwhile is asked about before it is parked."""
    _show(_switch(url, name, "resume", what, reason), output)


def _switch(url: str, name: str, verb: str, what: GroupSwitch, reason: str) -> HttpReply:
    return call(url, "POST", f"{_PATH}/{quoted(name)}/{verb}", body={"what": what.value, "reason": reason})


def pause_all(reason: ReasonOption, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Take nothing new of any group until `resume`; what is pending is settled and checked."""
    _show(call(url, "POST", "/v1/pause", body={"reason": reason}), output)


def resume_all(reason: ReasonOption, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Take prepares again, but for groups that are paused themselves."""
    _show(call(url, "POST", "/v1/resume", body={"reason": reason}), output)


@group.command("rotate-secret", epilog="Example: outbox-bridge group rotate-secret orders -o json")
def rotate_secret(name: NameArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """A new signing secret, shown once; the old one signs too for 24 hours."""
    _show(call(url, "POST", f"{_PATH}/{quoted(name)}/rotate-secret", body={}), output)
    say("keep the secret: it is shown only now", "yellow")


@group.command("test", epilog="Example: outbox-bridge group test orders --restart-command 'systemctl restart orders'")
def try_group(  # noqa: PLR0913, PLR0917 - what the user can give is an option
    name: NameArgument,
    committed: Annotated[
        str | None,
        typer.Option("--committed", metavar="ID", help="A transaction whose local transaction is committed."),
    ] = None,
    open_id: Annotated[
        str | None, typer.Option("--open", metavar="ID", help="A transaction whose local transaction is open now.")
    ] = None,
    restart_command: Annotated[
        str | None, typer.Option("--restart-command", metavar="COMMAND", help="Starts the endpoints' processes anew.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Ask you to restart, and to commit.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Attack the group's endpoints: forged, replayed and broken calls, many at once, the same question twice.

    The bridge makes the calls, as it makes checks; none of the answers counts, and nothing is left behind: the calls
    are about transactions that never were, and about those you name. It may take minutes.
    """
    _refuse_untestable(url, name)
    if interactive and not sys.stdin.isatty():
        raise CommandFailed(Exit.USAGE, "--interactive needs a terminal", "Give --restart-command COMMAND.")
    tried = _try(url, name, {"committed": committed, "open": open_id})
    findings, later = tried["findings"], tried["later"]
    end_open, restart = (partial(_ask_user, wish) if interactive else None for wish in (_END_OPEN, _RESTART))
    if restart_command is not None:
        restart = partial(_run_restart, restart_command)
    findings += _go_on(url, name, later, _AFTER_OPEN, end_open)
    findings += _go_on(url, name, later, _AFTER_RESTART, restart)
    _show_findings(findings, output)
    if any(finding["verdict"] == "bad" for finding in findings):
        raise typer.Exit(Exit.FAILED)


def _try(url: str, name: str, body: Mapping[str, object]) -> dict[str, Any]:
    sent = {member: value for member, value in body.items() if value is not None}
    return call(url, "POST", f"{_PATH}/{quoted(name)}/test", body=sent, timeout_s=_TRIALS_S).members


def _go_on(
    url: str, name: str, later: Iterable[Row], trial: str, happen: Callable[[], None] | None
) -> list[dict[str, Any]]:
    """What endpoints say once something has happened; findings that it was not tried if nothing can happen."""
    again = [one for one in later if one["trial"] == trial]
    if not again:
        return []
    if happen is not None:
        happen()
        findings: list[dict[str, Any]] = _try(url, name, {"again": again})["findings"]
        return findings
    skipped = {"trial": trial, "verdict": "skipped", "found": _LACKS[trial], "remedy": "", "latency_ms": 0}
    return [{"endpoint": one["endpoint"], **skipped} for one in again]


def _refuse_untestable(url: str, name: str) -> None:
    known = call(url, "GET", f"{_PATH}/{quoted(name)}").members
    if known["check"]["mode"] == "pull":
        remedy = f"Start its workers; `outbox-bridge group get {name}` shows when one answered last."
        raise CommandFailed(Exit.USAGE, f"{name} fetches its checks, and cannot be called", remedy)
    if not known["endpoints"]:
        raise CommandFailed(Exit.FAILED, f"{name} has no endpoint", f"outbox-bridge group put {name} -e URL")


def _ask_user(wish: str) -> None:
    typer.prompt(f"{wish}, then press Enter", default="", show_default=False, err=True)


def _run_restart(command: str) -> None:
    """What it prints goes to standard error. Raises CommandFailed."""
    try:
        program, *arguments = shlex.split(command)
        code = subprocess.run([program, *arguments], stdout=_STDERR, check=False).returncode  # noqa: S603 - the user's own
    except (OSError, ValueError) as error:
        raise CommandFailed(Exit.USAGE, f"--restart-command cannot be run: {error}") from error
    if code != 0:
        raise CommandFailed(Exit.FAILED, f"--restart-command ended with {code}")


def _show_findings(findings: Sequence[Row], output: Output) -> None:
    columns: list[Column] = [
        ("ENDPOINT", "endpoint"),
        ("TRIAL", "trial"),
        ("VERDICT", "verdict"),
        ("FOUND", "found"),
        ("MS", "latency_ms"),
        ("WHAT TO DO", lambda row: row["remedy"] or None),
    ]
    show_rows(findings, columns, output)


def _show(reply: HttpReply, output: Output) -> None:
    show_record(_describe(reply.members), reply.raw, output)


def _describe(members: Row) -> Iterator[tuple[str, object]]:
    """One line a fact: those of an endpoint together, those of settings and counts under their own names."""
    for name, value in members.items():
        if name == "endpoints":
            for endpoint in value:
                facts = [f"{key}={fact}" for key, fact in endpoint.items() if key != "url" and fact]
                yield "endpoint", " ".join([endpoint["url"], *facts])
        elif isinstance(value, dict):
            yield from ((f"{name} {key}".replace("_", " "), inner) for key, inner in value.items())
        else:
            yield name.replace("_", " "), value


def _parse(settings: list[str]) -> dict[str, object]:
    """Numbers as numbers, the rest as words."""
    parsed: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise CommandFailed(Exit.USAGE, f"--check {setting!r} is not NAME=VALUE", "Example: --check max_checks=5")
        try:
            parsed[name] = json.loads(value)
        except (ValueError, RecursionError):
            parsed[name] = value
    return parsed


# --- `webhook`: who is told of the bridge's own events ---

webhook = typer.Typer(
    cls=WholeSentences, no_args_is_help=True, help="Receivers of the bridge's own events; the settings name them."
)

_WEBHOOKS = "/v1/webhooks"


@webhook.command("list", epilog="Example: outbox-bridge webhook list -o json")
def list_webhooks(url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """All receivers, and what waits for them."""
    reply = call(url, "GET", _WEBHOOKS)
    if output is not Output.TABLE:
        show_document(reply.raw, output)
        return
    columns: list[Column] = [
        ("NAME", "name"),
        ("URL", "url"),
        ("EVENTS", lambda row: ", ".join(row["events"])),
        ("WAITING", "waiting"),
        ("OLDEST", "oldest_at"),
        ("LAST FAILURE", "last_failure"),
    ]
    show_rows(reply.members["webhooks"], columns)


@webhook.command("test", epilog="Example: outbox-bridge webhook test pager")
def try_webhook(
    name: str = typer.Argument(metavar="NAME", help="Name of the receiver."),
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send a test event to a receiver now, once. Exit code 1: it did not take it."""
    reply = call(url, "POST", f"{_WEBHOOKS}/{quoted(name)}/test", body={})
    show_record(reply.members.items(), reply.raw, output)
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
        told_to = call(url, "POST", f"{_WEBHOOKS}/findings", body=found).members["webhooks"]
    except CommandFailed as failure:
        told = "no webhook was told" if not failure.is_unknown else "webhooks may not have been told"
        say(f"{told} ({failure.reason})", "yellow")
        return
    if told_to:
        say(f"{told_to} webhook{'s are' if told_to > 1 else ' is'} told of the findings")
