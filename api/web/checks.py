"""Checks that are claimed, and the callback: bodies, routes, answers and their description."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.web.bodies import GroupName, TransactionId
from api.web.groups import _TAG
from api.web.openapi import GROUP, Body, Operation
from api.web.parse import check_group
from api.web.request import ApiRequest, Query, read_json, refuse
from api.web.road import NO_STORE, HttpAnswer, Routes
from api.web.views import MessageAnswer, Time
from bridge.core.grants import Verb
from bridge.core.message import write_message
from bridge.service.claims import ClaimCall, ClaimedCheck
from bridge.service.contract import Refused
from bridge.turns import Steps, each_in_steps, take_error
from checker.call import Check, NonceMaker, Subject, encode_call, render_check


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
            str,
            Meta(description="Why; kept in the journal and shown in the timeline, cut off after 512 characters."),
        ]
        | UnsetType
    ) = UNSET


class CheckAnswer(Struct):
    """The answer to a call. `challenge`: that of the call, if it had one."""

    resolutions: list[CheckResolution]
    challenge: str | UnsetType = UNSET


CLAIM_CHECKS = Operation(
    _TAG,
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
        return render_check(Subject(view.transaction_id, number, view.born_ms, view.idempotency_key, shown), make_nonce)

    checks = yield from each_in_steps(claimed, render, lambda check: len(check.text))
    return encode_call(group, checks).encode()


routes = Routes()

_claim = msgspec.json.Decoder(ClaimChecks)


@routes.add("POST", "/v1/producer-groups/{group}/checks/claim", CLAIM_CHECKS, verb=Verb.CHECK)
async def claim(request: ApiRequest, group: str) -> HttpAnswer:
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
        lambda: not (leaving.done() or request.traffic.is_draining),
        request.caller.rights,
    )
    try:
        claimed = await request.services.claims.claim(call)
    finally:
        leaving.cancel()
    if isinstance(claimed, Refused):
        raise refuse(claimed)
    shown = await request.services.turns.run(render_claimed(group, claimed, request.services.nonces.begin()))
    return HttpAnswer(200, shown, NO_STORE)


async def _wait_gone(request: ApiRequest) -> None:
    """Returns when the caller has hung up: what would be claimed for it would only be held."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
