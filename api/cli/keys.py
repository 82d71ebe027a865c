"""`key`: who may call the bridge, what for, and the keys that prove it."""

import re
import secrets
from typing import Annotated, Any

import typer

from api.cli.http_calls import DEFAULT_URL, UrlOption, call, quoted
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    Row,
    print_line,
    say,
    show_document,
    show_documents,
    show_members,
    show_rows,
)

key = typer.Typer(no_args_is_help=True, help="Principals, what they may do, and their API keys.")

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
    from bridge.core.access_key import RANDOM_BYTES, make_key_text  # noqa: PLC0415  # not needed by other commands

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
    life = None if expires is None else _read_life(expires)
    if grants or not _exists(url, principal):
        call(url, "PUT", f"{_PATH}/{quoted(principal)}", body={"grants": grants})
    body = {"label": label, "expires_in_seconds": life}
    reply = call(url, "POST", f"{_PATH}/{quoted(principal)}/keys", body=body)
    if output is Output.TABLE:
        show_members(reply.members.items())
    else:
        show_document(reply.raw, output)
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
    columns: list[Column] = [
        ("PRINCIPAL", lambda row: row["name"]),
        ("MAY", lambda row: row["may"]),
        ("KEY", lambda row: row["key_id"]),
        ("LABEL", lambda row: row["label"]),
        ("EXPIRES", lambda row: row["expires_at"]),
        ("LAST USED", lambda row: row["last_used_at"]),
    ]
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


def _exists(url: str, principal: str) -> bool:
    return any(known["name"] == principal for known in call(url, "GET", _PATH).members["principals"])


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
