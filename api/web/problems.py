"""Problem types, and problems as RFC 9457 `application/problem+json`.

Every error of the HTTP interface is a row of `PROBLEMS`. The last part of a type's URI is its code, which is
stable; texts may change. A problem never contains more than the caller sent and the recorded facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from bridge.service.contract import Outcome, RefusalCode, Refused

TYPE_PREFIX = "https://outbox-bridge.dev/problems/"
CLOSE = {"Connection": "close"}  # a header of the last answer of a connection
PROBLEM_MEDIA_TYPE = "application/problem+json"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A row of the table. `outcome`: whether the refused call changed anything, unless a problem says otherwise."""

    slug: str
    status: int
    title: str
    remedy: str
    outcome: Outcome | None = Outcome.NOT_APPLIED

    @property
    def uri(self) -> str:
        """The stable URI of the type."""
        return TYPE_PREFIX + self.slug


@dataclass(frozen=True, slots=True)
class Problem:
    """One occurrence. `errors`: where in the request, and what; a JSON pointer, or `?name` of a parameter."""

    type: ProblemType
    detail: str
    outcome: Outcome | None = None
    transaction_id: str | None = None
    state: str | None = None
    errors: Sequence[tuple[str, str]] = ()
    retry_after_s: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def at(self, pointer: str) -> "Problem":
        """The same problem inside a larger document: its JSON pointers begin with `pointer`."""
        if not pointer or not self.errors:
            return self
        inside = [where == "" or where.startswith("/") for where, _ in self.errors]
        moved = [
            (pointer + where if within else where, what)
            for within, (where, what) in zip(inside, self.errors, strict=True)
        ]
        return replace(self, errors=moved)


