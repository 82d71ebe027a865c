"""What routes share: the body of a request, and answers as JSON."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from api.limits import read_body
from api.problems import UNSUPPORTED_MEDIA_TYPE, Problem, Rejected, problem_members, problem_of, reject
from api.rendering import encode_json
from api.services import Services
from bridge.service.contract import Refused

JSON = "application/json"
NDJSON = "application/x-ndjson"
_STATUSES = {status: b'{"status":%d,' % status for status in (200, 201, 202)}


def services_of(request: Request) -> Services:
    """What the application was made with."""
    services: Services = request.app.state.services
    return services


def request_id_of(request: Request) -> str:
    """The id that the answer carries too."""
    request_id: str = request.state.request_id
    return request_id


def media_type(request: Request, *allowed: str) -> str:
    """The media type of the body. Raises Rejected for any other, any charset but UTF-8, any encoding."""
    headers = request.headers
    if "content-encoding" in headers:
        raise reject(UNSUPPORTED_MEDIA_TYPE, "Content-Encoding is not taken")
    kinds = headers.getlist("content-type")
    if len(kinds) != 1:
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"one Content-Type is needed: {' or '.join(allowed)}")
    kind, *parameters = [part.strip().lower() for part in kinds[0].split(";")]
    if kind not in allowed or not all(part in {"", "charset=utf-8", 'charset="utf-8"'} for part in parameters):
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {' or '.join(allowed)}, in UTF-8")
    return kind


async def json_body(request: Request) -> bytes:
    """The body of a request that must have one."""
    media_type(request, JSON)
    return await read_body(request, services_of(request).limits)


async def optional_body(request: Request) -> bytes:
    """The body of a request that may have one; the media type counts only if there is one."""
    if "content-type" in request.headers or "content-encoding" in request.headers:
        media_type(request, JSON)
    raw = await read_body(request, services_of(request).limits)
    if raw and "content-type" not in request.headers:
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"one Content-Type is needed: {JSON}")
    return raw


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


def batch_answer(items: list[bytes]) -> Response:
    """Results in the order of the request."""
    return Response(b'{"results":[%b]}' % b",".join(items), 200, media_type=JSON)
