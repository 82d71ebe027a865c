"""Many ends at once, and answers to checks: routes and their description."""

from collections.abc import Sequence

from msgspec.structs import replace

from api.web.bodies import ResolutionItem, Resolutions
from api.web.large_bodies import LARGE_BYTES, resolution_in_steps, resolutions_in_steps
from api.web.ndjson import Line, LinesAnswer
from api.web.openapi import PREFER, TRANSACTION_ID, WAIT, Body, Operation
from api.web.parse import NoncedEnd, parse_resolution, parse_resolutions
from api.web.problems import Problem, invalid
from api.web.request import JSON, NDJSON, ApiRequest, media_type
from api.web.road import HttpAnswer, Routes
from api.web.transactions import EACH, TAG, answer_each, join, parse_lines, patience_of
from api.web.views import BatchAnswer
from bridge.core.record import Source
from bridge.service.contract import EndCall
from checker.call import Nonces

_ID = TRANSACTION_ID["example"]

RESOLVE = Operation(
    TAG,
    {200: (BatchAnswer, EACH)},
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


routes = Routes()


@routes.add("POST", "/v1/resolutions", RESOLVE, is_hot=True, verb=None)
async def resolve(request: ApiRequest) -> HttpAnswer | LinesAnswer:
    """Ends many transactions; each is decided on its own. UNKNOWN changes nothing."""
    patience, services, rights = patience_of(request), request.services, request.caller.rights

    async def answer(calls: Sequence[EndCall | NoncedEnd | Problem], pointer: str) -> list[bytes]:
        ends = [
            _answer_to_check(call, services.nonces, pointer, n) if isinstance(call, NoncedEnd) else call
            for n, call in enumerate(calls)
        ]
        end, wait_ms = services.transactions.end, patience.wait_ms
        return await answer_each(request, ends, pointer, lambda right: end(right, patience.wait, wait_ms, rights))

    async def answer_lines(lines: Sequence[Line]) -> list[bytes]:
        return await answer(await parse_lines(services.turns, lines, parse_resolution, resolution_in_steps), "")

    if media_type(request, JSON, NDJSON) == NDJSON:
        return LinesAnswer(request, answer_lines)
    raw = await request.body()
    if len(raw) > LARGE_BYTES:
        calls = await services.turns.run(resolutions_in_steps(raw))
    else:
        calls = parse_resolutions(raw)
    return join(await answer(calls, "/resolutions/{}"))


def _answer_to_check(call: NoncedEnd, nonces: Nonces, pointer: str, index: int) -> EndCall | Problem:
    """A nonce tells which check is answered; an invented one is refused, and nothing is used up."""
    number = nonces.read(call.nonce, call.call.transaction_id)
    if number is None:
        return invalid(f"{pointer.format(index)}/nonce", "not the nonce of a check of this transaction").problem
    return replace(call.call, source=Source.CHECK, check_number=number)
