"""Operators' acts on one transaction: bodies, routes, answers and their description."""

import msgspec
from msgspec import Struct

from api.web.bodies import EndWord, Nothing, Reason
from api.web.openapi import END_PROBLEMS, TRANSACTION_ID, WAIT, Body, Operation
from api.web.parse import check_transaction_id
from api.web.request import ApiRequest, check_reason, read_json, refuse, who_is
from api.web.road import HttpAnswer, Routes, json_answer
from api.web.transactions import BLOCKED, patience_of, show
from api.web.views import AskedAnswer, TransactionAnswer
from bridge.core.grants import Verb
from bridge.core.record import Act, Resolution
from bridge.service.contract import Refused


class ForceTransaction(Struct, forbid_unknown_fields=True):
    """An operator's resolution; audited."""

    resolution: EndWord
    reason: Reason


class ResumeTransaction(Struct, forbid_unknown_fields=True):
    """Makes a parked transaction prepared again; audited."""

    reason: Reason


class AbandonTransaction(Struct, forbid_unknown_fields=True):
    """Gives up a blocked commit: it stays committed and is never published; audited."""

    reason: Reason


_TAG = "operators"

ASK = Operation(
    _TAG,
    {202: (AskedAnswer, "The group will be asked.")},
    ("unknown-transaction", "already-resolved", "given-up", "too-early", "projection-behind", "outcome-unknown"),
    Body(Nothing, is_required=False),
    (TRANSACTION_ID, WAIT),
).arguments()

FORCE = Operation(
    _TAG,
    {200: (TransactionAnswer, "Settled."), 202: (TransactionAnswer, BLOCKED)},
    (*END_PROBLEMS, "projection-behind"),
    Body(
        ForceTransaction, examples={"roll back": {"resolution": "ROLLBACK", "reason": "order was cancelled by phone"}}
    ),
    (TRANSACTION_ID, WAIT),
).arguments()

ABANDON = Operation(
    _TAG,
    {200: (TransactionAnswer, "COMMITTED and `abandoned`: nothing of it is published, now or later.")},
    ("unknown-transaction", "not-blocked", "given-up", "projection-behind", "outcome-unknown"),
    Body(AbandonTransaction, examples={"gone": {"reason": "its topic was deleted for good, see ticket 7"}}),
    (TRANSACTION_ID, WAIT),
).arguments()

RESUME = Operation(
    _TAG,
    {200: (TransactionAnswer, "PREPARED again.")},
    ("unknown-transaction", "not-parked", "already-resolved", "given-up", "projection-behind", "outcome-unknown"),
    Body(ResumeTransaction, examples={"deployed": {"reason": "the shop answers again"}}),
    (TRANSACTION_ID, WAIT),
).arguments()

routes = Routes()

_nothing = msgspec.json.Decoder(Nothing)
_force = msgspec.json.Decoder(ForceTransaction)
_abandon = msgspec.json.Decoder(AbandonTransaction)
_resume = msgspec.json.Decoder(ResumeTransaction)


@routes.add("POST", "/v1/transactions/{transaction_id}/check", ASK, verb=Verb.OPERATE)
async def ask_now(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """Asks the producer group now, instead of at the next due time."""
    check_transaction_id(transaction_id, "?transaction_id")
    await read_json(request, _nothing, is_optional=True)
    wait_ms = patience_of(request).wait_ms
    answer = await request.services.transactions.act(transaction_id, Act.CHECK, who_is(request, ""), wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return json_answer(202, AskedAnswer(transaction_id))


@routes.add("POST", "/v1/transactions/{transaction_id}/force", FORCE, verb=Verb.OPERATE)
async def force(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """An operator's resolution; the first recorded one still wins."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _force)
    who = who_is(request, check_reason(body.reason))
    word = body.resolution
    resolution = Resolution[word] if isinstance(word, str) else Resolution(word)
    wait_ms = patience_of(request).wait_ms
    answer = await request.services.transactions.force(transaction_id, resolution, who, wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return show(answer)


@routes.add("POST", "/v1/transactions/{transaction_id}/resume", RESUME, verb=Verb.OPERATE)
async def resume(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """Gives a parked transaction a new life: counters start anew, first check at once."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _resume)
    return await _act(request, transaction_id, Act.RESUME, body.reason)


@routes.add("POST", "/v1/transactions/{transaction_id}/abandon", ABANDON, verb=Verb.OPERATE)
async def abandon(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """Gives up a blocked commit that can never be published: its ordering key goes on without it. Not undone."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _abandon)
    return await _act(request, transaction_id, Act.ABANDON, body.reason)


async def _act(request: ApiRequest, transaction_id: str, act: Act, reason: str) -> HttpAnswer:
    who = who_is(request, check_reason(reason))
    wait_ms = patience_of(request).wait_ms
    answer = await request.services.transactions.act(transaction_id, act, who, wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return show(answer)
