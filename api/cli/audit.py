"""`audit`: who did what, and whether that is what was written."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.connect import DEFAULT_URL, ConfigOption, UrlOption, find_all, load, run_loop
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    WholeSentences,
    encode,
    say,
    show_document,
    show_rows,
)
from api.cli.transactions import CursorOption, LimitOption, show_page

if TYPE_CHECKING:
    from api.settings import Settings
    from bridge.core.keyring import Keyring
    from bridge.service.audit import AuditVerdict, HeadTopic
    from bridge.sql.engine import Database

_ENTRY_COLUMNS: list[Column] = [
    (name.upper(), itemgetter(name)) for name in ("at", "actor", "action", "target", "reason")
]

audit = typer.Typer(
    cls=WholeSentences, no_args_is_help=True, help="Who did what, and a comparison of that with the chain."
)


@audit.command("list", epilog="Example: outbox-bridge audit list -n 20")
def list_entries(
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Who did what to what, and why, newest first."""
    show_page(find_all(url, "/v1/audit", "entries", {"cursor": cursor}, limit), output, _ENTRY_COLUMNS)


@audit.command(epilog="Example: outbox-bridge audit verify -o json")
def verify(
    outside_until: Annotated[
        datetime | None,
        typer.Option(
            help="Entries without a link were written by an older version until then (UTC); later ones are findings."
        ),
    ] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare all entries of the audit with its chain, and the chain with its heads in Kafka.

    Ends with 1 if an entry was altered, removed, exchanged or inserted. Needs Kafka, the database and security.keys.
    """
    until_ms = None if outside_until is None else int(outside_until.replace(tzinfo=UTC).timestamp() * 1000)
    verdict = run_loop(verify_chain(load(config), until_ms))
    _show(verdict, output)
    if verdict.flaws:
        first = verdict.findings[0]
        remedy = "Entries below the first finding are proven; compare the rest with a backup. See docs/operating.md."
        raise CommandFailed(Exit.FAILED, f"{verdict.flaws} findings, the first at link {first.number}", remedy)


@audit.command(epilog='Example: outbox-bridge audit accept --reason "database restored from the backup of Monday"')
def accept(
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the audit.")], config: ConfigOption = None
) -> None:
    """Let the chain go on as it is now, although Kafka has heads of another: after the database was restored.

    Lost entries stay lost, and every later `audit verify` mentions this command.
    """
    if not reason.strip():
        raise CommandFailed(Exit.USAGE, "a reason is needed")
    if fault := run_loop(accept_now(load(config), reason)):
        remedy = "It is in the audit; run this again when Kafka can be written."
        raise CommandFailed(Exit.FAILED, f"the head was not appended: {fault}", remedy)
    say("the chain goes on from here", "green")


async def accept_now(settings: "Settings", reason: str) -> str:
    """Why it does not hold yet; nothing if it does. Raises ConfigError, StoreError, SqlUnavailable."""
    from api.wiring import make_owner  # noqa: PLC0415  # slow to import
    from bridge.service.audit import accept_chain  # noqa: PLC0415
    from bridge.sql.access import ActEntry  # noqa: PLC0415

    entry = ActEntry(time.time_ns() // 1_000_000, make_owner(), "audit.accept", "audit", reason)
    async with open_chain(settings) as (database, topic, _):
        return await accept_chain(database, topic, entry)


@asynccontextmanager
async def open_chain(settings: "Settings") -> "AsyncIterator[tuple[Database, HeadTopic, Keyring]]":
    """What the chain is in, until the block ends. Raises ConfigError and SqlUnavailable."""
    from api.wiring import internal_topics, open_stores  # noqa: PLC0415  # slow to import
    from bridge.core.keyring import Keyring, OpSeals  # noqa: PLC0415
    from bridge.service.audit import HeadTopic  # noqa: PLC0415
    from bridge.topology import load_seals  # noqa: PLC0415

    async with open_stores(settings) as (kafka, database):
        keyring = Keyring()
        await load_seals(database, OpSeals(keyring))
        yield database, HeadTopic(kafka.store, internal_topics(settings), keyring), keyring


async def verify_chain(settings: "Settings", outside_until_ms: int | None = None) -> "AuditVerdict":
    """By the log and the database themselves, whatever runs. Raises ConfigError, StoreError, SqlUnavailable."""
    from bridge.service.audit import verify_audit  # noqa: PLC0415  # slow to import

    async with open_chain(settings) as (database, topic, keyring):
        return await verify_audit(database, topic, keyring, outside_until_ms)


def _show(verdict: "AuditVerdict", output: Output) -> None:
    findings = [
        {"link": one.number, "entry": one.audit_id, "flaw": one.flaw.value, "detail": one.detail}
        for one in verdict.findings
    ]
    if output is not Output.TABLE:
        counts = {
            name: getattr(verdict, name) for name in ("entries", "proven", "adopted", "unlinked", "heads", "accepted")
        }
        more = {"unproven": verdict.unproven, "foreign_records": verdict.foreign, "finding_count": verdict.flaws}
        show_document(encode({**counts, **more, "findings": findings}), output)
        return
    if findings:
        show_rows(findings, [(member.upper(), itemgetter(member)) for member in ("link", "entry", "flaw", "detail")])
    say(f"{verdict.entries} entries, {verdict.proven} of them proven by {verdict.heads} heads in Kafka")
    if verdict.unproven:
        say(f"the last {verdict.unproven} are newer than the newest head: nothing is wrong with them, but only their "
            "keys prove it, and one that was removed would not be missed")  # fmt: skip
    if verdict.adopted:
        say(f"{verdict.adopted} were written without a link, by an older version: they are proven from their adoption")
    if verdict.accepted:
        say(f"{verdict.accepted} times an operator let the chain go on although Kafka had heads of another: see "
            "audit.accept in the audit", "yellow")  # fmt: skip
    if verdict.unlinked:
        say(f"{verdict.unlinked} more have no link yet: an api process gives them one", "yellow")
    if verdict.foreign:
        say(f"{verdict.foreign} records of the topic are not this bridge's, and were passed over", "yellow")
