"""One road in: the table of routes, and what a request passes on its way to one of them and back.

A request that came in one piece, for a hot route, is handed over by its connection (`answer_whole`). All others come
by ASGI, and pass the same places.
"""

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import structlog
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.web.guard import ByteLease, Doorkeeper, RawHeaders, Traffic, identify, refuse_accept
from api.web.limits import SMALL_BYTES, ByteBudget, overloaded
from api.web.metrics import HttpMetrics
from api.web.openapi import Json
from api.web.problems import (
    INTERNAL,
    METHOD_NOT_ALLOWED,
    NO_ROLE,
    NOT_FOUND,
    UNAVAILABLE,
    Problem,
    Rejected,
    encode_problem,
    problem_headers,
    problem_of,
)
from api.web.request import JSON, NDJSON, ApiRequest, Asked, Services
from api.web.views import encode_json
from bridge.core.grants import Rights, Verb
from bridge.core.message import Header
from bridge.core.transaction import find_trace_id
from bridge.service.access import ANYBODY, Caller
from bridge.service.contract import Outcome, refuse_right
from bridge.turns import each_in_steps

_LOG = structlog.get_logger()
_LEVEL = logging.getLogger(__name__)  # asked before anything is put together for the log
_LINES = NDJSON.encode()
T = TypeVar("T")
NO_PATH = Problem(NOT_FOUND, "there is nothing at this path")
NO_STORE = (("Cache-Control", "no-store"),)


