"""The console as the road knows it: routes, files, errors, and the pages of audit, readiness and settings."""

from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

from starlette.responses import FileResponse, Response

from api.console import entry, groups, home, parked, reports, transactions
from api.console.entry import identify_reader, is_unproven, lead_to_sign_in
from api.console.render import PREFIX, is_page, render
from api.web.health import run_checks
from api.web.problems import Problem, Rejected, problem_headers
from api.web.request import ApiRequest, Query, refuse
from api.web.road import NO_PATH, HttpAnswer, Routes, Site
from api.web.search import PAGE_PARAMETERS, page_of
from bridge.core.grants import Verb
from bridge.core.transaction import is_transaction_id
from bridge.service.contract import Refused

# --- what was done and how the bridge is set: the audit, the readiness checks, the effective settings ---

routes = Routes()

_ROWS = 50


@routes.add("GET", f"{PREFIX}/audit", verb=Verb.ADMIN, is_for_all=True)
async def show_audit(request: ApiRequest) -> HttpAnswer:
    """Who did what, newest first."""
    query = Query(request.query, PAGE_PARAMETERS)
    _, cursor = page_of(query, request.services.limits.page)
    page = await request.services.search.audit(query.integer("limit", _ROWS, 1, 500), cursor)
    if isinstance(page, Refused):
        raise refuse(page)
    following = None if page.next is None else urlencode({"cursor": page.next})
    is_known = is_transaction_id
    return render(request, "audit.html", page=page, following=following, is_first=cursor is None, is_known=is_known)


@routes.add("GET", f"{PREFIX}/settings", verb=Verb.READ)
async def show_settings(request: ApiRequest) -> HttpAnswer:
    """Whether promises can be kept now, and for administrators how the process is set."""
    checks = await run_checks(request.services.readiness)
    may_see = request.caller.rights.may_everywhere(Verb.ADMIN)
    return render(request, "settings.html", checks=checks, shown=request.services.settings if may_see else None)


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
    phrase = HTTPStatus(problem.type.status).phrase
    shown = render(request, "problem.html", problem.type.status, problem=problem, phrase=phrase)
    kept = [(name, text) for name, text in problem_headers(problem).items() if name.lower() != "content-type"]
    shown.headers = (*shown.headers, *kept)
    return shown


def make_site() -> Site:
    """The console, to be put on the road."""
    modules = (entry, home, transactions, parked, groups, reports)
    table = [*routes, *[route for module in modules for route in module.routes]]
    return Site(table, is_page, identify_reader, show_problem)
