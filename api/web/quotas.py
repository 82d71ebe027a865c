"""What one principal may use of a process: requests and bytes a second, and places where these are scarce.

Each process counts for itself: behind a balancer that spreads evenly, a principal has as many times its quota as there
are api processes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import random

from api.web.problems import RATE_LIMITED, Problem
from bridge.clock import SystemClock
from bridge.core.bucket import Bucket

_BURST_S = 2  # so much of a quota may be used at once after a pause
_SHARE, _SCARCE = 0.25, 0.5  # of the places: what one may have when so many are taken
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

    def leave(self) -> None:
        """A request is over."""
        self.in_flight -= 1


class Quotas:
    """The usage of all principals. `places`: how many requests the process serves at once."""

    def __init__(self, config: QuotaConfig, places: int, now_ms: Callable[[], int] = _CLOCK.monotonic_ms) -> None:
        self.config = config
        self._places = places
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
        now_ms, config = self._now_ms(), self.config
        for what, bucket, rate in (
            ("requests", usage.of_requests, config.requests_per_s),
            ("bytes", usage.of_bytes, config.bytes_per_s),
        ):
            wait_ms = 0.0 if bucket is None else bucket.find_wait_ms(now_ms)
            if wait_ms and rate is not None:
                problem = _refuse(f"more {what} than the quota of this principal", wait_ms)
                return replace(problem, headers=_show(what, rate, problem.retry_after_s))
        if usage.in_flight >= self._places * _SHARE and in_flight >= self._places * _SCARCE:
            return _refuse("a quarter of all places are taken by this principal, and places are scarce", 1_000)
        if usage.of_requests is not None:
            usage.of_requests.take(1)
        usage.in_flight += 1
        return None


def _show(what: str, rate: float, again_s: int | None) -> dict[str, str]:
    """Source: draft-ietf-httpapi-ratelimit-headers-10."""
    policy = f'"{what}";q={max(1, int(rate * _BURST_S))};w={_BURST_S}'
    return {"RateLimit-Policy": policy, "RateLimit": f'"{what}";r=0;t={again_s}'}


def _refuse(detail: str, wait_ms: float) -> Problem:
    """Nobody is told the very second that others are: they would come back together."""
    again_s = math.ceil(wait_ms / 1000 * (1 + random() / 2))  # noqa: S311 - nothing secret
    return Problem(RATE_LIMITED, detail, retry_after_s=max(1, again_s))
