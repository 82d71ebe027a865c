"""The command line: its commands, and how it ends."""

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from api.cli.connect import fault_points
from api.cli.demo import demo
from api.cli.dev import dev
from api.cli.groups import group, pause_all, resume_all, webhook
from api.cli.output import CommandFailed, Exit, WholeSentences, explain, open_standard_streams, print_line, show_failure
from api.cli.parked import parked
from api.cli.relay import relay
from api.cli.reports import report
from api.cli.security import acl, audit, key, security
from api.cli.topics import topic
from api.cli.transactions import stats, tx, version
from api.cli.upkeep import config, doctor, migrate, openapi, projection, serve

app = typer.Typer(
    cls=WholeSentences,
    name="outbox-bridge",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes cut names off at 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Transactional messages for Kafka: in your database and in Kafka, or in neither.",
    epilog="First steps: outbox-bridge demo, then outbox-bridge dev. "
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable.",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print_line(f"outbox-bridge {version_of('outbox-bridge')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Nothing is done before a command is named."""


app.command(epilog="Example: outbox-bridge dev --kafka localhost:9092")(dev)
app.command(epilog="Example: outbox-bridge demo --break; echo $?")(demo)
app.command(epilog="Example: outbox-bridge doctor -o json")(doctor)
app.command(epilog="Example: outbox-bridge serve --roles api --port 8780")(serve)
app.command(epilog="Example: OUTBOX_BRIDGE_DATABASE_URL=postgresql+psycopg://... outbox-bridge migrate")(migrate)
app.command(epilog="Example: outbox-bridge acl --role settler --topic 'shop.*' --format kafka-acls")(acl)
app.command(epilog="Example: outbox-bridge stats -o json")(stats)
app.command("pause", epilog='Example: outbox-bridge pause --reason "the cluster is being moved"')(pause_all)
app.command("resume", epilog='Example: outbox-bridge resume --reason "the cluster has been moved"')(resume_all)
app.add_typer(tx, name="tx")
app.add_typer(group, name="group")
app.add_typer(parked, name="parked")
app.add_typer(key, name="key")
app.add_typer(security, name="security")
app.add_typer(audit, name="audit")
app.add_typer(topic, name="topic")
app.add_typer(webhook, name="webhook")
app.add_typer(relay, name="relay")
app.add_typer(report, name="report")
app.add_typer(projection, name="projection")
app.add_typer(config, name="config")
app.command(epilog="Example: outbox-bridge fault-points -o json")(fault_points)
app.command(epilog="Example: outbox-bridge version")(version)
app.command(epilog="Example: outbox-bridge openapi > openapi.json")(openapi)


def main() -> None:
    """Runs the command of this process's arguments and exits with its code."""
    open_standard_streams()
    sys.exit(run())


def run() -> int:
    """Runs the command of this process's arguments; its exit code."""
    try:
        app(list(_decode(sys.argv[1:])))
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else Exit.FAILED
    except Exception as error:
        failure = explain(error)
        if failure is None:
            raise
        show_failure(failure)
        return failure.code
    return Exit.OK


def _decode(given: Sequence[str]) -> Iterator[str]:
    """UTF-8, whatever the locale says. Raises CommandFailed for bytes that are no text: they could be sent nowhere."""
    for place, argument in enumerate(given, 1):
        try:
            yield os.fsencode(argument).decode()
        except UnicodeError as error:
            raise CommandFailed(Exit.USAGE, f"argument {place} is not UTF-8: {argument!a}") from error
