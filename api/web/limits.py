"""Bounds of the HTTP interface: sizes, times, bytes in flight.

Where places are scarce, the stream that has gone longest without a whole line gives up its own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from api.web.problems import BODY_TOO_LARGE, CLOSE, REQUEST_TIMEOUT, UNAVAILABLE, Problem, Rejected
from api.web.quotas import QuotaConfig

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

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
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