class HttpAnswer:
    """An answer. `headers` besides its length; its type is among them where `media_type` is None."""

    __slots__ = ("body", "headers", "media_type", "status")

    def __init__(
        self, status: int, body: bytes, headers: Sequence[tuple[str, str]] = (), media_type: str | None = JSON
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.media_type = media_type

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Sends it by ASGI."""
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers]
        headers.append((b"content-length", str(len(self.body)).encode()))
        if self.media_type is not None:
            headers.append((b"content-type", self.media_type.encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if is_large := len(self.body) > SMALL_BYTES:
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
        # of a large one not before most has been read: until then its request has its place, and holds its bytes
        await send({"type": "http.response.body", "body": b"" if is_large else self.body})


def json_answer(status: int, body: object, headers: Sequence[tuple[str, str]] = ()) -> HttpAnswer:
    """An answer from a struct or plain values."""
    return HttpAnswer(status, encode_json(body), headers)


async def answer_list(
    request: ApiRequest,
    name: str,
    items: Iterable[T],
    render: Callable[[T], object],
    rest: Mapping[str, object] | None = None,
    headers: Sequence[tuple[str, str]] = (),
) -> HttpAnswer:
    """An answer of a list that may be long, and the members behind it. Others are served while it is rendered."""
    shown = await request.services.turns.run(each_in_steps(items, lambda item: encode_json(render(item))))
    end = b"}" if rest is None else b"," + encode_json(rest)[1:]
    return HttpAnswer(200, b'{"%b":[%b]%b' % (name.encode(), b",".join(shown), end), headers)


def _hold(request: ApiRequest, size: int) -> None:
    """Counts a large answer among the bytes in flight until it has been read; none for more than a quarter of them, so
    that any can be given. Raises Rejected."""
    if size > SMALL_BYTES and not request.lease.grow(min(size, request.traffic.budget.for_large // 4)):
        raise overloaded(is_read=True)


Run = Callable[..., Awaitable[ASGIApp]]
Begin = Callable[[Services, Rights, bytes, str, Sequence[Header], Callable[[HttpAnswer | Problem], None]], bool]


class Route(APIRoute):
    """An entry of the table. `described`: how the document shows it, if it does. `needs`: what its caller was granted.
    `is_hot`: every transaction makes this call, and routing it would cost more than it does; its answer is an
    `HttpAnswer`. `begin`: begins the usual call of these services with this body, this text in its path and
    this trace, if it is one; then its answer is given later."""

    begin: Begin | None = None

    def __init__(
        self, method: str, path: str, run: Run, described: Json | None, needs: "Need", *, is_hot: bool
    ) -> None:
        shown = {"include_in_schema": False} if described is None else described
        name = run.__name__  # generated clients call it so
        shown = {"operation_id": name, "summary": name.replace("_", " ").capitalize(), **shown}
        super().__init__(path, _nothing, methods=[method], name=name, description=run.__doc__, **shown)
        self.method = method
        self.run = run
        self.needs = needs
        self.is_hot = is_hot


async def _nothing() -> None:
    """What the framework knows of a route's parameters."""


class Need(NamedTuple):
    """What a call needs to have been granted: None where it is looked at in the call, or every caller may make it.
    `is_for_all`: for all groups, not only for some."""

    verb: Verb | None
    is_for_all: bool

    def refuse(self, rights: Rights) -> Problem | None:
        """Why somebody with these rights may not make the call, whatever it is about."""
        verb = self.verb
        if verb is None or (rights.may_everywhere(verb) if self.is_for_all else rights.may_somewhere(verb)):
            return None
        groups = "all producer groups" if self.is_for_all else "any producer group"
        return problem_of(refuse_right(verb, f"for {groups}"))


class Routes(list[Route]):
    """The routes of one resource, in the order in which they are tried."""

    def add(
        self,
        method: str,
        path: str,
        described: Json | None = None,
        *,
        verb: Verb | None,
        is_for_all: bool = False,
        is_hot: bool = False,
    ) -> Callable[[Run], Run]:
        """Decorates what answers a method at a path."""

        def register(run: Run) -> Run:
            self.append(Route(method, path, run, described, Need(verb, is_for_all), is_hot=is_hot))
            return run

        return register

    def begins(self, run: Run) -> Callable[[Begin], Begin]:
        """Decorates what begins the usual calls that this one answers."""

        def register(begin: Begin) -> Begin:
            next(route for route in self if route.run is run).begin = begin
            return begin

        return register


class HotCall(NamedTuple):
    """A hot route and the texts in its path."""

    route: Route
    path: str
    query: bytes
    texts: tuple[str, ...] = ()


class Site(NamedTuple):
    """Pages beside the interface. `prefix`: what their paths begin with; `identify`: who asks for one;
    `show_problem`: a problem as a page."""

    routes: Sequence[Route]
    prefix: str
    identify: Callable[[ApiRequest], Caller | Problem]
    show_problem: Callable[[ApiRequest, Problem], HttpAnswer]

    def has(self, path: str) -> bool:
        """Whether a page answers there."""
        return path == self.prefix or path.startswith(f"{self.prefix}/")


class Road:
    """Admits requests, finds their routes, turns failures into problems, and accounts for all of it."""

    def __init__(
        self,
        table: Sequence[Route],
        services: Services,
        traffic: Traffic,
        metrics: HttpMetrics,
        *,
        site: Site | None = None,
        is_open: bool = False,
    ) -> None:
        """`is_open`: nobody is asked who he is."""
        hot = [route for route in table if route.is_hot]  # all are POST, with one text in their paths at most
        self.table = table
        self._no_path = NO_PATH if hot else Problem(NOT_FOUND, NO_ROLE)
        self._hot = {r.path.encode(): HotCall(r, r.path, b"") for r in hot if not r.param_convertors}
        self._hot_by_ends = [(*_cut(route.path_format), route) for route in hot if route.param_convertors]
        self.services = services
        self.metrics = metrics
        self.traffic = traffic
        self.doorkeeper = Doorkeeper()  # gets the server's address
        self._is_open = is_open
        self._site = site

    def find_hot(self, target: bytes, headers: RawHeaders) -> HotCall | None:
        """The hot call that a POST to this target is. Lines are answered while they are read, so they are none."""
        path, _, query = target.partition(b"?")
        call = self._hot.get(path)
        if call is None:
            for before, after, route in self._hot_by_ends:
                if path.endswith(after) and path.startswith(before):
                    text = path[len(before) : -len(after)]
                    if text.isalnum():  # nothing that has to be decoded
                        return HotCall(route, path.decode(), query, (text.decode(),))
            return None
        for name, value in headers:
            if name == b"content-type" and _LINES in value.lower():
                return None
        return call._replace(query=query) if query else call

    async def answer_whole(
        self,
        call: HotCall,
        headers: RawHeaders,
        client: tuple[str, int] | None,
        body: bytes,
        lease: ByteLease,
        certified: str | None = None,
    ) -> tuple[HttpAnswer, str]:
        """The answer to a hot call, and the request's id. Never raises."""
        scope: Scope = {
            "type": "http", "method": "POST", "path": call.path, "query_string": call.query, "headers": headers,
            "client": client,
        }  # fmt: skip
        request = ApiRequest(scope, _receive_nothing, self.services, self.traffic, lease, body)
        request.certified = certified
        request.route_name = call.route.path_format
        answer = await self._try(request, _run_granted, call.route, request, *call.texts)
        assert isinstance(answer, HttpAnswer)
        request.status = answer.status
        self._dismiss(request)
        return answer, request.request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.get("state", {})
        lease = state.get("lease") or ByteLease(ByteBudget())  # a server besides ours counts nothing
        request = ApiRequest(scope, receive, self.services, self.traffic, lease)
        request.certified = state.get("certified")

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request.request_id.encode())]
            await send(message)

        try:
            problem = await self._try(request, self._route, request, receive, note)
            # an answer that has begun is left unfinished: the server then closes the connection
            if problem is not None and not request.status:
                await problem(scope, receive, note)
        finally:
            self._dismiss(request)

    async def _route(self, request: ApiRequest, receive: Receive, send: Send) -> None:
        """Sends the answer of the route with this path and method. Raises Rejected."""
        allowed: set[str] = set()
        for route in self.table:
            match, found = route.matches(request.scope)
            if match is Match.FULL:
                request.route_name = route.path_format
                answer = await _run_granted(route, request, *found["path_params"].values())
                if isinstance(answer, HttpAnswer) and request.method == "GET":  # nothing was done
                    _hold(request, len(answer.body))
                await answer(request.scope, receive, send)
                return
            if match is Match.PARTIAL:
                request.route_name = request.route_name or route.path_format
                allowed.add(route.method)
        if not allowed:
            raise Rejected(self._no_path)
        listed = ", ".join(sorted(allowed))
        detail = f"{request.method} is not possible here; allowed: {listed}"
        raise Rejected(Problem(METHOD_NOT_ALLOWED, detail, headers={"Allow": listed}))

    async def _try(self, request: ApiRequest, run: Callable[..., Awaitable[T]], *args: object) -> T | HttpAnswer:
        """What `run` gives; a problem if the request is not admitted, or fails. Never raises."""
        problem = self._admit(request)
        try:
            if problem is None:
                return await run(*args)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last one who can answer
            problem = explain(error, request.request_id)
        if self._site is not None and self._site.has(request.path):
            self.metrics.count_problem(problem.type.slug)
            return self._site.show_problem(request, problem)
        return self.show_problem(problem, request.request_id)

    def show_problem(self, problem: Problem, request_id: str) -> HttpAnswer:
        """The answer to a request that is refused, or has failed."""
        self.metrics.count_problem(problem.type.slug)
        body = encode_problem(problem, request_id)
        return HttpAnswer(problem.type.status, body, [*problem_headers(problem).items()], None)

    def _admit(self, request: ApiRequest) -> Problem | None:
        """Counts a request as being served; why it is not served, if so."""
        path, headers = request.path, request.scope["headers"]
        problem = (
            self.doorkeeper.refuse(request.method, path, headers)
            or self.traffic.refuse(path)
            or refuse_accept(path, headers)
        )
        request.enter()
        if problem is not None:
            return problem
        found = ANYBODY if self._is_open else self._identify(request)
        if isinstance(found, Problem):
            client = request.scope.get("client") or ("unknown",)
            self.traffic.refused_proofs.note(client[0], found.detail)
            return found
        request.caller = found
        return self._count(request) if found.key_id is not None else None

    def _identify(self, request: ApiRequest) -> Caller | Problem:
        if self._site is not None and self._site.has(request.path):
            return self._site.identify(request)
        return identify(self.services.access, request.path, request.scope["headers"], request.certified)

    def _count(self, request: ApiRequest) -> Problem | None:
        """Counts the request for its caller; why it is not served, if he has had his share."""
        usage = self.traffic.quotas.find(request.caller.name)
        problem = self.traffic.quotas.enter(usage, self.traffic.in_flight - 1)
        if problem is None:
            request.usage = usage
        return problem

    def _dismiss(self, request: ApiRequest) -> None:
        """The request is over. A `status` of 0: its answer has not begun."""
        request.leave()
        request.lease.close()
        route = request.route_name or "unmatched"
        self.account(route, request.method, request.status, request.started, request)

    def account(self, route: str, method: str, status: int, started: float, asked: Asked) -> None:
        """For metrics and the log: a request is over."""
        seconds = time.perf_counter() - started
        self.metrics.observe(route, method, status, seconds)
        if self.services.tracer is not None:
            self.services.tracer.answered(route, method, status, seconds, asked)
        level = logging.INFO if status >= 500 else logging.DEBUG
        if _LEVEL.isEnabledFor(level):
            _LOG.log(
                level,
                "request_answered",
                method=method,
                route=route,
                status=status,
                duration_ms=round(seconds * 1000, 1),
                request_id=asked.request_id,
                **show_trace(asked.find_trace()),
            )


