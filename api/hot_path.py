"""The calls that every transaction makes, answered without the web framework: routing them costs more than they do.

It serves requests that came in one piece. All others, and all other calls, go through the framework, to the
same functions.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from api.arrival import JSON, Arrival, WholeArrival
from api.byte_budget import Lease
from api.doorkeeper import RawHeaders
from api.gate import Reception, Served, find_request_id
from api.problems import Problem, encode_problem, problem_headers
from api.routes.calls import Answer, end_all, end_one, prepare_all, prepare_one
from api.services import Services
from bridge.core.record import Resolution

Run = Callable[[Services, Arrival], Awaitable[Answer]]

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

    def __init__(self, services: Services, reception: Reception) -> None:
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

    async def answer(self, call: HotCall, headers: list[tuple[bytes, bytes]], body: bytes, lease: Lease) -> HotAnswer:
        """Never raises: what fails is answered with a problem."""
        served = Served("POST", find_request_id(headers), lease, call.route)
        problem = self._reception.admit(served, call.path, headers)
        try:
            if problem is None:
                kept = None if lease.is_refused else body
                arrival = WholeArrival(headers, call.query, kept, served.request_id, self._services.limits)
                answer = await call.run(self._services, arrival)
                named = [("content-type", JSON), *answer.headers]
                return self._close(served, HotAnswer(answer.status, named, answer.body))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last one who can answer
            problem = self._reception.explain(error, served.request_id)
        return self._close(served, _show(problem, served.request_id))

    def _close(self, served: Served, answer: HotAnswer) -> HotAnswer:
        served.status = answer.status
        answer.headers.append(("x-request-id", served.request_id))
        self._reception.dismiss(served)
        return answer


def _show(problem: Problem, request_id: str) -> HotAnswer:
    return HotAnswer(problem.type.status, [*problem_headers(problem).items()], encode_problem(problem, request_id))
