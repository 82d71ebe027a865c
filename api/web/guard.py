"""What every request passes before its call: names and origins, load, readiness to take it.

A browser sends to this machine whatever a page tells it to. Three things give such a page away: the `Origin` it comes
from; the `Host` it called, if its own name was made to point here (DNS rebinding); and, where neither is looked at
anywhere on the way, that it cannot send a JSON content type or a header of ours without asking first (preflight).
"""

import asyncio
import ipaddress
import logging
import os
import re
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.web.limits import ByteBudget, ByteLease
from api.web.metrics import HttpMetrics
from api.web.problems import (
    CLOSE,
    FORBIDDEN,
    INTERNAL,
    MALFORMED_REQUEST,
    NOT_ACCEPTABLE,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    Rejected,
    encode_problem,
    problem_headers,
)
from api.web.streams import Streams
from bridge.service.contract import Outcome

RawHeaders = Sequence[tuple[bytes, bytes]]

MARK = "Outbox-Bridge-Request"
HEALTH = frozenset({"/livez", "/readyz", "/metrics"})

_MARK = MARK.lower().encode()
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_TYPES = frozenset({b"application/json", b"application/x-ndjson"})
_PLAIN_PORT = 80  # browsers leave it out
_REMEDY = "list the name in http.allowed_hosts if it is this bridge's"


class Doorkeeper:
    """Knows the names of the address a process listens on. Before `listen`, those that no DNS can give are taken."""

    def __init__(self) -> None:
        self._names: frozenset[bytes] = frozenset()
        self._is_loopback = False

    def listen(self, host: str, port: int, allowed: Sequence[str]) -> None:
        """The address is known. `allowed`: names besides, each with a port, or without one for any."""
        self._is_loopback = is_loopback(host)
        own = {host} | ({"127.0.0.1", "::1", "localhost"} if self._is_loopback else set())
        names = [f"[{name}]" if ":" in name else name for name in own]
        with_port = [f"{name}:{port}" for name in names] + (names if port == _PLAIN_PORT else [])
        self._names = frozenset(name.lower().encode() for name in [*with_port, *allowed])

    def refuse(self, method: str, path: str, headers: RawHeaders) -> Problem | None:
        """Why this request is not let in."""
        hosts, origins, is_unforgeable = [], [], method in _READING
        for name, value in headers:
            if name == b"host":
                hosts.append(value.lower())
            elif name == b"origin":
                origins.append(value.lower())
            elif name == _MARK or (name == b"content-type" and value.partition(b";")[0].strip().lower() in _TYPES):
                is_unforgeable = True
        if path in HEALTH and not self._is_loopback:  # probes name whatever they like, and there is nothing to hide
            return None
        problem = self._refuse_names(hosts, origins)
        if problem is None and not is_unforgeable:
            detail = f"a {method} needs Content-Type: application/json, also without a body, or the header {MARK}: 1"
            return Problem(UNSUPPORTED_MEDIA_TYPE, detail)
        return problem

    def _refuse_names(self, hosts: Sequence[bytes], origins: Sequence[bytes]) -> Problem | None:
        if len(hosts) != 1:
            return Problem(MALFORMED_REQUEST, "one Host is needed")
        if not self._is_own(hosts[0]):
            return Problem(FORBIDDEN, f"this bridge is not called {_show(hosts[0])}; {_REMEDY}")
        for origin in origins:
            if not self._is_same(origin, hosts[0]):
                return Problem(FORBIDDEN, f"pages of {_show(origin)} may not call this bridge; {_REMEDY}")
        return None

    def _is_own(self, host: bytes) -> bool:
        if host in self._names:
            return True
        name = _without_port(host)
        return name in self._names or (not self._is_loopback and _is_never_rebound(name))

    def _is_same(self, origin: bytes, host: bytes) -> bool:
        scheme, _, authority = origin.partition(b"://")
        is_named = authority == host or authority in self._names or _without_port(authority) in self._names
        return scheme in {b"http", b"https"} and is_named


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_port(authority: bytes) -> bytes:
    name, colon, port = authority.rpartition(b":")
    return name if colon and port.isdigit() else authority


def _is_never_rebound(name: bytes) -> bool:
    """An address, or the one name that browsers resolve themselves: no DNS server of anybody's can point it here."""
    try:
        return name == b"localhost" or bool(ipaddress.ip_address(name.decode().removeprefix("[").removesuffix("]")))
    except ValueError:
        return False


def _show(text: bytes) -> str:
    return text[:200].decode("ascii", "replace")


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
    budget: ByteBudget = field(default_factory=ByteBudget)
    in_flight: int = 0
    is_draining: bool = False
    streams: Streams = field(init=False)

    def __post_init__(self) -> None:
        self.streams = Streams(self.max_in_flight)

    def drain(self) -> None:
        """Takes nothing new, and ends streams where they are between two lines."""
        self.is_draining = True
        self.streams.drain()

    def leave(self, served: "RequestContext") -> None:
        """The request takes no place any more: it is over, or counted elsewhere."""
        if served.is_counted:
            served.is_counted = False
            self.in_flight -= 1

    def refuse(self, path: str) -> Problem | None:
        """Why a request is not served now. Health is always told."""
        if path in HEALTH:
            return None
        if self.is_draining:
            return Problem(UNAVAILABLE, "shutting down", retry_after_s=1, headers=CLOSE)
        if self.in_flight >= self.max_in_flight:
            return Problem(UNAVAILABLE, f"{self.max_in_flight} requests are being served", retry_after_s=1)
        return None


class RequestGuard:
    """Admits requests and accounts for them, whichever way they are served."""

    def __init__(self, doorkeeper: Doorkeeper, traffic: Traffic, metrics: HttpMetrics) -> None:
        self._doorkeeper = doorkeeper
        self._traffic = traffic
        self._metrics = metrics

    def admit(self, served: "RequestContext", path: str, headers: RawHeaders) -> Problem | None:
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

    def dismiss(self, request: "RequestContext") -> None:
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


class RequestContext:
    """One request on its way. `is_counted`: whether it takes a place."""

    __slots__ = ("is_counted", "lease", "method", "request_id", "route", "started", "status")

    def __init__(self, method: str, request_id: str, lease: ByteLease, route: str = _UNMATCHED) -> None:
        self.is_counted = False
        self.lease = lease
        self.method = method
        self.request_id = request_id
        self.route = route
        self.started = time.perf_counter()
        self.status = 0


class LoadShedder:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, reception: RequestGuard) -> None:
        self._app = app
        self._reception = reception

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.get("state", {})
        lease: ByteLease = state.get("lease") or ByteLease(ByteBudget())  # a server besides ours counts nothing
        served = RequestContext(scope["method"], find_request_id(scope["headers"]), lease)
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
