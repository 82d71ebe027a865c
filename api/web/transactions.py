"""Prepare and end transactions, look them up, operators' acts on one: routes and their description."""

from collections.abc import Sequence

import msgspec
from fastapi import APIRouter
from msgspec import Struct
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from api.web.bodies import EndTransaction, EndWord, Nothing, Prepare, PrepareBatch, Reason
from api.web.calls import (
    end_one,
    is_lines,
    parse_prepare_lines,
    patience_of,
    patience_of_prepares,
    plain,
    prepare_all,
    prepare_many,
    prepare_one,
    show,
)
from api.web.ndjson import Line, NdjsonAnswer
from api.web.openapi import (
    END_PROBLEMS,
    IDEMPOTENCY_KEY,
    MESSAGE_PROBLEMS,
    PREFER,
    TRANSACTION_ID,
    WAIT,
    Body,
    Operation,
    query_parameter,
)
from api.web.parse import check_transaction_id
from api.web.problems import invalid
from api.web.request import Query, arrival_of, check_reason, json_answer, read_json, refuse, services_of, who_is
from api.web.views import (
    AcceptedAnswer,
    AskedAnswer,
    BatchAnswer,
    PreparedAnswer,
    TimelineAnswer,
    TransactionAnswer,
    render_event,
    render_transaction,
)
from bridge.core.record import Act, Resolution
from bridge.core.transaction import TransactionView
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


_TAG = "transactions"
_OPERATORS = "operators"

_ORDER = {
    "producer_group": "orders",
    "messages": [
        {
            "topic": "orders.created",
            "key": "42",
            "value": {"order": 42, "amount": 19.9},
            "headers": [["source", "shop"]],
        }
    ],
}
_KEYED = {**_ORDER, "idempotency_key": "order-42", "ordering_key": "customer-7", "check_immunity_seconds": 60}
_BINARY = {
    "producer_group": "orders",
    "messages": [
        {"topic": "orders.created", "key_base64": "AAE=", "value_base64": "/w==", "headers_base64": [["h", "AA=="]]},
        {"topic": "orders.deleted", "key": "42", "value": None},
    ],
}
_PREPARE_EXAMPLES = {"one message": _ORDER, "with keys": _KEYED, "bytes and a tombstone": _BINARY}
_ID = TRANSACTION_ID["example"]
_BLOCKED = "Decided and recorded; its publication is being retried (`blocked`). Or, with `Prefer`, not waited for."

PREPARE = Operation(
    _TAG,
    {201: (PreparedAnswer, "Stored."), 200: (TransactionAnswer, "A repeat whose transaction has ended.")},
    MESSAGE_PROBLEMS,
    Body(Prepare, examples=_PREPARE_EXAMPLES),
    (WAIT, IDEMPOTENCY_KEY),
    headers={201: {"Location": "Path of the transaction."}, 200: {"Location": "Path of the transaction."}},
).arguments() | {"status_code": 201}

_BATCH = Body(PrepareBatch, examples={"two": {"transactions": [_ORDER, _KEYED]}}, lines=Prepare)
_EACH = (
    "A result for each, in the order of the request; as NDJSON, line by line. A stream of NDJSON that ends early has a "
    "last line with the problem: what was answered before stays, of the rest nothing was applied."
)

PREPARE_BATCH = Operation(_TAG, {200: (BatchAnswer, _EACH)}, (), _BATCH, (WAIT,)).arguments()


def _end(meaning: str) -> Operation:
    return Operation(
        _TAG,
        {200: (TransactionAnswer, meaning), 202: ((TransactionAnswer, AcceptedAnswer), _BLOCKED)},
        END_PROBLEMS,
        Body(EndTransaction, is_required=False, examples={"compared": {"producer_group": "orders"}}),
        (TRANSACTION_ID, WAIT, PREFER),
    )


COMMIT = _end("Published: consumers can read it. A repeat gets the same answer.").arguments()
ROLLBACK = _end("Rolled back: it will never be visible. A repeat gets the same answer.").arguments()

