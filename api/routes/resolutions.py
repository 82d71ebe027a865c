"""Many ends at once, and answers to checks."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import parse_resolutions
from api.limits import read_body
from api.ndjson import Line, NdjsonAnswer
from api.openapi.transactions import RESOLVE
from api.reading import JSON, NDJSON, batch_answer, media_type, request_id_of, services_of
from api.routes.calls import end_many, parse_resolution_lines, patience_of

router = APIRouter()


@router.post("/v1/resolutions", **RESOLVE)
async def resolve(request: Request) -> Response:
    """Ends many transactions; each is decided on its own. UNKNOWN changes nothing."""
    services, request_id = services_of(request), request_id_of(request)
    patience = patience_of(request)
    if media_type(request, JSON, NDJSON) == NDJSON:

        async def answer(lines: Sequence[Line]) -> list[bytes]:
            return await end_many(services, parse_resolution_lines(lines), patience, request_id)

        return NdjsonAnswer(request, services.limits, answer)
    calls = parse_resolutions(await read_body(request, services.limits))
    return batch_answer(await end_many(services, calls, patience, request_id, "/resolutions/{}"))
