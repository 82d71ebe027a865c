"""Prepare and end transactions, publish without a local one, look them up: routes and their description."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace
from starlette.convertors import StringConvertor, register_url_convertor

from api.web.bodies import EndTransaction, Prepare, PrepareBatch
from api.web.json import read_strict_in_steps
from api.web.large_bodies import LARGE_BYTES, prepare_batch_in_steps, prepare_in_steps
from api.web.ndjson import Line, LinesAnswer
from api.web.openapi import (
    END_PROBLEMS,
    FIRST_TRY,
    IDEMPOTENCY_KEY,
    KAFKA_TIME,
    MESSAGE_PROBLEMS,
    OPERATORS,
    PREFER,
    TRACE,
    TRANSACTION_ID,
    WAIT,
    Body,
    Operation,
    query_parameter,
)
from api.web.parse import check_transaction_id, parse_end, parse_prepare, parse_prepare_batch
from api.web.problems import Problem, Rejected, invalid, problem_of
from api.web.request import (
    JSON,
    NDJSON,
    ApiRequest,
    Query,
    Services,
    first_try_ms,
    idempotency_key,
    item,
    json_body,
    media_type,
    optional_body,
    or_reject,
    prefers_async,
    problem_item,
    who_is,
)
from api.web.road import Begin, HttpAnswer, Routes, answer_list, json_answer
from api.web.views import (
    ENDED,
    PUBLISHED,
    STORED,
    AcceptedAnswer,
    BatchAnswer,
    PreparedAnswer,
    TimelineAnswer,
    TransactionAnswer,
    bodies_in_steps,
    encode_json,
    render_accepted,
    render_event,
    render_explained,
    render_transaction,
)
from bridge.core.grants import Rights, Verb
from bridge.core.message import Header
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionView, add_trace, show_time
from bridge.service.contract import Accepted, PrepareCall, Prepared, RefusalCode, Refused, Wait
from bridge.turns import STEP_BYTES, Pace, Steps, Turns

T = TypeVar("T")
_LOOK_EVERY = 50  # results: counting the bytes of each would cost what making some costs
Give = Callable[[HttpAnswer | Problem], None]


Shown = PreparedAnswer | TransactionAnswer | AcceptedAnswer

TAG = "transactions"
_TOO_LARGE = RefusalCode.MESSAGE_TOO_LARGE
TOLD_TIME = "Outbox-Kafka-Time"

_ORDER = {
    "producer_group": "orders",
    "messages": [
        {
            "topic": "orders.created",
            "key": "42",
            "value": {"order": 42, "amount": 19.9},
            "headers": [["source", "shop"]],
        }
    ],
}
_KEYED = {**_ORDER, "idempotency_key": "order-42", "ordering_key": "customer-7", "check_immunity_seconds": 60}
_BINARY = {
    "producer_group": "orders",
    "messages": [
        {"topic": "orders.created", "key_base64": "AAE=", "value_base64": "/w==", "headers_base64": [["h", "AA=="]]},
        {"topic": "orders.deleted", "key": "42", "value": None},
    ],
}
_EXAMPLES = {"one message": _ORDER, "with keys": _KEYED, "bytes and a tombstone": _BINARY}
BLOCKED = "Decided and recorded; its publication is being retried (`blocked`). Or, with `Prefer`, not waited for."

PREPARE = Operation(
    TAG,
    {201: (STORED, "Stored."), 200: (STORED, "A repeat whose transaction has ended.")},
    MESSAGE_PROBLEMS,
    Body(Prepare, examples=_EXAMPLES),
    (WAIT, IDEMPOTENCY_KEY, FIRST_TRY, TRACE),
    headers={status: {"Location": "Path of the transaction.", TOLD_TIME: KAFKA_TIME} for status in (200, 201)},
).arguments() | {"status_code": 201}

BATCH = Body(PrepareBatch, examples={"two": {"transactions": [_ORDER, _KEYED]}}, lines=Prepare)
EACH = (
    "A result for each, in the order of the request; as NDJSON, line by line. A stream of NDJSON that ends early has a "
    "last line with the problem: what was answered before stays, of the rest nothing was applied."
)

PREPARE_BATCH = Operation(
    TAG, {200: (BatchAnswer, EACH)}, (), BATCH, (WAIT, FIRST_TRY, TRACE), headers={200: {TOLD_TIME: KAFKA_TIME}}
).arguments()


PUBLISH = Operation(
    "messages",
    {
        200: (PUBLISHED, "Published."),
        201: (PUBLISHED, "A repeat of what is still being decided."),
        202: (PUBLISHED, BLOCKED),
    },
    MESSAGE_PROBLEMS,
    Body(Prepare, examples=_EXAMPLES),
    (WAIT, IDEMPOTENCY_KEY, FIRST_TRY, TRACE),
    headers={status: {"Location": "Path of the transaction.", TOLD_TIME: KAFKA_TIME} for status in (200, 201, 202)},
).arguments()
PUBLISH_BATCH = Operation(
    "messages", {200: (BatchAnswer, EACH)}, (), BATCH, (WAIT, FIRST_TRY, TRACE), headers={200: {TOLD_TIME: KAFKA_TIME}}
).arguments()


def _describe_end(meaning: str) -> Operation:
    return Operation(
        TAG,
        {200: (ENDED, meaning), 202: (ENDED, BLOCKED)},
        END_PROBLEMS,
        Body(EndTransaction, is_required=False, examples={"compared": {"producer_group": "orders"}}),
        (TRANSACTION_ID, WAIT, PREFER),
    )


COMMIT = _describe_end("Published: consumers can read it. A repeat gets the same answer.").arguments()
ROLLBACK = _describe_end("Rolled back: it will never be visible. A repeat gets the same answer.").arguments()

GET = Operation(
    TAG,
    {200: (TransactionAnswer, "The transaction.")},
    ("unknown-transaction", "given-up", "projection-behind"),
    parameters=(
        TRANSACTION_ID,
        query_parameter("include", "`messages`: whole messages.", {"type": "string", "enum": ["messages"]}),
    ),
).arguments()

TIMELINE = Operation(
    OPERATORS,
    {200: (TimelineAnswer, "Oldest first.")},
    ("unknown-transaction", "given-up", "projection-behind"),
    parameters=(TRANSACTION_ID,),
).arguments()


class WaitOptions(NamedTuple):
    """How long a caller waits for what."""

    wait: Wait
    wait_ms: int


class _TransactionConvertor(StringConvertor):
    """Any text but the name of the route beside it, at which GET is not possible."""

    regex = "(?!batch$)[^/]+"


register_url_convertor("transaction", _TransactionConvertor())
routes, published = Routes(), Routes()


@routes.add("POST", "/v1/transactions", PREPARE, is_hot=True, verb=Verb.PREPARE)
async def prepare_transaction(request: ApiRequest) -> HttpAnswer:
    """Stores a half message: durable, and invisible until it is committed."""
    return await prepare_one(request, is_published=False)


@routes.begins(prepare_transaction)
def begin_prepare(services: Services, rights: Rights, raw: bytes, _: str, trace: Sequence[Header], give: Give) -> bool:
    """What is wrong with a call is said by `prepare_transaction`."""
    try:
        call = parse_prepare(raw, services.limits.headers_per_message)
    except Rejected:
        return False
    if trace:
        call = _add_trace(call, trace)

    def answer(told: Prepared | TransactionView | Refused) -> None:
        give(problem_of(told) if isinstance(told, Refused) else show(told, _location(told.transaction_id)))

    return services.transactions.begin_prepare(call, _most_ms(services), answer, rights)


@routes.add("POST", "/v1/transactions/batch", PREPARE_BATCH, is_hot=True, verb=Verb.PREPARE)
async def prepare_batch(request: ApiRequest) -> HttpAnswer | LinesAnswer:
    """Prepares many transactions; each is decided on its own."""
    return await prepare_all(request, is_published=False)


@routes.add("GET", "/v1/transactions/{transaction_id:transaction}", GET, verb=Verb.READ)
async def get_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """One transaction, as current as the last write that was acknowledged."""
    check_transaction_id(transaction_id, "?transaction_id")
    query = Query(request.query, {"include"})
    if query.text("include") not in {None, "messages"}:
        raise invalid("?include", "only `messages` can be included")
    view = or_reject(await request.services.transactions.get(transaction_id, request.caller.rights))
    said = or_reject(await request.services.transactions.explain(view))
    if query.text("include") is None:
        return json_answer(200, render_explained(view, said))
    bodies = or_reject(await request.services.transactions.get_bodies(view, who_is(request, "")))
    shown = None if bodies is None else await request.services.turns.run(bodies_in_steps(bodies))
    return json_answer(200, render_explained(view, said, shown))


@routes.add("GET", "/v1/transactions/{transaction_id}/timeline", TIMELINE, verb=Verb.READ)
async def get_timeline(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """What happened to a transaction, oldest first."""
    check_transaction_id(transaction_id, "?transaction_id")
    Query(request.query, ())
    events = or_reject(await request.services.transactions.timeline(transaction_id, request.caller.rights))
    return await answer_list(request, "events", events, render_event)


@routes.add("POST", "/v1/transactions/{transaction_id}/commit", COMMIT, is_hot=True, verb=Verb.DECIDE)
async def commit_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """Publishes what was prepared; answers when consumers can read it."""
    return await _end(request, transaction_id, Resolution.COMMIT)


@routes.add("POST", "/v1/transactions/{transaction_id}/rollback", ROLLBACK, is_hot=True, verb=Verb.DECIDE)
async def rollback_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """Drops what was prepared."""
    return await _end(request, transaction_id, Resolution.ROLLBACK)


@published.add("POST", "/v1/messages", PUBLISH, is_hot=True, verb=Verb.PREPARE)
async def publish_messages(request: ApiRequest) -> HttpAnswer:
    """Publishes messages together or not at all; answers when consumers can read them."""
    return await prepare_one(request, is_published=True)


@published.add("POST", "/v1/messages/batch", PUBLISH_BATCH, is_hot=True, verb=Verb.PREPARE)
async def publish_batch(request: ApiRequest) -> HttpAnswer | LinesAnswer:
    """Publishes many transactions; each is decided on its own."""
    return await prepare_all(request, is_published=True)


async def prepare_one(request: ApiRequest, *, is_published: bool) -> HttpAnswer:
    """A prepare, or a publish without a local transaction. Raises Rejected."""
    raw = await json_body(request)
    header_key = idempotency_key(request)
    services = request.services
    max_headers = services.limits.headers_per_message
    if len(raw) > LARGE_BYTES:
        steps = prepare_in_steps(raw, max_headers, header_key=header_key, is_published=is_published)
        call = await services.turns.run(steps)
    else:
        call = parse_prepare(raw, max_headers, header_key=header_key, is_published=is_published)
    first_ms = first_try_ms(request)
    (answer,) = await _prepare(request, [call], patience_of(request).wait_ms, first_ms)
    if isinstance(answer, Refused):
        raise Rejected(problem_of(answer))
    return show(answer, (*_location(answer.transaction_id), *_tell_time(request, first_ms)))


async def prepare_all(request: ApiRequest, *, is_published: bool) -> HttpAnswer | LinesAnswer:
    """Many of them, as one document or as NDJSON. Raises Rejected."""
    if idempotency_key(request) is not None:
        raise invalid("?Idempotency-Key", "belongs into each transaction of a batch")
    wait_ms, services = patience_of(request).wait_ms, request.services
    max_headers, first_ms = services.limits.headers_per_message, first_try_ms(request)

    async def answer(calls: Sequence[PrepareCall | Problem], pointer: str) -> list[bytes]:
        return await answer_each(request, calls, pointer, lambda right: _prepare(request, right, wait_ms, first_ms))

    async def answer_lines(lines: Sequence[Line]) -> list[bytes]:
        calls = await parse_lines(
            services.turns,
            lines,
            lambda line: parse_prepare(line, max_headers, is_published=is_published),
            lambda line: prepare_in_steps(line, max_headers, is_published=is_published),
        )
        return await answer(calls, "")

    if media_type(request, JSON, NDJSON) == NDJSON:
        return LinesAnswer(request, answer_lines, partial(_tell_time, request, first_ms))
    raw = await request.body()
    if len(raw) > LARGE_BYTES:
        calls = await services.turns.run(prepare_batch_in_steps(raw, max_headers, is_published=is_published))
    else:
        calls = parse_prepare_batch(raw, max_headers, is_published=is_published)
    del raw
    return join(await answer(calls, "/transactions/{}"), _tell_time(request, first_ms))


async def _prepare(
    request: ApiRequest, calls: Sequence[PrepareCall], wait_ms: int, first_ms: int | None
) -> list[Prepared | TransactionView | Refused]:
    """Keeps the request's trace with all of them; without it what is too large only with it."""
    prepare, rights = request.services.transactions.prepare, request.caller.rights
    trace = request.find_trace()
    if not trace:
        return await prepare(calls, wait_ms, first_ms, rights)
    answers = await prepare([_add_trace(call, trace) for call in calls], wait_ms, first_ms, rights)
    large = [n for n, told in enumerate(answers) if isinstance(told, Refused) and told.code is _TOO_LARGE]
    again = await prepare([calls[n] for n in large], wait_ms, first_ms, rights) if large else []
    for n, told in zip(large, again, strict=True):
        answers[n] = told
    return answers


