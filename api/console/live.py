"""The first page while it is looked at: what it shows, again and again, as server-sent events."""

import asyncio
import json

from starlette.types import Message, Receive, Scope, Send

from api.console.home import look
from api.console.render import HEADERS, PREFIX, fragment
from api.web.problems import Rejected
from api.web.request import ApiRequest
from api.web.road import Routes
from bridge.core.grants import Verb
from bridge.service.search import BridgeStats

routes = Routes()

_EVERY_S = 2.0
_MOST_S = 60.0  # then the browser comes again, and whether it may is looked at again
_TYPE = (b"content-type", b"text/event-stream")


@routes.add("GET", f"{PREFIX}/live", verb=Verb.READ)
async def follow(request: ApiRequest) -> "EventsAnswer":
    """Goes on for a minute at most. Takes no place of a request."""
    return EventsAnswer(request, await _tell(request))


class EventsAnswer:
    """Events until the reader goes, or the process ends."""

    def __init__(self, request: ApiRequest, first: bytes) -> None:
        self._request = request
        self._first = first

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        with self._request.traffic.streams.open() as stream:
            self._request.leave()
            headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": [*headers, _TYPE]})
            await send(_piece(self._first))
            loop = asyncio.get_running_loop()
            until = loop.time() + _MOST_S
            next_at = loop.time() + _EVERY_S
            while next_at < until:
                try:
                    message = await stream.wait(receive, next_at)
                except Rejected:
                    if stream.is_ending:
                        break
                    next_at += _EVERY_S
                    await send(_piece(await _tell_if_possible(self._request)))
                    continue
                if message["type"] == "http.disconnect":
                    return
            await send({"type": "http.response.body", "body": b""})


def _piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _tell_if_possible(request: ApiRequest) -> bytes:
    """Nothing but a sign of life while the counts cannot be read."""
    try:
        return await _tell(request)
    except Rejected:
        return b": nothing can be read now\n\n"


async def _tell(request: ApiRequest) -> bytes:
    members = await look(request)
    stats = members["stats"]
    assert isinstance(stats, BridgeStats)
    total = stats.projection.total
    counted = {name: getattr(total, name) for name in ("prepared", "committed", "rolled_back", "parked")}
    shown = fragment(request, "home_parts.html", **members)
    return _event("totals", json.dumps({"at_ms": stats.now_ms, **counted})) + _event("page", shown)


def _event(name: str, text: str) -> bytes:
    """Source: HTML, section 9.2.5."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n".encode("utf-8", "replace")
