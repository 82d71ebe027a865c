"""Bounds of the HTTP interface: sizes, times, bytes in flight.

Where places are scarce, the stream that has gone longest without a whole line gives up its own.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import random
from typing import TypeVar

from api.web.problems import BODY_TOO_LARGE, CLOSE, RATE_LIMITED, REQUEST_TIMEOUT, UNAVAILABLE, Problem, Rejected
from bridge.clock import SystemClock
from bridge.turns import Bucket

# --- what one principal may use of a process: requests and bytes a second, and places where these are scarce ---
# Each process counts for itself: behind a balancer that spreads evenly, a principal has as many times its quota as
# there are api processes.

_BURST_S = 2  # so much of a quota may be used at once after a pause
_SHARE, _SCARCE_SHARE = 0.25, 0.5  # of the places: what one may have when so many are taken
_MOST_KNOWN = 10_000
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Of each principal; None: unlimited."""

    requests_per_s: float | None = None
    bytes_per_s: float | None = None


class Usage:
    """What one principal uses."""

    __slots__ = ("in_flight", "of_bytes", "of_requests")

    def __init__(self, config: QuotaConfig, now_ms: int) -> None:
        self.in_flight = 0
        self.of_requests, self.of_bytes = [
            None if rate is None else Bucket(rate, max(1, rate * _BURST_S), now_ms)
            for rate in (config.requests_per_s, config.bytes_per_s)
        ]

    def charge_bytes(self, count: int) -> None:
        """So many bytes of bodies have come."""
        if self.of_bytes is not None:
            self.of_bytes.take(count)

    def give_back(self, count: int) -> None:
        """A request of so many bytes is charged elsewhere."""
        for bucket, amount in ((self.of_requests, 1), (self.of_bytes, count)):
            if bucket is not None:
                bucket.give_back(amount)

    def charge_lines(self) -> None:
        """Lines of a stream have come together: they are as much work as a request."""
        if self.of_requests is not None:
            self.of_requests.take(1)

    def leave(self) -> None:
        """A request is over."""
        self.in_flight -= 1


class Quotas:
    """The usage of all principals. `places`: how many requests the process serves at once."""

    def __init__(self, config: QuotaConfig, places: int, now_ms: Callable[[], int] = _CLOCK.monotonic_ms) -> None:
        self.config = config
        self._most_of_one, self._scarce_at = places * _SHARE, places * _SCARCE_SHARE
        self._has_rates = config.requests_per_s is not None or config.bytes_per_s is not None
        self._now_ms = now_ms
        self._known: dict[str, Usage] = {}

    def find(self, name: str) -> Usage:
        """Of this principal."""
        usage = self._known.get(name)
        if usage is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known = {known: used for known, used in self._known.items() if used.in_flight}
            usage = self._known[name] = Usage(self.config, self._now_ms())
        return usage

    def enter(self, usage: Usage, in_flight: int) -> Problem | None:
        """Counts one more request of a principal, unless it must wait; then why. `in_flight`: of all."""
        if self._has_rates and (problem := self._refuse_rate(usage)) is not None:
            return problem
        if usage.in_flight >= self._most_of_one and in_flight >= self._scarce_at:
            return _refuse("a quarter of all places are taken by this principal, and places are scarce", 1_000)
        if usage.of_requests is not None:
            usage.of_requests.take(1)
        usage.in_flight += 1
        return None

    def find_pause_s(self, usage: Usage) -> float:
        """How long a principal must wait before it sends more of what it has begun; 0: not at all."""
        buckets = [bucket for bucket in (usage.of_requests, usage.of_bytes) if bucket is not None]
        return max([bucket.find_wait_ms(self._now_ms()) for bucket in buckets], default=0.0) / 1000

    def _refuse_rate(self, usage: Usage) -> Problem | None:
        now_ms, config = self._now_ms(), self.config
        for what, bucket, rate in (
            ("requests", usage.of_requests, config.requests_per_s),
            ("bytes", usage.of_bytes, config.bytes_per_s),
        ):
            wait_ms = 0.0 if bucket is None else bucket.find_wait_ms(now_ms)
            if wait_ms and rate is not None:
                problem = _refuse(f"more {what} than the quota of this principal", wait_ms)
                return replace(problem, headers=_show(what, rate, problem.retry_after_s))
        return None


def _show(what: str, rate: float, again_s: int | None) -> dict[str, str]:
    """Source: draft-ietf-httpapi-ratelimit-headers-10."""
    policy = f'"{what}";q={max(1, int(rate * _BURST_S))};w={_BURST_S}'
    return {"RateLimit-Policy": policy, "RateLimit": f'"{what}";r=0;t={again_s}'}


