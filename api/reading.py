"""What routes share: the services behind them, the request as an arrival, and answers as JSON."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.arrival import JSON, RoutedArrival, json_body, optional_body
from api.bodies import parse_body
from api.large_bodies import LARGE_BYTES, body_in_steps
from api.problems import Problem, Rejected, problem_members, problem_of
from api.rendering import encode_json
from api.services import Services
from bridge.service.contract import Refused

T = TypeVar("T")

_STATUSES = {status: b'{"status":%d,' % status for status in (200, 201, 202)}


def services_of(request: Request) -> Services:
    """What the application was made with."""
    services: Services = request.app.state.services
    return services


def arrival_of(request: Request) -> RoutedArrival:
    """The request as the calls see it."""
    return RoutedArrival(request)


async def read_json(request: Request, decoder: "msgspec.json.Decoder[T]", *, is_optional: bool = False) -> T:
    """The body; an empty object where none came and none is needed. Raises Rejected."""
    arrival = arrival_of(request)
    raw = (await optional_body(arrival) or b"{}") if is_optional else await json_body(arrival)
    if len(raw) > LARGE_BYTES:
        return await services_of(request).turns.run(body_in_steps(raw, decoder))
    return parse_body(raw, decoder)


def json_answer(status: int, body: object, headers: Mapping[str, str] | None = None) -> Response:
    """An answer from a struct or plain values."""
    return Response(encode_json(body), status, headers, JSON)


def refuse(refused: Refused) -> Rejected:
    """A refusal of the service, as an exception that becomes the answer."""
    return Rejected(problem_of(refused))


def item(status: int, body: object) -> bytes:
    """A result in a batch: the status, then the members of the single call's answer."""
    return _STATUSES[status] + encode_json(body)[1:]


def problem_item(problem: Problem, request_id: str) -> bytes:
    """A refused result in a batch."""
    return b'{"status":%d,"problem":%b}' % (problem.type.status, encode_json(problem_members(problem, request_id)))
