"""Prepare and end transactions; look them up; operators' acts on one."""

from collections.abc import Sequence

import msgspec
from fastapi import APIRouter
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import check_transaction_id, parse_body, parse_end, parse_prepare, parse_prepare_batch
from api.limits import read_body
from api.ndjson import Line, NdjsonAnswer
from api.openapi.transactions import (
    ASK,
    COMMIT,
    FORCE,
    GET,
    PREPARE,
    PREPARE_BATCH,
    RESUME,
    ROLLBACK,
    TIMELINE,
)
from api.problems import invalid
from api.queries import Query, idempotency_key
from api.reading import (
    JSON,
    NDJSON,
    batch_answer,
    json_answer,
    json_body,
    media_type,
    optional_body,
    refuse,
    request_id_of,
    services_of,
)
from api.rendering import render_event, render_transaction
from api.routes.calls import parse_prepare_lines, patience_of, prepare_many, show
from api.routes.operators import check_reason, who_is
from api.schemas.answers import AskedAnswer
from api.schemas.requests import ForceTransaction, Nothing, ResumeTransaction
from bridge.core.record import Act, Resolution
from bridge.core.view import TransactionView
from bridge.service.contract import Accepted, Refused


class _TransactionConvertor(StringConvertor):
    """Any text but the name of the route beside it, at which GET is not possible."""

    regex = "(?!batch$)[^/]+"


register_url_convertor("transaction", _TransactionConvertor())
router = APIRouter()

_nothing = msgspec.json.Decoder(Nothing)
_force = msgspec.json.Decoder(ForceTransaction)
_resume = msgspec.json.Decoder(ResumeTransaction)


@router.post("/v1/transactions", **PREPARE)
async def prepare(request: Request) -> Response:
    """Stores a half message: durable, and invisible until it is committed."""
    return await prepare_one(request, is_published=False)


@router.post("/v1/transactions/batch", **PREPARE_BATCH)
async def prepare_batch(request: Request) -> Response:
    """Prepares many transactions; each is decided on its own."""
    return await prepare_all(request, is_published=False)


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
    return await _end(request, transaction_id, Resolution.COMMIT)


@router.post("/v1/transactions/{transaction_id}/rollback", **ROLLBACK)
async def rollback(request: Request, transaction_id: str) -> Response:
    """Drops what was prepared."""
    return await _end(request, transaction_id, Resolution.ROLLBACK)


@router.post("/v1/transactions/{transaction_id}/check", **ASK)
async def ask_now(request: Request, transaction_id: str) -> Response:
    """Asks the producer group now, instead of at the next due time."""
    check_transaction_id(transaction_id, "?transaction_id")
    parse_body(await optional_body(request) or b"{}", _nothing)
    wait_ms = patience_of(request).wait_ms
    answer = await services_of(request).transactions.act(transaction_id, Act.CHECK, who_is(request, ""), wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return json_answer(202, AskedAnswer(transaction_id))


@router.post("/v1/transactions/{transaction_id}/force", **FORCE)
async def force(request: Request, transaction_id: str) -> Response:
    """An operator's resolution; the first recorded one still wins."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = parse_body(await json_body(request), _force)
    who = who_is(request, check_reason(body.reason))
    word = body.resolution
    resolution = Resolution[word] if isinstance(word, str) else Resolution(word)
    wait_ms = patience_of(request).wait_ms
    answer = await services_of(request).transactions.force(transaction_id, resolution, who, wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return json_answer(*show(answer))


@router.post("/v1/transactions/{transaction_id}/resume", **RESUME)
async def resume(request: Request, transaction_id: str) -> Response:
    """Gives a parked transaction a new life: counters start anew, first check at once."""
    check_transaction_id(transaction_id, "?transaction_id")
    body = parse_body(await json_body(request), _resume)
    who = who_is(request, check_reason(body.reason))
    wait_ms = patience_of(request).wait_ms
    answer = await services_of(request).transactions.act(transaction_id, Act.RESUME, who, wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    return json_answer(*show(answer))


async def prepare_one(request: Request, *, is_published: bool) -> Response:
    """A prepare, or a publish without a local transaction."""
    services = services_of(request)
    raw = await json_body(request)
    header_key = idempotency_key(request.headers)
    call = parse_prepare(raw, services.message_limits, header_key=header_key, is_published=is_published)
    (answer,) = await services.transactions.prepare([call], patience_of(request).wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    status, body = show(answer)
    return json_answer(status, body, {"Location": f"/v1/transactions/{answer.transaction_id}"})


async def prepare_all(request: Request, *, is_published: bool) -> Response:
    """Many of them, as one document or as NDJSON."""
    services, request_id = services_of(request), request_id_of(request)
    if idempotency_key(request.headers) is not None:
        raise invalid("?Idempotency-Key", "belongs into each transaction of a batch")
    wait_ms = patience_of(request).wait_ms
    if media_type(request, JSON, NDJSON) == NDJSON:

        async def answer(lines: Sequence[Line]) -> list[bytes]:
            calls = parse_prepare_lines(services, lines, is_published=is_published)
            return await prepare_many(services, calls, wait_ms, request_id)

        return NdjsonAnswer(request, services.limits, answer)
    raw = await read_body(request, services.limits)
    calls = parse_prepare_batch(raw, services.message_limits, is_published=is_published)
    return batch_answer(await prepare_many(services, calls, wait_ms, request_id, "/transactions/{}"))


async def _end(request: Request, transaction_id: str, resolution: Resolution) -> Response:
    call = parse_end(await optional_body(request), transaction_id, resolution)
    patience = patience_of(request)
    (answer,) = await services_of(request).transactions.end([call], patience.wait, patience.wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    applied = {"Preference-Applied": "respond-async"} if isinstance(answer, Accepted) else {}
    return json_answer(*show(answer), applied)


async def _found(request: Request, transaction_id: str) -> TransactionView:
    view = await services_of(request).transactions.get(transaction_id)
    if isinstance(view, Refused):
        raise refuse(view)
    return view
