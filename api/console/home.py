"""The first page, and how it stays as of now while it is looked at."""

import asyncio
import json
from typing import NamedTuple

from starlette.types import Message, Receive, Scope, Send

from api.console.entry import identify_reader
from api.console.render import HEADERS, PREFIX, choose_language, fragment, redirect, render
from api.web.health import run_checks
from api.web.problems import Rejected
from api.web.request import ApiRequest, or_reject
from api.web.road import HttpAnswer, Routes
from bridge.core.grants import Verb
from bridge.core.transaction import TransactionState
from bridge.service.contract import Refused
from bridge.service.reads import BridgeStats
from bridge.sql.groups import EndpointHealth, GroupHealth
from bridge.sql.search import GroupStats, SearchFilter

# --- the first page: how much is in which state, how old, and what needs a person now ---

routes = Routes()

_GROUPS = 200  # whose checks are looked at
_REASONS = 8  # groups whose blocked commits are looked at


class Concern(NamedTuple):
    """Something that needs a person. `what`: one of the texts below; `name`, `number`: of what, and how many.

    `detail`: one of the texts too, or what the bridge says elsewhere. `path`, `query`: where to go on.
    """

    level: str
    what: str
    name: str
    detail: str
    path: tuple[str, ...]
    query: dict[str, str]
    number: int = 1


_FAULT = "The bridge: {name}"
_SILENT = "Nobody answers the checks of {name}"
_ONE_BLOCKED, _BLOCKED = "{count} commit of {name} cannot be published", "{count} commits of {name} cannot be published"
_ONE_PARKED, _PARKED = "{count} parked transaction of {name}", "{count} parked transactions of {name}"
_UNDECIDED = "they wait for a decision"
TEXTS = (_FAULT, _SILENT, _ONE_BLOCKED, _BLOCKED, _ONE_PARKED, _PARKED, _UNDECIDED)


@routes.add("GET", PREFIX, verb=None)
async def begin(request: ApiRequest) -> HttpAnswer:
    """Leads to the first page."""
    return redirect(request, "")


@routes.add("GET", f"{PREFIX}/", verb=Verb.READ)
async def show_home(request: ApiRequest) -> HttpAnswer:
    """What is, and what needs a person now."""
    return render(request, "home.html", **await look(request))


async def look(request: ApiRequest) -> dict[str, object]:
    """What the page shows. Raises Rejected."""
    services, rights = request.services, request.caller.rights
    stats = or_reject(await services.search.stats(rights))
    healths = or_reject(await services.groups.list(_GROUPS, "", rights))
    groups = sorted(stats.projection.groups.items(), key=lambda item: _age(item[1], stats), reverse=True)
    concerns = [
        *await _find_faults(request),
        *[concern for health in healths for concern in _find_silence(health, services.now_ms())],
        *await _find_blocked(request, stats),
        *[_tell_parked(name, group) for name, group in groups if group.parked],
    ]
    return {
        "stats": stats,
        "canary": None if services.canary is None else services.canary.last,
        "total": stats.projection.total,
        "groups": groups,
        "concerns": concerns,
        "texts": TEXTS,
        "age_of": lambda group: _age(group, stats),
    }


def _age(group: GroupStats, stats: BridgeStats) -> int:
    return 0 if group.oldest_pending_ms is None else max(0, stats.now_ms - group.oldest_pending_ms)


async def _find_faults(request: ApiRequest) -> list[Concern]:
    checks = await run_checks(request)
    return [
        Concern("warn" if check.degraded else "bad", _FAULT, check.name, check.detail, ("settings",), {})
        for check in checks
        if not check.ok
    ]


def _find_silence(health: GroupHealth, now_ms: int) -> list[Concern]:
    """Checks of a group that has something pending, and that nobody answers."""
    name = health.group.name
    silent = [one for one in health.endpoints if _is_silent(one, now_ms)]
    if not silent or not health.stats.pending:
        return []
    last = max(silent, key=lambda one: one.last_unanswered_ms or 0)
    url = f" ({last.endpoint.url.partition('?')[0]})" if last.endpoint.url else ""
    detail = f"{last.last_failure or 'no answer'}{url}"
    return [Concern("bad", _SILENT, name, detail, ("groups", name), {})]


