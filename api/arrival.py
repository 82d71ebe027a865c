"""A request as the calls see it, whoever received it: the framework, or the server's own short way."""

from typing import Protocol

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request

from api.limits import HttpLimits, overloaded, read_body, too_large
from api.problems import UNSUPPORTED_MEDIA_TYPE, reject

JSON = "application/json"
NDJSON = "application/x-ndjson"
_NOTHING = QueryParams()


class Arrival(Protocol):
    """A request whose head is there, and whose body may still be on its way."""

    @property
    def headers(self) -> Headers:
        """Names in lower case."""
        ...

    @property
    def query(self) -> QueryParams:
        """What stands behind the question mark."""
        ...

    @property
    def request_id(self) -> str:
        """The id that the answer carries too."""
        ...

    async def body(self) -> bytes:
        """The whole body. Raises Rejected if it is too large, too slow or cut off."""
        ...


class RoutedArrival:
    """One that the framework has routed."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.headers = request.headers
        self.request_id: str = request.state.request_id

    @property
    def query(self) -> QueryParams:
        return self._request.query_params

    async def body(self) -> bytes:
        limits: HttpLimits = self._request.app.state.services.limits
        return await read_body(self._request, limits)


class WholeArrival:
    """One that came in one piece. `body` None: there was no room for it."""

    __slots__ = ("_body", "_limits", "headers", "query", "request_id")

    def __init__(
        self, headers: list[tuple[bytes, bytes]], query: bytes, body: bytes | None, request_id: str, limits: HttpLimits
    ) -> None:
        self.headers = Headers(raw=headers)
        self.query = QueryParams(query) if query else _NOTHING
        self.request_id = request_id
        self._body = body
        self._limits = limits

    async def body(self) -> bytes:
        if self._body is None:
            raise overloaded(is_read=True)
        if len(self._body) > self._limits.body_bytes:
            raise too_large(self._limits)
        return self._body


def media_type(headers: Headers, *allowed: str) -> str:
    """The media type of the body. Raises Rejected for any other, any charset but UTF-8, any encoding."""
    if "content-encoding" in headers:
        raise reject(UNSUPPORTED_MEDIA_TYPE, "Content-Encoding is not taken")
    kinds = headers.getlist("content-type")
    if len(kinds) != 1:
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"one Content-Type is needed: {' or '.join(allowed)}")
    if kinds[0] in allowed:
        return kinds[0]
    kind, *parameters = [part.strip().lower() for part in kinds[0].split(";")]
    if kind not in allowed or not all(part in {"", "charset=utf-8", 'charset="utf-8"'} for part in parameters):
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {' or '.join(allowed)}, in UTF-8")
    return kind


async def json_body(arrival: Arrival) -> bytes:
    """The body of a request that must have one."""
    media_type(arrival.headers, JSON)
    return await arrival.body()


async def optional_body(arrival: Arrival) -> bytes:
    """The body of a request that may have one; the media type counts only if there is one."""
    headers = arrival.headers
    has_type = "content-type" in headers
    if has_type or "content-encoding" in headers:
        media_type(headers, JSON)
    raw = await arrival.body()
    if raw and not has_type:
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"one Content-Type is needed: {JSON}")
    return raw
