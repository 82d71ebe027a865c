"""The first page: how much is in which state, how old, and what needs a person now."""

from typing import NamedTuple

from api.console.render import PREFIX, redirect, render
from api.web.health import run_checks
from api.web.request import ApiRequest, refuse
from api.web.road import HttpAnswer, Routes
from bridge.core.grants import Verb
from bridge.core.transaction import TransactionState
from bridge.service.contract import Refused
from bridge.service.search import BridgeStats
from bridge.sql.groups import EndpointHealth, GroupHealth
from bridge.sql.search import SearchFilter
from bridge.sql.stats import GroupStats

routes = Routes()

_GROUPS = 200  # whose checks are looked at
_REASONS = 8  # groups whose blocked commits are looked at


class Concern(NamedTuple):
    """Something that needs a person. `path`, `query`: where to go on."""

    level: str
    what: str
    detail: str
    path: tuple[str, ...]
    query: dict[str, str]


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
    stats = await services.search.stats(rights)
    if isinstance(stats, Refused):
        raise refuse(stats)
    healths = await services.groups.list(_GROUPS, "", rights)
    if isinstance(healths, Refused):
        raise refuse(healths)
    groups = sorted(stats.projection.groups.items(), key=lambda item: _age(item[1], stats), reverse=True)
    concerns = [
        *await _find_faults(request),
        *[concern for health in healths for concern in _find_silence(health, services.now_ms())],
        *await _find_blocked(request, stats),
        *[_tell_parked(name, group) for name, group in groups if group.parked],
    ]
    return {
        "stats": stats,
        "total": stats.projection.total,
        "groups": groups,
        "concerns": concerns,
        "age_of": lambda group: _age(group, stats),
    }


def _age(group: GroupStats, stats: BridgeStats) -> int:
    return 0 if group.oldest_pending_ms is None else max(0, stats.now_ms - group.oldest_pending_ms)


async def _find_faults(request: ApiRequest) -> list[Concern]:
    checks = await run_checks(request.services.readiness)
    return [
        Concern("warn" if check.degraded else "bad", f"The bridge: {check.name}", check.detail, ("settings",), {})
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
    return [Concern("bad", f"Nobody answers the checks of {name}", detail, ("groups", name), {})]


def _is_silent(one: EndpointHealth, now_ms: int) -> bool:
    failed_ms = one.last_unanswered_ms
    return failed_ms is not None and failed_ms > (one.last_answered_ms or 0) and now_ms - failed_ms < 24 * 3_600_000


async def _find_blocked(request: ApiRequest, stats: BridgeStats) -> list[Concern]:
    """Commits that cannot be published, with what stands in the way of the newest one."""
    blocked = [(name, group.blocked) for name, group in stats.projection.groups.items() if group.blocked > 0]
    concerns = []
    for number, (name, count) in enumerate(sorted(blocked, key=lambda item: -item[1])):
        detail = await _find_reason(request, name) if number < _REASONS else ""
        what = f"{count} commit{'s' if count != 1 else ''} of {name} cannot be published"
        query = {"blocked": "true", "producer_group": name}
        concerns.append(Concern("bad", what, detail, ("search",), query))
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
    what = f"{group.parked} parked transaction{'s' if group.parked != 1 else ''} of {name}"
    return Concern("warn", what, "they wait for a decision", ("parked",), {"producer_group": name})
