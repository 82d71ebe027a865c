"""Whom to ask next: the live endpoints of a group in turn. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bridge.directory import Endpoint

COOLING_MS = 10_000  # an endpoint that failed lately is tried after the others
GONE_MS = 60_000  # until the directory knows of it
MIN_RETRY_AFTER_MS = 1_000
MAX_RETRY_AFTER_MS = 300_000


class EndpointOrder(NamedTuple):
    """Endpoints to be tried, one after the other; `paused`: live ones that asked for a pause."""

    urls: Sequence[str]
    paused: int


class EndpointRotation:
    """Round robin for one group; remembers who failed and who asked for a pause. Monotonic milliseconds."""

    def __init__(self) -> None:
        self._turn = 0
        self._failed_ms: dict[str, int] = {}
        self._paused_until_ms: dict[str, int] = {}

    def order(self, endpoints: Iterable[Endpoint], monotonic_ms: int) -> EndpointOrder:
        """The next round's order, without those that said that they are gone."""
        live = [endpoint.url for endpoint in endpoints if endpoint.disabled_reason is None]
        self._forget(live)
        ready = [url for url in live if self._paused_until_ms.get(url, monotonic_ms) <= monotonic_ms]
        if not ready:
            return EndpointOrder((), len(live))
        start = self._turn % len(ready)
        self._turn += 1
        in_turn = ready[start:] + ready[:start]
        return EndpointOrder(
            sorted(in_turn, key=lambda url: self._is_cooling(url, monotonic_ms)), len(live) - len(ready)
        )

    def peek(self, endpoints: Iterable[Endpoint], monotonic_ms: int) -> EndpointOrder:
        """The order as it would be, without taking a turn."""
        turn = self._turn
        order = self.order(endpoints, monotonic_ms)
        self._turn = turn
        return order

    def note_answer(self, url: str) -> None:
        """The endpoint answered."""
        self._failed_ms.pop(url, None)

    def note_failure(self, url: str, monotonic_ms: int) -> None:
        """The endpoint gave no answer at all."""
        self._failed_ms[url] = monotonic_ms

    def pause(self, url: str, until_ms: int) -> None:
        """Leaves the endpoint alone until then."""
        self._paused_until_ms[url] = until_ms

    def _is_cooling(self, url: str, monotonic_ms: int) -> bool:
        failed_ms = self._failed_ms.get(url)
        return failed_ms is not None and monotonic_ms - failed_ms < COOLING_MS

    def _forget(self, live: Sequence[str]) -> None:
        for marks in (self._failed_ms, self._paused_until_ms):
            for url in marks.keys() - set(live):
                del marks[url]


def retry_after_ms(header: str | None) -> int:
    """How long a 429 asks to be left alone, within bounds; dates count as the least, for clocks differ."""
    seconds = int(header) if header is not None and header.isascii() and header.isdigit() and len(header) < 10 else 0
    return max(MIN_RETRY_AFTER_MS, min(seconds * 1000, MAX_RETRY_AFTER_MS))
