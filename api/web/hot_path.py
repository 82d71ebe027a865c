"""The calls that every transaction makes, answered without the web framework: routing them costs more than they do.

It serves requests that came in one piece. All others, and all other calls, go through the framework, to the
same functions.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from api.web.calls import HttpAnswer, end_all, end_one, prepare_all, prepare_one
from api.web.guard import RawHeaders, RequestContext, RequestGuard, find_request_id
from api.web.limits import ByteLease
from api.web.problems import Problem, encode_problem, problem_headers
from api.web.request import JSON, ApiRequest, WholeRequest
from api.web.services import Services
from bridge.core.record import Resolution

Run = Callable[[Services, ApiRequest], Awaitable[HttpAnswer]]

_ONE = b"/v1/transactions/"
_LINES = b"ndjson"
_VERBS = {
    b"commit": ("/v1/transactions/{transaction_id}/commit", Resolution.COMMIT),
    b"rollback": ("/v1/transactions/{transaction_id}/rollback", Resolution.ROLLBACK),
}


class HotCall(NamedTuple):
    """A call by its path. `route`: its name in metrics."""

    path: str
    route: str
    query: bytes
    run: Run


class HotAnswer(NamedTuple):
    """Status and headers besides the length, and the body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


_RUNS: dict[str, Run] = {
    "/v1/transactions": partial(prepare_one, is_published=False),
    "/v1/transactions/batch": partial(prepare_all, is_published=False),
    "/v1/messages": partial(prepare_one, is_published=True),
    "/v1/messages/batch": partial(prepare_all, is_published=True),
    "/v1/resolutions": end_all,
}
_CALLS = {path.encode(): HotCall(path, path, b"", run) for path, run in _RUNS.items()}


class HotPath:
    """Finds the calls and answers them, exactly as the framework's routes do."""

    def __init__(self, services: Services, reception: RequestGuard) -> None:
        self._services = services
        self._reception = reception

    def find(self, target: bytes, headers: RawHeaders) -> HotCall | None:
        """The call a POST to this target is; None: ask the framework."""
        path, _, query = target.partition(b"?")
        call = _CALLS.get(path)
        if call is not None:
            is_stream = any(name == b"content-type" and _LINES in value.lower() for name, value in headers)
            return None if is_stream else call._replace(query=query) if query else call
        if not path.startswith(_ONE):
            return None
        name, _, verb = path[len(_ONE) :].partition(b"/")
        if verb not in _VERBS or not name.isalnum():
            return None
        route, resolution = _VERBS[verb]
        run = partial(end_one, transaction_id=name.decode(), resolution=resolution)
        return HotCall(path.decode(), route, query, run)

    async def answer(
        self, call: HotCall, headers: list[tuple[bytes, bytes]], body: bytes, lease: ByteLease
    ) -> HotAnswer:
        """Never raises: what fails is answered with a problem."""
        served = RequestContext("POST", find_request_id(headers), lease, call.route)
        problem = self._reception.admit(served, call.path, headers)
        try:
            if problem is None:
                kept = None if lease.is_refused else body
                arrival = WholeRequest(headers, call.query, kept, served.request_id, self._services.limits)
                answer = await call.run(self._services, arrival)
                named = [("content-type", JSON), *answer.headers]
                return self._close(served, HotAnswer(answer.status, named, answer.body))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last one who can answer
            problem = self._reception.explain(error, served.request_id)
        return self._close(served, _show(problem, served.request_id))

    def _close(self, served: RequestContext, answer: HotAnswer) -> HotAnswer:
        served.status = answer.status
        answer.headers.append(("x-request-id", served.request_id))
        self._reception.dismiss(served)
        return answer


def _show(problem: Problem, request_id: str) -> HotAnswer:
    return HotAnswer(problem.type.status, [*problem_headers(problem).items()], encode_problem(problem, request_id))


_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus if status >= 200
}


class Connection(Protocol):
    """What a cycle needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl

    def default_head(self) -> bytes:
        """Header lines of every answer."""
        ...

    def on_response_complete(self) -> None:
        """The next request may be served."""
        ...


class HotCycle:
    """Collects the body, answers. The names without a comment are those that uvicorn's protocol looks at."""

    def __init__(
        self, call: HotCall, headers: list[tuple[bytes, bytes]], connection: Connection, *, keep_alive: bool
    ) -> None:
        self.pieces: list[bytes] = []  # of the body
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.disconnected = False
        self._call = call
        self._headers = headers
        self._connection = connection

    @property
    def message_event(self) -> "HotCycle":
        """Not kept: a cycle of references would wait for the garbage collector, with the body in it."""
        return self

    def set(self) -> None:
        """Nobody waits for more of the body."""

    async def run(self, hot_path: HotPath, lease: ByteLease) -> None:
        """Answers the request, which is whole."""
        body = b"".join(self.pieces)
        self.pieces.clear()  # the connection keeps the cycle until its next request
        answer = await hot_path.answer(self._call, self._headers, body, lease)
        connection = self._connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        self.response_started = self.response_complete = True
        if self.disconnected:
            return
        connection.transport.write(self._encode(answer))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    def _encode(self, answer: HotAnswer) -> bytes:
        lines = [f"{name}: {value}\r\n" for name, value in answer.headers]
        if ("Connection", "close") in answer.headers:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append("connection: close\r\n")
        head = f"{''.join(lines)}content-length: {len(answer.body)}\r\n\r\n"
        return b"".join((_STATUS_LINES[answer.status], self._connection.default_head(), head.encode(), answer.body))
