"""`key`, `security`, `acl`, `audit`: who may call and what they did, what encrypts secrets, what Kafka must allow."""

import re
import secrets
import shlex
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.connect import DEFAULT_URL, ConfigOption, UrlOption, call, find_all, load, quoted, run_loop
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    Row,
    WholeSentences,
    encode,
    print_line,
    say,
    show_document,
    show_documents,
    show_record,
    show_rows,
)
from api.cli.transactions import CursorOption, LimitOption, show_page
from bridge.core.keyring import KEY_BYTES, SecretKey, format_secret_key, parse_secret_keys
from bridge.core.topics import KafkaRight, Role, least_rights, with_prefix

if TYPE_CHECKING:
    from api.settings import Settings
    from bridge.core.keyring import Keyring
    from bridge.service.audit import AuditVerdict, HeadTopic
    from bridge.sql.engine import Database

# --- `key`: who may call the bridge, what for, and the keys that prove it ---

key = typer.Typer(cls=WholeSentences, no_args_is_help=True, help="Principals, what they may do, and their API keys.")

PrincipalArgument = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Name of the caller, e.g. of a service.")]
AllowOption = Annotated[
    list[str],
    typer.Option(
        "--allow",
        metavar="VERBS:GROUPS[:TOPICS]",
        help="What it may do: prepare, decide, check, read, operate, admin, with commas between; for a name, the "
        "beginning of names and *, or *.",
    ),
]
ProducerOption = Annotated[
    list[str],
    typer.Option("--producer", metavar="GROUP[:TOPICS]", help="The same as --allow prepare,decide,check,read:..."),
]
AdminOption = Annotated[bool, typer.Option("--admin", help="It may do everything.")]
LifeOption = Annotated[
    str | None, typer.Option("--expires", metavar="TIME", help="How long a key is valid, e.g. 90d, 12h; for ever.")
]

_PRODUCER, _ALL = "prepare,decide,check,read", "prepare,decide,check,read,operate,admin"
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LIFE = re.compile(r"(\d{1,6})([smhd])")
_PATH = "/v1/principals"


@key.command(epilog="Example: OUTBOX_BRIDGE_AUTH__ADMIN_KEY=$(outbox-bridge key new) outbox-bridge serve")
def new() -> None:
    """Print a random key that no bridge knows, for the setting auth.admin_key."""
    from bridge.core.keyring import RANDOM_BYTES, make_key_text  # noqa: PLC0415  # not needed by other commands

    print_line(make_key_text(secrets.token_bytes(RANDOM_BYTES)))


