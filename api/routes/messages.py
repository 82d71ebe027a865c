"""Publish without a local transaction: prepared and committed in one step."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.openapi.transactions import PUBLISH, PUBLISH_BATCH
from api.routes.transactions import prepare_all, prepare_one

router = APIRouter()


@router.post("/v1/messages", **PUBLISH)
async def publish(request: Request) -> Response:
    """Publishes messages together or not at all; answers when consumers can read them."""
    return await prepare_one(request, is_published=True)


@router.post("/v1/messages/batch", **PUBLISH_BATCH)
async def publish_batch(request: Request) -> Response:
    """Publishes many transactions; each is decided on its own."""
    return await prepare_all(request, is_published=True)
