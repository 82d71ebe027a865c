"""A request as the calls see it, whoever received it: body, query, who asks, and the services of the process."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.types import Message, Receive, Scope

from api.web.bodies import MAX_REASON_CHARS, Nothing
from api.web.guard import NOBODY, ByteLease, Traffic, identify, make_request_id
from api.web.large_bodies import LARGE_BYTES, body_in_steps
from api.web.limits import HttpLimits, Usage, overloaded, too_large
from api.web.metrics import Exposition
from api.web.parse import check_property, parse_body
from api.web.problems import (
    CLOSE,
    INVALID_REQUEST,
    MALFORMED_REQUEST,
    REQUEST_TIMEOUT,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    Rejected,
    invalid,
    problem_members,
    problem_of,
    reject,
)
from api.web.views import encode_json
from bridge.clock import SystemClock
from bridge.core.message import Header
from bridge.core.properties import is_property_text
from bridge.core.transaction import read_trace
from bridge.service.access import AccessService, Caller, Sessions, SigningSecrets
from bridge.service.canary import Canary
from bridge.service.claims import ClaimService
from bridge.service.contract import Refused
from bridge.service.groups import GroupService
from bridge.service.operate import Who
from bridge.service.reads import SearchService
from bridge.service.redrive import ParkedService
from bridge.service.topics import ConsumerWatch
from bridge.service.transactions import TransactionService
from bridge.turns import Recent, Turns
from checker.call import Nonces
from checker.endpoint_trial import EndpointTrials
from checker.service import CallsOfGroup
from checker.webhooks import Webhooks

# --- what the HTTP interface needs from the rest of the process; filled in by wiring, or by fakes in tests ---


class CheckResult(NamedTuple):
    """Whether something is as it must be. `is_degraded`: not, but promises are kept; `is_of_groups`: names some."""

    is_ok: bool
    detail: str = ""
    is_degraded: bool = False
    is_of_groups: bool = False


ReadinessCheck = Callable[[], Awaitable[CheckResult]]


class RequestTracer(Protocol):
    """Notified of each request that is over. Never blocks."""

    def answered(self, route: str, method: str, status: int, seconds: float, asked: "Asked") -> None:
        """A `status` of 0: its answer has not begun."""
        ...


EVENT_AGE_MS = 1_500  # less than from one event to the next: no page is sent what is older than what it shows


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the routes call. `readiness`: by name; all must be ok for /readyz to be. `nonces`: the checker's.

    `signing`: secrets beside keys, for clients of RocketMQ. `sessions`: of people at the pages; None: nobody signs in.
    `webhooks`: who is told of the bridge's own events. `is_read_only`: pages let nobody do anything.
    `settings`: name, value and origin of each as they may be shown. `reports`: the folder of the runs of `report`.
    `calls_of`: to the endpoints of a group, by all processes; None if none is known that asks.
    `events`: what open pages are sent.
    """

    access: AccessService
    transactions: TransactionService
    search: SearchService
    parked: ParkedService
    groups: GroupService
    claims: ClaimService
    nonces: Nonces
    trials: EndpointTrials
    readiness: Mapping[str, ReadinessCheck] = field(default_factory=dict)
    exposition: Exposition = field(default_factory=Exposition)
    limits: HttpLimits = field(default_factory=HttpLimits)
    now_ms: Callable[[], int] = SystemClock().now_ms
    turns: Turns = field(default_factory=Turns)
    sessions: Sessions | None = None
    signing: SigningSecrets | None = None
    webhooks: Webhooks | None = None
    canary: Canary | None = None
    is_read_only: bool = False
    settings: Sequence[tuple[str, str, str]] = ()
    consumers: ConsumerWatch | None = None
    reports: Path | None = None
    calls_of: Callable[[str], CallsOfGroup | None] = lambda _: None
    tracer: RequestTracer | None = None
    events: Recent[bytes] = field(default_factory=lambda: Recent(EVENT_AGE_MS, SystemClock().monotonic_ms, most=16))


# --- a request as the calls see it, whoever received it: body, query, services, who asks ---

JSON = "application/json"
NDJSON = "application/x-ndjson"
_NOTHING = QueryParams()
_nothing = msgspec.json.Decoder(Nothing)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")


