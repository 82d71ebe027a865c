"""Pages of producer groups and of topics."""

from collections import Counter
from collections.abc import Mapping

from api.console.entry import NO_REASON, read_form, refuse_read_only
from api.console.render import PREFIX, redirect, render
from api.web.groups import render_settings
from api.web.parse import check_group, check_property
from api.web.problems import NOT_FOUND, Problem, Rejected, invalid
from api.web.request import ApiRequest, Query, check_reason, or_reject, who_is
from api.web.road import HttpAnswer, Routes
from api.web.search import PAGE_PARAMETERS
from bridge.core.grants import Verb
from bridge.core.topics import is_legal_topic
from bridge.core.transaction import TransactionState
from bridge.directory import GroupSwitch
from bridge.sql.search import SearchFilter

# --- producer groups: who answers for them, what their checks have come to, how they are asked ---

routes = Routes()

_ROWS = 100


@routes.add("GET", f"{PREFIX}/groups", verb=Verb.READ)
async def show_groups(request: ApiRequest) -> HttpAnswer:
    """All of them, in the order of their names."""
    cursor = Query(request.query, PAGE_PARAMETERS).text("cursor")
    if cursor is not None:
        check_group(cursor, "?cursor")
    found = or_reject(await request.services.groups.list(_ROWS, cursor or "", request.caller.rights))
    following = found[-1].group.name if len(found) == _ROWS else None
    return render(request, "groups.html", found=found, following=following, is_first=cursor is None)


@routes.add("GET", f"{PREFIX}/groups/{{group}}", verb=Verb.READ)
async def show_group(request: ApiRequest, group: str) -> HttpAnswer:
    """One of them."""
    return await _render_group(request, group)


@routes.add("POST", f"{PREFIX}/groups/{{group}}/pause", verb=Verb.OPERATE)
async def pause_group(request: ApiRequest, group: str) -> HttpAnswer:
    """Pauses its checks, or what it prepares."""
    return await _turn(request, group, is_paused=True)


@routes.add("POST", f"{PREFIX}/groups/{{group}}/resume", verb=Verb.OPERATE)
async def resume_group(request: ApiRequest, group: str) -> HttpAnswer:
    """Lets go on what was paused."""
    return await _turn(request, group, is_paused=False)


async def _turn(request: ApiRequest, group: str, *, is_paused: bool) -> HttpAnswer:
    refuse_read_only(request)
    check_group(group, "?group")
    form = await read_form(request)
    if form.get("what") not in set(GroupSwitch):
        raise invalid("/what", f"one of {', '.join(GroupSwitch)}")
    reason = form.get("reason", "")
    if not reason.strip():
        return await _render_group(request, group, refused=NO_REASON)
    who = who_is(request, check_reason(reason))
    or_reject(await request.services.groups.switch(group, GroupSwitch(form["what"]), who, is_paused=is_paused))
    return redirect(request, f"groups/{group}")


@routes.add("POST", f"{PREFIX}/groups/{{group}}/rotate-secret", verb=Verb.ADMIN)
async def rotate_secret(request: ApiRequest, group: str) -> HttpAnswer:
    """A new signing secret, shown this once."""
    refuse_read_only(request)
    check_group(group, "?group")
    await read_form(request)
    secret = or_reject(await request.services.groups.rotate_secret(group, who_is(request, "")))
    return await _render_group(request, group, secret=secret)


@routes.add("POST", f"{PREFIX}/groups/{{group}}/test", verb=Verb.ADMIN)
async def probe_group(request: ApiRequest, group: str) -> HttpAnswer:
    """One signed call to each endpoint, as `group test` makes it first of all; nothing is left behind."""
    refuse_read_only(request)
    check_group(group, "?group")
    await read_form(request)
    known = or_reject(await request.services.groups.find(group, request.caller.rights))
    return await _render_group(request, group, report=await request.services.trials.probe(known))


async def _render_group(request: ApiRequest, group: str, **members: object) -> HttpAnswer:
    """`secret`: a new one; `refused`: why nothing was done; `report`: of a test."""
    check_group(group, "?group")
    health = or_reject(await request.services.groups.get(group, request.caller.rights))
    settings = render_settings(health.group.settings)
    named = {name.replace("_", " "): getattr(settings, name) for name in settings.__struct_fields__}
    check = {name: f"{value:g}" if isinstance(value, float) else value for name, value in named.items()}
    shown = {"secret": None, "refused": "", "report": None, **members}
    calls, status = request.services.calls_of(group), 422 if shown["refused"] else 200
    return render(request, "group.html", status, health=health, check=check, calls=calls, **shown)


# --- topics of transactions: what was published last, what cannot be, and how far consumers are behind ---

_TOPIC_ROWS = 50
_BLOCKED = 500  # of all topics, that are looked at


@routes.add("GET", f"{PREFIX}/topics", verb=Verb.READ, is_for_all=True)
async def show_topics(request: ApiRequest) -> HttpAnswer:
    """In the order of their names."""
    cursor = Query(request.query, PAGE_PARAMETERS).text("cursor") or ""
    check_property(cursor, "?cursor")
    found = or_reject(await request.services.search.topics(_TOPIC_ROWS, cursor))
    blocked, is_more = await _count_blocked(request)
    following = found[-1].topic if len(found) == _TOPIC_ROWS else None
    return render(
        request, "topics.html", found=found, blocked=blocked, is_more=is_more, following=following, is_first=not cursor
    )


@routes.add("GET", f"{PREFIX}/topics/{{topic}}", verb=Verb.READ, is_for_all=True)
async def show_topic(request: ApiRequest, topic: str) -> HttpAnswer:
    """One of them, as Kafka has it now."""
    if not is_legal_topic(topic):
        raise Rejected(Problem(NOT_FOUND, "no topic can be called so"))
    found = or_reject(await request.services.search.topic(topic))
    blocked, is_more = await _count_blocked(request)
    watch = request.services.consumers
    lag = None if watch is None else await watch.read(topic)
    return render(request, "topic.html", one=found, blocked=blocked.get(topic, 0), is_more=is_more, lag=lag)


async def _count_blocked(request: ApiRequest) -> tuple[Mapping[str, int], bool]:
    """Blocked commits by topic, of the newest ones; whether there are more."""
    wanted = SearchFilter(states=(TransactionState.COMMITTED,), blocked=True)
    page = or_reject(await request.services.search.search(wanted, _BLOCKED))
    topics = [{message.topic for message in view.messages} for view in page.transactions]
    return Counter(topic for named in topics for topic in named), page.next is not None
