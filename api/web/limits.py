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


class ByteLease:
    """The bytes of one request, from the first that comes until the request is over."""

    __slots__ = ("_budget", "_held", "_is_ended", "is_refused")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = 0
        self._is_ended = False
        self.is_refused = False  # a piece of the request was not taken, nor any after it

    def grow(self, size: int) -> bool:
        """Whether these bytes may be kept. Once False, it stays so: the request has a hole."""
        if self._is_ended:
            return False
        budget, held = self._budget, self._held + size
        used = budget.used + size
        if used > budget.for_large and (held > SMALL_BYTES or used > budget.total):
            self._is_ended = self.is_refused = True
            return False
        budget.used, self._held = used, held
        return True

    def shrink(self, size: int) -> None:
        """So many bytes are not kept any longer."""
        size = min(size, self._held)
        self._held -= size
        self._budget.used -= size

    def close(self) -> None:
        """The request is over. May be called again."""
        self._is_ended = True
        self.shrink(self._held)


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
