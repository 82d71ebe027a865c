"""Ends: many at once, and by operators one by one. Bodies, routes, answers and their description."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from api.web.bodies import EndWord, Nothing, Reason, ResolutionItem, Resolutions
from api.web.large_bodies import LARGE_BYTES, resolution_in_steps, resolutions_in_steps
from api.web.ndjson import Line, LinesAnswer
from api.web.openapi import END_PROBLEMS, OPERATORS, PREFER, TRANSACTION_ID, WAIT, Body, Operation
from api.web.parse import NoncedEnd, check_transaction_id, parse_resolution, parse_resolutions
from api.web.problems import Problem, invalid
from api.web.request import (
    JSON,
    NDJSON,
    ApiRequest,
    check_reason,
    media_type,
    or_reject,
    read_json,
    read_nothing,
    who_is,
)
from api.web.road import HttpAnswer, Routes, json_answer
from api.web.transactions import BLOCKED, EACH, TAG, answer_each, join, parse_lines, patience_of, show
from api.web.views import AskedAnswer, BatchAnswer, TransactionAnswer
from bridge.core.grants import Verb
from bridge.core.record import Act, Resolution, Source
from bridge.service.contract import EndCall
from checker.call import Nonces

# --- many ends at once, and answers to checks: routes and their description ---

_ID = TRANSACTION_ID["example"]

RESOLVE = Operation(
    TAG,
    {200: (BatchAnswer, EACH)},
    (),
    Body(
        Resolutions,
        examples={
            "commit": {"resolutions": [{"transaction_id": _ID, "resolution": "COMMIT"}]},
            "answer to a check": {
                "resolutions": [{"transaction_id": _ID, "resolution": "ROLLBACK", "nonce": "1-p7Yw0b2cQm3dEf4g"}]
            },
        },
        lines=ResolutionItem,
    ),
    (WAIT, PREFER),
).arguments()


routes = Routes()


@routes.add("POST", "/v1/resolutions", RESOLVE, is_hot=True, verb=None)
async def resolve_transactions(request: ApiRequest) -> HttpAnswer | LinesAnswer:
    """Ends many transactions; each is decided on its own. UNKNOWN changes nothing."""
    patience, services = patience_of(request), request.services

    async def answer(calls: Sequence[EndCall | NoncedEnd | Problem], pointer: str) -> list[bytes]:
        ends = [
            _answer_to_check(call, services.nonces, pointer, n) if isinstance(call, NoncedEnd) else call
            for n, call in enumerate(calls)
        ]
        end, wait_ms, rights = services.transactions.end, patience.wait_ms, request.caller.rights
        return await answer_each(request, ends, pointer, lambda right: end(right, patience.wait, wait_ms, rights))

    async def answer_lines(lines: Sequence[Line]) -> list[bytes]:
        return await answer(await parse_lines(services.turns, lines, parse_resolution, resolution_in_steps), "")

    if media_type(request, JSON, NDJSON) == NDJSON:
        return LinesAnswer(request, answer_lines)
    raw = await request.body()
    if len(raw) > LARGE_BYTES:
        calls = await services.turns.run(resolutions_in_steps(raw))
    else:
        calls = parse_resolutions(raw)
    return join(await answer(calls, "/resolutions/{}"))


def _answer_to_check(call: NoncedEnd, nonces: Nonces, pointer: str, index: int) -> EndCall | Problem:
    """A nonce tells which check is answered; an invented one is refused, and nothing is used up."""
    number = nonces.read(call.nonce, call.call.transaction_id)
    if number is None:
        return invalid(f"{pointer.format(index)}/nonce", "not the nonce of a check of this transaction").problem
    return replace(call.call, source=Source.CHECK, check_number=number)


# --- operators' acts on one transaction: bodies, routes, answers and their description ---


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


ASK = Operation(
    OPERATORS,
    {202: (AskedAnswer, "The group will be asked.")},
    ("unknown-transaction", "already-resolved", "given-up", "too-early", "projection-behind", "outcome-unknown"),
    Body(Nothing, is_required=False),
    (TRANSACTION_ID, WAIT),
).arguments()

FORCE = Operation(
    OPERATORS,
    {200: (TransactionAnswer, "Settled."), 202: (TransactionAnswer, BLOCKED)},
    (*END_PROBLEMS, "projection-behind"),
    Body(
        ForceTransaction, examples={"roll back": {"resolution": "ROLLBACK", "reason": "order was cancelled by phone"}}
    ),
    (TRANSACTION_ID, WAIT),
).arguments()

ABANDON = Operation(
    OPERATORS,
    {200: (TransactionAnswer, "COMMITTED and `abandoned`: nothing of it is published, now or later.")},
    ("unknown-transaction", "not-blocked", "given-up", "projection-behind", "outcome-unknown"),
    Body(AbandonTransaction, examples={"gone": {"reason": "its topic was deleted for good, see ticket 7"}}),
    (TRANSACTION_ID, WAIT),
).arguments()

RESUME = Operation(
    OPERATORS,
    {200: (TransactionAnswer, "PREPARED again.")},
    ("unknown-transaction", "not-parked", "already-resolved", "given-up", "projection-behind", "outcome-unknown"),
    Body(ResumeTransaction, examples={"deployed": {"reason": "the shop answers again"}}),
    (TRANSACTION_ID, WAIT),
).arguments()


_force = msgspec.json.Decoder(ForceTransaction)
_abandon = msgspec.json.Decoder(AbandonTransaction)
_resume = msgspec.json.Decoder(ResumeTransaction)


@routes.add("POST", "/v1/transactions/{transaction_id}/check", ASK, verb=Verb.OPERATE)
async def check_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """Asks the producer group now, instead of at the next due time."""
    check_transaction_id(transaction_id, "?transaction_id")
    await read_nothing(request)
    wait_ms = patience_of(request).wait_ms
    or_reject(await request.services.transactions.act(transaction_id, Act.CHECK, who_is(request, ""), wait_ms))
    return json_answer(202, AskedAnswer(transaction_id))


@routes.add("POST", "/v1/transactions/{transaction_id}/force", FORCE, verb=Verb.OPERATE)
async def force_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """An operator's resolution; the first recorded one still wins."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _force)
    who = who_is(request, check_reason(body.reason))
    word = body.resolution
    resolution = Resolution[word] if isinstance(word, str) else Resolution(word)
    wait_ms = patience_of(request).wait_ms
    answer = or_reject(await request.services.transactions.force(transaction_id, resolution, who, wait_ms))
    return show(answer)


@routes.add("POST", "/v1/transactions/{transaction_id}/resume", RESUME, verb=Verb.OPERATE)
async def resume_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """Gives a parked transaction a new life: counters start anew, first check at once."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _resume)
    return await _act(request, transaction_id, Act.RESUME, body.reason)


@routes.add("POST", "/v1/transactions/{transaction_id}/abandon", ABANDON, verb=Verb.OPERATE)
async def abandon_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """Gives up a blocked commit that can never be published: its ordering key goes on without it. Not undone."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _abandon)
    return await _act(request, transaction_id, Act.ABANDON, body.reason)


async def _act(request: ApiRequest, transaction_id: str, act: Act, reason: str) -> HttpAnswer:
    who = who_is(request, check_reason(reason))
    wait_ms = patience_of(request).wait_ms
    answer = or_reject(await request.services.transactions.act(transaction_id, act, who, wait_ms))
    return show(answer)
