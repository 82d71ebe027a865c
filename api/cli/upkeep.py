"""`serve`, `migrate`, `projection rebuild` and `doctor`."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from api.cli.connect import DEFAULT_URL, AllowFaultsOption, ConfigOption, UrlOption, YesOption, call, load, run_loop
from api.cli.output import (
    Exit,
    Output,
    OutputOption,
    Row,
    WholeSentences,
    encode,
    message_console,
    print_line,
    printable,
    result_console,
    say,
    show_document,
    show_documents,
    show_record,
    show_rows,
)

if TYPE_CHECKING:
    from api.web.health import Diagnosis
    from bridge.giving_up import Loss


RolesOption = Annotated[
    str, typer.Option("--roles", help="What this process does: api, settler (with the checker), projector, remoting.")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on; loopback if not given.")]
PortOption = Annotated[int | None, typer.Option("--port", min=0, max=65_535, help="Port to listen on; 0: any.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure-no-auth", help="Let calls without a key do everything; on loopback only.")
]


def serve(
    roles: RolesOption = "api,settler,projector",
    host: HostOption = None,
    port: PortOption = None,
    insecure_no_auth: InsecureOption = False,
    allow_faults: AllowFaultsOption = False,
    config: ConfigOption = None,
) -> None:
    """Run parts of the bridge until SIGTERM or Ctrl-C; several processes of each role share the work.

    Needs topics and tables: run `outbox-bridge migrate` once before.
    """
    import structlog  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    from api.process import Ending, configure_logging  # noqa: PLC0415
    from api.settings import find_open_servers  # noqa: PLC0415
    from api.wiring import parse_roles, run_roles  # noqa: PLC0415
    from checker.endpoint_guard import is_loopback  # noqa: PLC0415

    flags = {"http": {"host": host, "port": port}, "insecure_no_auth": insecure_no_auth or None}
    settings = load(config, flags, allow_faults=allow_faults)
    log = configure_logging(settings.log.level, settings.log.format, requests=settings.log.requests)
    warn = structlog.get_logger()
    if servers := find_open_servers(settings.kafka):
        warn.warning("kafka_not_encrypted", servers=servers, remedy="set kafka.security.protocol to SASL_SSL or SSL")
    if settings.http.tls.cert is None and not is_loopback(settings.http.host):
        warn.warning("http_not_encrypted", host=settings.http.host, remedy="set http.tls, or let only a proxy reach it")
    if settings.fault is not None:
        warn.critical("fault_armed", fault=settings.fault)
    ending = Ending(settings.http.drain_seconds)
    try:
        run_loop(
            run_roles(
                settings, parse_roles(roles), on_ready=lambda url: log.write(f"ready: {url} ({roles})"), stop=ending
            )
        )
    finally:
        log.flush()
    # everything is closed; the interpreter would take itself apart for a second, or half a minute beside busy processes
    os._exit(Exit.OK)


_SHOWN_IDS = 20

projection = typer.Typer(
    cls=WholeSentences, no_args_is_help=True, help="The searchable copy of all transactions in SQL."
)
config = typer.Typer(cls=WholeSentences, no_args_is_help=True, help="Settings.")

AcceptOption = Annotated[
    bool,
    typer.Option(
        "--accept-identity",
        "--accept",
        help="Go on with the cluster and topics as they are now. Shows what is given up by it, and asks.",
    ),
]


def migrate(
    accept_identity: AcceptOption = False,
    yes: YesOption = False,
    allow_faults: AllowFaultsOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Bring the SQL tables up to date, and create the internal topics where this bridge never ran.

    Safe to run again, and by several at once.
    """
    from api.migration import migrate as run_migrations  # noqa: PLC0415  # slow to import

    def confirm(losses: "Sequence[Loss]") -> bool:
        _show_losses(losses, output)
        return yes or not losses or typer.confirm("Give this up?", err=True)

    settings = load(config, allow_faults=allow_faults)
    done = run_loop(run_migrations(settings, confirm if accept_identity else None))
    if output is not Output.TABLE and not accept_identity:
        show_documents([encode({"done": line}) for line in done], output)
        return
    for line in done:
        print_line(line) if output is Output.TABLE else say(line)


