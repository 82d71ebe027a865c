"""Publish without a local transaction: routes and their description."""

from api.web.bodies import Prepare
from api.web.ndjson import LinesAnswer
from api.web.openapi import FIRST_TRY, IDEMPOTENCY_KEY, KAFKA_TIME, MESSAGE_PROBLEMS, TRACE, WAIT, Body, Operation
from api.web.request import ApiRequest
from api.web.road import HttpAnswer, Routes
from api.web.transactions import (
    BATCH,
    BLOCKED,
    EACH,
    PREPARE_EXAMPLES,
    TOLD_TIME,
    PreparedAnswer,
    prepare_all,
    prepare_one,
)
from api.web.views import BatchAnswer, TransactionAnswer
from bridge.core.grants import Verb

PUBLISH = Operation(
    "messages",
    {
        200: (TransactionAnswer, "Published."),
        201: (PreparedAnswer, "A repeat of what is still being decided."),
        202: (TransactionAnswer, BLOCKED),
    },
    MESSAGE_PROBLEMS,
    Body(Prepare, examples=PREPARE_EXAMPLES),
    (WAIT, IDEMPOTENCY_KEY, FIRST_TRY, TRACE),
    headers={status: {"Location": "Path of the transaction.", TOLD_TIME: KAFKA_TIME} for status in (200, 201, 202)},
).arguments()
PUBLISH_BATCH = Operation(
    "messages", {200: (BatchAnswer, EACH)}, (), BATCH, (WAIT, FIRST_TRY, TRACE), headers={200: {TOLD_TIME: KAFKA_TIME}}
).arguments()


routes = Routes()


@routes.add("POST", "/v1/messages", PUBLISH, is_hot=True, verb=Verb.PREPARE)
async def publish(request: ApiRequest) -> HttpAnswer:
    """Publishes messages together or not at all; answers when consumers can read them."""
    return await prepare_one(request, is_published=True)


@routes.add("POST", "/v1/messages/batch", PUBLISH_BATCH, is_hot=True, verb=Verb.PREPARE)
async def publish_batch(request: ApiRequest) -> HttpAnswer | LinesAnswer:
    """Publishes many transactions; each is decided on its own."""
    return await prepare_all(request, is_published=True)