def _refuse(detail: str, wait_ms: float) -> Problem:
    """Nobody is told the very second that others are: they would come back together."""
    again_s = math.ceil(wait_ms / 1000 * (1 + random() / 2))  # noqa: S311 - nothing secret
    return Problem(RATE_LIMITED, detail, retry_after_s=max(1, again_s))


T = TypeVar("T")

_SCARCE = Problem(UNAVAILABLE, "ended for others: no line had come for longest", retry_after_s=1, headers=CLOSE)
_DRAINING = Problem(UNAVAILABLE, "shutting down", retry_after_s=1, headers=CLOSE)


class Streams:
    """All streams of a process, `most` at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Stream, None] = {}  # longest without a line first
        self._is_draining = False
        self.count = 0

    def open(self) -> "Stream":
        """A new one, and another one's end if there are too many. Raises Rejected if all have lines to answer."""
        if self.count >= self._most and not self.make_room():
            detail = f"{self._most} streams have lines that are not answered yet"
            raise Rejected(Problem(UNAVAILABLE, detail, retry_after_s=1, headers=CLOSE))
        self.count += 1
        return Stream(self)

    def make_room(self) -> bool:
        """Ends the stream that has waited longest for a line."""
        longest = next((stream for stream in self._waiting if not stream.is_ending), None)
        if longest is not None:
            longest.end(_SCARCE)
        return longest is not None

    def drain(self) -> None:
        """Ends those that wait, and every other before it waits again."""
        self._is_draining = True
        for stream in self._waiting:
            stream.end(_DRAINING)

    def enter(self, stream: "Stream") -> None:
        """The stream has no line to answer. Raises Rejected if nothing more is taken."""
        if self._is_draining:
            raise Rejected(_DRAINING)
        self._waiting.setdefault(stream)

    def leave(self, stream: "Stream") -> None:
        """The stream has lines to answer, or is over."""
        self._waiting.pop(stream, None)

    def close(self, stream: "Stream") -> None:
        """The stream is over."""
        self.leave(stream)
        self.count -= 1


class Stream:
    """One of them, open until its block ends."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._clock: asyncio.Timeout | None = None  # while it waits
        self._end: Problem | None = None

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.close(self)

    @property
    def is_ending(self) -> bool:
        """Whether the stream was asked to end."""
        return self._end is not None

    async def wait(self, receive: Callable[[], Awaitable[T]], deadline: float | None) -> T:
        """What comes next. Raises Rejected where the stream ends: for others, or at the deadline of its line."""
        if self._end is not None:  # asked to end while its last piece was on its way
            raise Rejected(self._end)
        self._streams.enter(self)
        try:
            async with asyncio.timeout_at(deadline) as self._clock:
                return await receive()
        except TimeoutError:
            late = Problem(REQUEST_TIMEOUT, "the rest of a line did not come in time", headers=CLOSE)
            raise Rejected(self._end or late) from None
        finally:
            self._clock = None

    def note_lines(self) -> None:
        """Whole lines have come: it is among the last to be ended from now on."""
        self._streams.leave(self)

    def end(self, reason: Problem) -> None:
        """Ends it at its present line, of which nothing is begun."""
        self._end = reason
        if self._clock is not None:
            self._clock.reschedule(asyncio.get_running_loop().time())


SMALL_BYTES = 64 * 1024


class ByteBudget:
    """The last quarter is kept for small requests, so that they are served beside large ones that have stalled."""

    __slots__ = ("for_large", "total", "used")

    def __init__(self, total: int = 256 * 1024 * 1024) -> None:
        self.total = total
        self.for_large = total - total // 4
        self.used = 0

    def is_over(self, more: int, size: int) -> bool:
        """Whether so many bytes more are too many, of a request of this size."""
        return self.used + more > (self.for_large if size > SMALL_BYTES else self.total)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of the HTTP interface."""

    body_bytes: int = 8 * 1024 * 1024  # of a body, or of one NDJSON line
    receive_s: float = 10.0
    in_flight: int = 2_000
    in_flight_bytes: int = 256 * 1024 * 1024
    headers_per_message: int = 64
    quotas: QuotaConfig = field(default_factory=QuotaConfig)
    page: int = 500
    wait_s: float = 10.0


def too_large(limits: HttpLimits) -> Rejected:
    """A body, or a line, above the limit."""
    return Rejected(Problem(BODY_TOO_LARGE, f"more than {limits.body_bytes} bytes", headers=CLOSE))


def overloaded(*, is_read: bool) -> Rejected:
    """The process holds as many bytes as it may. `is_read`: nothing of the request is on its way any more."""
    detail = "too many bytes of requests are being held; this one was not kept"
    return Rejected(Problem(UNAVAILABLE, detail, retry_after_s=1, headers={} if is_read else CLOSE))
