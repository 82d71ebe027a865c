"""Transactions by what they are, counts, and the audit."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.filters import PAGE_PARAMETERS, SEARCH_PARAMETERS, link_header, page_of, search_filter
from api.openapi.reading import AUDIT, SEARCH, STATS
from api.queries import Query
from api.reading import json_answer, refuse, services_of
from api.rendering import render_page, render_stats, render_time
from api.schemas.operator_answers import AuditEntryAnswer, AuditPage
from bridge.service.contract import Refused

router = APIRouter()


@router.get("/v1/transactions", **SEARCH)
async def search(request: Request) -> Response:
    """Transactions that match, newest first. Never a total count."""
    services = services_of(request)
    query = Query(request.query_params, SEARCH_PARAMETERS, {"state"})
    limit, cursor = page_of(query, services.limits.page)
    page = await services.search.search(search_filter(query), limit, cursor)
    if isinstance(page, Refused):
        raise refuse(page)
    return json_answer(200, render_page(page), link_header(request, page.next))


@router.get("/v1/stats", **STATS)
async def stats(request: Request) -> Response:
    """Counts and lags, of all groups and of each."""
    Query(request.query_params, ())
    counted = await services_of(request).search.stats()
    if isinstance(counted, Refused):
        raise refuse(counted)
    return json_answer(200, render_stats(counted))


@router.get("/v1/audit", **AUDIT)
async def audit(request: Request) -> Response:
    """Who did what, newest first."""
    services = services_of(request)
    limit, cursor = page_of(Query(request.query_params, PAGE_PARAMETERS), services.limits.page)
    page = await services.search.audit(limit, cursor)
    if isinstance(page, Refused):
        raise refuse(page)
    entries = [
        AuditEntryAnswer(render_time(e.at_ms), e.actor, e.what, e.target, e.reason, e.before, e.after)
        for e in page.entries
    ]
    return json_answer(200, AuditPage(entries, page.next), link_header(request, page.next))