class Asked(Protocol):
    """What the log says of a request, whichever way it went."""

    request_id: str

    def find_trace(self) -> Sequence[Header]:
        """Of the caller, if he named one."""
        ...


class ApiRequest:
    """A request whose head is there, and whose body may still be on its way, unless it is `whole`.

    `caller`: who makes it. `usage`: what he uses, once the request counts for him. `route_name`: of its
    route in metrics. `status`: of its answer, 0 before that begins. `fields`: of its head, the last one of each name.
    `certified`: the principal that the connection's certificate names.
    """

    __slots__ = (
        "_is_counted", "_whole", "caller", "certified", "fields", "lease", "method", "path", "query", "receive",
        "request_id", "route_name", "scope", "services", "started", "status", "traffic", "usage",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        services: Services,
        traffic: Traffic,
        lease: ByteLease,
        whole: bytes | None = None,
    ) -> None:
        query: bytes = scope["query_string"]
        self.scope = scope
        self.caller = NOBODY
        self.certified: str | None = None
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = QueryParams(query) if query else _NOTHING
        self.fields: dict[bytes, bytes] = dict(scope["headers"])
        self.receive = receive
        self.services = services
        self.traffic = traffic
        self.usage: Usage | None = None
        self.lease = lease
        self.request_id = self._find_id()
        self.route_name = ""
        self.status = 0
        self.started = time.perf_counter()
        self._is_counted = False
        self._whole = whole

    def values(self, name: bytes) -> list[str]:
        """All fields of this name."""
        if name not in self.fields:
            return []
        return [value.decode("latin-1") for given, value in self.scope["headers"] if given == name]

    def enter(self) -> None:
        """The request takes a place."""
        self.traffic.in_flight += 1
        self._is_counted = True

    def leave(self) -> None:
        """The request gives its place back: it is over, or counted elsewhere."""
        if self._is_counted:
            self._is_counted = False
            self.traffic.in_flight -= 1
            if self.usage is not None:
                self.usage.leave()

    def prove_again(self, find: Callable[["ApiRequest"], Caller | Problem] | None = None) -> Problem | None:
        """Why the caller may go on no more: no right that is taken is kept. `find`: who it is, beside credentials."""
        if self.caller.key_id is None:
            return None
        self.certified = self.scope.get("state", {}).get("certified", self.certified)  # until the certificate ends
        found = find(self) if find else identify(self.services.access, self.path, self.scope["headers"], self.certified)
        if isinstance(found, Problem):
            return found
        self.caller = found
        return None

    def find_pause_s(self) -> float:
        """How long more of a body that may last must wait, so that the caller's quota has room."""
        return 0.0 if self.usage is None else self.traffic.quotas.find_pause_s(self.usage)

    def find_trace(self) -> Sequence[Header]:
        """The trace that the caller's request belongs to."""
        if b"traceparent" not in self.fields:
            return ()
        parents, states = (
            [value for given, value in self.scope["headers"] if given == name]
            for name in (b"traceparent", b"tracestate")
        )
        return read_trace(parents, states)

    def _find_id(self) -> str:
        """The caller's own id if it is a plain word, else a new one."""
        for text in self.values(b"x-request-id"):
            if _REQUEST_ID.fullmatch(text):
                return text
        return make_request_id()

    async def body(self) -> bytes:
        """The whole body. Raises Rejected if it is too large, too slow or cut off."""
        limits = self.services.limits
        if self._whole is None:
            return await self._read_body(limits)
        if self.lease.is_refused:
            raise overloaded(is_read=True)
        if len(self._whole) > limits.body_bytes:
            raise too_large(limits)
        if self.usage is not None:
            self.usage.charge_bytes(len(self._whole))
        return self._whole

    async def _read_body(self, limits: HttpLimits) -> bytes:
        declared = self.fields.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limits.body_bytes:
            raise too_large(limits)
        chunks: list[bytes] = []
        size = 0
        async for chunk in self._read_chunks(limits):
            size += len(chunk)
            if size > limits.body_bytes:
                chunks.clear()
                self.lease.shrink(size)
                raise too_large(limits)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _read_chunks(self, limits: HttpLimits) -> AsyncIterator[bytes]:
        """Pieces of the body as they come; the time is for all of them."""
        deadline = asyncio.get_running_loop().time() + limits.receive_s
        is_read = False
        while not is_read:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await self.receive()
            except TimeoutError:
                problem = Problem(REQUEST_TIMEOUT, f"body not received in {limits.receive_s:g} s", headers=CLOSE)
                raise Rejected(problem) from None
            chunk, is_read = self.take_chunk(message)
            if chunk:
                yield chunk

    def take_chunk(self, message: Message) -> tuple[bytes, bool]:
        """A piece of the body, and whether it is the last one. Raises Rejected if there is no more of it to be had."""
        if message["type"] == "http.disconnect":
            raise Rejected(Problem(MALFORMED_REQUEST, "the body was cut off", headers=CLOSE))
        is_read = not message.get("more_body")
        if self.lease.is_refused:
            raise overloaded(is_read=is_read)
        chunk = message.get("body", b"")
        if self.usage is not None:
            self.usage.charge_bytes(len(chunk))
        return chunk, is_read