@key.command(epilog="Example: outbox-bridge key create shop --producer orders:orders.* --expires 90d")
def create(  # noqa: PLR0913, PLR0917 - what the user can give is an option
    principal: PrincipalArgument,
    allow: AllowOption = [],  # noqa: B006 - typer reads the default
    producer: ProducerOption = [],  # noqa: B006
    admin: AdminOption = False,
    expires: LifeOption = None,
    label: Annotated[str | None, typer.Option("--label", help="Name of the key, in lists.")] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key, shown once, for a principal: a new one, or one that has another key until it is revoked.

    Grants that are named here replace those it has; without any, they stay as they are.
    """
    grants = _read_grants(allow, producer, admin=admin)
    body = {"label": label, "expires_in_seconds": None if expires is None else _read_life(expires)}
    is_put = bool(grants) or all(known["name"] != principal for known in call(url, "GET", _PATH).members["principals"])
    if is_put:
        call(url, "PUT", f"{_PATH}/{quoted(principal)}", body={"grants": grants})
    try:
        reply = call(url, "POST", f"{_PATH}/{quoted(principal)}/keys", body=body)
    except CommandFailed as failure:
        if is_put:
            failure.reason = f"{principal} may do what was named; the key: {failure.reason}"
        raise
    show_record(reply.members.items(), reply.raw, output)
    say("keep the key: it is shown only now", "yellow")


@key.command(epilog="Example: outbox-bridge key grant shop --producer orders:orders.* --allow read:billing")
def grant(
    principal: PrincipalArgument,
    allow: AllowOption = [],  # noqa: B006
    producer: ProducerOption = [],  # noqa: B006
    admin: AdminOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Replace what a principal may do; with nothing named, it may do nothing."""
    call(url, "PUT", f"{_PATH}/{quoted(principal)}", body={"grants": _read_grants(allow, producer, admin=admin)})
    say(f"{principal} may do this from now on", "green")


@key.command("list", epilog="Example: outbox-bridge key list -o json")
def list_keys(url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Principals with what they may do, and their keys: when each expires, and when it was last used."""
    reply = call(url, "GET", _PATH)
    if output is not Output.TABLE:
        show_documents(reply.items("principals"), output)
        return
    columns: list[Column] = [("PRINCIPAL", "name"), ("MAY", "may"), ("KEY", "key_id"), ("LABEL", "label")]
    columns += [("EXPIRES", "expires_at"), ("LAST USED", "last_used_at")]
    show_rows([row for principal in reply.members["principals"] for row in _spread(principal)], columns)


@key.command(epilog="Example: outbox-bridge key revoke k3v9q2ta")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The part of the key behind obk_.")],
    url: UrlOption = DEFAULT_URL,
) -> None:
    """End a key: every process of the bridge refuses it within seconds."""
    call(url, "DELETE", f"/v1/keys/{quoted(key_id)}")
    say(f"revoked {key_id}", "green")


@key.command(epilog="Example: outbox-bridge key delete shop")
def delete(principal: PrincipalArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Remove a principal with all its keys."""
    call(url, "DELETE", f"{_PATH}/{quoted(principal)}")
    say(f"deleted {principal}", "green")


def _spread(principal: Row) -> list[dict[str, Any]]:
    """A row for each key, or one for a principal without any."""
    may = "; ".join(
        f"{','.join(right['verbs'])}:{right['groups']}" + ("" if right["topics"] == "*" else f":{right['topics']}")
        for right in principal["grants"]
    )
    none = {"key_id": None, "label": None, "expires_at": None, "last_used_at": None}
    return [{"name": principal["name"], "may": may, **one} for one in principal["keys"] or [none]]


def _read_grants(allow: list[str], producer: list[str], *, admin: bool) -> list[dict[str, object]]:
    given = [*allow, *[f"{_PRODUCER}:{one}" for one in producer], *([f"{_ALL}:*"] if admin else [])]
    return [_read_grant(one) for one in given]


def _read_grant(given: str) -> dict[str, object]:
    verbs, *patterns = given.split(":")
    if not 1 <= len(patterns) <= 2 or not all((verbs, *patterns)):
        raise CommandFailed(
            Exit.USAGE, f"{given!r} is not VERBS:GROUPS[:TOPICS]", "Example: --allow prepare,decide:orders:orders.*"
        )
    topics = patterns[1] if len(patterns) > 1 else "*"
    return {"verbs": verbs.split(","), "groups": patterns[0], "topics": topics}


def _read_life(given: str) -> int:
    found = _LIFE.fullmatch(given)
    if found is None:
        raise CommandFailed(Exit.USAGE, f"--expires {given!r} is not a time", "Example: --expires 90d")
    return int(found[1]) * _UNITS[found[2]]


# --- `security`: the keys that encrypt secrets in the database ---

security = typer.Typer(cls=WholeSentences, no_args_is_help=True, help="Keys that encrypt secrets in the database.")

_NO_KEY = "(none)"


@security.command(epilog="Example: outbox-bridge security new-key k2 > /run/secrets/outbox-bridge-keys")
def new_key(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="Up to 16 small letters, digits, _ or -; stored with what it encrypts.")
    ] = "k1",
) -> None:
    """Print a random key, for the setting security.keys."""
    made = format_secret_key(SecretKey(key_id, secrets.token_bytes(KEY_BYTES)))
    try:
        parse_secret_keys(made)
    except ValueError:
        raise CommandFailed(Exit.USAGE, "an id has up to 16 small letters, digits, _ or -") from None
    print_line(made)


