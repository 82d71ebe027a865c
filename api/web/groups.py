"""Producer groups: bodies, routes, answers and their description."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.web.bodies import GroupName, Nothing, Reason
from api.web.openapi import CURSOR, GROUP, GROUPS, LIMIT, Body, Operation, query_parameter
from api.web.parse import check_group
from api.web.problems import invalid
from api.web.request import ApiRequest, Query, check_reason, or_reject, read_json, read_nothing, who_is
from api.web.road import NO_STORE, HttpAnswer, Routes, json_answer
from api.web.search import PAGE_PARAMETERS, GroupCountsAnswer, answer_page, page_of, render_counts
from api.web.views import Time, render_optional_time
from bridge.core.check_rules import CheckCalls, CheckMode, CheckTimes, GroupSettings, WhenExhausted
from bridge.core.grants import Verb
from bridge.core.transaction import show_time
from bridge.directory import Endpoint, GroupSwitch, show_url
from bridge.service.groups import EndpointRegistered, GroupSaved
from bridge.sql.groups import EndpointHealth, GroupHealth

CallbackUrl = Annotated[str, Meta(min_length=1, max_length=2_000, examples=["https://orders.example.com/check"])]


class CheckSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a group is asked about transactions whose end is missing."""

    transaction_timeout_seconds: Annotated[float, Meta(ge=1, le=86_400, description="No check before.")] = 6
    interval_seconds: Annotated[float, Meta(ge=1, le=3_600, description="Between two checks.")] = 30
    max_checks: Annotated[int, Meta(ge=1, le=1_000, description="Answered ones, then it is parked.")] = 15
    max_lifetime_seconds: Annotated[float, Meta(ge=1, le=604_800, description="Then it is parked.")] = 86_400
    call_timeout_seconds: Annotated[float, Meta(ge=0.1, le=60, description="For the whole exchange.")] = 5
    batch_size: Annotated[int, Meta(ge=1, le=1_000, description="Transactions in one call.")] = 100
    concurrency: Annotated[int, Meta(ge=1, le=256, description="Calls at once.")] = 8
    mode: Annotated[
        Literal["push", "pull"], Meta(description="`pull`: the group fetches its checks; no endpoint is called.")
    ] = "push"
    when_exhausted: Annotated[
        Literal["park", "rollback"],
        Meta(description="After the last check or the longest life: `park`, for a person to decide, or `rollback`."),
    ] = "park"


class EndpointUrl(Struct, forbid_unknown_fields=True):
    """Where a group answers checks."""

    url: CallbackUrl


class RegisterEndpoint(Struct, forbid_unknown_fields=True):
    """A live instance that can be asked at this URL until the lease is over; said again, the lease begins anew."""

    url: CallbackUrl
    lease_seconds: Annotated[float, Meta(ge=1, le=86_400, description="Renew it at about a third.")] = 60


class PutGroup(Struct, forbid_unknown_fields=True):
    """Settings and static endpoints of a producer group; replaces what was there."""

    endpoints: Annotated[list[EndpointUrl], Meta(max_length=100)] = []
    check: CheckSettings = CheckSettings()
    accept_prepares: Annotated[
        bool, Meta(description="False: nothing new is prepared or published; what is pending is settled and checked.")
    ] = True


class SwitchGroup(Struct, forbid_unknown_fields=True):
    """What of a group is paused, or goes on; audited. `checks`: nobody is asked, nothing is parked or rolled back for
    its age. `prepares`: nothing new is prepared or published; what is pending is settled and checked."""

    what: Literal["checks", "prepares"]
    reason: Reason


class GroupSwitchedAnswer(Struct):
    """A group, and what of it is paused now."""

    name: GroupName
    checks_paused: bool
    accept_prepares: bool


class EndpointAnswer(Struct):
    """A callback URL, its query hidden, and what became of its rounds, together with those of other queries.
    `disabled_reason`: it said that it is gone; asked no more."""

    url: str
    leased: bool
    lease_until: Time | None
    disabled_reason: str | None
    answered: int = 0
    last_answered_at: Time | None = None
    last_latency_ms: int | None = None
    unanswered: int = 0
    last_unanswered_at: Time | None = None
    last_failure: str | None = None


class UnaskedAnswer(Struct):
    """Rounds in which the group had no endpoint to ask, or nobody fetched or answered its checks."""

    count: int
    last_at: Time | None


class FetchedAnswer(Struct):
    """Checks that the group fetched and answered."""

    answered: int
    last_answered_at: Time | None