def media_type(request: ApiRequest, *allowed: str) -> str:
    """The media type of the body. Raises Rejected for any other, any charset but UTF-8, any encoding."""
    if b"content-encoding" in request.fields:
        raise reject(UNSUPPORTED_MEDIA_TYPE, "Content-Encoding is not taken")
    kinds = request.values(b"content-type")
    if len(kinds) != 1:
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"one Content-Type is needed: {' or '.join(allowed)}")
    if kinds[0] in allowed:
        return kinds[0]
    kind, *parameters = [part.strip().lower() for part in kinds[0].split(";")]
    if kind not in allowed or not all(part in {"", "charset=utf-8", 'charset="utf-8"'} for part in parameters):
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {' or '.join(allowed)}, in UTF-8")
    return kind


async def json_body(request: ApiRequest) -> bytes:
    """The body of a request that must have one."""
    media_type(request, JSON)
    return await request.body()


async def optional_body(request: ApiRequest) -> bytes:
    """The body of a request that may have one; the media type counts only if there is one."""
    has_type = b"content-type" in request.fields
    if has_type or b"content-encoding" in request.fields:
        media_type(request, JSON)
    raw = await request.body()
    if raw and not has_type:
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"one Content-Type is needed: {JSON}")
    return raw


T = TypeVar("T")

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
_INTEGER = re.compile(r"\d{1,9}")
TIME_EXPECTED = "a time as 2026-01-31T12:00:00.000Z"
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,30})?([eE]-\d{1,3})?")


class Query:
    """The parameters of a request. Raises Rejected for one that is unknown, repeated or malformed."""

    def __init__(self, params: QueryParams, known: Collection[str], repeatable: Collection[str] = ()) -> None:
        self._params = params
        for name in params:
            if name not in known:
                raise _invalid(name, f"unknown parameter; known here: {', '.join(sorted(known)) or 'none'}")
            if name not in repeatable and len(params.getlist(name)) > 1:
                raise _invalid(name, "given more than once")

    def text(self, name: str) -> str | None:
        """A text that can be written as UTF-8."""
        value = self._params.get(name)
        if value is not None and not is_property_text(value):
            raise _invalid(name, "holds a byte that is not allowed")
        return value

    def words(self, name: str, parse: Callable[[str], T], allowed: str) -> list[T]:
        """Words from a closed list; repeated, or with commas between."""
        try:
            return [parse(word) for value in self._params.getlist(name) for word in value.split(",")]
        except ValueError:
            raise _invalid(name, f"one of {allowed}") from None

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """A number within its bounds."""
        value = self._params.get(name)
        if value is None:
            return default
        if not _INTEGER.fullmatch(value) or not least <= int(value) <= most:
            raise _invalid(name, f"an integer from {least} to {most}")
        return int(value)

    def seconds_as_ms(self, name: str, default_s: float, most_s: float) -> int:
        """A time-out, in milliseconds."""
        value = self._params.get(name)
        if value is None:
            return int(default_s * 1000)
        if not _NUMBER.fullmatch(value) or float(value) > most_s:
            raise _invalid(name, f"seconds from 0 to {most_s:g}")
        return math.ceil(float(value) * 1000)

    def time_ms(self, name: str) -> int | None:
        """A moment in RFC 3339."""
        value = self._params.get(name)
        if value is None:
            return None
        try:
            return parse_time_ms(value)
        except ValueError:
            raise _invalid(name, TIME_EXPECTED) from None

    def optional_flag(self, name: str) -> bool | None:
        """None if it is not given. It must say what it is: an empty one is a variable that was forgotten."""
        if self._params.get(name) == "":
            raise _invalid(name, "true or false")
        return self.flag(name) if name in self._params else None

    def flag(self, name: str) -> bool:
        """True for a bare name or `true`."""
        value = self._params.get(name)
        if value is None or value in {"false", "0"}:
            return False
        if value not in {"", "true", "1"}:
            raise _invalid(name, "true or false")
        return True


