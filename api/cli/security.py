"""`security`: the keys that encrypt secrets in the database."""

import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.local import ConfigOption, load, run_loop
from api.cli.output import CommandFailed, Exit, Output, OutputOption, encode, print_line, say, show_documents, show_rows
from bridge.core.secret_key import KEY_BYTES, SecretKey, format_secret_key, parse_secret_keys

security = typer.Typer(no_args_is_help=True, help="Keys that encrypt secrets in the database.")

if TYPE_CHECKING:
    from api.settings import Settings

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
    _show(counts, output)


@security.command(epilog="Example: outbox-bridge security show -o json")
def show(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """How many secrets in the database are encrypted with which key: one that has none may leave security.keys."""
    _show(run_loop(count_secrets(load(config))), output)


async def count_secrets(settings: "Settings") -> Counter[str | None]:
    """By the key that they are encrypted with; None: with no key. Raises SqlUnavailable."""
    from api.wiring import open_database  # noqa: PLC0415  # slow to import
    from bridge.sql.rewrap import count_by_key  # noqa: PLC0415

    database = open_database(settings)
    try:
        return await database.read(count_by_key)
    finally:
        await database.close()


async def _rewrap(settings: "Settings", key_id: str | None) -> tuple[Counter[str], Counter[str | None]]:
    from api.wiring import make_owner, open_database  # noqa: PLC0415  # slow to import
    from bridge.sql.rewrap import count_by_key, rewrap_secrets  # noqa: PLC0415

    database = open_database(settings)
    try:
        done = await rewrap_secrets(database, key_id, make_owner(), time.time_ns() // 1_000_000)
        return done, await database.read(count_by_key)
    finally:
        await database.close()


def _show(counts: Counter[str | None], output: Output) -> None:
    rows = [{"key": key, "secrets": counts[key]} for key in sorted(counts, key=lambda key: key or "")]
    if output is not Output.TABLE:
        show_documents([encode(row) for row in rows], output)
        return
    show_rows(rows, [("KEY", lambda row: row["key"] or _NO_KEY), ("SECRETS", lambda row: row["secrets"])])