class GroupSavedAnswer(Struct, omit_defaults=True):
    """A producer group. `secret` signs the bridge's calls; it is shown once, when a PUT created the group."""

    name: GroupName
    endpoints: list[EndpointAnswer]
    check: CheckSettings
    accept_prepares: bool
    checks_paused: Annotated[bool, Meta(description="An operator has paused them; a PUT leaves that as it is.")]
    created_at: Time
    secret: Annotated[str, Meta(examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"])] | UnsetType = UNSET


class GroupAnswer(Struct, kw_only=True):
    """A producer group with the results of its rounds and its counts."""

    name: GroupName
    endpoints: list[EndpointAnswer]
    check: CheckSettings
    accept_prepares: bool
    checks_paused: bool
    damaged: Annotated[
        list[str], Meta(description="What of its secrets and endpoints cannot be decrypted: they are not used.")
    ]
    created_at: Time
    unasked: UnaskedAnswer
    fetched: FetchedAnswer
    counts: GroupCountsAnswer


class GroupList(Struct):
    """In the order of their names. `next`: cursor of the next page, null on the last."""

    producer_groups: list[GroupAnswer]
    next: str | None


class GroupRemoved(Struct):
    """A group that is no more."""

    name: GroupName


class EndpointRegisteredAnswer(Struct):
    """An endpoint of the group. `lease_until` is null for one that a PUT named: it needs no lease."""

    url: str
    leased: bool
    lease_until: Time | None


class EndpointRemovedAnswer(Struct):
    """`removed`: whether there was a lease to end. What a PUT named stays until the next PUT."""

    url: str
    removed: bool


class SecretAnswer(Struct):
    """A new signing secret, shown once. Each one before it signs for 24 h after it was replaced."""

    name: GroupName
    secret: str


_LOCATION = {"Location": "Path of the group."}

PUT_GROUP = Operation(
    GROUPS,
    {
        201: (GroupSavedAnswer, "Created; with its signing secret, shown this once."),
        200: (GroupSavedAnswer, "Replaced; leased endpoints stay."),
    },
    ("callback-url-forbidden", "callback-unverified"),
    Body(
        PutGroup,
        examples={
            "an endpoint": {"endpoints": [{"url": "https://orders.example.com/check"}]},
            "patient": {
                "endpoints": [{"url": "https://orders.example.com/check"}],
                "check": {"transaction_timeout_seconds": 60, "interval_seconds": 120, "max_checks": 30},
            },
            "fetches its checks": {"check": {"mode": "pull"}},
        },
    ),
    (GROUP,),
    headers={201: _LOCATION, 200: _LOCATION},
).arguments()
GET_GROUP = Operation(
    GROUPS, {200: (GroupAnswer, "The group.")}, ("unknown-producer-group",), parameters=(GROUP,)
).arguments()
LIST_GROUPS = Operation(
    GROUPS,
    {200: (GroupList, "A page.")},
    parameters=(LIMIT, CURSOR),
    headers={200: {"Link": 'Where the next page is (`rel="next"`), if there is one.'}},
).arguments()
DELETE_GROUP = Operation(
    GROUPS,
    {200: (GroupRemoved, "Removed.")},
    ("unknown-producer-group", "producer-group-in-use", "projection-behind"),
    Body(Nothing, is_required=False),
    (GROUP,),
).arguments()
ROTATE_SECRET = Operation(
    GROUPS,
    {200: (SecretAnswer, "The new secret, shown this once.")},
    ("unknown-producer-group",),
    Body(Nothing, is_required=False),
    (GROUP,),
).arguments()
_SWITCH = Body(
    SwitchGroup,
    examples={
        "while the shop is moved": {"what": "checks", "reason": "the shop's database is being moved"},
        "drain": {"what": "prepares", "reason": "the shop is switched off tonight"},
    },
)
PAUSE_GROUP = Operation(
    GROUPS,
    {200: (GroupSwitchedAnswer, "Paused; calls that have begun end.")},
    ("unknown-producer-group",),
    _SWITCH,
    (GROUP,),
).arguments()
RESUME_GROUP = Operation(
    GROUPS,
    {200: (GroupSwitchedAnswer, "It goes on; what has come of age meanwhile is asked about before it is parked.")},
    ("unknown-producer-group",),
    _SWITCH,
    (GROUP,),
).arguments()
REGISTER_ENDPOINT = Operation(
    GROUPS,
    {200: (EndpointRegisteredAnswer, "Asked from now on, or for longer.")},
    ("unknown-producer-group", "callback-url-forbidden", "callback-unverified", "too-many-endpoints"),
    Body(
        RegisterEndpoint, examples={"an instance": {"url": "https://orders-7.example.com/check", "lease_seconds": 60}}
    ),
    (GROUP,),
).arguments()
REMOVE_ENDPOINT = Operation(
    GROUPS,
    {200: (EndpointRemovedAnswer, "Asked no more, unless a PUT named it.")},
    ("unknown-producer-group",),
    Body(Nothing, is_required=False),
    (GROUP, query_parameter("url", "As it was registered.", {"type": "string", "minLength": 1}) | {"required": True}),
).arguments()


def make_group(body: PutGroup) -> tuple[GroupSettings, list[str]]:
    """Settings and callback URLs of a producer group. Raises Rejected."""
    urls = [endpoint.url for endpoint in body.endpoints]
    if len(set(urls)) < len(urls):
        raise invalid("/endpoints", "a URL is given twice")
    return _make_settings(body), urls


def _make_settings(body: PutGroup) -> GroupSettings:
    check = body.check
    return GroupSettings(
        CheckTimes(
            round(check.transaction_timeout_seconds * 1000),
            round(check.interval_seconds * 1000),
            check.max_checks,
            round(check.max_lifetime_seconds * 1000),
        ),
        CheckCalls(
            round(check.call_timeout_seconds * 1000), check.batch_size, check.concurrency, CheckMode(check.mode)
        ),
        WhenExhausted(check.when_exhausted),
        body.accept_prepares,
    )


_NOTHING = EndpointHealth(Endpoint(""))  # rounds without an endpoint, and fetched checks, are kept under no URL


def render_group(health: GroupHealth, now_ms: int) -> GroupAnswer:
    """A group; ages at `now_ms`. Endpoints that left are not shown: who reads a group puts it with those it has."""
    group = health.group
    known = {endpoint.url for endpoint in group.endpoints}
    unnamed = next((endpoint for endpoint in health.endpoints if not endpoint.endpoint.url), _NOTHING)
    return GroupAnswer(
        name=group.name,
        endpoints=[_render_health(one) for one in health.endpoints if one.endpoint.url in known],
        check=render_settings(group.settings),
        accept_prepares=group.settings.accepts_prepares,
        checks_paused=group.settings.pauses_checks,
        damaged=list(health.damaged),
        created_at=show_time(group.created_ms),
        unasked=UnaskedAnswer(unnamed.unanswered, render_optional_time(unnamed.last_unanswered_ms)),
        fetched=FetchedAnswer(unnamed.answered, render_optional_time(unnamed.last_answered_ms)),
        counts=render_counts(health.stats, now_ms),
    )


def render_saved(saved: GroupSaved) -> GroupSavedAnswer:
    """A group that was put."""
    return GroupSavedAnswer(
        saved.group.name,
        [_render_endpoint(endpoint) for endpoint in saved.group.endpoints],
        render_settings(saved.group.settings),
        saved.group.settings.accepts_prepares,
        saved.group.settings.pauses_checks,
        show_time(saved.group.created_ms),
        msgspec.UNSET if saved.secret is None else saved.secret,
    )


def render_registered(registered: EndpointRegistered) -> EndpointRegisteredAnswer:
    """An endpoint that was registered."""
    until_ms = registered.lease_until_ms
    return EndpointRegisteredAnswer(show_url(registered.url), until_ms is not None, render_optional_time(until_ms))


def render_settings(settings: GroupSettings) -> CheckSettings:
    """Settings as they were put: in seconds."""
    times, calls = settings.times, settings.calls
    return CheckSettings(
        times.transaction_timeout_ms / 1000,
        times.interval_ms / 1000,
        times.max_checks,
        times.max_lifetime_ms / 1000,
        calls.call_timeout_ms / 1000,
        calls.batch_size,
        calls.concurrency,
        calls.mode.value,
        settings.when_exhausted.value,
    )


def _render_endpoint(endpoint: Endpoint) -> EndpointAnswer:
    until = render_optional_time(endpoint.lease_until_ms)
    return EndpointAnswer(show_url(endpoint.url), endpoint.is_leased, until, endpoint.disabled_reason)


def _render_health(health: EndpointHealth) -> EndpointAnswer:
    shown = _render_endpoint(health.endpoint)
    shown.answered = health.answered
    shown.last_answered_at = render_optional_time(health.last_answered_ms)
    shown.last_latency_ms = health.last_latency_ms
    shown.unanswered = health.unanswered
    shown.last_unanswered_at = render_optional_time(health.last_unanswered_ms)
    shown.last_failure = health.last_failure
    return shown


routes = Routes()

_group = msgspec.json.Decoder(PutGroup)
_endpoint = msgspec.json.Decoder(RegisterEndpoint)
_switch = msgspec.json.Decoder(SwitchGroup)


@routes.add("PUT", "/v1/producer-groups/{group}", PUT_GROUP, verb=Verb.ADMIN)
async def put_group(request: ApiRequest, group: str) -> HttpAnswer:
    """Creates a group, or replaces its settings and static endpoints."""
    check_group(group, "?group")
    settings, urls = make_group(await read_json(request, _group))
    saved = or_reject(await request.services.groups.put(group, settings, urls, who_is(request, "")))
    headers = (("Location", f"/v1/producer-groups/{group}"), *NO_STORE)
    return json_answer(201 if saved.is_created else 200, render_saved(saved), headers)


@routes.add("GET", "/v1/producer-groups/{group}", GET_GROUP, verb=Verb.READ)
async def get_group(request: ApiRequest, group: str) -> HttpAnswer:
    """Settings, endpoints with their health, counts."""
    check_group(group, "?group")
    Query(request.query, ())
    services = request.services
    health = or_reject(await services.groups.get(group, request.caller.rights))
    return json_answer(200, render_group(health, services.now_ms()))


@routes.add("GET", "/v1/producer-groups", LIST_GROUPS, verb=Verb.READ)
async def list_groups(request: ApiRequest) -> HttpAnswer:
    """Groups in the order of their names."""
    services = request.services
    limit, cursor = page_of(Query(request.query, PAGE_PARAMETERS), services.limits.page)
    if cursor is not None:
        check_group(cursor, "?cursor")
    found = or_reject(await services.groups.list(limit, cursor or "", request.caller.rights))
    following = found[-1].group.name if len(found) == limit else None
    now_ms = services.now_ms()
    return await answer_page(request, "producer_groups", found, lambda health: render_group(health, now_ms), following)


@routes.add("DELETE", "/v1/producer-groups/{group}", DELETE_GROUP, verb=Verb.ADMIN)
async def delete_group(request: ApiRequest, group: str) -> HttpAnswer:
    """Removes a group without pending, parked or blocked transactions."""
    check_group(group, "?group")
    Query(request.query, ())
    await read_nothing(request)
    or_reject(await request.services.groups.delete(group, who_is(request, "")))
    return json_answer(200, GroupRemoved(group))


@routes.add("POST", "/v1/producer-groups/{group}/rotate-secret", ROTATE_SECRET, verb=Verb.ADMIN)
async def rotate_secret(request: ApiRequest, group: str) -> HttpAnswer:
    """Makes a new signing secret, shown once; the old one signs too for 24 h."""
    check_group(group, "?group")
    Query(request.query, ())
    await read_nothing(request)
    secret = or_reject(await request.services.groups.rotate_secret(group, who_is(request, "")))
    return json_answer(200, SecretAnswer(group, secret), NO_STORE)


@routes.add("POST", "/v1/producer-groups/{group}/pause", PAUSE_GROUP, verb=Verb.OPERATE)
async def pause_group(request: ApiRequest, group: str) -> HttpAnswer:
    """Nobody of the group is asked, or nothing new of it is taken, until it is resumed; may be repeated."""
    return await _turn(request, group, is_paused=True)


@routes.add("POST", "/v1/producer-groups/{group}/resume", RESUME_GROUP, verb=Verb.OPERATE)
async def resume_group(request: ApiRequest, group: str) -> HttpAnswer:
    """What was paused goes on; may be repeated."""
    return await _turn(request, group, is_paused=False)


async def _turn(request: ApiRequest, group: str, *, is_paused: bool) -> HttpAnswer:
    check_group(group, "?group")
    Query(request.query, ())
    body = await read_json(request, _switch)
    who = who_is(request, check_reason(body.reason))
    found = or_reject(await request.services.groups.switch(group, GroupSwitch(body.what), who, is_paused=is_paused))
    settings = found.settings
    return json_answer(200, GroupSwitchedAnswer(group, settings.pauses_checks, settings.accepts_prepares))


@routes.add("POST", "/v1/producer-groups/{group}/endpoints", REGISTER_ENDPOINT, verb=Verb.CHECK)
async def register_endpoint(request: ApiRequest, group: str) -> HttpAnswer:
    """A live instance can be asked at its URL for the length of a lease; repeat it to renew."""
    check_group(group, "?group")
    Query(request.query, ())
    body = await read_json(request, _endpoint)
    lease_ms = round(body.lease_seconds * 1000)
    registered = or_reject(
        await request.services.groups.register_endpoint(group, body.url, lease_ms, who_is(request, ""))
    )
    return json_answer(200, render_registered(registered))


@routes.add("DELETE", "/v1/producer-groups/{group}/endpoints", REMOVE_ENDPOINT, verb=Verb.CHECK)
async def remove_endpoint(request: ApiRequest, group: str) -> HttpAnswer:
    """Ends the lease of an endpoint. Repeating it changes nothing."""
    check_group(group, "?group")
    url = Query(request.query, {"url"}).text("url")
    if not url:
        raise invalid("?url", "which endpoint?")
    await read_nothing(request)
    removed = or_reject(await request.services.groups.remove_endpoint(group, url, who_is(request, "")))
    return json_answer(200, EndpointRemovedAnswer(show_url(url), removed))
