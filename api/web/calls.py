"""The calls that every transaction makes, from the request to the answer, without a web framework between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from msgspec.structs import replace
from starlette.responses import Response

from api.web.json import read_strict_in_steps
from api.web.large_bodies import (
    LARGE_BYTES,
    prepare_batch_in_steps,
    prepare_in_steps,
    resolution_in_steps,
    resolutions_in_steps,
)
from api.web.limits import HttpLimits
from api.web.ndjson import Line
from api.web.parse import (
    NoncedEnd,
    parse_end,
    parse_prepare,
    parse_prepare_batch,
    parse_resolution,
    parse_resolutions,
)
from api.web.problems import Problem, Rejected, invalid, problem_of
from api.web.request import (
    JSON,
    NDJSON,
    ApiRequest,
    Query,
    idempotency_key,
    item,
    json_body,
    media_type,
    optional_body,
    prefers_async,
    problem_item,
    refuse,
)
from api.web.services import Services
from api.web.views import (
    AcceptedAnswer,
    PreparedAnswer,
    TransactionAnswer,
    encode_json,
    render_accepted,
    render_prepared,
    render_transaction,
)
from bridge.core.record import Resolution, Source
from bridge.core.transaction import TransactionView
from bridge.service.contract import Accepted, EndCall, PrepareCall, Prepared, Refused, Wait
from bridge.turns import Pace, Steps, Turns
from checker.call import Nonces

T = TypeVar("T")
Parsed = PrepareCall | Problem
ParsedEnd = EndCall | NoncedEnd | Problem
Shown = PreparedAnswer | TransactionAnswer | AcceptedAnswer


class HttpAnswer(NamedTuple):
    """An answer in JSON. `headers`: besides its type and length."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WaitOptions:
    """How long a caller waits for what."""

    wait: Wait
    wait_ms: int