def parse_time_ms(text: str) -> int:
    """A moment in RFC 3339. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text.upper() if _RFC3339.fullmatch(text) else "")
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except OverflowError as error:
        raise ValueError("outside the calendar") from error


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def prefers_async(request: ApiRequest) -> bool:
    """Whether the caller does not want to wait for the end to be settled. Source: RFC 7240 section 4.1."""
    preferences = [
        part.split(";")[0].strip().lower() for value in request.values(b"prefer") for part in value.split(",")
    ]
    return "respond-async" in preferences


def idempotency_key(request: ApiRequest) -> str | None:
    """The `Idempotency-Key` header; its value may be quoted as a structured field is."""
    values = request.values(b"idempotency-key")
    if not values:
        return None
    if len(values) > 1:
        raise reject(INVALID_REQUEST, "two Idempotency-Key headers", ("?Idempotency-Key", "given more than once"))
    value = values[0]
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value


def first_try_ms(request: ApiRequest) -> int | None:
    """The `Outbox-First-Try` header. Raises Rejected."""
    values = request.values(b"outbox-first-try")
    if not values:
        return None
    if len(values) > 1 or not (values[0].isascii() and values[0].isdigit()) or len(values[0]) > 18:
        raise _invalid("Outbox-First-Try", "one number of milliseconds")
    return int(values[0])


def _invalid(name: str, what: str) -> Rejected:
    return reject(INVALID_REQUEST, what, (f"?{name}", what))


_STATUSES = {status: b'{"status":%d,' % status for status in (200, 201, 202)}


async def read_json(request: ApiRequest, decoder: "msgspec.json.Decoder[T]", *, is_optional: bool = False) -> T:
    """The body; an empty object where none came and none is needed. Raises Rejected."""
    raw = (await optional_body(request) or b"{}") if is_optional else await json_body(request)
    if len(raw) > LARGE_BYTES:
        return await request.services.turns.run(body_in_steps(raw, decoder))
    return parse_body(raw, decoder)


def or_reject(answer: T | Refused) -> T:
    """What a service gives. Raises Rejected, which becomes the answer, if it refuses."""
    if isinstance(answer, Refused):
        raise Rejected(problem_of(answer))
    return answer


def item(status: int, body: object) -> bytes:
    """A result in a batch: the status, then the members of the single call's answer."""
    return _STATUSES[status] + encode_json(body)[1:]


def problem_item(problem: Problem, request_id: str) -> bytes:
    """A refused result in a batch."""
    return b'{"status":%d,"problem":%b}' % (problem.type.status, encode_json(problem_members(problem, request_id)))


async def read_nothing(request: ApiRequest) -> None:
    """Raises Rejected for a body that is more than an empty object."""
    await read_json(request, _nothing, is_optional=True)


def who_is(request: ApiRequest, reason: str) -> Who:
    """The caller as the audit knows him: name, key and address. Without a key that is no more than his address."""
    caller, host = request.caller, (request.scope.get("client") or ("unknown",))[0]
    key = "" if caller.key_id is None else f"/{caller.key_id}"
    return Who(f"{caller.name}{key}@{host}", reason, caller.rights)


def check_reason(reason: str) -> str:
    """The reason. Raises Rejected if it is blank, too long, or cannot be kept."""
    check_property(reason, "/reason")
    if not reason.strip():
        raise invalid("/reason", "must not be blank")
    if len(reason) > MAX_REASON_CHARS:
        raise invalid("/reason", f"at most {MAX_REASON_CHARS} characters")
    return reason
