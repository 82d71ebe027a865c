"""Port for calling an endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Failure(StrEnum):
    """Why there is no answer; bounded words for metrics and timelines."""

    NO_ENDPOINT = "no-endpoint"
    NOT_CLAIMED = "not-claimed"  # nobody of a group that fetches its checks came
    NOT_ANSWERED = "not-answered"  # it was fetched, and nothing was said
    NO_SECRET = "no-secret"  # noqa: S105 - a word; calls never go out unsigned
    NO_BODY = "no-body"  # no log has the messages any more
    FORBIDDEN = "forbidden"  # the URL, or what its name resolves to
    DNS = "dns"
    REFUSED = "refused"  # no connection
    TLS = "tls"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    MALFORMED = "malformed"  # not HTTP, or headers above the limits
    TOO_LARGE = "too-large"
    COMPRESSED = "compressed"
    REDIRECT = "redirect"
    RATE_LIMITED = "rate-limited"
    GONE = "gone"
    STATUS = "status"  # any other status but 200
    BAD_ANSWER = "bad-answer"
    LEFT_OUT = "left-out"  # an answer, but not about this transaction


@dataclass(frozen=True, slots=True)
class Call:
    """One POST. `timeout_ms`: over the whole exchange, from resolving the name to the last byte."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    timeout_ms: int
    max_answer_bytes: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply within the limits, or why there is none. `endpoint`: the URL without its query."""

    endpoint: str
    latency_ms: int
    status: int = 0
    body: bytes = b""
    retry_after: str | None = None
    failure: Failure | None = None


class CheckCaller(Protocol):
    """Calls endpoints."""

    async def call(self, call: Call) -> Reply:
        """One exchange within its limits. Never raises for what an endpoint does; never follows redirects."""
        ...

    async def close(self) -> None:
        """Cuts what is open."""
        ...


def failure_of(status: int) -> Failure | None:
    """What a status other than 200 means; None for 200."""
    if status == 200:
        return None
    if 300 <= status < 400:
        return Failure.REDIRECT
    return {429: Failure.RATE_LIMITED, 410: Failure.GONE}.get(status, Failure.STATUS)
