"""Bounds of the HTTP interface: sizes, times, bytes in flight."""

from dataclasses import dataclass

from api.web.problems import BODY_TOO_LARGE, CLOSE, UNAVAILABLE, Problem, Rejected

SMALL_BYTES = 64 * 1024


class ByteBudget:
    """The last quarter is kept for small requests, so that they are served beside large ones that have stalled."""

    __slots__ = ("for_large", "total", "used")

    def __init__(self, total: int = 256 * 1024 * 1024) -> None:
        self.total = total
        self.for_large = total - total // 4
        self.used = 0


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of the HTTP interface."""

    body_bytes: int = 8 * 1024 * 1024  # of a body, or of one NDJSON line
    receive_s: float = 10.0
    in_flight: int = 2_000
    in_flight_bytes: int = 256 * 1024 * 1024
    page: int = 500
    wait_s: float = 10.0


def too_large(limits: HttpLimits) -> Rejected:
    """A body, or a line, above the limit."""
    return Rejected(Problem(BODY_TOO_LARGE, f"more than {limits.body_bytes} bytes", headers=CLOSE))


def overloaded(*, is_read: bool) -> Rejected:
    """The process holds as many bytes as it may. `is_read`: nothing of the request is on its way any more."""
    detail = "too many bytes of requests are being held; this one was not kept"
    return Rejected(Problem(UNAVAILABLE, detail, retry_after_s=1, headers={} if is_read else CLOSE))