def _add_trace(call: PrepareCall, trace: Sequence[Header]) -> PrepareCall:
    return replace(call, messages=add_trace(call.messages, trace))


def _tell_time(request: ApiRequest, first_ms: int | None) -> Sequence[tuple[str, str]]:
    """For those who say of their first tries that they are."""
    return () if first_ms is None else ((TOLD_TIME, str(request.services.transactions.kafka_time_ms())),)


async def _end(request: ApiRequest, transaction_id: str, resolution: Resolution) -> HttpAnswer:
    raw, services = await optional_body(request), request.services
    if len(raw) > LARGE_BYTES:
        raw = await services.turns.run(read_strict_in_steps(raw))  # without blanks, small if it is a right one
    call = parse_end(raw, transaction_id, resolution)
    patience = patience_of(request)
    (answer,) = await services.transactions.end([call], patience.wait, patience.wait_ms, request.caller.rights)
    if isinstance(answer, Refused):
        raise Rejected(problem_of(answer))
    return show(answer, (("Preference-Applied", "respond-async"),) if isinstance(answer, Accepted) else ())


def _begins_end(resolution: Resolution) -> Begin:
    """What is wrong with a call is said by `commit` or `rollback`."""

    def begin(
        services: Services, rights: Rights, raw: bytes, transaction_id: str, _: Sequence[Header], give: Give
    ) -> bool:
        try:
            call = parse_end(raw, transaction_id, resolution)
        except Rejected:
            return False

        def answer(told: TransactionView | Refused) -> None:
            give(problem_of(told) if isinstance(told, Refused) else show(told))

        return services.transactions.begin_end(call, _most_ms(services), answer, rights)

    return begin


