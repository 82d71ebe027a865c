"""The outermost layer, plain ASGI: request ids, overload, metrics, and nothing leaves as a stack trace."""

import asyncio
import logging
import os
import re
import time
import traceback
from dataclasses import dataclass, field
from functools import lru_cache

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.byte_budget import Budget, Lease
from api.doorkeeper import HEALTH, Doorkeeper, RawHeaders
from api.metrics import HttpMetrics
from api.problems import (
    INTERNAL,
    NOT_ACCEPTABLE,
    UNAVAILABLE,
    Problem,
    Rejected,
    encode_problem,
    problem_headers,
)
from api.streams import Streams
from bridge.service.contract import Outcome

_LOG = structlog.get_logger()
_LEVEL = logging.getLogger(__name__)  # asked before anything is put together for the log

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,200}")
_SHOWN = frozenset(
    {b"*/*", b"application/*", b"application/json", b"application/x-ndjson", b"application/problem+json"}
)
_API = "/v1/"
_UNMATCHED = "unmatched"


@dataclass(slots=True)
class Traffic:
    """How many requests are being served, as many streams besides, their bytes, and whether new ones are taken."""

    max_in_flight: int = 2_000
    budget: Budget = field(default_factory=Budget)
    in_flight: int = 0
    is_draining: bool = False
    streams: Streams = field(init=False)

    def __post_init__(self) -> None:
        self.streams = Streams(self.max_in_flight)

    def drain(self) -> None:
        """Takes nothing new, and ends streams where they are between two lines."""
        self.is_draining = True
        self.streams.drain()

    def leave(self, served: "Served") -> None:
        """The request takes no place any more: it is over, or counted elsewhere."""
        if served.is_counted:
            served.is_counted = False
            self.in_flight -= 1

    def refuse(self, path: str) -> Problem | None:
        """Why a request is not served now. Health is always told."""
        if path in HEALTH:
            return None
        if self.is_draining:
            return Problem(UNAVAILABLE, "shutting down", retry_after_s=1, headers={"Connection": "close"})
        if self.in_flight >= self.max_in_flight:
            return Problem(UNAVAILABLE, f"{self.max_in_flight} requests are being served", retry_after_s=1)
        return None


class Reception:
    """Admits requests and accounts for them, whichever way they are served."""

    def __init__(self, doorkeeper: Doorkeeper, traffic: Traffic, metrics: HttpMetrics) -> None:
        self._doorkeeper = doorkeeper
        self._traffic = traffic
        self._metrics = metrics

    def admit(self, served: "Served", path: str, headers: RawHeaders) -> Problem | None:
        """Counts a request as being served; why it is not served, if so."""
        problem = (
            self._doorkeeper.refuse(served.method, path, headers)
            or self._traffic.refuse(path)
            or _refuse_accept(path, headers)
        )
        self._traffic.in_flight += 1
        served.is_counted = True
        if problem is not None:
            self._metrics.count_problem(problem.type.slug)
        return problem

    def explain(self, error: BaseException, request_id: str) -> Problem:
        """What the caller of a request that failed is told."""
        if isinstance(error, Rejected):
            problem = error.problem
        elif isinstance(error, asyncio.CancelledError):
            # the process stops at once; whether the call was applied is told by its repeat
            problem = Problem(UNAVAILABLE, "stopped before the answer was known", Outcome.UNKNOWN, retry_after_s=1)
        else:
            _log_internal(error, request_id)
            problem = Problem(INTERNAL, "an error inside the bridge; see its log")
        self._metrics.count_problem(problem.type.slug)
        return problem

    def dismiss(self, request: "Served") -> None:
        """The request is over. A `status` of 0: its answer has not begun."""
        self._traffic.leave(request)
        request.lease.close()
        seconds = time.perf_counter() - request.started
        self._metrics.observe(request.route, request.method, request.status, seconds)
        level = logging.INFO if request.status >= 500 else logging.DEBUG
        if _LEVEL.isEnabledFor(level):
            _LOG.log(
                level,
                "request_answered",
                method=request.method,
                route=request.route,
                status=request.status,
                duration_ms=round(seconds * 1000, 1),
                request_id=request.request_id,
            )


class Served:
    """One request on its way. `is_counted`: whether it takes a place."""

    __slots__ = ("is_counted", "lease", "method", "request_id", "route", "started", "status")

    def __init__(self, method: str, request_id: str, lease: Lease, route: str = _UNMATCHED) -> None:
        self.is_counted = False
        self.lease = lease
        self.method = method
        self.request_id = request_id
        self.route = route
        self.started = time.perf_counter()
        self.status = 0


class Gate:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, reception: Reception) -> None:
        self._app = app
        self._reception = reception

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.get("state", {})
        lease: Lease = state.get("lease") or Lease(Budget())  # a server besides ours counts nothing
        served = Served(scope["method"], find_request_id(scope["headers"]), lease)
        scope["state"] = {**state, "lease": lease, "request_id": served.request_id, "served": served}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                served.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", served.request_id.encode())]
            await send(message)

        problem = self._reception.admit(served, scope["path"], scope["headers"])
        try:
            if problem is None:
                problem = await self._serve(scope, receive, answer, served.request_id)
            # an answer that has begun is left unfinished: the server then closes the connection
            if problem is not None and not served.status:
                await send_problem(problem, served.request_id, answer)
        finally:
            served.route = getattr(scope.get("route"), "path_format", _UNMATCHED)
            self._reception.dismiss(served)

    async def _serve(self, scope: Scope, receive: Receive, answer: Send, request_id: str) -> Problem | None:
        try:
            await self._app(scope, receive, answer)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last one who can answer
            return self._reception.explain(error, request_id)
        return None


async def send_problem(problem: Problem, request_id: str, send: Send) -> None:
    """Answers with a problem."""
    body = encode_problem(problem, request_id)
    headers = [(name.lower().encode(), value.encode()) for name, value in problem_headers(problem).items()]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": problem.type.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def find_request_id(headers: RawHeaders) -> str:
    """The caller's own id if it is a plain word, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return os.urandom(16).hex()


def _refuse_accept(path: str, headers: RawHeaders) -> Problem | None:
    if path.startswith(_API):
        for name, value in headers:
            if name == b"accept" and value not in _SHOWN and not _is_acceptable(value):
                return Problem(NOT_ACCEPTABLE, "answers are application/json")
    return None


@lru_cache(maxsize=256)
def _is_acceptable(accept: bytes) -> bool:
    """Whether one of the listed ranges takes JSON. Source: RFC 9110 section 12.5.1."""
    if not accept.strip():
        return True
    for part in accept.split(b","):
        media, *parameters = [piece.strip().lower() for piece in part.split(b";")]
        if media in _SHOWN and not any(re.fullmatch(rb"q=0(\.0{0,3})?", piece) for piece in parameters):
            return True
    return False


def _log_internal(error: BaseException, request_id: str) -> None:
    """Where it happened, not with which values: messages of exceptions may hold keys and bodies."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[-8:]]
    _LOG.error("internal_error", request_id=request_id, error=type(error).__name__, where=where)
