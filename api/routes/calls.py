"""Service calls as answers: the same for single requests, batches and NDJSON."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace
from starlette.requests import Request

from api.bodies import NoncedEnd, parse_prepare, parse_resolution
from api.ndjson import Line
from api.problems import Problem, Rejected, invalid, problem_of
from api.queries import Query, prefers_async
from api.reading import item, problem_item, services_of
from api.rendering import render_accepted, render_prepared, render_transaction
from api.schemas.answers import AcceptedAnswer, PreparedAnswer, TransactionAnswer
from api.services import Services
from bridge.core.record import Source
from bridge.core.view import TransactionView
from bridge.service.contract import Accepted, EndCall, PrepareCall, Prepared, Refused, Wait
from checker.nonce import parse_nonce

T = TypeVar("T")
Parsed = PrepareCall | Problem
ParsedEnd = EndCall | NoncedEnd | Problem
Shown = PreparedAnswer | TransactionAnswer | AcceptedAnswer


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a caller waits for what."""

    wait: Wait
    wait_ms: int


def patience_of(request: Request) -> Patience:
    """`?wait_seconds=` and `Prefer: respond-async`. Raises Rejected."""
    most_s = services_of(request).limits.wait_s
    wait_ms = Query(request.query_params, {"wait_seconds"}).seconds_as_ms("wait_seconds", most_s, most_s)
    return Patience(Wait.DURABLE if prefers_async(request.headers) else Wait.SETTLED, wait_ms)


def show(answer: Prepared | TransactionView | Accepted) -> tuple[int, Shown]:
    """Status and body: 201 for PREPARED only, 202 for what is decided but not yet visible, else 200."""
    if isinstance(answer, Prepared):
        return 201, render_prepared(answer)
    if isinstance(answer, Accepted):
        return 202, render_accepted(answer)
    return 202 if answer.blocked else 200, render_transaction(answer)


async def prepare_many(
    services: Services, calls: Sequence[Parsed], wait_ms: int, request_id: str, pointer: str = ""
) -> list[bytes]:
    """A result for each call. `pointer`: where call number {} lies in the request's document."""
    answers = iter(await services.transactions.prepare([c for c in calls if not isinstance(c, Problem)], wait_ms))
    merged = [call if isinstance(call, Problem) else next(answers) for call in calls]
    return _show_all(merged, request_id, pointer)


async def end_many(
    services: Services, calls: Sequence[ParsedEnd], patience: Patience, request_id: str, pointer: str = ""
) -> list[bytes]:
    """A result for each resolution."""
    parsed = [
        _answer_to_check(call, pointer, n) if isinstance(call, NoncedEnd) else call for n, call in enumerate(calls)
    ]
    ends = [call for call in parsed if not isinstance(call, Problem)]
    answers = iter(await services.transactions.end(ends, patience.wait, patience.wait_ms))
    merged = [call if isinstance(call, Problem) else next(answers) for call in parsed]
    return _show_all(merged, request_id, pointer)


def parse_prepare_lines(services: Services, lines: Sequence[Line], *, is_published: bool) -> list[Parsed]:
    """Prepares from lines of NDJSON."""
    limits = services.message_limits
    return _parse_lines(lines, lambda line: parse_prepare(line, limits, is_published=is_published))


def parse_resolution_lines(lines: Sequence[Line]) -> list[ParsedEnd]:
    """Resolutions from lines of NDJSON."""
    return _parse_lines(lines, parse_resolution)


def _parse_lines(lines: Sequence[Line], parse: Callable[[bytes], T]) -> list[T | Problem]:
    parsed: list[T | Problem] = []
    for line in lines:
        try:
            parsed.append(line if isinstance(line, Problem) else parse(line))
        except Rejected as rejected:
            parsed.append(rejected.problem)
    return parsed


def _answer_to_check(call: NoncedEnd, pointer: str, index: int) -> EndCall | Problem:
    """A nonce tells which check is answered."""
    number = parse_nonce(call.nonce)
    if number is None:
        return invalid(f"{pointer.format(index)}/nonce", "not the nonce of a check").problem
    return replace(call.call, source=Source.CHECK, check_number=number)


def _show_all(
    answers: Sequence[Prepared | TransactionView | Accepted | Refused | Problem], request_id: str, pointer: str
) -> list[bytes]:
    shown = []
    for index, answer in enumerate(answers):
        if isinstance(answer, Problem):
            shown.append(problem_item(answer, request_id))
        elif isinstance(answer, Refused):
            shown.append(problem_item(problem_of(answer).at(pointer.format(index)), request_id))
        else:
            shown.append(item(*show(answer)))
    return shown