routes.begins(commit_transaction)(_begins_end(Resolution.COMMIT))
routes.begins(rollback_transaction)(_begins_end(Resolution.ROLLBACK))


def _location(transaction_id: str) -> Sequence[tuple[str, str]]:
    return (("Location", f"/v1/transactions/{transaction_id}"),)


def _most_ms(services: Services) -> int:
    return int(services.limits.wait_s * 1000)


def patience_of(request: ApiRequest) -> WaitOptions:
    """`?wait_seconds=` and `Prefer: respond-async`. Raises Rejected."""
    if not request.query and b"prefer" not in request.fields:
        return WaitOptions(Wait.SETTLED, _most_ms(request.services))
    most_s = request.services.limits.wait_s
    wait_ms = Query(request.query, {"wait_seconds"}).seconds_as_ms("wait_seconds", most_s, most_s)
    return WaitOptions(Wait.DURABLE if prefers_async(request) else Wait.SETTLED, wait_ms)


def show(answer: Prepared | TransactionView | Accepted, headers: Sequence[tuple[str, str]] = ()) -> HttpAnswer:
    """The answer to one call."""
    status, body = _render(answer)
    return HttpAnswer(status, encode_json(body), headers)


def _render(answer: Prepared | TransactionView | Accepted) -> tuple[int, Shown]:
    """Status and body: 201 for PREPARED only, 202 for what is decided but not yet visible, else 200."""
    if isinstance(answer, Prepared):
        return 201, PreparedAnswer(
            answer.transaction_id,
            answer.group,
            answer.state,
            show_time(answer.born_ms),
            show_time(answer.first_check_ms),
            answer.queue_id,
            answer.queue_offset,
        )
    if isinstance(answer, Accepted):
        return 202, render_accepted(answer)
    return 202 if answer.blocked else 200, render_transaction(answer)