def _show_losses(losses: "Sequence[Loss]", output: Output) -> None:
    """What nobody can prove any more: how many for people, each id for programs."""
    if output is not Output.TABLE:
        rows = [
            {
                "queue": loss.queue_id,
                "kind": loss.kind.value,
                "goes_on_from": loss.position.s,
                "count": len(loss.unproven),
                "transactions": [
                    {"transaction_id": u.transaction_id, "producer_group": u.group, "last_seen": u.state.value}
                    for u in loss.unproven
                ],
            }
            for loss in losses
        ]
        show_document(encode(rows), output)
        return
    for loss in losses:
        ids = ", ".join(u.transaction_id for u in loss.unproven[:_SHOWN_IDS])
        more = " ... (all with -o json)" if len(loss.unproven) > _SHOWN_IDS else ""
        print_line(
            f"queue {loss.queue_id} ({loss.kind.value}): {len(loss.unproven)} transactions cannot be proven any more"
            f"{': ' if ids else ''}{ids}{more}"
        )


@projection.command(epilog="Example: outbox-bridge projection rebuild")
def rebuild(
    allow_faults: AllowFaultsOption = False, config: ConfigOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Make the projection anew from Kafka, while the bridge runs."""
    from api.wiring import rebuild_projection  # noqa: PLC0415  # slow to import

    settings = load(config, allow_faults=allow_faults)
    columns = (TextColumn("rebuilding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=message_console(), transient=True) as progress:
        task = progress.add_task("rebuilding", total=None)
        counts = run_loop(
            rebuild_projection(settings, lambda done, total: progress.update(task, completed=done, total=total))
        )
    show_record(counts.items(), encode(counts), output)
    say("rebuilt", "green")


@config.command(epilog="Example: OUTBOX_BRIDGE_HTTP__PORT=9000 outbox-bridge config show")
def show(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """Every setting with its value and where that came from; secrets are masked."""
    settings = load(config)
    from api.settings import show_settings  # noqa: PLC0415  # slow to import

    rows: list[Row] = [
        {"name": shown.name, "value": shown.value, "origin": shown.origin.value} for shown in show_settings(settings)
    ]
    show_rows(rows, [("SETTING", "name"), ("VALUE", "value"), ("FROM", "origin")], output)


def openapi(url: UrlOption = DEFAULT_URL) -> None:
    """The OpenAPI document of a running bridge, as JSON."""
    show_document(call(url, "GET", "/openapi.json").raw, Output.JSON)


_MARKS = {
    "ok": ("ok     ", "green"),
    "warning": ("warning", "yellow"),
    "broken": ("broken ", "bold red"),
    "skipped": ("skipped", "dim"),
}


def doctor(
    roles: Annotated[
        str, typer.Option("--roles", help="Whose rights in Kafka are looked at; where roles have users of their own.")
    ] = "api,settler,projector",
    config: ConfigOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look at Kafka, topics, rights, clocks, SQL, Java, the bridge and the groups' endpoints; name each remedy.

    It asks the bridge for blocked and parked transactions, for lag, and to make a signed call to
    each group's endpoints. In a folder without the bridge's settings it leaves out Kafka and SQL, and says so.
    To read the brokers' clocks it appends one record without effect to each queue of the journal.
    Exit code 1 if something is broken.
    """
    from api.cli.examinations import examine  # noqa: PLC0415  # slow to import
    from api.wiring import parse_roles  # noqa: PLC0415

    diagnoses = run_loop(examine(load(config), url, parse_roles(roles)))
    if output is Output.TABLE:
        _show(diagnoses)
    else:
        show_documents([encode(diagnosis._asdict()) for diagnosis in diagnoses], output)
    if any(diagnosis.verdict == "broken" for diagnosis in diagnoses):
        raise typer.Exit(Exit.FAILED)


def _show(diagnoses: Sequence["Diagnosis"]) -> None:
    console = result_console()
    for verdict, what, found, remedy in diagnoses:
        console.print(Text.assemble(_MARKS[verdict], f"  {what:16}  ", printable(found)))
        if remedy:
            console.print(Text.assemble((f"{'':27}what to do: ", "bold"), printable(remedy)))
