"""The console as the road knows it: its routes, its files, and how a page says that something is wrong."""

from http import HTTPStatus
from pathlib import Path

from starlette.responses import FileResponse, Response

from api.console import acts, entry, groups, home, live, parked, records, reports, search, topics, transaction
from api.console.entry import identify_reader, is_unproven, lead_to_sign_in
from api.console.render import PREFIX, is_page, render
from api.web.problems import Problem, Rejected, problem_headers
from api.web.request import ApiRequest
from api.web.road import NO_PATH, HttpAnswer, Routes, Site

_FOLDER = Path(__file__).parent / "static"
_FILES = {path.name: path for path in _FOLDER.iterdir() if path.suffix in {".css", ".js", ".svg"}}

routes = Routes()


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
    modules = (entry, home, live, search, transaction, acts, parked, groups, topics, reports, records)
    table = [*routes, *[route for module in modules for route in module.routes]]
    return Site(table, is_page, identify_reader, show_problem)
