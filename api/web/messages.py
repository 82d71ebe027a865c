"""Publish without a local transaction: routes and their description."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.web.bodies import Prepare
from api.web.calls import plain, prepare_one
from api.web.openapi import (
    IDEMPOTENCY_KEY,
    MESSAGE_PROBLEMS,
    WAIT,
    Body,
    Operation,
)
from api.web.request import arrival_of, services_of
from api.web.transactions import _BATCH, _BLOCKED, _EACH, _PREPARE_EXAMPLES, prepare_batches
from api.web.views import BatchAnswer, PreparedAnswer, TransactionAnswer

PUBLISH = Operation(
    "messages",
    {
        200: (TransactionAnswer, "Published."),
        201: (PreparedAnswer, "A repeat of what is still being decided."),
        202: (TransactionAnswer, _BLOCKED),
    },
    MESSAGE_PROBLEMS,
    Body(Prepare, examples=_PREPARE_EXAMPLES),
    (WAIT, IDEMPOTENCY_KEY),
    headers={status: {"Location": "Path of the transaction."} for status in (200, 201, 202)},
).arguments()
PUBLISH_BATCH = Operation("messages", {200: (BatchAnswer, _EACH)}, (), _BATCH, (WAIT,)).arguments()


router = APIRouter()


@router.post("/v1/messages", **PUBLISH)
async def publish(request: Request) -> Response:
    """Publishes messages together or not at all; answers when consumers can read them."""
    return plain(await prepare_one(services_of(request), arrival_of(request), is_published=True))


@router.post("/v1/messages/batch", **PUBLISH_BATCH)
async def publish_batch(request: Request) -> Response:
    """Publishes many transactions; each is decided on its own."""
    return await prepare_batches(request, is_published=True)
