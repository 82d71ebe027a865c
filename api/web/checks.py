"""Checks that are claimed, the callback, tests of endpoints: bodies, routes, answers and their description."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.web.bodies import GroupName, TransactionId
from api.web.openapi import GROUP, GROUPS, Body, Operation
from api.web.parse import check_group, check_transaction_id
from api.web.request import ApiRequest, Query, or_reject, read_json
from api.web.road import NO_STORE, HttpAnswer, Routes, json_answer
from api.web.views import MessageAnswer, Time
from bridge.core.grants import Verb
from bridge.core.message import write_message
from bridge.service.claims import ClaimCall, ClaimedCheck
from bridge.turns import Steps, each_in_steps, take_error
from checker.call import Check, NonceMaker, Subject, encode_call, render_check
from checker.conformance import Trial
from checker.endpoint_trial import EarlierAnswer, TrialPlan, TrialReport

# --- checks that are claimed, and the callback: bodies, routes, answers and their description ---


class ClaimChecks(Struct, frozen=True, forbid_unknown_fields=True):
    """Due checks of a group that fetches them, leased to the caller: nobody else gets them until the lease is over."""

    limit: Annotated[int, Meta(ge=1, le=1_000, description="How many at most.")] = 100
    wait_seconds: Annotated[float, Meta(ge=0, le=60, description="How long to wait if nothing is due.")] = 30
    lease_seconds: Annotated[float, Meta(ge=1, le=3_600, description="Answer within.")] = 60


Nonce = Annotated[str, Meta(description="Goes back with the answer.", examples=["1-p7Yw0b2cQm3dEf4g"])]


class CheckItem(Struct):
    """A transaction whose end is missing. `check_number` counts answered checks, from 1."""

    transaction_id: TransactionId
    check_number: int
    nonce: Nonce
    born_time: Time
    idempotency_key: str | None
    messages: list[MessageAnswer]


class CheckCall(Struct):
    """One call about many transactions of one group. With `challenge`, about none: that text is wanted back."""

    type: Literal["transaction.check"]
    producer_group: GroupName
    checks: list[CheckItem]
    challenge: str | UnsetType = UNSET


class CheckResolution(Struct):
    """What became of one transaction."""

    transaction_id: TransactionId
    nonce: Nonce
    resolution: Literal["COMMIT", "ROLLBACK", "UNKNOWN"]
    remark: (
        Annotated[
            str, Meta(description="Why; kept in the journal and shown in the timeline, cut off after 512 characters.")
        ]
        | UnsetType
    ) = UNSET


class CheckAnswer(Struct):
    """The answer to a call. `challenge`: that of the call, if it had one."""

    resolutions: list[CheckResolution]
    challenge: str | UnsetType = UNSET


CLAIM_CHECKS = Operation(
    GROUPS,
    {200: (CheckCall, "The checks, leased to the caller; none if none came due in time. As a call would send them.")},
    ("unknown-producer-group", "not-pull-mode", "projection-behind"),
    Body(
        ClaimChecks,
        is_required=False,
        examples={
            "wait for some": {"limit": 100, "wait_seconds": 30, "lease_seconds": 60},
            "look once": {"wait_seconds": 0},
        },
    ),
    (GROUP,),
).arguments()


def render_claimed(group: str, claimed: Sequence[ClaimedCheck], make_nonce: NonceMaker) -> Steps[bytes]:
    """Claimed checks as the body of a call."""
    messages = [message for check in claimed for message in check.messages]
    texts = iter((yield from each_in_steps(messages, write_message)))

    def render(one: ClaimedCheck) -> Check:
        view, number, asked, _ = one
        shown = list(islice(texts, len(asked)))
        subject = Subject(view.transaction_id, number, view.appended_ms, view.idempotency_key, shown)
        return render_check(subject, make_nonce)

    checks = yield from each_in_steps(claimed, render, lambda check: len(check.text))
    return encode_call(group, checks).encode()


routes = Routes()

_claim = msgspec.json.Decoder(ClaimChecks)


@routes.add("POST", "/v1/producer-groups/{group}/checks/claim", CLAIM_CHECKS, verb=Verb.CHECK)
async def claim_checks(request: ApiRequest, group: str) -> HttpAnswer:
    """Due checks of a group that fetches them, as a call would send them; to be answered as resolutions."""
    check_group(group, "?group")
    Query(request.query, ())
    body = await read_json(request, _claim, is_optional=True)
    leaving = asyncio.ensure_future(_wait_gone(request))
    leaving.add_done_callback(take_error)
    call = ClaimCall(
        group,
        body.limit,
        round(body.wait_seconds * 1000),
        round(body.lease_seconds * 1000),
        lambda: not (leaving.done() or request.traffic.is_draining) and _may_still_claim(request, group),
        request.caller.rights,
    )
    try:
        claimed = await request.services.claims.claim(call)
    finally:
        leaving.cancel()
    claimed = or_reject(claimed)
    shown = await request.services.turns.run(render_claimed(group, claimed, request.services.nonces.begin()))
    return HttpAnswer(200, shown, NO_STORE)


def _may_still_claim(request: ApiRequest, group: str) -> bool:
    """Checks show messages: what came due after a right was taken away is not for him who had it."""
    return request.prove_again() is None and request.caller.rights.may(Verb.CHECK, group)


async def _wait_gone(request: ApiRequest) -> None:
    """Returns when the caller has hung up: what would be claimed for it would only be held."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- tests of a group's endpoints ---


