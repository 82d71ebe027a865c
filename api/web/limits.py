"""Bounds of the HTTP interface: sizes, times, bytes in flight, and how a refused client is let go.

Closing it would reset it, and the client would lose the answer that says why. So the answer goes out, then our side is
closed, and what still comes is thrown away for a while. nginx calls this a lingering close.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Message

from api.web.problems import BODY_TOO_LARGE, CLOSE, MALFORMED_REQUEST, REQUEST_TIMEOUT, UNAVAILABLE, Problem, Rejected

SMALL_BYTES = 64 * 1024


class ByteBudget:
    """The last quarter is kept for small requests, so that they are served beside large ones that have stalled."""

    __slots__ = ("for_large", "total", "used")

    def __init__(self, total: int = 256 * 1024 * 1024) -> None:
        self.total = total
        self.for_large = total - total // 4
        self.used = 0


class ByteLease:
    """The bytes of one request, from the first that comes until the request is over."""

    __slots__ = ("_budget", "_held", "_is_ended", "is_refused")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = 0
        self._is_ended = False
        self.is_refused = False  # a piece of the request was not taken, nor any after it

    def grow(self, size: int) -> bool:
        """Whether these bytes may be kept. Once False, it stays so: the request has a hole."""
        if self._is_ended:
            return False
        budget, held = self._budget, self._held + size
        used = budget.used + size
        if used > budget.for_large and (held > SMALL_BYTES or used > budget.total):
            self._is_ended = self.is_refused = True
            return False
        budget.used, self._held = used, held
        return True

    def shrink(self, size: int) -> None:
        """So many bytes are not kept any longer."""
        size = min(size, self._held)
        self._held -= size
        self._budget.used -= size

    def close(self) -> None:
        """The request is over. May be called again."""
        self._is_ended = True
        self.shrink(self._held)


LINGER_S = 10.0
LINGER_BYTES = 32 * 1024 * 1024


class Lingering:
    """Takes what a client still sends, in bounded time and amount, then ends the connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._left = LINGER_BYTES
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        transport.write_eof()

    def discard(self, size: int) -> None:
        """So many bytes came."""
        self._left -= size
        if self._left < 0:
            self._transport.abort()

    def stop(self) -> None:
        """The connection is lost."""
        self._timer.cancel()


class EndedTransport:
    """What a connection has as its transport once its last answer has gone out: what is written later goes nowhere."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.close = transport.close
        self.abort = transport.abort
        self.get_write_buffer_size = transport.get_write_buffer_size

    def write(self, data: bytes) -> None:
        """A request that was cut off may still be answered by whoever works on it."""

    def is_closing(self) -> bool:
        return True


class ClosingTransport:
    """What a cycle of uvicorn writes to: a transport whose end is somebody else's to decide."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


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
            problem = Problem(REQUEST_TIMEOUT, f"body not received in {limits.receive_s:g} s", headers=CLOSE)
            raise Rejected(problem) from None
        chunk, is_read = take_chunk(request, message)
        if chunk:
            yield chunk


def take_chunk(request: Request, message: Message) -> tuple[bytes, bool]:
    """A piece of the body, and whether it is the last one. Raises Rejected if there is no more of it to be had."""
    if message["type"] == "http.disconnect":
        raise Rejected(Problem(MALFORMED_REQUEST, "the body was cut off", headers=CLOSE))
    is_read = not message.get("more_body")
    if lease_of(request).is_refused:
        raise overloaded(is_read=is_read)
    return message.get("body", b""), is_read


def lease_of(request: Request) -> ByteLease:
    """The bytes of the request, as its connection counts them."""
    lease: ByteLease = request.state.lease
    return lease


def too_large(limits: HttpLimits) -> Rejected:
    """A body, or a line, above the limit."""
    return Rejected(Problem(BODY_TOO_LARGE, f"more than {limits.body_bytes} bytes", headers=CLOSE))


def overloaded(*, is_read: bool) -> Rejected:
    """The process holds as many bytes as it may. `is_read`: nothing of the request is on its way any more."""
    detail = "too many bytes of requests are being held; this one was not kept"
    return Rejected(Problem(UNAVAILABLE, detail, retry_after_s=1, headers={} if is_read else CLOSE))