async def answer_each(
    request: ApiRequest,
    calls: Sequence[T | Problem],
    pointer: str,
    make: Callable[[Sequence[T]], Awaitable[Sequence[Prepared | TransactionView | Accepted | Refused]]],
) -> list[bytes]:
    """A result for each call, or for what is wrong with it. `pointer`: the pointer of call number {} in the
    document."""
    answers = iter(await make([call for call in calls if not isinstance(call, Problem)]))
    merged = [call if isinstance(call, Problem) else next(answers) for call in calls]
    return await show_all(request.services.turns, merged, request.request_id, pointer)


async def parse_lines(
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


def join(items: Sequence[bytes], headers: Sequence[tuple[str, str]] = ()) -> HttpAnswer:
    """Results in the order of the request."""
    return HttpAnswer(200, b'{"results":[%b]}' % b",".join(items), headers)


async def show_all(
    turns: Turns,
    answers: Sequence[Prepared | TransactionView | Accepted | Refused | Problem],
    request_id: str,
    pointer: str,
) -> list[bytes]:
    """The results of a batch as JSON."""
    shown, pace = list[bytes](), Pace(STEP_BYTES)
    for start in range(0, len(answers), _LOOK_EVERY):
        for index, answer in enumerate(answers[start : start + _LOOK_EVERY], start):
            if isinstance(answer, Problem):
                shown.append(problem_item(answer, request_id))
            elif isinstance(answer, Refused):
                shown.append(problem_item(problem_of(answer).at(pointer.format(index)), request_id))
            else:
                status, body = _render(answer)
                shown.append(item(status, body))
        if pace.spend(sum(map(len, shown[start:]))):
            await turns.take()
    return shown