GET = Operation(
    _TAG,
    {200: (TransactionAnswer, "The transaction.")},
    ("unknown-transaction", "given-up", "projection-behind"),
    parameters=(
        TRANSACTION_ID,
        query_parameter("include", "`messages`: whole messages.", {"type": "string", "enum": ["messages"]}),
    ),
).arguments()

TIMELINE = Operation(
    _OPERATORS,
    {200: (TimelineAnswer, "Oldest first.")},
    ("unknown-transaction", "given-up", "projection-behind"),
    parameters=(TRANSACTION_ID,),
).arguments()

ASK = Operation(
    _OPERATORS,
    {202: (AskedAnswer, "The group will be asked.")},
    ("unknown-transaction", "already-resolved", "given-up", "too-early", "projection-behind", "outcome-unknown"),
    Body(Nothing, is_required=False),
    (TRANSACTION_ID, WAIT),
).arguments()

FORCE = Operation(
    _OPERATORS,
    {200: (TransactionAnswer, "Settled."), 202: (TransactionAnswer, _BLOCKED)},
    (*END_PROBLEMS, "projection-behind"),
    Body(
        ForceTransaction, examples={"roll back": {"resolution": "ROLLBACK", "reason": "order was cancelled by phone"}}
    ),
    (TRANSACTION_ID, WAIT),
).arguments()

ABANDON = Operation(
    _OPERATORS,
    {200: (TransactionAnswer, "COMMITTED and `abandoned`: nothing of it is published, now or later.")},
    ("unknown-transaction", "not-blocked", "given-up", "projection-behind", "outcome-unknown"),
    Body(AbandonTransaction, examples={"gone": {"reason": "its topic was deleted for good, see ticket 7"}}),
    (TRANSACTION_ID, WAIT),
).arguments()

RESUME = Operation(
    _OPERATORS,
    {200: (TransactionAnswer, "PREPARED again.")},
    ("unknown-transaction", "not-parked", "already-resolved", "given-up", "projection-behind", "outcome-unknown"),
    Body(ResumeTransaction, examples={"deployed": {"reason": "the shop answers again"}}),
    (TRANSACTION_ID, WAIT),
).arguments()


class _TransactionConvertor(StringConvertor):
    """Any text but the name of the route beside it, at which GET is not possible."""

    regex = "(?!batch$)[^/]+"


register_url_convertor("transaction", _TransactionConvertor())
router = APIRouter()

_nothing = msgspec.json.Decoder(Nothing)
_force = msgspec.json.Decoder(ForceTransaction)
_abandon = msgspec.json.Decoder(AbandonTransaction)
_resume = msgspec.json.Decoder(ResumeTransaction)


@router.post("/v1/transactions", **PREPARE)
async def prepare(request: Request) -> Response:
    """Stores a half message: durable, and invisible until it is committed."""
    return plain(await prepare_one(services_of(request), arrival_of(request), is_published=False))


@router.post("/v1/transactions/batch", **PREPARE_BATCH)
async def prepare_batch(request: Request) -> Response:
    """Prepares many transactions; each is decided on its own."""
    return await prepare_batches(request, is_published=False)


@router.get("/v1/transactions/{transaction_id:transaction}", **GET)
async def get(request: Request, transaction_id: str) -> Response:
    """One transaction, as current as the last write that was acknowledged."""
    check_transaction_id(transaction_id, "?transaction_id")
    query = Query(request.query_params, {"include"})
    if query.text("include") not in {None, "messages"}:
        raise invalid("?include", "only `messages` can be included")
    view = await _found(request, transaction_id)
    if query.text("include") is None:
        return json_answer(200, render_transaction(view))
    bodies = await services_of(request).transactions.get_bodies(view)
    if isinstance(bodies, Refused):
        raise refuse(bodies)
    return json_answer(200, render_transaction(view, bodies))


