"""Lists of transactions: the address of a page is all that it depends on."""

from collections.abc import Sequence
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from api.console.render import PREFIX, redirect, render
from api.web.problems import Rejected
from api.web.request import ApiRequest, Query, refuse
from api.web.road import HttpAnswer, Routes
from api.web.search import SEARCH_PARAMETERS, page_of, search_filter
from bridge.core.grants import Verb
from bridge.core.properties import is_property_text
from bridge.core.transaction import is_transaction_id
from bridge.service.contract import Refused
from bridge.service.search import BridgeStats
from bridge.sql.stats import GroupStats

routes = Routes()

_MEANINGS = {
    "topic": "topic",
    "key": "key",
    "idempotency_key": "idempotency key",
    "id_prefix": "transactions whose ids begin with",
}

_ROWS = 50
# (label, what the address says besides, the count of it)
_TABS: Sequence[tuple[str, dict[str, str], str | None]] = (
    ("All", {}, None),
    ("Pending", {"state": "PREPARED"}, "pending"),
    ("Parked", {"state": "PARKED"}, "parked"),
    ("Blocked", {"blocked": "true"}, "blocked"),
    ("Committed", {"state": "COMMITTED"}, "committed"),
    ("Rolled back", {"state": "ROLLED_BACK"}, "rolled_back"),
    ("Abandoned", {"abandoned": "true"}, "abandoned"),
)
_OF_TABS = {"state", "blocked", "abandoned"}


@routes.add("GET", f"{PREFIX}/search", verb=Verb.READ)
async def show_search(request: ApiRequest) -> HttpAnswer:
    """Transactions that match, newest first."""
    services, rights = request.services, request.caller.rights
    if "q" in request.query:
        return await _guess(request, request.query["q"].strip())
    query = Query(without_blanks(request), SEARCH_PARAMETERS, {"state"})
    _, cursor = page_of(query, services.limits.page)
    page = await services.search.search(search_filter(query, rights), query.integer("limit", _ROWS, 1, 500), cursor)
    if isinstance(page, Refused):
        raise refuse(page)
    stats = await services.search.stats(rights)
    given = {name: value for name, value in request.query.multi_items() if value and name != "cursor"}
    return render(
        request,
        "search.html",
        page=page,
        given=given,
        tabs=_make_tabs(given, None if isinstance(stats, Refused) else stats),
        following=None if page.next is None else urlencode({**given, "cursor": page.next}),
        is_first=cursor is None,
    )


def without_blanks(request: ApiRequest) -> QueryParams:
    """Fields of the form that were left empty do not count."""
    return QueryParams([(name, value) for name, value in request.query.multi_items() if value])


def _make_tabs(given: dict[str, str], stats: BridgeStats | None) -> list[tuple[str, str, int | None, bool]]:
    """Label, address, count and whether it is the present one. What a topic or a key has is not counted."""
    kept = {name: value for name, value in given.items() if name not in _OF_TABS}
    counted = _find_counts(kept, stats)
    chosen = {name: value for name, value in given.items() if name in _OF_TABS}
    return [
        (
            label,
            "?" + urlencode({**kept, **besides}),
            None if counted is None or name is None else getattr(counted, name),
            chosen == besides,
        )
        for label, besides, name in _TABS
    ]


def _find_counts(kept: dict[str, str], stats: BridgeStats | None) -> GroupStats | None:
    if stats is None or kept.keys() - {"producer_group", "limit"}:
        return None
    group = kept.get("producer_group")
    return stats.projection.total if group is None else stats.projection.groups.get(group)


async def _guess(request: ApiRequest, text: str) -> HttpAnswer:
    """One box for whatever one has at hand: an id, a producer group, a topic, a key, an idempotency key."""
    if is_transaction_id(text):
        return redirect(request, f"transactions/{text}")
    found = await _find_meanings(request, text) if is_property_text(text) and text else []
    if len(found) == 1:
        return redirect(request, "search", **found[0][1])
    return render(request, "meanings.html", asked=text, found=found)


async def _find_meanings(request: ApiRequest, text: str) -> list[tuple[str, dict[str, str]]]:
    search, rights = request.services.search, request.caller.rights
    stats = await search.stats(rights)
    if isinstance(stats, Refused):
        raise refuse(stats)
    found = [("producer group", {"producer_group": text})] if text in stats.projection.groups else []
    for name in ("topic", "key", "idempotency_key", "id_prefix"):
        try:
            wanted = search_filter(Query(QueryParams({name: text}), {*SEARCH_PARAMETERS}), rights)
        except Rejected:
            continue  # it cannot be one
        page = await search.search(wanted, 1)
        if isinstance(page, Refused):
            raise refuse(page)
        if page.transactions:
            found.append((_MEANINGS[name], {name: text}))
    return found
