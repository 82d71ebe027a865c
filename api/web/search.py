"""Lists, counts and the audit trail: filters, routes, answers and their description."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from msgspec import Struct

from api.web.bodies import GROUP_PATTERN
from api.web.openapi import CURSOR, LIMIT, OPERATORS, Json, Operation, query_parameter
from api.web.parse import check_group, parse_base64
from api.web.problems import invalid
from api.web.request import TIME_EXPECTED, ApiRequest, Query, or_reject, parse_time_ms
from api.web.road import HttpAnswer, Routes, answer_list, json_answer
from api.web.views import Time, TransactionAnswer, render_transaction
from bridge.core.grants import Rights, Verb
from bridge.core.transaction import TransactionState, show_time
from bridge.service.reads import BridgeStats
from bridge.sql.access import ActEntry
from bridge.sql.search import GroupStats, SearchFilter

T = TypeVar("T")


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


NEXT_LINK = {200: {"Link": 'Where the next page is (`rel="next"`), if there is one.'}}
_TIME: Json = {"type": "string", "format": "date-time"}
FILTERS = (
    query_parameter("producer_group", "Of this group.", {"type": "string", "pattern": GROUP_PATTERN}),
    query_parameter("topic", "With a message to this topic.", {"type": "string"}),
    query_parameter("key", "With a message of this key.", {"type": "string"}),
    query_parameter("key_base64", "The same, in base64.", {"type": "string", "contentEncoding": "base64"}),
    query_parameter("born_after", "Born after.", _TIME),
    query_parameter("born_before", "Born before.", _TIME),
    LIMIT,
    CURSOR,
)
_PREFIX = re.compile("^[0-9a-v]{8,28}$")  # shorter ones are the time alone: all of a day, or of ever
_PRINTABLE = re.compile("^[ -~]{1,200}$")
_STATES = {"type": "array", "items": {"type": "string", "enum": ["PREPARED", "COMMITTED", "ROLLED_BACK", "PARKED"]}}

SEARCH = Operation(
    "transactions",
    {200: (TransactionPage, "A page.")},
    parameters=(
        query_parameter("state", "In one of these states; repeated, or with commas between.", _STATES),
        query_parameter("blocked", "Committed, but not yet publishable.", {"type": "boolean"}),
        query_parameter("abandoned", "Committed, and given up while it was blocked.", {"type": "boolean"}),
        query_parameter(
            "id_prefix", "Whose id begins so; without `topic` and key.", {"type": "string", "pattern": _PREFIX.pattern}
        ),
        query_parameter(
            "idempotency_key",
            "Prepared with this idempotency key; without `topic` and key.",
            {"type": "string", "pattern": _PRINTABLE.pattern},
        ),
        *FILTERS,
    ),
    headers=NEXT_LINK,
).arguments()
STATS = Operation(OPERATORS, {200: (StatsAnswer, "Counts and lags.")}).arguments()
AUDIT = Operation(OPERATORS, {200: (AuditPage, "A page.")}, parameters=(LIMIT, CURSOR), headers=NEXT_LINK).arguments()


async def answer_page(
    request: ApiRequest, name: str, items: Sequence[T], render: Callable[[T], object], following: str | None
) -> HttpAnswer:
    """A page of a list. `following`: cursor of the next one."""
    return await answer_list(request, name, items, render, {"next": following}, link_header(request, following))


def _render_entry(entry: ActEntry) -> AuditEntryAnswer:
    return AuditEntryAnswer(
        show_time(entry.at_ms), entry.actor, entry.what, entry.target, entry.reason, entry.before, entry.after
    )


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
    names = ("prepared", "committed", "blocked", "abandoned", "rolled_back", "parked", "pending")
    age_s = None if oldest is None else max(0, now_ms - oldest) / 1000
    return {**{name: getattr(counted, name) for name in names}, "oldest_pending_seconds": age_s}


PAGE_PARAMETERS = frozenset({"limit", "cursor"})
PARKED_PARAMETERS = frozenset(str(parameter["name"]) for parameter in FILTERS)
SEARCH_PARAMETERS = PARKED_PARAMETERS | {"state", "blocked", "abandoned", "id_prefix", "idempotency_key"}
DEFAULT_PAGE = 100
_MAX_CURSOR = 200


def search_filter(query: Query, rights: Rights) -> SearchFilter:
    """The filter of a search, and of what its caller may see."""
    states = query.words("state", TransactionState, ", ".join(TransactionState))
    return SearchFilter(
        states=states,
        group=_group(query),
        topic=query.text("topic"),
        key=parse_key(query.text("key"), query.text("key_base64"), "?"),
        born_after_ms=query.time_ms("born_after"),
        born_before_ms=query.time_ms("born_before"),
        blocked=query.optional_flag("blocked"),
        abandoned=query.optional_flag("abandoned"),
        id_prefix=_name(query, "id_prefix", _PREFIX, "8..28 characters of 0-9 a-v"),
        idempotency_key=_name(query, "idempotency_key", _PRINTABLE, "1..200 printable ASCII characters"),
        is_visible=None if rights.may_everywhere(Verb.READ) else partial(rights.may, Verb.READ),
    )


def page_of(query: Query, most: int) -> tuple[int, str | None]:
    """`limit` and `cursor`."""
    cursor = query.text("cursor")
    if cursor is not None and (len(cursor) > _MAX_CURSOR or not cursor.isascii()):
        raise invalid("?cursor", "not a cursor of this bridge")
    return query.integer("limit", min(DEFAULT_PAGE, most), 1, most), cursor


def link_header(request: ApiRequest, cursor: str | None) -> Sequence[tuple[str, str]]:
    """Where the next page is. Source: RFC 8288."""
    if cursor is None:
        return ()
    kept = [(name, value) for name, value in request.query.multi_items() if name != "cursor"]
    return (("Link", f'<{request.path}?{urlencode([*kept, ("cursor", cursor)])}>; rel="next"'),)


def _group(query: Query) -> str | None:
    group = query.text("producer_group")
    if group is not None:
        check_group(group, "?producer_group")
    return group


def _name(query: Query, name: str, form: re.Pattern[str], expected: str) -> str | None:
    """What a transaction is called by, or the beginning of it."""
    text = query.text(name)
    if text is None:
        return None
    if form.fullmatch(text) is None:
        raise invalid(f"?{name}", expected)
    if any(query.text(other) is not None for other in ("topic", "key", "key_base64")):
        raise invalid(f"?{name}", "not together with topic or key")
    return text


def parse_key(text: str | None, in_base64: str | None, prefix: str) -> bytes | None:
    if in_base64 is None:
        return None if text is None else text.encode()
    if text is not None:
        raise invalid(f"{prefix}key_base64", "key and key_base64 are both given")
    return parse_base64(in_base64, f"{prefix}key_base64")


def parse_optional_time(text: str | None, where: str) -> int | None:
    try:
        return None if text is None else parse_time_ms(text)
    except ValueError:
        raise invalid(where, TIME_EXPECTED) from None


routes = Routes()


@routes.add("GET", "/v1/transactions", SEARCH, verb=Verb.READ)
async def search_transactions(request: ApiRequest) -> HttpAnswer:
    """Transactions that match, newest first. Never a total count."""
    services = request.services
    query = Query(request.query, SEARCH_PARAMETERS, {"state"})
    limit, cursor = page_of(query, services.limits.page)
    page = or_reject(await services.search.search(search_filter(query, request.caller.rights), limit, cursor))
    return await answer_page(request, "transactions", page.transactions, render_transaction, page.next)


@routes.add("GET", "/v1/stats", STATS, verb=Verb.READ)
async def get_stats(request: ApiRequest) -> HttpAnswer:
    """Counts and lags, of all groups and of each."""
    Query(request.query, ())
    counted = or_reject(await request.services.search.stats(request.caller.rights))
    return json_answer(200, render_stats(counted))


@routes.add("GET", "/v1/audit", AUDIT, verb=Verb.ADMIN, is_for_all=True)
async def list_audit(request: ApiRequest) -> HttpAnswer:
    """Who did what, newest first."""
    services = request.services
    limit, cursor = page_of(Query(request.query, PAGE_PARAMETERS), services.limits.page)
    page = or_reject(await services.search.audit(limit, cursor))
    return await answer_page(request, "entries", page.entries, _render_entry, page.next)