class Rejected(Exception):
    """A request that is answered with a problem; raised while it is read, before anything was done."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.type.slug)
        self.problem = problem


def _unknown(slug: str, status: int, title: str, remedy: str) -> ProblemType:
    return ProblemType(slug, status, title, remedy, Outcome.UNKNOWN)


MALFORMED_REQUEST = ProblemType(
    "malformed-request", 400, "Not a valid HTTP request", "Send HTTP/1.1 as RFC 9112 says; the connection is closed."
)
MALFORMED_JSON = ProblemType(
    "malformed-json",
    400,
    "Body is not strict JSON",
    "Send UTF-8 without a byte order mark, one value, no NaN, no repeated names, nested at most 32 levels.",
)
UNAUTHENTICATED = ProblemType(
    "unauthenticated",
    401,
    "No valid credential",
    "Send Authorization: Bearer and a key: OUTBOX_BRIDGE_KEY for SDK and commands; outbox-bridge key create makes one.",
)
FORBIDDEN = ProblemType(
    "forbidden",
    403,
    "Not permitted",
    "Grant the right (outbox-bridge key grant), or list the name in http.allowed_hosts, as `detail` says.",
)
NO_ROLE = "health and metrics alone are here: ask a process with the role `api`, at its `http.port`"
NOT_FOUND = ProblemType("not-found", 404, "No such resource", "See /docs for the paths that exist.")
METHOD_NOT_ALLOWED = ProblemType(
    "method-not-allowed", 405, "Method not allowed here", "Use a method of the Allow header."
)
NOT_ACCEPTABLE = ProblemType(
    "not-acceptable", 406, "No acceptable representation", "Accept application/json and application/problem+json."
)
REQUEST_TIMEOUT = ProblemType(
    "request-timeout", 408, "Request not received in time", "Send the whole request faster; the connection is closed."
)
BODY_TOO_LARGE = ProblemType(
    "body-too-large", 413, "Body over the limit", "Send smaller batches, or one transaction per line as NDJSON."
)
URI_TOO_LONG = ProblemType("uri-too-long", 414, "URI too long", "Shorten the query; the connection is closed.")
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    "unsupported-media-type",
    415,
    "Unsupported body format",
    "Send Content-Type: application/json (NDJSON where it says so), also without a body, in UTF-8 and without "
    "Content-Encoding; without a body the header Outbox-Bridge-Request: 1 does as well.",
)
HEADERS_TOO_LARGE = ProblemType(
    "headers-too-large", 431, "Request headers too large", "Send at most 16 KiB of headers; the connection is closed."
)
RATE_LIMITED = ProblemType(
    "rate-limited", 429, "Over the quota", "Repeat after Retry-After seconds; nothing of the call was applied."
)
INTERNAL = _unknown(
    "internal", 500, "Internal error", "Repeat the request; if it stays, report the request id in `instance`."
)
INVALID_REQUEST = ProblemType(
    "invalid-request", 422, "Request does not match the schema", "Correct what `errors` points at."
)
MESSAGE_TOO_LARGE = ProblemType(
    "message-too-large", 413, "Message too large", "Shrink the message, or raise max.message.bytes of its topic."
)
INVALID_TIMESTAMP = ProblemType(
    "invalid-timestamp",
    422,
    "Timestamp not accepted",
    "Leave timestamp_ms out, or choose one that the topic's settings take.",
)
UNAVAILABLE = ProblemType(
    "unavailable", 503, "Temporarily unavailable", "Repeat after Retry-After seconds, with an idempotency key."
)

_REFUSALS = (
    ProblemType(
        "illegal-topic", 422, "Illegal topic name", "Use 1..249 characters of A-Z a-z 0-9 . _ - as Kafka does."
    ),
    ProblemType("reserved-topic", 403, "Reserved topic", "Write to a topic of your own; internal ones are refused."),
    ProblemType(
        "unknown-topic", 422, "Topic does not exist", "Create it: outbox-bridge topic create NAME --partitions N."
    ),
    ProblemType("unknown-partition", 422, "Partition does not exist", "Leave partition out, or name an existing one."),
    ProblemType(
        "idempotency-key-reused",
        422,
        "Idempotency key used for other content",
        "Use a new idempotency key for a new transaction; repeat the first content under the old one.",
    ),
    ProblemType(
        "unknown-transaction",
        404,
        "Unknown transaction",
        "Check the id; ended ones are forgotten after 7 days or more.",
    ),
    ProblemType(
        "unknown-producer-group",
        404,
        "Unknown producer group",
        "Create it: outbox-bridge group put NAME --endpoint URL, or PUT /v1/producer-groups/NAME.",
    ),
    ProblemType(
        "producer-group-mismatch",
        409,
        "Transaction of another producer group",
        "End it in the name of the group that prepared it, or leave producer_group out.",
    ),
    ProblemType(
        "producer-group-in-use",
        409,
        "Producer group has open transactions",
        "End its pending, parked and blocked transactions first.",
    ),
    ProblemType(
        "not-pull-mode",
        409,
        "Producer group does not fetch its checks",
        "Put the group with check.mode pull, or answer at its endpoints.",
    ),
    ProblemType(
        "too-many-endpoints",
        409,
        "Producer group has too many leased endpoints",
        "Let instances that end remove their endpoint, or take shorter leases.",
    ),
    ProblemType("already-resolved", 409, "Transaction was resolved otherwise", "The recorded `state` stands for ever."),
    ProblemType(
        "body-expired",
        409,
        "Messages no longer stored",
        "Roll it back: no log holds its messages any more, so it cannot be published.",
    ),
    ProblemType(
        "given-up",
        409,
        "Transaction was given up",
        "Ask the producer's database: if it committed and the message is not in its topic, prepare it anew.",
        outcome=None,
    ),
    ProblemType(
        "not-blocked",
        409,
        "Commit is not blocked",
        "`outbox-bridge tx list --blocked` lists what can be abandoned; commit or roll back a pending one.",
    ),
    ProblemType("not-parked", 409, "Transaction is not parked", "Only parked transactions can be resumed."),
    ProblemType(
        "too-many-keys", 409, "Principal has two valid keys", "Revoke the one that is not used any more: key revoke ID."
    ),
    ProblemType("too-early", 409, "Before the first check is due", "Wait until first_check_at."),
    ProblemType(
        "callback-url-forbidden",
        422,
        "Callback URL not permitted",
        "Use https on port 443 or 8443 to a public address, or list the network in callbacks.allow_networks.",
    ),
    ProblemType(
        "callback-unverified",
        422,
        "Endpoint has not proved whose it is",
        "Let it answer the bridge's challenge (docs/check-endpoint.md; the SDK does), with the group's secret, first.",
    ),
    ProblemType(
        "projection-behind", 503, "Answer would be out of date", "Repeat after Retry-After seconds.", outcome=None
    ),
    _unknown(
        "outcome-unknown", 504, "Not settled in time", "Repeat the same request: the answer then says what happened."
    ),
)

PROBLEMS: Mapping[str, ProblemType] = {
    row.slug: row
    for row in (
        MALFORMED_REQUEST, MALFORMED_JSON, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED, NOT_ACCEPTABLE,
        REQUEST_TIMEOUT, BODY_TOO_LARGE, URI_TOO_LONG, UNSUPPORTED_MEDIA_TYPE, RATE_LIMITED,
        HEADERS_TOO_LARGE, INTERNAL, INVALID_REQUEST, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, UNAVAILABLE, *_REFUSALS,
    )
}  # fmt: skip

_TYPE_OF = {code: PROBLEMS[code.value] for code in RefusalCode}
_RETRY_AFTER_S = {RefusalCode.UNAVAILABLE: 1, RefusalCode.PROJECTION_BEHIND: 1}


def problem_of(refused: Refused) -> Problem:
    """A refusal of the service as a problem. A 503 always says when to try again."""
    return Problem(
        _TYPE_OF[refused.code],
        refused.detail,
        refused.outcome,
        refused.transaction_id,
        None if refused.state is None else refused.state.value,
        refused.errors,
        _RETRY_AFTER_S.get(refused.code) if refused.retry_after_s is None else refused.retry_after_s,
    )


def problem_members(problem: Problem, request_id: str) -> dict[str, object]:
    """The members of the JSON document; those without meaning are left out."""
    members: dict[str, object] = {
        "type": problem.type.uri,
        "title": problem.type.title,
        "status": problem.type.status,
        "detail": problem.detail,
        "instance": request_id,
    }
    outcome = problem.outcome or problem.type.outcome
    if outcome is not None:
        members["outcome"] = outcome.value
    if problem.transaction_id is not None:
        members["transaction_id"] = problem.transaction_id
    if problem.state is not None:
        members["state"] = problem.state
    if problem.errors:
        members["errors"] = [_error_members(where, what) for where, what in problem.errors]
    if problem.retry_after_s is not None:
        members["retry_after"] = problem.retry_after_s
    return members


def encode_problem(problem: Problem, request_id: str) -> bytes:
    """The body of the answer."""
    return _encode(problem_members(problem, request_id))


def problem_headers(problem: Problem) -> dict[str, str]:
    """Headers of the answer besides the length."""
    headers = {"Content-Type": PROBLEM_MEDIA_TYPE, "Cache-Control": "no-store", **problem.headers}
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    return headers


def reject(kind: ProblemType, detail: str, *errors: tuple[str, str]) -> Rejected:
    """An exception for a request that cannot be served."""
    return Rejected(Problem(kind, detail, errors=errors))


def invalid(pointer: str, what: str) -> Rejected:
    """A violation of the schema at one place of the request."""
    return reject(INVALID_REQUEST, what, (pointer, what))


def _error_members(where: str, what: str) -> dict[str, str]:
    if not where or where.startswith("/"):
        return {"pointer": where, "detail": what}
    return {"parameter": where.removeprefix("?"), "detail": what}
