"""Many ends at once, and answers to checks."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.ndjson import Line, NdjsonAnswer
from api.openapi.transactions import RESOLVE
from api.reading import arrival_of, services_of
from api.routes.calls import end_all, end_many, is_lines, parse_resolution_lines, patience_of, plain

router = APIRouter()


@router.post("/v1/resolutions", **RESOLVE)
async def resolve(request: Request) -> Response:
    """Ends many transactions; each is decided on its own. UNKNOWN changes nothing."""
    services, arrival = services_of(request), arrival_of(request)
    if not is_lines(arrival):
        return plain(await end_all(services, arrival))
    patience = patience_of(arrival, services.limits)

    async def answer(lines: Sequence[Line]) -> list[bytes]:
        calls = await parse_resolution_lines(services, lines)
        return await end_many(services, calls, patience, arrival.request_id)

    return NdjsonAnswer(request, services.limits, answer)