async def prepare_one(services: Services, arrival: ApiRequest, *, is_published: bool) -> HttpAnswer:
    """A prepare, or a publish without a local transaction. Raises Rejected."""
    raw = await json_body(arrival)
    header_key = idempotency_key(arrival.headers)
    limits = services.message_limits
    if len(raw) > LARGE_BYTES:
        steps = prepare_in_steps(raw, limits, header_key=header_key, is_published=is_published)
        call = await services.turns.run(steps)
    else:
        call = parse_prepare(raw, limits, header_key=header_key, is_published=is_published)
    (answer,) = await services.transactions.prepare([call], patience_of(arrival, services.limits).wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    status, body = show(answer)
    return HttpAnswer(status, encode_json(body), (("Location", f"/v1/transactions/{answer.transaction_id}"),))


async def prepare_all(services: Services, arrival: ApiRequest, *, is_published: bool) -> HttpAnswer:
    """Many of them as one document. Raises Rejected."""
    wait_ms = patience_of_prepares(arrival, services.limits)
    media_type(arrival.headers, JSON, NDJSON)
    raw, limits = await arrival.body(), services.message_limits
    if len(raw) > LARGE_BYTES:
        calls = await services.turns.run(prepare_batch_in_steps(raw, limits, is_published=is_published))
    else:
        calls = parse_prepare_batch(raw, limits, is_published=is_published)
    del raw
    return _join(await prepare_many(services, calls, wait_ms, arrival.request_id, "/transactions/{}"))


async def end_one(services: Services, arrival: ApiRequest, transaction_id: str, resolution: Resolution) -> HttpAnswer:
    """A commit or a rollback. Raises Rejected."""
    raw = await optional_body(arrival)
    if len(raw) > LARGE_BYTES:
        raw = await services.turns.run(read_strict_in_steps(raw))  # without blanks, small if it is a right one
    call = parse_end(raw, transaction_id, resolution)
    patience = patience_of(arrival, services.limits)
    (answer,) = await services.transactions.end([call], patience.wait, patience.wait_ms)
    if isinstance(answer, Refused):
        raise refuse(answer)
    status, body = show(answer)
    applied = (("Preference-Applied", "respond-async"),) if isinstance(answer, Accepted) else ()
    return HttpAnswer(status, encode_json(body), applied)


async def end_all(services: Services, arrival: ApiRequest) -> HttpAnswer:
    """Many of them as one document. Raises Rejected."""
    patience = patience_of(arrival, services.limits)
    media_type(arrival.headers, JSON, NDJSON)
    raw = await arrival.body()
    if len(raw) > LARGE_BYTES:
        calls = await services.turns.run(resolutions_in_steps(raw))
    else:
        calls = parse_resolutions(raw)
    return _join(await end_many(services, calls, patience, arrival.request_id, "/resolutions/{}"))


def is_lines(arrival: ApiRequest) -> bool:
    """Whether the body is NDJSON, which is answered while it is read; what is neither is refused as a document."""
    try:
        return media_type(arrival.headers, JSON, NDJSON) == NDJSON
    except Rejected:
        return False


def plain(answer: HttpAnswer) -> Response:
    """An answer for the framework to send."""
    return Response(answer.body, answer.status, dict(answer.headers), JSON)


def patience_of(arrival: ApiRequest, limits: HttpLimits) -> WaitOptions:
    """`?wait_seconds=` and `Prefer: respond-async`. Raises Rejected."""
    most_s = limits.wait_s
    wait_ms = Query(arrival.query, {"wait_seconds"}).seconds_as_ms("wait_seconds", most_s, most_s)
    return WaitOptions(Wait.DURABLE if prefers_async(arrival.headers) else Wait.SETTLED, wait_ms)


def patience_of_prepares(arrival: ApiRequest, limits: HttpLimits) -> int:
    """How long a batch of prepares waits, in milliseconds. Raises Rejected."""
    if idempotency_key(arrival.headers) is not None:
        raise invalid("?Idempotency-Key", "belongs into each transaction of a batch")
    return patience_of(arrival, limits).wait_ms


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
    return show_all(merged, request_id, pointer)


async def end_many(
    services: Services, calls: Sequence[ParsedEnd], patience: WaitOptions, request_id: str, pointer: str = ""
) -> list[bytes]:
    """A result for each resolution."""
    parsed = [
        _answer_to_check(call, services.nonces, pointer, n) if isinstance(call, NoncedEnd) else call
        for n, call in enumerate(calls)
    ]
    ends = [call for call in parsed if not isinstance(call, Problem)]
    answers = iter(await services.transactions.end(ends, patience.wait, patience.wait_ms))
    merged = [call if isinstance(call, Problem) else next(answers) for call in parsed]
    return show_all(merged, request_id, pointer)


async def parse_prepare_lines(services: Services, lines: Sequence[Line], *, is_published: bool) -> list[Parsed]:
    """Prepares from lines of NDJSON."""
    limits = services.message_limits
    return await _parse_lines(
        services.turns,
        lines,
        lambda line: parse_prepare(line, limits, is_published=is_published),
        lambda line: prepare_in_steps(line, limits, is_published=is_published),
    )


async def parse_resolution_lines(services: Services, lines: Sequence[Line]) -> list[ParsedEnd]:
    """Resolutions from lines of NDJSON."""
    return await _parse_lines(services.turns, lines, parse_resolution, resolution_in_steps)


async def _parse_lines(
    turns: Turns, lines: Sequence[Line], parse: Callable[[bytes], T], parse_large: Callable[[bytes], Steps[T]]
) -> list[T | Problem]:
    parsed: list[T | Problem] = []
    pace = Pace(LARGE_BYTES)
    for line in lines:
        try:
            if isinstance(line, Problem):
                parsed.append(line)
            elif len(line) > LARGE_BYTES:
                parsed.append(await turns.run(parse_large(line)))
            else:
                parsed.append(parse(line))
                if pace.spend(len(line)):
                    await turns.take()
        except Rejected as rejected:
            parsed.append(rejected.problem)
    return parsed


def _answer_to_check(call: NoncedEnd, nonces: Nonces, pointer: str, index: int) -> EndCall | Problem:
    """A nonce tells which check is answered; an invented one is refused, and nothing is used up."""
    number = nonces.read(call.nonce, call.call.transaction_id)
    if number is None:
        return invalid(f"{pointer.format(index)}/nonce", "not the nonce of a check of this transaction").problem
    return replace(call.call, source=Source.CHECK, check_number=number)


def _join(items: list[bytes]) -> HttpAnswer:
    """Results in the order of the request."""
    return HttpAnswer(200, b'{"results":[%b]}' % b",".join(items))


def show_all(
    answers: Sequence[Prepared | TransactionView | Accepted | Refused | Problem], request_id: str, pointer: str
) -> list[bytes]:
    """The results of a batch as JSON."""
    shown = []
    for index, answer in enumerate(answers):
        if isinstance(answer, Problem):
            shown.append(problem_item(answer, request_id))
        elif isinstance(answer, Refused):
            shown.append(problem_item(problem_of(answer).at(pointer.format(index)), request_id))
        else:
            shown.append(item(*show(answer)))
    return shown
