"""How much a request may take: size and time of its body; and how many are served at once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Message

from api.byte_budget import Lease
from api.problems import BODY_TOO_LARGE, MALFORMED_REQUEST, REQUEST_TIMEOUT, UNAVAILABLE, Problem, Rejected

_CLOSE = {"Connection": "close"}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of the HTTP interface."""

    body_bytes: int = 8 * 1024 * 1024  # of a body, or of one NDJSON line
    receive_s: float = 10.0
    in_flight: int = 2_000
    in_flight_bytes: int = 256 * 1024 * 1024
    page: int = 500
    wait_s: float = 10.0


async def read_body(request: Request, limits: HttpLimits) -> bytes:
    """The whole body. Raises Rejected if it is too large, too slow or cut off."""
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > limits.body_bytes:
        raise too_large(limits)
    chunks: list[bytes] = []
    size = 0
    async for chunk in _read_chunks(request, limits):
        size += len(chunk)
        if size > limits.body_bytes:
            chunks.clear()
            lease_of(request).shrink(size)
            raise too_large(limits)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _read_chunks(request: Request, limits: HttpLimits) -> AsyncIterator[bytes]:
    """Pieces of the body as they come; the time is for all of them."""
    deadline = asyncio.get_running_loop().time() + limits.receive_s
    is_read = False
    while not is_read:
        try:
            async with asyncio.timeout_at(deadline):
                message = await request.receive()
        except TimeoutError:
            problem = Problem(REQUEST_TIMEOUT, f"body not received in {limits.receive_s:g} s", headers=_CLOSE)
            raise Rejected(problem) from None
        chunk, is_read = take_chunk(request, message)
        if chunk:
            yield chunk


def take_chunk(request: Request, message: Message) -> tuple[bytes, bool]:
    """A piece of the body, and whether it is the last one. Raises Rejected if there is no more of it to be had."""
    if message["type"] == "http.disconnect":
        raise Rejected(Problem(MALFORMED_REQUEST, "the body was cut off", headers=_CLOSE))
    is_read = not message.get("more_body")
    if lease_of(request).is_refused:
        raise overloaded(is_read=is_read)
    return message.get("body", b""), is_read


def lease_of(request: Request) -> Lease:
    """The bytes of the request, as its connection counts them."""
    lease: Lease = request.state.lease
    return lease


def too_large(limits: HttpLimits) -> Rejected:
    """A body, or a line, above the limit."""
    return Rejected(Problem(BODY_TOO_LARGE, f"more than {limits.body_bytes} bytes", headers=_CLOSE))


def overloaded(*, is_read: bool) -> Rejected:
    """The process holds as many bytes as it may. `is_read`: nothing of the request is on its way any more."""
    detail = "too many bytes of requests are being held; this one was not kept"
    return Rejected(Problem(UNAVAILABLE, detail, retry_after_s=1, headers={} if is_read else _CLOSE))
