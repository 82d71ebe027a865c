"""Port for calling an endpoint, and an adapter whose endpoints are functions, on any clock."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from bridge.clock import Clock
from bridge.directory import place_of


class Failure(StrEnum):
    """Why there is no answer; bounded words for metrics and timelines."""

    NO_ENDPOINT = "no-endpoint"
    NOT_CLAIMED = "not-claimed"  # nobody of a group that fetches its checks came
    NOT_ANSWERED = "not-answered"  # it was fetched, and nothing was said
    NO_SECRET = "no-secret"  # noqa: S105 - a word; calls never go out unsigned
    NO_BODY = "no-body"  # no log has the messages any more
    FORBIDDEN = "forbidden"  # the URL, or what its name resolves to
    DNS = "dns"
    REFUSED = "refused"  # no connection
    TLS = "tls"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    MALFORMED = "malformed"  # not HTTP, or headers above the limits
    TOO_LARGE = "too-large"
    COMPRESSED = "compressed"
    REDIRECT = "redirect"
    RATE_LIMITED = "rate-limited"
    GONE = "gone"
    STATUS = "status"  # any other status but 200
    BAD_ANSWER = "bad-answer"
    LEFT_OUT = "left-out"  # an answer, but not about this transaction


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """One POST. `timeout_ms`: over the whole exchange, from resolving the name to the last byte."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    timeout_ms: int
    max_answer_bytes: int


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """A whole reply within the limits, or why there is none. `endpoint`: the URL without its query."""

    endpoint: str
    latency_ms: int
    status: int = 0
    body: bytes = b""
    retry_after: str | None = None
    failure: Failure | None = None


class CheckCaller(Protocol):
    """Calls endpoints."""

    async def call(self, call: EndpointCall) -> EndpointReply:
        """One exchange within its limits. Never raises for what an endpoint does; never follows redirects."""
        ...

    async def close(self) -> None:
        """Cuts what is open."""
        ...


def failure_of(status: int) -> Failure | None:
    """What a status other than 200 means; None for 200."""
    if status == 200:
        return None
    if 300 <= status < 400:
        return Failure.REDIRECT
    return {429: Failure.RATE_LIMITED, 410: Failure.GONE}.get(status, Failure.STATUS)


@dataclass(frozen=True, slots=True)
class Response:
    """What an endpoint sends."""

    status: int = 200
    body: bytes = b""
    retry_after: str | None = None
    is_compressed: bool = False


Handler = Callable[[EndpointCall], Awaitable[Response]]


@dataclass(slots=True)
class MemoryCaller(CheckCaller):
    """Endpoints by URL; any other URL refuses the connection."""

    clock: Clock
    endpoints: dict[str, Handler] = field(default_factory=dict)

    async def call(self, call: EndpointCall) -> EndpointReply:
        start_ms = self.clock.monotonic_ms()
        endpoint = place_of(call.url)
        handler = self.endpoints.get(call.url)
        response = None if handler is None else await self._within(handler, call)
        latency_ms = self.clock.monotonic_ms() - start_ms
        if response is None:
            failure = Failure.REFUSED if handler is None else Failure.TIMEOUT
            return EndpointReply(endpoint, latency_ms, failure=failure)
        failed = _failure_in(response, call)
        body = b"" if failed else response.body
        return EndpointReply(endpoint, latency_ms, response.status, body, response.retry_after, failed)

    async def close(self) -> None:
        """Holds nothing."""

    async def _within(self, handler: Handler, call: EndpointCall) -> Response | None:
        """The response, or None when the deadline came first."""
        answering = asyncio.ensure_future(handler(call))
        deadline = asyncio.ensure_future(self.clock.sleep_ms(call.timeout_ms))
        try:
            await asyncio.wait((answering, deadline), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            for task in (answering, deadline):
                task.cancel()


def _failure_in(response: Response, call: EndpointCall) -> Failure | None:
    failure = failure_of(response.status)
    if failure is None and response.is_compressed:
        return Failure.COMPRESSED
    if failure is None and len(response.body) > call.max_answer_bytes:
        return Failure.TOO_LARGE
    return failure