def show_trace(trace: Sequence[Header]) -> dict[str, str]:
    """The name of a trace as a member of a log line, if there is one."""
    trace_id = find_trace_id(trace)
    return {} if trace_id is None else {"trace_id": trace_id}


async def _run_granted(route: Route, request: ApiRequest, *texts: str) -> ASGIApp:
    problem = route.needs.refuse(request.caller.rights)
    if problem is not None:
        raise Rejected(problem)
    return await route.run(request, *texts)


def _cut(path: str) -> tuple[bytes, bytes]:
    """What stands before and behind the text in a path."""
    return path[: path.index("{")].encode(), path[path.index("}") + 1 :].encode()


async def _receive_nothing() -> Message:
    """There is no more to come of a request that is whole."""
    return {"type": "http.disconnect"}


def explain(error: BaseException, request_id: str) -> Problem:
    """The answer to a request that failed."""
    if isinstance(error, Rejected):
        return error.problem
    if isinstance(error, asyncio.CancelledError):
        # the process stops at once; a repeat shows whether the call was applied
        return Problem(UNAVAILABLE, "stopped before the answer was known", Outcome.UNKNOWN, retry_after_s=1)
    # where it happened, not with which values: messages of exceptions may hold keys and bodies
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[-8:]]
    _LOG.error("internal_error", request_id=request_id, error=type(error).__name__, where=where)
    return Problem(INTERNAL, "an error inside the bridge; see its log")
