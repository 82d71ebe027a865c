"""Receivers of the bridge's own events: bodies, routes, answers and their description."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from api.web.bodies import INT64, Nothing, RequestTime
from api.web.openapi import OPERATORS, Body, Operation, path_parameter
from api.web.problems import NOT_FOUND, Problem, Rejected
from api.web.request import ApiRequest, Query, or_reject, read_json, read_nothing, who_is
from api.web.road import HttpAnswer, Routes, json_answer
from api.web.search import parse_optional_time
from api.web.views import Time, render_optional_time
from bridge.core.grants import Verb
from bridge.core.transaction import show_time
from bridge.sql.events import Happening
from checker.webhooks import FINDINGS, Webhooks, WebhookStatus


class ReportFindings(Struct, forbid_unknown_fields=True):
    """What a reconciliation has found: `findings` by kind. The same run told again is the same event."""

    run: Annotated[int, Meta(ge=0, le=INT64)]
    taken_at: RequestTime
    sentence: Annotated[str, Meta(max_length=2_000)]
    findings: Annotated[
        dict[Annotated[str, Meta(max_length=64)], Annotated[int, Meta(ge=1, le=INT64)]], Meta(max_length=100)
    ]


class WebhookAnswer(Struct):
    """A receiver, its path and query hidden, and what it has not been told yet. `last_failure`: of the oldest event."""

    name: str
    url: str
    events: list[str]
    waiting: int
    oldest_at: Time | None
    last_failure: str | None


class WebhookList(Struct):
    """As the settings name them."""

    webhooks: list[WebhookAnswer]


class WebhookTested(Struct):
    """What became of the call. `failure` null: the receiver answered 2xx."""

    name: str
    told: bool
    status: int
    failure: str | None
    latency_ms: int


class FindingsReported(Struct):
    """How many receivers are told."""

    webhooks: int


_NAME = path_parameter("webhook", "Name of a receiver.", "pager", "^[A-Za-z0-9._-]{1,64}$")

LIST_WEBHOOKS = Operation(OPERATORS, {200: (WebhookList, "All of them.")}).arguments()
TEST_WEBHOOK = Operation(
    OPERATORS,
    {200: (WebhookTested, "Called once; `told` says whether it was any good.")},
    ("not-found",),
    Body(Nothing, is_required=False),
    (_NAME,),
).arguments()
REPORT_FINDINGS = Operation(
    OPERATORS,
    {202: (FindingsReported, "They will be told.")},
    (),
    Body(
        ReportFindings,
        examples={
            "two": {
                "run": 12,
                "taken_at": "2026-03-01T12:00:00Z",
                "sentence": "2 of 10,000 transactions are not as they must be.",
                "findings": {"LOST": 2},
            }
        },
    ),
).arguments()

routes = Routes()

_findings = msgspec.json.Decoder(ReportFindings)


@routes.add("GET", "/v1/webhooks", LIST_WEBHOOKS, verb=Verb.READ, is_for_all=True)
async def list_webhooks(request: ApiRequest) -> HttpAnswer:
    """Who is told of the bridge's own events, and what waits for them."""
    Query(request.query, ())
    webhooks = request.services.webhooks
    found = or_reject([] if webhooks is None else await webhooks.list())
    return json_answer(200, WebhookList([_render(status) for status in found]))


@routes.add("POST", "/v1/webhooks/{webhook}/test", TEST_WEBHOOK, verb=Verb.OPERATE, is_for_all=True)
async def test_webhook(request: ApiRequest, webhook: str) -> HttpAnswer:
    """Sends a test event to a receiver now, once; audited."""
    Query(request.query, ())
    await read_nothing(request)
    webhooks: Webhooks | None = request.services.webhooks
    attempt = or_reject(None if webhooks is None else await webhooks.test(webhook, who_is(request, "")))
    if attempt is None:
        raise Rejected(Problem(NOT_FOUND, "no such webhook"))
    tested = WebhookTested(webhook, attempt.failure is None, attempt.status, attempt.failure, attempt.latency_ms)
    return json_answer(200, tested)


@routes.add("POST", "/v1/webhooks/findings", REPORT_FINDINGS, verb=Verb.OPERATE, is_for_all=True)
async def report_findings(request: ApiRequest) -> HttpAnswer:
    """Tells the receivers what a reconciliation has found, as `outbox-bridge report run` does; audited."""
    Query(request.query, ())
    body = await read_json(request, _findings)
    at_ms = parse_optional_time(body.taken_at, "/taken_at") or 0
    key = f"{body.run}\0{at_ms}"
    data = {"run": body.run, "taken_at": show_time(at_ms), "sentence": body.sentence, "findings": body.findings}
    webhooks = request.services.webhooks
    happening = Happening(FINDINGS, key, str(body.run), at_ms, data)
    told = or_reject(0 if webhooks is None else await webhooks.report(happening, who_is(request, "")))
    return json_answer(202, FindingsReported(told))


def _render(status: WebhookStatus) -> WebhookAnswer:
    target, waiting = status
    return WebhookAnswer(
        target.name,
        target.place,
        sorted(target.events),
        0 if waiting is None else waiting.events,
        None if waiting is None else render_optional_time(waiting.oldest_ms),
        None if waiting is None else waiting.failure,
    )
