"""The check endpoint as an ASGI application: `app.mount("/outbox-checks", CheckApp(handler))` in Starlette, FastAPI."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from outbox.check_handler import AsyncCheckHandler, CheckHandler, CheckResponse

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class CheckApp:
    """Answers POST at whatever path it is mounted."""

    def __init__(self, handler: CheckHandler | AsyncCheckHandler) -> None:
        self._handler = handler

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """One request. Other kinds of scopes are left to the application it is mounted in."""
        if scope["type"] != "http":
            raise RuntimeError(f"a check is an HTTP request, not {scope['type']}")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        reply = self._handler.gate.refuse_head(scope["method"], headers.get("content-length"))
        if reply is None:
            body = await self._read(receive)
            if body is None:
                return
            reply = body if isinstance(body, CheckResponse) else await self._respond(scope["method"], headers, body)
        await _send(reply, send)

    async def _respond(self, method: str, headers: dict[str, str], body: bytes) -> CheckResponse:
        return await self._handler.respond_async(method, headers, body)

    async def _read(self, receive: Receive) -> bytes | CheckResponse | None:
        """The body, or the reply to one that is too large; None if the caller has gone."""
        parts: list[bytes] = []
        size = 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            refused = self._handler.gate.refuse_size(size)
            if refused is not None:
                return refused
            if not event.get("more_body", False):
                return b"".join(parts)


async def _send(reply: CheckResponse, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
