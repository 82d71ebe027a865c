"""Pages of transactions: lists, whose address says all, and a single one with its timeline."""

import asyncio
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from api.console.render import HEADERS, PREFIX, ShownValue, begin_page, redirect, render, render_long, show_value
from api.web.parse import check_transaction_id
from api.web.problems import NOT_FOUND, Problem, Rejected
from api.web.request import ApiRequest, Query, or_reject, who_is
from api.web.road import HttpAnswer, Routes
from api.web.search import SEARCH_PARAMETERS, page_of, search_filter
from bridge.core.explanation import Explanation
from bridge.core.grants import Verb
from bridge.core.message import Message
from bridge.core.properties import is_property_text
from bridge.core.transaction import TimelineEvent, TransactionState, TransactionView, is_transaction_id
from bridge.service.contract import Refused
from bridge.service.reads import BridgeStats
from bridge.sql.search import GroupStats

# --- lists of transactions: the address of a page is all that it depends on ---

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
    filled = without_blanks(request)
    query = Query(filled, SEARCH_PARAMETERS, {"state"})
    _, cursor = page_of(query, services.limits.page)
    page = or_reject(
        await services.search.search(search_filter(query, rights), query.integer("limit", _ROWS, 1, 500), cursor)
    )
    stats = await services.search.stats(rights)
    given = {name: ",".join(filled.getlist(name)) for name in filled if name != "cursor"}
    return await render_long(
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
    stats = or_reject(await search.stats(rights))
    found = [("producer group", {"producer_group": text})] if text in stats.projection.groups else []
    for name in ("topic", "key", "idempotency_key", "id_prefix"):
        try:
            wanted = search_filter(Query(QueryParams({name: text}), {*SEARCH_PARAMETERS}), rights)
        except Rejected:
            continue  # it cannot be one
        page = or_reject(await search.search(wanted, 1))
        if page.transactions:
            found.append((_MEANINGS[name], {name: text}))
    return found


# --- one transaction: why it is as it is, what happened to it, what it holds ---

_GAP_MS = 1_000  # shorter ones are no news
_PLACE = re.compile("[0-9]{1,3}")


class TimelineStep(NamedTuple):
    """An event, and how long nothing had happened before it."""

    event: TimelineEvent
    gap_ms: int | None


class ShownMessage(NamedTuple):
    """A message and its value, if it has one."""

    message: Message
    value: ShownValue | None


@routes.add("GET", f"{PREFIX}/transactions/{{transaction_id}}", verb=Verb.READ)
async def show_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """All that is known of a transaction."""
    return await render_transaction(request, transaction_id)


async def render_transaction(
    request: ApiRequest, transaction_id: str, refused: Problem | None = None, given_reason: str = ""
) -> HttpAnswer:
    """The page; with `refused`, why an act has changed nothing, or is not known to. Raises Rejected."""
    view, said = await find(request, transaction_id)
    events = or_reject(await request.services.transactions.timeline(transaction_id, request.caller.rights))
    is_asked = "messages" in request.query
    messages, why_not = await _read_messages(request, view, is_asked=is_asked)
    return await asyncio.to_thread(  # a hundred messages may have megabytes
        render,
        request,
        "transaction.html",
        200 if refused is None else refused.type.status,
        view=view,
        said=said,
        steps=_make_steps(events),
        messages=messages,
        why_not=why_not,
        refused=refused,
        given_reason=given_reason,
        done=request.query.get("done"),
    )


async def find(request: ApiRequest, transaction_id: str) -> tuple[TransactionView, Explanation]:
    """The transaction and why it is so. Raises Rejected."""
    check_transaction_id(transaction_id, "?transaction_id")
    view = or_reject(await request.services.transactions.get(transaction_id, request.caller.rights))
    said = or_reject(await request.services.transactions.explain(view))
    return view, said


def _make_steps(events: Sequence[TimelineEvent]) -> list[TimelineStep]:
    gaps = [None, *[later.at_ms - before.at_ms for before, later in pairwise(events)]]
    return [
        TimelineStep(event, gap if gap and gap >= _GAP_MS else None) for event, gap in zip(events, gaps, strict=False)
    ]


async def _read_messages(
    request: ApiRequest, view: TransactionView, *, is_asked: bool
) -> tuple[list[ShownMessage] | None, str]:
    """The messages whole, or why they are not shown. A look at those of a parked one is audited, so it is asked for."""
    if view.state is TransactionState.PARKED and not is_asked:
        return None, "parked"
    found = await request.services.transactions.get_bodies(view, who_is(request, ""))
    if isinstance(found, Refused):
        return None, found.detail
    if found is None:
        return None, "no log has its messages any more"
    return await asyncio.to_thread(_show_messages, found), ""


def _show_messages(found: Sequence[Message]) -> list[ShownMessage]:
    left = begin_page()
    return [ShownMessage(one, None if one.value is None else show_value(one.value, left)) for one in found]


@routes.add("GET", f"{PREFIX}/transactions/{{transaction_id}}/messages/{{number}}", verb=Verb.READ)
async def save_value(request: ApiRequest, transaction_id: str, number: str) -> HttpAnswer:
    """A message's value as it is, to be saved, not to be shown."""
    view, _ = await find(request, transaction_id)
    found = or_reject(await request.services.transactions.get_bodies(view, who_is(request, "")))
    if found is None or not _PLACE.fullmatch(number) or int(number) >= len(found) or found[int(number)].value is None:
        raise Rejected(Problem(NOT_FOUND, "there is no such value"))
    name = f'attachment; filename="{transaction_id}-{int(number)}.bin"'
    headers = (*HEADERS, ("Content-Disposition", name))
    return HttpAnswer(200, found[int(number)].value or b"", headers, "application/octet-stream")