class EarlierAnswerBody(Struct, forbid_unknown_fields=True):
    """What an endpoint said in a test, as that test's `later` names it."""

    endpoint: Annotated[str, Meta(min_length=1, max_length=2_000)]
    trial: Literal["after it has ended", "after a restart"]
    transaction_id: TransactionId
    answer: Literal["COMMIT", "ROLLBACK", "UNKNOWN"]


class TryEndpoints(Struct, forbid_unknown_fields=True):
    """What is tried at the endpoints. `probe`: one signed call alone. `committed`, `open`: transactions whose local
    transaction is that. `again`: asks what an earlier test names in `later`, and nothing else."""

    probe: bool = False
    committed: TransactionId | None = None
    open: TransactionId | None = None
    again: Annotated[list[EarlierAnswerBody], Meta(max_length=2_200)] = []


class TrialAnswer(Struct):
    """What one endpoint did in one trial. `remedy` is empty where nothing is wrong; `skipped`: it lacked something."""

    endpoint: str
    trial: str
    verdict: Literal["good", "bad", "skipped"]
    found: str
    remedy: str
    latency_ms: int


class TrialsAnswer(Struct):
    """What was found; `later`: for `again`, after the open local transaction has ended, or after a restart."""

    findings: list[TrialAnswer]
    later: list[EarlierAnswerBody]


TRY_ENDPOINTS = Operation(
    GROUPS,
    {200: (TrialsAnswer, "What the endpoints did. Nothing was changed, and no answer counted.")},
    ("unknown-producer-group",),
    Body(TryEndpoints, is_required=False, examples={"one signed call": {"probe": True}, "all trials": {}}),
    (GROUP,),
).arguments()


_trial = msgspec.json.Decoder(TryEndpoints)


@routes.add("POST", "/v1/producer-groups/{group}/test", TRY_ENDPOINTS, verb=Verb.ADMIN)
async def try_endpoints(request: ApiRequest, group: str) -> HttpAnswer:
    """Calls the group's endpoints as the checker would, and as a forger would; minutes, if they are slow."""
    check_group(group, "?group")
    Query(request.query, ())
    body = await read_json(request, _trial, is_optional=True)
    _check_ids(body)
    services = request.services
    known = or_reject(await services.groups.find(group, request.caller.rights))
    if body.again:
        earlier = [EarlierAnswer(one.endpoint, Trial(one.trial), one.transaction_id, one.answer) for one in body.again]
        report = await services.trials.ask_again(known, earlier)
    elif body.probe:
        report = await services.trials.probe(known)
    else:
        report = await services.trials.attack(known, TrialPlan(body.committed, body.open))
    return json_answer(200, render_report(report), NO_STORE)


def _check_ids(body: TryEndpoints) -> None:
    """Nothing but ids goes into what is signed. Raises Rejected."""
    named = {"/committed": body.committed, "/open": body.open}
    named |= {f"/again/{n}/transaction_id": one.transaction_id for n, one in enumerate(body.again)}
    for place, text in named.items():
        if text is not None:
            check_transaction_id(text, place)


def render_report(report: TrialReport) -> TrialsAnswer:
    """Findings, and what can be asked again."""
    return TrialsAnswer(
        [TrialAnswer(one.endpoint, one.trial, one.verdict.value, *one[3:]) for one in report.findings],
        [msgspec.convert(one._asdict(), EarlierAnswerBody) for one in report.later],
    )
