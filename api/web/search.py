"""Lists, counts and the audit trail: filters, routes, answers and their description."""

from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.web.bodies import GROUP_PATTERN
from api.web.openapi import CURSOR, LIMIT, Json, Operation, query_parameter
from api.web.parse import check_group, parse_base64
from api.web.problems import invalid
from api.web.request import TIME_EXPECTED, Query, json_answer, parse_time_ms, refuse, services_of
from api.web.views import Time, TransactionAnswer, render_time, render_transaction
from bridge.core.transaction import TransactionState
from bridge.service.contract import Refused
from bridge.service.search import BridgeStats, TransactionList
from bridge.sql.search import SearchFilter
from bridge.sql.stats import GroupStats


class TransactionPage(Struct):
    """Newest first. `next`: cursor of the next page, null on the last."""

    transactions: list[TransactionAnswer]
    next: str | None


class CountsAnswer(Struct, kw_only=True):
    """prepared = committed + rolled_back + parked + pending; `blocked` and `abandoned` are parts of committed."""

    prepared: int
    committed: int
    blocked: int
    abandoned: int
    rolled_back: int
    parked: int
    pending: int
    oldest_pending_seconds: float | None


class GroupCountsAnswer(CountsAnswer, kw_only=True):
    """Of one group. `age_histogram`: pairs of an upper bound in seconds (null: none) and pending transactions."""

    age_histogram: list[tuple[int | None, int]]


class StatsAnswer(CountsAnswer, kw_only=True):
    """Of all groups, and of each. Lags: age of the oldest journal record that is not settled, or not yet searchable."""

    settle_lag_seconds: float
    projection_lag_seconds: float
    groups: dict[str, GroupCountsAnswer]


class AuditEntryAnswer(Struct):
    """Who did what to what, why, and what it was before and after."""

    at: Time
    actor: str
    action: str
    target: str
    reason: str | None
    before: Any
    after: Any


class AuditPage(Struct):
    """Newest first."""

    entries: list[AuditEntryAnswer]
    next: str | None


_TAG = "operators"
_LINK = {200: {"Link": 'Where the next page is (`rel="next"`), if there is one.'}}
_TIME: Json = {"type": "string", "format": "date-time"}
_FILTER = (
    query_parameter("producer_group", "Of this group.", {"type": "string", "pattern": GROUP_PATTERN}),
    query_parameter("topic", "With a message to this topic.", {"type": "string"}),
    query_parameter("key", "With a message of this key.", {"type": "string"}),
    query_parameter("key_base64", "The same, in base64.", {"type": "string", "contentEncoding": "base64"}),
    query_parameter("born_after", "Born after.", _TIME),
    query_parameter("born_before", "Born before.", _TIME),
    LIMIT,
    CURSOR,
)
_STATES = {"type": "array", "items": {"type": "string", "enum": ["PREPARED", "COMMITTED", "ROLLED_BACK", "PARKED"]}}

SEARCH = Operation(
    "transactions",
    {200: (TransactionPage, "A page.")},
    parameters=(
        query_parameter("state", "In one of these states; repeated, or with commas between.", _STATES),
        query_parameter("blocked", "Committed, but not yet publishable.", {"type": "boolean"}),
        query_parameter("abandoned", "Committed, and given up while it was blocked.", {"type": "boolean"}),
        *_FILTER,
    ),
    headers=_LINK,
).arguments()
STATS = Operation(_TAG, {200: (StatsAnswer, "Counts and lags.")}).arguments()
AUDIT = Operation(_TAG, {200: (AuditPage, "A page.")}, parameters=(LIMIT, CURSOR), headers=_LINK).arguments()


def render_page(page: TransactionList) -> TransactionPage:
    """A page of transactions."""
    return TransactionPage([render_transaction(view) for view in page.transactions], page.next)


def render_stats(stats: BridgeStats) -> StatsAnswer:
    """Counts; ages at the moment they were read."""
    groups = {name: render_counts(group, stats.now_ms) for name, group in stats.projection.groups.items()}
    return StatsAnswer(
        **_counts(stats.projection.total, stats.now_ms),
        settle_lag_seconds=stats.lag.settle_ms / 1000,
        projection_lag_seconds=stats.lag.projection_ms / 1000,
        groups=groups,
    )


def render_counts(counted: GroupStats, now_ms: int) -> GroupCountsAnswer:
    """Counts of one group."""
    return GroupCountsAnswer(**_counts(counted, now_ms), age_histogram=list(counted.age_histogram))


def _counts(counted: GroupStats, now_ms: int) -> dict[str, Any]:
    oldest = counted.oldest_pending_ms
    return {
        "prepared": counted.prepared,
        "committed": counted.committed,
        "blocked": counted.blocked,
        "abandoned": counted.abandoned,
        "rolled_back": counted.rolled_back,
        "parked": counted.parked,
        "pending": counted.pending,
        "oldest_pending_seconds": None if oldest is None else max(0, now_ms - oldest) / 1000,
    }


PAGE_PARAMETERS = frozenset({"limit", "cursor"})
PARKED_PARAMETERS = PAGE_PARAMETERS | {
    "producer_group",
    "topic",
    "key",
    "key_base64",
    "born_after",
    "born_before",
}
SEARCH_PARAMETERS = PARKED_PARAMETERS | {"state", "blocked", "abandoned"}
DEFAULT_PAGE = 100
_MAX_CURSOR = 200


def search_filter(query: Query) -> SearchFilter:
    """The filter of a search."""
    states = query.words("state", TransactionState, ", ".join(TransactionState))
    return SearchFilter(
        states=states,
        group=_group(query),
        topic=query.text("topic"),
        key=_key(query.text("key"), query.text("key_base64"), "?"),
        born_after_ms=query.time_ms("born_after"),
        born_before_ms=query.time_ms("born_before"),
        blocked=query.optional_flag("blocked"),
        abandoned=query.optional_flag("abandoned"),
    )


def page_of(query: Query, most: int) -> tuple[int, str | None]:
    """`limit` and `cursor`."""
    cursor = query.text("cursor")
    if cursor is not None and (len(cursor) > _MAX_CURSOR or not cursor.isascii()):
        raise invalid("?cursor", "not a cursor of this bridge")
    return query.integer("limit", min(DEFAULT_PAGE, most), 1, most), cursor


def link_header(request: Request, cursor: str | None) -> dict[str, str]:
    """Where the next page is. Source: RFC 8288."""
    if cursor is None:
        return {}
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    return {"Link": f'<{request.url.path}?{urlencode([*kept, ("cursor", cursor)])}>; rel="next"'}


def _group(query: Query) -> str | None:
    group = query.text("producer_group")
    if group is not None:
        check_group(group, "?producer_group")
    return group


def _key(text: str | None, in_base64: str | None, prefix: str) -> bytes | None:
    if in_base64 is None:
        return None if text is None else text.encode()
    if text is not None:
        raise invalid(f"{prefix}key_base64", "key and key_base64 are both given")
    return parse_base64(in_base64, f"{prefix}key_base64")


def _time(text: str | None, where: str) -> int | None:
    try:
        return None if text is None else parse_time_ms(text)
    except ValueError:
        raise invalid(where, TIME_EXPECTED) from None


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