@router.get("/v1/transactions/{transaction_id}/timeline", **TIMELINE)
async def timeline(request: Request, transaction_id: str) -> Response:
    """What happened to a transaction, oldest first."""
    check_transaction_id(transaction_id, "?transaction_id")
    Query(request.query_params, ())
    events = await services_of(request).transactions.timeline(transaction_id)
    if isinstance(events, Refused):
        raise refuse(events)
    return json_answer(200, {"events": [render_event(event) for event in events]})


@router.post("/v1/transactions/{transaction_id}/commit", **COMMIT)
async def commit(request: Request, transaction_id: str) -> Response:
    """Publishes what was prepared; answers when consumers can read it."""
    return plain(await end_one(services_of(request), arrival_of(request), transaction_id, Resolution.COMMIT))


@router.post("/v1/transactions/{transaction_id}/rollback", **ROLLBACK)
async def rollback(request: Request, transaction_id: str) -> Response:
    """Drops what was prepared."""
    return plain(await end_one(services_of(request), arrival_of(request), transaction_id, Resolution.ROLLBACK))


@router.post("/v1/transactions/{transaction_id}/check", **ASK)
async def ask_now(request: Request, transaction_id: str) -> Response:
    """Asks the producer group now, instead of at the next due time."""
    check_transaction_id(transaction_id, "?transaction_id")
    await read_json(request, _nothing, is_optional=True)
    wait_ms = patience_of(arrival_of(request), services_of(request).limits).wait_ms
    answer = await services_of(request).transactions.act(transaction_id, Act.CHECK, who_is(request, ""), wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return json_answer(202, AskedAnswer(transaction_id))


@router.post("/v1/transactions/{transaction_id}/force", **FORCE)
async def force(request: Request, transaction_id: str) -> Response:
    """An operator's resolution; the first recorded one still wins."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _force)
    who = who_is(request, check_reason(body.reason))
    word = body.resolution
    resolution = Resolution[word] if isinstance(word, str) else Resolution(word)
    wait_ms = patience_of(arrival_of(request), services_of(request).limits).wait_ms
    answer = await services_of(request).transactions.force(transaction_id, resolution, who, wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return json_answer(*show(answer))


@router.post("/v1/transactions/{transaction_id}/resume", **RESUME)
async def resume(request: Request, transaction_id: str) -> Response:
    """Gives a parked transaction a new life: counters start anew, first check at once."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _resume)
    return await _act(request, transaction_id, Act.RESUME, body.reason)


@router.post("/v1/transactions/{transaction_id}/abandon", **ABANDON)
async def abandon(request: Request, transaction_id: str) -> Response:
    """Gives up a blocked commit that can never be published: its ordering key goes on without it. Not undone."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = await read_json(request, _abandon)
    return await _act(request, transaction_id, Act.ABANDON, body.reason)


async def _act(request: Request, transaction_id: str, act: Act, reason: str) -> Response:
    who = who_is(request, check_reason(reason))
    wait_ms = patience_of(arrival_of(request), services_of(request).limits).wait_ms
    answer = await services_of(request).transactions.act(transaction_id, act, who, wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return json_answer(*show(answer))


async def prepare_batches(request: Request, *, is_published: bool) -> Response:
    """As one document, or as NDJSON."""
    services, arrival = services_of(request), arrival_of(request)
    if not is_lines(arrival):
        return plain(await prepare_all(services, arrival, is_published=is_published))
    wait_ms = patience_of_prepares(arrival, services.limits)

    async def answer(lines: Sequence[Line]) -> list[bytes]:
        calls = await parse_prepare_lines(services, lines, is_published=is_published)
        return await prepare_many(services, calls, wait_ms, arrival.request_id)

    return NdjsonAnswer(request, services.limits, answer)


async def _found(request: Request, transaction_id: str) -> TransactionView:
    view = await services_of(request).transactions.get(transaction_id)
    if isinstance(view, Refused):
        raise refuse(view)
    return view
