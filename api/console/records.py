"""What was done and how the bridge is set: the audit, the readiness checks, the effective settings."""

from urllib.parse import urlencode

from api.console.render import PREFIX, render
from api.web.health import run_checks
from api.web.request import ApiRequest, Query, refuse
from api.web.road import HttpAnswer, Routes
from api.web.search import PAGE_PARAMETERS, page_of
from bridge.core.grants import Verb
from bridge.core.transaction import is_transaction_id
from bridge.service.contract import Refused

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
