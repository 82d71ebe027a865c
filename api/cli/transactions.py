"""`tx`, `stats`, `version`: look transactions up, end them, act on them as an operator."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version as version_of
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
    encode,
    print_line,
    printable,
    say,
    show_document,
    show_documents,
    show_members,
    show_record,
    show_rows,
)  # fmt: skip
from bridge.core.transaction import TransactionState, show_time

# --- `tx`: look transactions up, end them, and act on them as an operator ---

tx = typer.Typer(
    cls=WholeSentences,
    no_args_is_help=True,
    help="Transactions: list, look up, watch, end, check, force, resume, abandon.",
)

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_STUCK = "5m"
_LEAST_PREFIX = 8
_PREFIX = re.compile(f"[0-9a-v]{{{_LEAST_PREFIX},27}}")
_FEW = 5
_WATCH_INTERVAL_S = 0.5


def read_time(text: str) -> str:
    """RFC 3339 as it is; a duration like 10m is that long ago."""
    ago = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if ago is None:
        with suppress(ValueError):
            if datetime.fromisoformat(text.upper()).tzinfo is not None:
                return text
        raise typer.BadParameter(f"{text!r} is no time: say 2026-01-31T12:00:00Z, or how long ago, like 10m or 2h")
    return show_time(round((time.time() - int(ago[1]) * _UNITS[ago[2]]) * 1000))


AnyIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Transaction id, or at least 8 characters of its start.")
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Transaction id.")]
StateOption = Annotated[TransactionState | None, typer.Option("--state", case_sensitive=False)]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="Producer group.")]
TopicOption = Annotated[str | None, typer.Option("--topic", help="A topic one of the messages goes to.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="The key of one of the messages.")]
AfterOption = Annotated[
    str | None,
    typer.Option("--after", metavar="TIME", parser=read_time, help="Born not before: RFC 3339, or ago, like 10m, 2h."),
]
BeforeOption = Annotated[
    str | None, typer.Option("--before", metavar="TIME", parser=read_time, help="Born before: as for --after.")
]
BlockedOption = Annotated[bool, typer.Option("--blocked", help="Committed, but not yet publishable.")]
IdempotencyOption = Annotated[
    str | None, typer.Option("--idempotency-key", help="Prepared with this idempotency key; without --topic and --key.")
]
StuckOption = Annotated[
    bool, typer.Option("--stuck", help=f"Those that may need a person: PREPARED for more than {_STUCK}, or blocked.")
]
AbandonedOption = Annotated[bool, typer.Option("--abandoned", help="Committed, and given up while they were blocked.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")]
CursorOption = Annotated[str | None, typer.Option("--cursor", help="Go on where another list ended.")]


def show_state(row: Row) -> str:
    """The state in one word or two."""
    beside = "blocked" if row.get("blocked") else "abandoned" if row.get("abandoned") else None
    return f"{row['state']}, {beside}" if beside else str(row["state"])


def show_receipts(row: Row) -> str | None:
    """Places of the messages, as `topic[partition]@offset`."""
    receipts = row.get("receipts") or []
    return " ".join(f"{r['topic']}[{r['partition']}]@{_or_unknown(r['offset'])}" for r in receipts) or None


def show_topics(row: Row) -> str | None:
    """The topic of the first message, and how many others there are."""
    topics = list(dict.fromkeys(message["topic"] for message in row.get("messages") or ()))
    return (topics[0] + (f" +{len(topics) - 1}" if len(topics) > 1 else "")) if topics else None


def show_key(row: Row) -> str | None:
    """The key of the first message."""
    messages: Sequence[Row] = row.get("messages") or ({},)
    key: str | None = messages[0].get("key", messages[0].get("key_base64"))
    return key


def show_next_check(row: Row) -> str | None:
    """When the group is asked next; it never was in the past."""
    due = row["next_check_at"]
    return "now" if due is not None and due <= show_time(time.time_ns() // 1_000_000) else due


TRANSACTION_COLUMNS: list[Column] = [
    ("TRANSACTION", "transaction_id"),
    ("GROUP", "producer_group"),
    ("STATE", show_state),
    ("TOPIC", show_topics),
    ("KEY", show_key),
    ("BORN", lambda row: row.get("born_time")),
    ("CHECKS", "check_times"),
    ("NEXT CHECK", show_next_check),
    ("REASON", "reason"),
    ("ENDED BY", "resolved_by"),
    ("PUBLISHED", show_receipts),
]
PARKED_COLUMNS = [column for column in TRANSACTION_COLUMNS if column[0] not in {"STATE", "NEXT CHECK", "PUBLISHED"}]
PARKED_COLUMNS.append(("PARKED", lambda row: row.get("parked_at")))


@tx.command("list", epilog="Examples: outbox-bridge tx list --stuck; outbox-bridge tx list --state parked --after 2h")
def list_transactions(  # noqa: PLR0913, PLR0917 - a filter is an option
    state: StateOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    key: KeyOption = None,
    idempotency_key: IdempotencyOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    blocked: BlockedOption = False,
    abandoned: AbandonedOption = False,
    stuck: StuckOption = False,
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Transactions that match every filter, newest first."""
    filters = {
        "state": state, "producer_group": group, "topic": topic, "key": key,
        "idempotency_key": idempotency_key,
        "born_after": after, "born_before": before, "cursor": cursor,
        "blocked": "true" if blocked else None, "abandoned": "true" if abandoned else None,
    }  # fmt: skip
    if not stuck:
        show_page(find_all(url, "/v1/transactions", "transactions", filters, limit), output)
        return
    if any((state, before, blocked, abandoned, cursor)):
        remedy = "Leave out --state, --before, --blocked, --abandoned and --cursor."
        raise CommandFailed(Exit.USAGE, "--stuck is a filter of its own", remedy)
    pending = {**filters, "state": TransactionState.PREPARED, "born_before": read_time(_STUCK)}
    parts = [find_all(url, "/v1/transactions", "transactions", each, limit)
             for each in (pending, {**filters, "blocked": "true"})]  # fmt: skip
    found = [row for rows, _ in parts for row in rows]
    found.sort(key=lambda row: str(HttpReply(200, bytes(row)).members.get("born_time")), reverse=True)
    show_page((found[:limit], None), output)
    if len(found) > limit or any(following for _, following in parts):
        say("there are more: --limit")


