"""CheckCaller whose endpoints are functions, on any clock."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.clock import Clock
from checker.caller import Call, CheckCaller, Failure, Reply, failure_of


@dataclass(frozen=True, slots=True)
class Response:
    """What an endpoint sends."""

    status: int = 200
    body: bytes = b""
    retry_after: str | None = None
    is_compressed: bool = False


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(slots=True)
class MemoryCaller(CheckCaller):
    """Endpoints by URL; any other URL refuses the connection."""

    clock: Clock
    endpoints: dict[str, Handler] = field(default_factory=dict)

    async def call(self, call: Call) -> Reply:
        start_ms = self.clock.monotonic_ms()
        endpoint = call.url.partition("?")[0]
        handler = self.endpoints.get(call.url)
        response = None if handler is None else await self._within(handler, call)
        latency_ms = self.clock.monotonic_ms() - start_ms
        if response is None:
            failure = Failure.REFUSED if handler is None else Failure.TIMEOUT
            return Reply(endpoint, latency_ms, failure=failure)
        failed = _failure_in(response, call)
        body = b"" if failed else response.body
        return Reply(endpoint, latency_ms, response.status, body, response.retry_after, failed)

    async def close(self) -> None:
        """Holds nothing."""

    async def _within(self, handler: Handler, call: Call) -> Response | None:
        """The response, or None when the deadline came first."""
        answering = asyncio.ensure_future(handler(call))
        deadline = asyncio.ensure_future(self.clock.sleep_ms(call.timeout_ms))
        try:
            await asyncio.wait((answering, deadline), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            for task in (answering, deadline):
                task.cancel()


def _failure_in(response: Response, call: Call) -> Failure | None:
    failure = failure_of(response.status)
    if failure is None and response.is_compressed:
        return Failure.COMPRESSED
    if failure is None and len(response.body) > call.max_answer_bytes:
        return Failure.TOO_LARGE
    return failure
