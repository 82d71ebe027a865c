"""`group`: producer groups, and whether their endpoints answer checks as they must."""

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.dev import LOOPBACK
from api.cli.http_calls import DEFAULT_URL, HttpReply, UrlOption, call, find_all, quoted
from api.cli.local import ConfigOption, load, run_loop
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    Row,
    encode,
    say,
    show_document,
    show_documents,
    show_members,
    show_rows,
)
from bridge.directory import HIDDEN_QUERY, GroupSwitch

if TYPE_CHECKING:
    from api.settings import Settings
    from bridge.directory import ProducerGroup
    from checker.conformance import TrialFinding

group = typer.Typer(no_args_is_help=True, help="Producer groups: who may answer checks, and how they are asked.")

NameArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Producer group.")]
CheckOption = Annotated[
    list[str], typer.Option("--check", metavar="NAME=VALUE", help="How it is asked, e.g. interval_seconds=10.")
]
EndpointOption = Annotated[list[str], typer.Option("--endpoint", "-e", metavar="URL", help="Where it answers checks.")]
AcceptOption = Annotated[
    bool | None, typer.Option("--accept-prepares/--no-accept-prepares", help="Whether new ones may be prepared.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the audit.")]
WhatOption = Annotated[GroupSwitch, typer.Option("--what", help="Its checks, or what it prepares.")]

_PATH = "/v1/producer-groups"
_STDERR = 2
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
        ("GROUP", lambda row: row["name"]),
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

    A new secret is shown once.
    """
    reply = _put(url, name, endpoint, _parse(check), accept_prepares=accept_prepares)
    _show(reply, output)
    if reply.members.get("secret"):
        say("keep the secret: it is shown only now", "yellow")


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
    body = {"what": what.value, "reason": reason}
    _show(call(url, "POST", f"{_PATH}/{quoted(name)}/pause", body=body), output)


@group.command(epilog='Example: outbox-bridge group resume orders --reason "its database is there again"')
def resume(
    name: NameArgument,
    reason: ReasonOption,
    what: WhatOption = GroupSwitch.CHECKS,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let go on what was paused: what came of age meanwhile is asked about before it is parked."""
    body = {"what": what.value, "reason": reason}
    _show(call(url, "POST", f"{_PATH}/{quoted(name)}/resume", body=body), output)


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
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Attack the group's endpoints: forged, replayed and broken calls, many at once, the same question twice.

    No transaction is touched: the calls are about transactions that never were, and about those you name. Reads
    URLs and secret from the bridge's database, so it runs where the settings name that.
    """
    from api.cli.endpoint_trial import TrialPlan, try_endpoints  # noqa: PLC0415  # slow to import

    settings = load(config)
    known = run_loop(_read_group(settings, name))
    if known is None:
        raise CommandFailed(Exit.NOT_FOUND, f"there is no producer group {name}", "See `outbox-bridge group list`.")
    if not known.endpoints:
        raise _without_endpoint(known)
    if interactive and not sys.stdin.isatty():
        raise CommandFailed(Exit.USAGE, "--interactive needs a terminal", "Give --restart-command COMMAND.")
    plan = TrialPlan(committed, open_id)
    if interactive:
        plan = replace(plan, end_open=partial(_ask_user, _END_OPEN), restart=partial(_ask_user, _RESTART))
    if restart_command is not None:
        plan = replace(plan, restart=partial(_run_restart, restart_command))
    findings = run_loop(try_endpoints(known, (*settings.callbacks.allow_networks, *LOOPBACK), plan))
    _show_findings(findings, output)
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(Exit.FAILED)


def _without_endpoint(known: "ProducerGroup") -> CommandFailed:
    name = known.name
    if known.settings.calls.mode.value == "pull":
        return CommandFailed(Exit.USAGE, f"{name} fetches its checks", "Only groups with endpoints can be called.")
    return CommandFailed(Exit.FAILED, f"{name} has no endpoint", f"outbox-bridge group put {name} -e URL")


async def _ask_user(wish: str) -> None:
    """Waits until it is done."""
    await asyncio.to_thread(typer.prompt, f"{wish}, then press Enter", default="", show_default=False, err=True)


async def _run_restart(command: str) -> None:
    """What it prints goes to standard error. Raises CommandFailed."""
    try:
        program, *arguments = shlex.split(command)
        process = await asyncio.create_subprocess_exec(program, *arguments, stdout=_STDERR)
    except (OSError, ValueError) as error:
        raise CommandFailed(Exit.USAGE, f"--restart-command cannot be run: {error}") from error
    code = await process.wait()
    if code != 0:
        raise CommandFailed(Exit.FAILED, f"--restart-command ended with {code}")


async def _read_group(settings: "Settings", name: str) -> "ProducerGroup | None":
    from api.wiring import open_database  # noqa: PLC0415  # slow to import
    from bridge.sql.groups import read_group  # noqa: PLC0415

    database = open_database(settings)
    now_ms = time.time_ns() // 1_000_000
    try:
        return await database.read(lambda connection: read_group(connection, name, now_ms))
    finally:
        await database.close()


def _show_findings(findings: "list[TrialFinding]", output: Output) -> None:
    rows = [finding._asdict() for finding in findings]
    if output is not Output.TABLE:
        show_documents([encode(row) for row in rows], output)
        return
    columns: list[Column] = [
        ("ENDPOINT", lambda row: row["endpoint"]),
        ("TRIAL", lambda row: row["trial"]),
        ("VERDICT", lambda row: row["verdict"]),
        ("FOUND", lambda row: row["found"]),
        ("MS", lambda row: row["latency_ms"]),
        ("WHAT TO DO", lambda row: row["remedy"] or None),
    ]
    show_rows(rows, columns)


def _show(reply: HttpReply, output: Output) -> None:
    if output is Output.TABLE:
        show_members(_describe(reply.members))
    else:
        show_document(reply.raw, output)


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
        except ValueError:
            parsed[name] = value
    return parsed