def find_id(url: str, text: str) -> str:
    """The id that begins so; what is a whole id, or can be none, as it is. Raises CommandFailed."""
    if len(text) < _LEAST_PREFIX:
        remedy = "`outbox-bridge tx list` shows whole ids."
        raise CommandFailed(Exit.USAGE, f"{text!r} is too short: give at least {_LEAST_PREFIX} characters", remedy)
    if _PREFIX.fullmatch(text.lower()) is None:
        return text
    found = call(url, "GET", "/v1/transactions", query={"id_prefix": text.lower(), "limit": _FEW}).members[
        "transactions"
    ]
    ids = [str(row["transaction_id"]) for row in found]
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise CommandFailed(Exit.NOT_FOUND, f"no transaction begins with {text}", "outbox-bridge tx list shows some.")
    more = " and more" if len(ids) == _FEW else ""
    raise CommandFailed(Exit.CONFLICT, f"several begin with {text}: {', '.join(ids)}{more}", "Give more characters.")


def show_page(
    found: tuple[list[Any], str | None], output: Output, columns: Sequence[Column] = TRANSACTION_COLUMNS
) -> None:
    """A list of what was found, of transactions or else; says how to go on if there are more."""
    documents, following = found
    if output is Output.TABLE:
        rows = [HttpReply(200, bytes(document)).members for document in documents]
        show_rows(rows, columns) if rows else say("none found")
    else:
        show_documents(documents, output)
    if following is not None:
        say(f"more: --cursor {following}")