@security.command(epilog="Example: outbox-bridge security rewrap")
def rewrap(
    plain: Annotated[
        bool, typer.Option("--plain", help="With no key: before going back to a version without.")
    ] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Encrypt all secrets in the database with the first of security.keys, and all that come from now on.

    Every process must have that key by then. It can be run again, and while the bridge runs.
    """
    settings = load(config)
    keys = settings.secret_keys()
    if not plain and not keys:
        remedy = "`outbox-bridge security new-key` makes one; give it to every process, then run this again."
        raise CommandFailed(Exit.USAGE, "security.keys is not set", remedy)
    done, counts = run_loop(_rewrap(settings, None if plain else keys[0].key_id))
    say(", ".join(f"{count} {kind}" for kind, count in done.items() if count) or "nothing was left to do", "green")
    _show_counts(counts, output)


@security.command(epilog="Example: outbox-bridge security show -o json")
def show(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """How many secrets in the database are encrypted with which key: one that has none may leave security.keys."""
    _show_counts(run_loop(count_secrets(load(config))), output)


async def count_secrets(settings: "Settings") -> Counter[str | None]:
    """By the key that they are encrypted with; None: with no key. Raises SqlUnavailable."""
    from api.wiring import open_database  # noqa: PLC0415  # slow to import
    from bridge.sql.groups import count_by_key  # noqa: PLC0415

    async with open_database(settings) as database:
        return await database.read(count_by_key)


async def _rewrap(settings: "Settings", key_id: str | None) -> tuple[Counter[str], Counter[str | None]]:
    from api.wiring import make_owner, open_database  # noqa: PLC0415  # slow to import
    from bridge.sql.groups import count_by_key, rewrap_secrets  # noqa: PLC0415

    async with open_database(settings) as database:
        done = await rewrap_secrets(database, key_id, make_owner(), time.time_ns() // 1_000_000)
        return done, await database.read(count_by_key)


def _show_counts(counts: Counter[str | None], output: Output) -> None:
    rows = [{"key": key, "secrets": counts[key]} for key in sorted(counts, key=lambda key: key or "")]
    show_rows(rows, [("KEY", lambda row: row["key"] or _NO_KEY), ("SECRETS", "secrets")], output)


# --- `acl`: what each role must be allowed in Kafka ---


class AclFormat(StrEnum):
    """How rights are written."""

    ROWS = "rows"
    KAFKA_ACLS = "kafka-acls"


RoleOption = Annotated[list[Role], typer.Option("--role", help="Only of this role; repeatable. All if not given.")]
TopicOption = Annotated[
    list[str], typer.Option("--topic", "-t", help="Topic that messages go to; `shop.*`: all that begin so. Repeatable.")
]
PrincipalOption = Annotated[str, typer.Option("--principal", help="Kafka's name of a role's user.")]
FormatOption = Annotated[AclFormat, typer.Option("--format", help="`kafka-acls`: lines for Kafka's own command.")]


def acl(
    role: RoleOption = [],  # noqa: B006 - typer reads the default
    topic: TopicOption = [],  # noqa: B006
    principal: PrincipalOption = "User:outbox-bridge-{role}",
    form: FormatOption = AclFormat.ROWS,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """The least that each role must be allowed in Kafka, with the topic prefix of the settings.

    Nobody else may write to the internal topics, and no producer needs any right in Kafka.
    """
    settings = load(config)
    topics = with_prefix(settings.topics.prefix, settings.topics.queues)
    if not topic:
        say("without --topic, rights to the topics that messages go to are left out")
    rights: dict[tuple[str, KafkaRight], Role] = {}
    for one in role or Role:
        for right in least_rights(one, topics, topic):
            rights.setdefault((principal.replace("{role}", one), right), one)
    if form is AclFormat.KAFKA_ACLS:
        for line in write_commands(list(rights), str(settings.kafka["bootstrap.servers"])):
            print_line(line)
        return
    rows = [_show_right(whose, right, role) for (whose, right), role in rights.items()]
    members = ("role", "principal", "resource", "name", "pattern", "operation")
    show_rows(rows, [(member.upper(), member) for member in members], output)


def write_commands(rights: list[tuple[str, KafkaRight]], servers: str) -> Iterator[str]:
    """A line for each resource of each principal."""

    def place(one: tuple[str, KafkaRight]) -> tuple[str, str, str, bool]:
        whose, right = one
        return whose, right.resource, right.name, right.is_prefix

    for (whose, resource, name, is_prefix), alike in groupby(sorted(rights, key=place), place):
        words = ["kafka-acls.sh", "--bootstrap-server", servers, "--add", "--allow-principal", whose]
        for _, right in alike:
            words += ["--operation", right.operation]
        words += [f"--{resource}", name, *(["--resource-pattern-type", "prefixed"] if is_prefix else [])]
        yield shlex.join(words)


def _show_right(principal: str, right: KafkaRight, role: Role) -> Row:
    return {
        "role": role.value,
        "principal": principal,
        "resource": right.resource.value,
        "name": right.name,
        "pattern": "prefixed" if right.is_prefix else "literal",
        "operation": right.operation.value,
    }


# --- `audit`: who did what, and whether that is what was written ---


_ENTRY_COLUMNS: list[Column] = [(name.upper(), name) for name in ("at", "actor", "action", "target", "reason")]

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
    _show_verdict(verdict, output)
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


def _show_verdict(verdict: "AuditVerdict", output: Output) -> None:
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
        show_rows(findings, [(member.upper(), member) for member in ("link", "entry", "flaw", "detail")])
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
