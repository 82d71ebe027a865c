"""Many ends at once, and answers to checks: routes and their description."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.web.bodies import ResolutionItem, Resolutions
from api.web.calls import end_all, end_many, is_lines, parse_resolution_lines, patience_of, plain
from api.web.ndjson import Line, NdjsonAnswer
from api.web.openapi import (
    PREFER,
    WAIT,
    Body,
    Operation,
)
from api.web.request import arrival_of, services_of
from api.web.transactions import _EACH, _ID, _TAG
from api.web.views import BatchAnswer

RESOLVE = Operation(
    _TAG,
    {200: (BatchAnswer, _EACH)},
    (),
    Body(
        Resolutions,
        examples={
            "commit": {"resolutions": [{"transaction_id": _ID, "resolution": "COMMIT"}]},
            "answer to a check": {
                "resolutions": [{"transaction_id": _ID, "resolution": 12, "nonce": "1-p7Yw0b2cQm3dEf4g"}]
            },
        },
        lines=ResolutionItem,
    ),
    (WAIT, PREFER),
).arguments()


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
