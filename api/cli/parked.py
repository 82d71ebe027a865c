"""`parked`: transactions that wait for a person."""

import sys
import threading
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from api.cli.connect import (
    DEFAULT_URL,
    HttpReply,
    ReasonOption,
    UrlOption,
    YesOption,
    call,
    find_all,
    noticed_ctrl_c,
    quoted,
)
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    WholeSentences,
    message_console,
    say,
    show_document,
    show_record,
    show_rows,
)
from api.cli.transactions import (
    PARKED_COLUMNS,
    AfterOption,
    BeforeOption,
    CursorOption,
    GroupOption,
    KeyOption,
    LimitOption,
    TopicOption,
    show_page,
)

parked = typer.Typer(
    cls=WholeSentences, no_args_is_help=True, help="Parked transactions: list them, redrive many, stop that."
)
# what `redrive` has begun, here or elsewhere
_JOB_COLUMNS: list[Column] = [
    ("JOB", lambda job: job["job_id"]),
    ("STATE", lambda job: job["state"]),
    ("ACTION", lambda job: job["action"]),
    ("DONE", lambda job: sum(job["counts"].values())),
    ("BEGUN", lambda job: job["created_at"]),
    ("BY", lambda job: job["actor"]),
    ("REASON", lambda job: job["reason"]),
]

_LOOK_INTERVAL_S = 0.3
_STOP_REASON = "stopped from the command line"


class Action(StrEnum):
    """What becomes of those that match."""

    RESUME = "resume"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@parked.command("list", epilog="Example: outbox-bridge parked list --group orders")
def list_parked(  # noqa: PLR0913, PLR0917 - a filter is an option
    group: GroupOption = None,
    topic: TopicOption = None,
    key: KeyOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Parked transactions that match every filter, newest first."""
    filters = {**_make_filter(group, topic, key, after, before), "cursor": cursor}
    show_page(find_all(url, "/v1/parked", "transactions", filters, limit), output, PARKED_COLUMNS)


@parked.command(epilog='Example: outbox-bridge parked redrive resume --group orders --reason "shop is back"')
def redrive(  # noqa: PLR0913, PLR0917 - a filter is an option
    action: Annotated[Action, typer.Argument(help="Done to all that match.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept in the audit. Needed to act.")] = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    key: KeyOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    rate: Annotated[int, typer.Option("--rate", min=1, max=1_000, help="At most so many a second.")] = 50,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what would be acted on.")] = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Resume, commit or roll back all parked transactions that match. Shows them first; Ctrl-C stops the job."""
    if reason is None and not preview:
        raise CommandFailed(Exit.USAGE, "a redrive needs --reason", "Look first with --preview, which needs none.")
    wanted = _make_filter(group, topic, key, after, before)
    body = {"action": action.value, "filter": wanted, "rate_per_second": rate}

    def count_them() -> HttpReply:
        return call(url, "POST", "/v1/parked/redrive", body={**body, "preview": True})

    previewed = count_them()
    if preview:
        _show_preview(previewed, output)
        return
    if not _is_wanted(previewed, action, yes):
        say("nothing was done")
        return
    count = int(previewed.members["count"])
    if not yes and not previewed.members["more"]:  # whoever is asked may answer after lunch
        now = count_them().members
        if now["more"] or now["count"] > count:
            reason = f"nothing was done: {_amount(now)} match by now, {count} were shown"
            raise CommandFailed(Exit.CONFLICT, reason, "Run it again, and look at those that have come.")
    with noticed_ctrl_c() as noticed:  # one that comes before the job has its name stops it, too
        job = call(url, "POST", "/v1/parked/redrive", body={**body, "reason": reason}).members
        done = _watch(url, str(job["job_id"]), None if previewed.members["more"] else count, noticed)
    _show_job(done, output)
    if done.members["state"] != "done":
        raise CommandFailed(Exit.FAILED, f"the job is {done.members['state']}", "Run it again for those that are left.")


@parked.command(epilog="Example: outbox-bridge parked jobs")
def jobs(
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="At most so many.")] = 20,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Jobs that redrives have begun, whoever began them and from where, newest first."""
    found = call(url, "GET", "/v1/parked/redrive", query={"limit": limit}).items("jobs")
    show_page((found, None), output, _JOB_COLUMNS)


@parked.command(epilog='Example: outbox-bridge parked stop 0af3c1 --reason "the shop is overloaded"')
def stop(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its id, as `parked jobs` shows it.")],
    reason: ReasonOption,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop a job after its present step, whoever began it; stopping it again changes nothing. Audited."""
    _show_job(call(url, "POST", f"/v1/parked/redrive/{quoted(job)}/stop", body={"reason": reason}), output)


def _make_filter(
    group: str | None, topic: str | None, key: str | None, after: str | None, before: str | None
) -> dict[str, object]:
    filters = {"producer_group": group, "topic": topic, "key": key, "born_after": after, "born_before": before}
    return {name: value for name, value in filters.items() if value is not None}


def _is_wanted(previewed: HttpReply, action: Action, yes: bool) -> bool:
    """Nothing is acted on that nobody has seen, unless that was asked for."""
    shown = previewed.members
    if shown["count"] == 0:
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise CommandFailed(Exit.USAGE, f"{_amount(shown)} would be acted on", "Say --yes, or look with --preview.")
    _show_preview(previewed, Output.TABLE)
    return typer.confirm(f"{action.value} {_amount(shown)}?", err=True)


def _amount(shown: dict[str, Any]) -> str:
    return f"{shown['count']}{' or more' if shown['more'] else ''} transactions"


def _show_preview(previewed: HttpReply, output: Output) -> None:
    if output is not Output.TABLE:
        show_document(previewed.raw, output)
        return
    shown = previewed.members
    show_rows(shown["sample"], PARKED_COLUMNS)
    say(f"{_amount(shown)} match; {len(shown['sample'])} of them are shown")


def _watch(url: str, job_id: str, total: int | None, noticed: threading.Event) -> HttpReply:
    """The job at its end; stopped if we are interrupted. The bridge goes on with it where we lose sight of it."""
    try:
        return _look_after(url, job_id, total, noticed)
    except CommandFailed as failure:
        reason = f"the job {job_id} was begun, and may go on, but cannot be followed: {failure.reason}"
        remedy = f"`outbox-bridge parked jobs` shows how far it is, `outbox-bridge parked stop {job_id}` stops it."
        raise CommandFailed(failure.code, reason, remedy, is_unknown=True) from failure


def _look_after(url: str, job_id: str, total: int | None, noticed: threading.Event) -> HttpReply:
    columns = (TextColumn("redriving"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=message_console(), transient=True) as progress:
        task = progress.add_task("redriving", total=total)
        while not noticed.wait(_LOOK_INTERVAL_S):
            job = call(url, "GET", f"/v1/parked/redrive/{job_id}")
            progress.update(task, completed=sum(job.members["counts"].values()))
            if job.members["state"] != "running":
                return job
        return call(url, "POST", f"/v1/parked/redrive/{job_id}/stop", body={"reason": _STOP_REASON})


def _show_job(job: HttpReply, output: Output) -> None:
    shown = job.members
    members = [("job", shown["job_id"]), ("state", shown["state"]), *shown["counts"].items()]
    show_record(members, job.raw, output)
