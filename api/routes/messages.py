"""Publish without a local transaction: prepared and committed in one step."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.openapi.transactions import PUBLISH, PUBLISH_BATCH
from api.reading import arrival_of, services_of
from api.routes.calls import plain, prepare_one
from api.routes.transactions import prepare_batches

router = APIRouter()


@router.post("/v1/messages", **PUBLISH)
async def publish(request: Request) -> Response:
    """Publishes messages together or not at all; answers when consumers can read them."""
    return plain(await prepare_one(services_of(request), arrival_of(request), is_published=True))


@router.post("/v1/messages/batch", **PUBLISH_BATCH)
async def publish_batch(request: Request) -> Response:
    """Publishes many transactions; each is decided on its own."""
    return await prepare_batches(request, is_published=True)