@tx.command(epilog="Example: outbox-bridge tx get 0206k8e9s5ta7vo3q1m4c8b2h6dg --messages -o json")
def get(
    transaction_id: AnyIdArgument,
    messages: Annotated[bool, typer.Option("--messages", help="With keys, values and headers.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """One transaction, as current as the last write that was acknowledged."""
    query = {"include": "messages"} if messages else None
    transaction_id = find_id(url, transaction_id)
    show_transaction(call(url, "GET", f"/v1/transactions/{quoted(transaction_id)}", query=query), output)


@tx.command(epilog="Example: outbox-bridge tx timeline 0206k8e9s5ta7vo3q1m4c8b2h6dg")
def timeline(transaction_id: AnyIdArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """What happened to a transaction, oldest first."""
    reply = call(url, "GET", f"/v1/transactions/{quoted(find_id(url, transaction_id))}/timeline")
    if output is not Output.TABLE:
        show_documents(reply.items("events"), output)
        return
    columns: list[Column] = [("AT", "at"), ("EVENT", "type"), ("BY", "by"), ("DETAILS", describe_event)]
    show_rows(reply.members["events"], columns)


@tx.command(epilog="Example: outbox-bridge tx watch 0206k8e9s5ta7vo3q1m4c8b2h6dg")
def watch(transaction_id: AnyIdArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Follow a transaction: each event as it happens, until it has ended. Ctrl-C ends the watching."""
    path, shown = f"/v1/transactions/{quoted(find_id(url, transaction_id))}", 0
    with suppress(KeyboardInterrupt):
        while True:
            ended = has_ended(call(url, "GET", path).members)
            events = call(url, "GET", f"{path}/timeline").members["events"]
            for event in events[shown:]:
                line = "  ".join(map(printable, (event["at"], event["type"], event["by"], describe_event(event))))
                print_line(line if output is Output.TABLE else encode(event).decode())
            shown = len(events)
            if ended:
                return
            time.sleep(_WATCH_INTERVAL_S)


def has_ended(row: Row) -> bool:
    """Whether nothing more will happen to it by itself."""
    return row["state"] != TransactionState.PREPARED and not row["blocked"]


def describe_event(event: Row) -> str:
    """What belongs to this type of event, as `name=value`."""
    own = {name: value for name, value in event.items() if name not in {"at", "type", "by"} and value is not None}
    return " ".join(
        f"{name}={encode(value).decode() if not isinstance(value, str) else value}" for name, value in own.items()
    )


@tx.command(epilog="Example: outbox-bridge tx commit 0206k8e9s5ta7vo3q1m4c8b2h6dg --group orders")
def commit(
    transaction_id: IdArgument,
    group: GroupOption = None,
    is_async: Annotated[bool, typer.Option("--async", help="Do not wait until it is settled.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Commit in the producer's name: the messages are published."""
    _end("commit", transaction_id, group, is_async, url, output)


@tx.command(epilog="Example: outbox-bridge tx rollback 0206k8e9s5ta7vo3q1m4c8b2h6dg --group orders")
def rollback(
    transaction_id: IdArgument,
    group: GroupOption = None,
    is_async: Annotated[bool, typer.Option("--async", help="Do not wait until it is settled.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Roll back in the producer's name: the messages are never seen."""
    _end("rollback", transaction_id, group, is_async, url, output)


def _end(verb: str, transaction_id: str, group: str | None, is_async: bool, url: str, output: Output) -> None:
    body = {} if group is None else {"producer_group": group}
    headers = {"Prefer": "respond-async"} if is_async else None
    reply = call(url, "POST", f"/v1/transactions/{quoted(transaction_id)}/{verb}", body=body, headers=headers)
    show_transaction(reply, output)


@tx.command(epilog="Example: outbox-bridge tx check 0206k8e9s5ta7vo3q1m4c8b2h6dg")
def check(transaction_id: IdArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Ask the producer group now, instead of at the next due time."""
    reply = call(url, "POST", f"/v1/transactions/{quoted(transaction_id)}/check", body={})
    if output is Output.TABLE:
        say(f"the group is being asked; see: outbox-bridge tx timeline {transaction_id}")
    else:
        show_document(reply.raw, output)


@tx.command(epilog='Example: outbox-bridge tx force 0206k8e9s5ta7vo3q1m4c8b2h6dg COMMIT --reason "paid, see ticket 7"')
def force(
    transaction_id: IdArgument,
    resolution: Annotated[str, typer.Argument(metavar="COMMIT|ROLLBACK", help="How the transaction ends.")],
    reason: ReasonOption,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a transaction as an operator; the first recorded resolution still wins. Audited."""
    body = {"resolution": resolution.upper(), "reason": reason}
    show_transaction(call(url, "POST", f"/v1/transactions/{quoted(transaction_id)}/force", body=body), output)


@tx.command(epilog='Example: outbox-bridge tx resume 0206k8e9s5ta7vo3q1m4c8b2h6dg --reason "shop is back"')
def resume(
    transaction_id: IdArgument, reason: ReasonOption, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """Ask the group again about a parked transaction: its life and its checks begin anew. Audited."""
    body = {"reason": reason}
    show_transaction(call(url, "POST", f"/v1/transactions/{quoted(transaction_id)}/resume", body=body), output)


@tx.command(
    epilog='Example: outbox-bridge tx abandon 0206k8e9s5ta7vo3q1m4c8b2h6dg --reason "its topic is gone for good"'
)
def abandon(
    transaction_id: IdArgument, reason: ReasonOption, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """Give up a blocked commit that can never be published. The transaction stays COMMITTED, none of its messages is
    ever seen, and its ordering key goes on without it. Not undone; audited."""
    body = {"reason": reason}
    show_transaction(call(url, "POST", f"/v1/transactions/{quoted(transaction_id)}/abandon", body=body), output)


def show_transaction(reply: HttpReply, output: Output) -> None:
    """One transaction, or an end that was accepted."""
    show_record(_describe(reply.members), reply.raw, output)


def _describe(row: Row) -> Iterator[tuple[str, object]]:
    for name, value in row.items():
        if name == "receipts":
            yield "published", show_receipts(row)
        elif name == "next":
            if value["what"] != "nothing":
                yield "next", value["what"] if value["at"] is None else f"{value['what']} at {value['at']}"
        elif name == "messages":
            for number, message in enumerate(value):
                yield f"message {number}", message
        elif name not in {"blocked", "abandoned"} and value is not None:
            show = {"state": show_state, "next_check_at": show_next_check}.get(name)
            yield name.replace("_", " "), value if show is None else show(row)


def _or_unknown(offset: int | None) -> str:
    return "?" if offset is None else str(offset)


# --- `stats` and `version`: the whole bridge at a glance ---

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
    columns: list[Column] = [("GROUP", "name")]
    columns += [(name.replace("_", " ").upper(), name) for name in _COUNTS]
    columns.append(("OLDEST PENDING (s)", "oldest_pending_seconds"))
    show_rows([*rows, {**members, "name": "all"}] if len(rows) != 1 else rows, columns)


def version(output: OutputOption = Output.TABLE) -> None:
    """The version of this command; that of a running bridge is in its OpenAPI document."""
    number = version_of("outbox-bridge")
    if output is Output.TABLE:
        print_line(f"outbox-bridge {number}")
    else:
        show_document(encode({"version": number}), output)
