"""Tests of a group's endpoints: body, route, answer and their description. No answer of an endpoint counts here."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from api.web.bodies import TransactionId
from api.web.openapi import GROUP, Body, Operation
from api.web.parse import check_group, check_transaction_id
from api.web.request import ApiRequest, Query, read_json, refuse
from api.web.road import NO_STORE, HttpAnswer, Routes, json_answer
from bridge.core.grants import Verb
from bridge.service.contract import Refused
from checker.conformance import Trial
from checker.endpoint_trial import EarlierAnswer, TrialPlan, TrialReport


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
    "producer groups",
    {200: (TrialsAnswer, "What the endpoints did. Nothing was changed, and no answer counted.")},
    ("unknown-producer-group",),
    Body(TryEndpoints, is_required=False, examples={"one signed call": {"probe": True}, "all trials": {}}),
    (GROUP,),
).arguments()


routes = Routes()

_trial = msgspec.json.Decoder(TryEndpoints)


@routes.add("POST", "/v1/producer-groups/{group}/test", TRY_ENDPOINTS, verb=Verb.ADMIN)
async def try_endpoints(request: ApiRequest, group: str) -> HttpAnswer:
    """Calls the group's endpoints as the checker would, and as a forger would; minutes, if they are slow."""
    check_group(group, "?group")
    Query(request.query, ())
    body = await read_json(request, _trial, is_optional=True)
    _check_ids(body)
    services = request.services
    known = await services.groups.find(group, request.caller.rights)
    if isinstance(known, Refused):
        raise refuse(known)
    if body.again:
        earlier = [EarlierAnswer(one.endpoint, Trial(one.trial), one.transaction_id, one.answer) for one in body.again]
        report = await services.trials.ask_again(known, earlier)
    elif body.probe:
        report = await services.trials.probe(known)
    else:
        report = await services.trials.attack(known, TrialPlan(body.committed, body.open))
    return json_answer(200, _render_report(report), NO_STORE)


def _check_ids(body: TryEndpoints) -> None:
    """Nothing but ids goes into what is signed. Raises Rejected."""
    named = {"/committed": body.committed, "/open": body.open}
    named |= {f"/again/{n}/transaction_id": one.transaction_id for n, one in enumerate(body.again)}
    for place, text in named.items():
        if text is not None:
            check_transaction_id(text, place)


def _render_report(report: TrialReport) -> TrialsAnswer:
    return TrialsAnswer(
        [TrialAnswer(one.endpoint, one.trial, one.verdict.value, *one[3:]) for one in report.findings],
        [msgspec.convert(one._asdict(), EarlierAnswerBody) for one in report.later],
    )