def _is_silent(one: EndpointHealth, now_ms: int) -> bool:
    failed_ms = one.last_unanswered_ms
    return failed_ms is not None and failed_ms > (one.last_answered_ms or 0) and now_ms - failed_ms < 24 * 3_600_000


async def _find_blocked(request: ApiRequest, stats: BridgeStats) -> list[Concern]:
    """Commits that cannot be published, with what stands in the way of the newest one."""
    blocked = [(name, group.blocked) for name, group in stats.projection.groups.items() if group.blocked > 0]
    concerns = []
    for number, (name, count) in enumerate(sorted(blocked, key=lambda item: -item[1])):
        detail = await _find_reason(request, name) if number < _REASONS else ""
        query = {"blocked": "true", "producer_group": name}
        what = _ONE_BLOCKED if count == 1 else _BLOCKED
        concerns.append(Concern("bad", what, name, detail, ("search",), query, count))
    return concerns


async def _find_reason(request: ApiRequest, group: str) -> str:
    wanted = SearchFilter(states=(TransactionState.COMMITTED,), group=group, blocked=True)
    page = await request.services.search.search(wanted, 1)
    if isinstance(page, Refused) or not page.transactions:
        return ""
    (view,) = page.transactions
    topics = ", ".join(dict.fromkeys(summary.topic for summary in view.messages))
    return f"{view.reason or 'no reason is recorded'} ({topics})"


def _tell_parked(name: str, group: GroupStats) -> Concern:
    what = _ONE_PARKED if group.parked == 1 else _PARKED
    return Concern("warn", what, name, _UNDECIDED, ("parked",), {"producer_group": name}, group.parked)


# --- the first page while it is looked at: what it shows, again and again, as server-sent events ---

_EVERY_S = 2.0
_MOST_S = 60.0  # then the browser comes again, and whether it may is looked at again
_TYPE = (b"content-type", b"text/event-stream")


@routes.add("GET", f"{PREFIX}/live", verb=Verb.READ)
async def follow(request: ApiRequest) -> "EventsAnswer":
    """Goes on for a minute at most. Takes no place of a request."""
    return EventsAnswer(request, await _tell(request))


class EventsAnswer:
    """Events until the reader goes, or the process ends."""

    def __init__(self, request: ApiRequest, first: bytes) -> None:
        self._request = request
        self._first = first

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        request = self._request
        with request.traffic.streams.open() as stream:
            request.leave()
            headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": [*headers, _TYPE]})
            await send(_piece(self._first))
            loop = asyncio.get_running_loop()
            until = loop.time() + _MOST_S
            next_at = loop.time() + _EVERY_S
            while next_at < until:
                try:
                    message = await stream.wait(receive, next_at)
                except Rejected:
                    if stream.is_ending or not _may_still_read(request):
                        break
                    next_at += _EVERY_S
                    await send(_piece(await _tell_if_possible(request)))
                    continue
                if message["type"] == "http.disconnect":
                    return
            await send({"type": "http.response.body", "body": b""})


def _may_still_read(request: ApiRequest) -> bool:
    """The browser comes again where the events end, and is told why they did."""
    return request.prove_again(identify_reader) is None and request.caller.rights.may_somewhere(Verb.READ)


def _piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _tell_if_possible(request: ApiRequest) -> bytes:
    """Made once for all pages that show the same. Nothing but a sign of life while the counts cannot be read."""
    try:
        return await request.services.events.get(
            lambda: _tell(request), (request.caller.rights.grants, choose_language(request))
        )
    except Rejected:
        return b": nothing can be read now\n\n"


async def _tell(request: ApiRequest) -> bytes:
    members = await look(request)
    stats = members["stats"]
    assert isinstance(stats, BridgeStats)
    total = stats.projection.total
    counted = {name: getattr(total, name) for name in ("prepared", "committed", "rolled_back", "parked")}
    shown = fragment(request, "home_parts.html", **members)
    return _event("totals", json.dumps({"at_ms": stats.now_ms, **counted})) + _event("page", shown)


def _event(name: str, text: str) -> bytes:
    """Source: HTML, section 9.2.5."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n".encode("utf-8", "replace")
