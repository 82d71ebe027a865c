"""The outermost layer, plain ASGI: request ids, overload, metrics, and nothing leaves as a stack trace."""

import asyncio
import re
import secrets
import time
import traceback
from dataclasses import dataclass, field
from functools import lru_cache

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
from bridge.service.contract import Outcome

_LOG = structlog.get_logger()

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,200}")
_SHOWN = frozenset(
    {b"*/*", b"application/*", b"application/json", b"application/x-ndjson", b"application/problem+json"}
)
_API = "/v1/"
_HEALTH = frozenset({"/livez", "/readyz", "/metrics"})
_UNMATCHED = "unmatched"


@dataclass(slots=True)
class Traffic:
    """How many requests are being served, and whether new ones are still taken."""

    max_in_flight: int = 2_000
    in_flight: int = 0
    is_draining: bool = False

    def refuse(self, path: str) -> Problem | None:
        """Why a request is not served now. Health is always told."""
        if path in _HEALTH:
            return None
        if self.is_draining:
            return Problem(UNAVAILABLE, "shutting down", retry_after_s=1, headers={"Connection": "close"})
        if self.in_flight >= self.max_in_flight:
            return Problem(UNAVAILABLE, f"{self.max_in_flight} requests are being served", retry_after_s=1)
        return None


@dataclass(slots=True)
class _Served:
    """One request on its way. `status` 0: the answer has not begun."""

    request_id: str
    send: Send
    started: float = field(default_factory=time.perf_counter)
    status: int = 0

    async def answer(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
        await self.send(message)

    async def answer_problem(self, problem: Problem) -> None:
        await send_problem(problem, self.request_id, self.answer)


class Gate:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, traffic: Traffic, metrics: HttpMetrics) -> None:
        self._app = app
        self._traffic = traffic
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        served = _Served(_request_id(headers), send)
        scope["state"] = {**scope.get("state", {}), "request_id": served.request_id}
        problem = self._traffic.refuse(scope["path"]) or _refuse_accept(scope["path"], headers)
        self._traffic.in_flight += 1
        self._metrics.in_flight.inc()
        try:
            if problem is None:
                await self._serve(scope, receive, served)
            else:
                self._metrics.count_problem(problem.type.slug)
                await served.answer_problem(problem)
        finally:
            self._traffic.in_flight -= 1
            self._metrics.in_flight.dec()
            self._observe(scope, served)

    async def _serve(self, scope: Scope, receive: Receive, served: _Served) -> None:
        try:
            await self._app(scope, receive, served.answer)
        except Rejected as rejected:
            problem = rejected.problem
        except asyncio.CancelledError:
            # the process stops at once; whether the call was applied is told by its repeat
            problem = Problem(UNAVAILABLE, "stopped before the answer was known", Outcome.UNKNOWN, retry_after_s=1)
        except Exception as error:  # noqa: BLE001 - the last one who can answer
            _log_internal(error, served.request_id)
            problem = Problem(INTERNAL, "an error inside the bridge; see its log")
        else:
            return
        # an answer that has begun is left unfinished: the server then closes the connection
        if not served.status:
            self._metrics.count_problem(problem.type.slug)
            await served.answer_problem(problem)

    def _observe(self, scope: Scope, served: _Served) -> None:
        seconds = time.perf_counter() - served.started
        route = getattr(scope.get("route"), "path_format", _UNMATCHED)
        self._metrics.observe(route, scope["method"], served.status, seconds)
        log = _LOG.info if served.status >= 500 else _LOG.debug
        log(
            "request_answered",
            method=scope["method"],
            route=route,
            status=served.status,
            duration_ms=round(seconds * 1000, 1),
            request_id=served.request_id,
        )


async def send_problem(problem: Problem, request_id: str, send: Send) -> None:
    """Answers with a problem."""
    body = encode_problem(problem, request_id)
    headers = [(name.lower().encode(), value.encode()) for name, value in problem_headers(problem).items()]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": problem.type.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    """The caller's own id if it is a plain word, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return secrets.token_hex(16)


def _refuse_accept(path: str, headers: list[tuple[bytes, bytes]]) -> Problem | None:
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
