"""The console as the road knows it: routes, files, errors, and the pages of audit, readiness and settings."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import msgspec
from starlette.responses import FileResponse, Response

from api.console import entry, groups, home, parked, reports, transactions
from api.console.entry import identify_reader, is_unproven, lead_to_sign_in, read_form
from api.console.render import PREFIX, render, render_long
from api.web.checks import render_report
from api.web.groups import render_group
from api.web.health import (
    SKIPPED,
    Diagnosis,
    Probes,
    ReadyCheck,
    judge_check,
    judge_groups,
    judge_stats,
    run_checks,
    tell_unknown,
)
from api.web.problems import Problem, Rejected, problem_headers, problem_of
from api.web.request import ApiRequest, Query, or_reject
from api.web.road import NO_PATH, HttpAnswer, Routes, Site
from api.web.search import PAGE_PARAMETERS, page_of, render_stats
from bridge.core.grants import Verb
from bridge.core.transaction import is_transaction_id
from bridge.directory import ProducerGroup
from bridge.service.contract import Refused

# --- what was done and how the bridge is set: the audit, the readiness checks, the effective settings ---

routes = Routes()

_ROWS = 50
_GROUPS = 500  # that are looked at; the command looks at all
_PROBES_S = 15.0  # for the calls to all groups' endpoints together


@routes.add("GET", f"{PREFIX}/audit", verb=Verb.ADMIN, is_for_all=True)
async def show_audit(request: ApiRequest) -> HttpAnswer:
    """Who did what, newest first."""
    query = Query(request.query, PAGE_PARAMETERS)
    _, cursor = page_of(query, request.services.limits.page)
    page = or_reject(await request.services.search.audit(query.integer("limit", _ROWS, 1, 500), cursor))
    following = None if page.next is None else urlencode({"cursor": page.next})
    is_known = is_transaction_id
    return await render_long(
        request, "audit.html", page=page, following=following, is_first=cursor is None, is_known=is_known
    )


@routes.add("GET", f"{PREFIX}/settings", verb=Verb.READ)
async def show_settings(request: ApiRequest) -> HttpAnswer:
    """Whether promises can be kept now, and for administrators how the process is set."""
    return _render_settings(request, await run_checks(request), [])


@routes.add("POST", f"{PREFIX}/settings", verb=Verb.READ)
async def examine(request: ApiRequest) -> HttpAnswer:
    """The same, with what `doctor` finds at a running bridge. Changes nothing, so read-only pages have it too."""
    await read_form(request)
    checks = await run_checks(request)
    found = [judge_check(msgspec.to_builtins(check)) for check in checks]
    return _render_settings(request, checks, found + await _examine_work(request))


def _render_settings(request: ApiRequest, checks: Sequence[ReadyCheck], found: Sequence[Diagnosis]) -> HttpAnswer:
    may_see = request.caller.rights.may_everywhere(Verb.ADMIN)
    shown = request.services.settings if may_see else None
    return render(request, "settings.html", checks=checks, found=found, shown=shown)


async def _examine_work(request: ApiRequest) -> list[Diagnosis]:
    """What stands still, and groups that do not answer: of those that the reader may see."""
    services, rights = request.services, request.caller.rights
    stats, groups = await services.search.stats(rights), await services.groups.list(_GROUPS, "", rights)
    for answer in (stats, groups):
        if isinstance(answer, Refused):
            return [tell_unknown(answer.detail, problem_of(answer).type.remedy)]
    assert not isinstance(stats, Refused)
    assert not isinstance(groups, Refused)
    until = asyncio.get_running_loop().time() + _PROBES_S
    probes = await asyncio.gather(*[_probe(request, health.group, until) for health in groups])
    told = [msgspec.to_builtins(render_group(health, services.now_ms())) for health in groups]
    found = judge_stats(msgspec.to_builtins(render_stats(stats))) + judge_groups(zip(told, probes, strict=True))
    if uncalled := probes.count(None):
        text = f"{uncalled} of {len(groups)} were not called and are judged by their last checks"
        remedy = "Their calls need the right `admin`, pages that are not read-only, and time: test one on its page."
        found.append(Diagnosis(SKIPPED, "groups", text, remedy))
    if len(groups) == _GROUPS:
        text = f"those after the first {_GROUPS} were not looked at"
        found.append(Diagnosis(SKIPPED, "groups", text, "Run `outbox-bridge doctor`."))
    return found


async def _probe(request: ApiRequest, group: ProducerGroup, until: float) -> Probes:
    """What its endpoints do with a signed call; None: it may not be made from here, or there was no time for it."""
    if not group.endpoints:
        return ()
    if request.services.is_read_only or not request.caller.rights.may(Verb.ADMIN, group.name):
        return None
    try:
        async with asyncio.timeout_at(until):
            report = await request.services.trials.probe(group)
    except TimeoutError:
        return None
    probes: Probes = msgspec.to_builtins(render_report(report).findings)
    return probes


# --- the console as the road knows it: its routes, its files, and how a page says that something is wrong ---

_FOLDER = Path(__file__).parent / "static"
_FILES = {path.name: path for path in _FOLDER.iterdir() if path.suffix in {".css", ".js", ".svg"}}


@routes.add("GET", f"{PREFIX}/assets/{{name}}", verb=None)
async def give_file(_: ApiRequest, name: str) -> Response:
    """A script or a style of the pages."""
    if name not in _FILES:
        raise Rejected(NO_PATH)
    headers = {"Cache-Control": "public, max-age=300", "X-Content-Type-Options": "nosniff"}
    return FileResponse(_FILES[name], headers=headers)


def show_problem(request: ApiRequest, problem: Problem) -> HttpAnswer:
    """A problem as a page; who is not known yet is led to where he signs in."""
    if is_unproven(problem) and request.method == "GET":
        return lead_to_sign_in(request)
    shown = render(request, "problem.html", problem.type.status, problem=problem)
    kept = [(name, text) for name, text in problem_headers(problem).items() if name.lower() != "content-type"]
    shown.headers = (*shown.headers, *kept)
    return shown


def make_site() -> Site:
    """The console, to be put on the road."""
    modules = (entry, home, transactions, parked, groups, reports)
    table = [*routes, *[route for module in modules for route in module.routes]]
    return Site(table, PREFIX, identify_reader, show_problem)
