"""Pull mode: a group fetches its due checks."""

import asyncio

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.arrival import JSON
from api.bodies import check_group
from api.gate import Traffic
from api.openapi.groups import CLAIM_CHECKS
from api.queries import Query
from api.reading import read_json, refuse, services_of
from api.rendering_groups import render_claimed
from api.schemas.requests import ClaimChecks
from bridge.futures import take_error
from bridge.service.claims import ClaimCall
from bridge.service.contract import Refused

router = APIRouter()

_claim = msgspec.json.Decoder(ClaimChecks)


@router.post("/v1/producer-groups/{group}/checks/claim", **CLAIM_CHECKS)
async def claim(request: Request, group: str) -> Response:
    """Due checks of a group that fetches them, as a call would send them; to be answered as resolutions."""
    check_group(group, "?group")
    Query(request.query_params, ())
    body = await read_json(request, _claim, is_optional=True)
    traffic: Traffic = request.app.state.traffic
    leaving = asyncio.ensure_future(_wait_gone(request))
    leaving.add_done_callback(take_error)
    call = ClaimCall(
        group,
        body.limit,
        round(body.wait_seconds * 1000),
        round(body.lease_seconds * 1000),
        lambda: not (leaving.done() or traffic.is_draining),
    )
    try:
        claimed = await services_of(request).claims.claim(call)
    finally:
        leaving.cancel()
    if isinstance(claimed, Refused):
        raise refuse(claimed)
    shown = render_claimed(group, claimed, services_of(request).nonces.make)
    return Response(shown, 200, {"Cache-Control": "no-store"}, JSON)


async def _wait_gone(request: Request) -> None:
    """Returns when the caller has hung up: what would be claimed for it would only be held."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
