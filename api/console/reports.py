"""Reports of reconciliation: what each run has found, with the way to the transactions.

The files are read as any text from elsewhere: with bounds, and only what the ledger of the runs names.
"""

import asyncio
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from api.console.render import PREFIX, render
from api.web.problems import NOT_FOUND, Problem, Rejected, invalid
from api.web.request import ApiRequest
from api.web.road import HttpAnswer, Routes
from bridge.core.grants import Verb
from bridge.core.transaction import is_transaction_id

routes = Routes()

_RUN = re.compile("[0-9]{6}")
_PLACE = re.compile("[0-9]{1,18}")
_MOST_RUNS = 50  # of the list; each of them is one file
_ROWS = 100
_LEDGER_BYTES = 4 * 1024 * 1024
_SUMMARY_BYTES = 4 * 1024 * 1024
_FINDINGS_BYTES = 256 * 1024  # of one page
_OF_FINDING = ("transaction_id", "kind", "detail", "group", "topic", "first_seen", "state", "remark")


class ReportedRun(NamedTuple):
    """A run in the list. `verdict` None: its summary cannot be read."""

    name: str
    taken_at: str
    findings: str
    sentence: str
    verdict: str | None


class FindingsPart(NamedTuple):
    """Some of a run's findings. `following`: where the next ones begin; None: there are no more."""

    rows: Sequence[Mapping[str, str]]
    following: int | None
    is_readable: bool


@routes.add("GET", f"{PREFIX}/reports", verb=Verb.READ, is_for_all=True)
async def show_reports(request: ApiRequest) -> HttpAnswer:
    """The runs, newest first."""
    folder = request.services.reports
    names = [] if folder is None else await asyncio.to_thread(_list_runs, folder)
    found = await asyncio.to_thread(_read_runs, folder, names[:_MOST_RUNS]) if folder is not None else []
    return render(request, "reports.html", folder=folder, runs=found, left=max(0, len(names) - _MOST_RUNS))


@routes.add("GET", f"{PREFIX}/reports/{{run}}", verb=Verb.READ, is_for_all=True)
async def show_report(request: ApiRequest, run: str) -> HttpAnswer:
    """One run: its verdict, and its findings page by page."""
    folder, given = request.services.reports, request.query.get("from", "0")
    if not _PLACE.fullmatch(given):
        raise invalid("?from", "not a place in the findings")
    if folder is None or not _RUN.fullmatch(run) or run not in await asyncio.to_thread(_list_runs, folder):
        raise Rejected(Problem(NOT_FOUND, "there is no complete report of this number"))
    (summary,) = await asyncio.to_thread(_read_runs, folder, [run])
    part = await asyncio.to_thread(_read_findings, folder / run / "findings.jsonl", int(given))
    return render(request, "report.html", run=summary, part=part, is_first=given == "0", is_known=is_transaction_id)


def _list_runs(folder: Path) -> list[str]:
    """The complete ones, newest first."""
    ledger = _parse(_read(folder / "ledger.json", 0, _LEDGER_BYTES + 1))
    runs = ledger.get("runs")
    numbers = [one.get("run") for one in runs if isinstance(one, dict)] if isinstance(runs, list) else []
    return [f"{one:06d}" for one in reversed(numbers) if type(one) is int and 0 <= one < 1_000_000]


def _read_runs(folder: Path, names: Sequence[str]) -> list[ReportedRun]:
    return [_read_run(name, _parse(_read(folder / name / "summary.json", 0, _SUMMARY_BYTES + 1))) for name in names]


def _read_run(name: str, summary: Mapping[str, Any]) -> ReportedRun:
    window, findings, code = summary.get("window"), summary.get("findings"), summary.get("exit_code")
    taken_at = window.get("taken_at") if isinstance(window, dict) else None
    total = findings.get("total") if isinstance(findings, dict) else None
    if type(code) is not int or type(total) is not int:
        return ReportedRun(name, "", "", "Its summary cannot be read.", None)
    verdict = "findings" if code == 1 else "warnings" if code == 4 or total else "pass"
    return ReportedRun(name, str(taken_at), str(total), str(summary.get("sentence")), verdict)


def _read_findings(path: Path, start: int) -> FindingsPart:
    raw = _read(path, start, _FINDINGS_BYTES)
    if raw is None:
        return FindingsPart([], None, is_readable=False)
    rows: list[Mapping[str, str]] = []
    place = 0
    for line in _lines(raw):
        if len(rows) == _ROWS:
            break
        members = _parse(line)
        rows.append({name: str(members[name]) if members.get(name) is not None else "" for name in _OF_FINDING})
        place += len(line)
    is_more = place > 0 and (place < len(raw) or len(raw) == _FINDINGS_BYTES)
    return FindingsPart(rows, start + place if is_more else None, is_readable=bool(rows) or not raw)


def _lines(raw: bytes) -> Iterator[bytes]:
    """The whole ones: the last may be cut off."""
    return iter([line for line in raw.splitlines(keepends=True) if line.endswith(b"\n")])


def _parse(raw: bytes | None) -> Mapping[str, Any]:
    """The object that it is; an empty one if it is none."""
    try:
        read = json.loads(raw or b"")
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _read(path: Path, start: int, most: int) -> bytes | None:
    """So much of a file; nothing of a link, and of what is no file, which might lead elsewhere or never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.pread(descriptor, most, start) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
