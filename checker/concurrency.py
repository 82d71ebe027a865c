"""Which groups may start a round now, and which of their endpoints is asked. Pure.

A group whose last round got no answer is *silent*; silent groups share a quarter of all slots, so that dead
endpoints never hold up the others. Groups that have not been asked yet are *new* and share half of them: nobody knows
whether their endpoints keep a call until its time is up. A group's limit grows by one with each answered round and
halves with each unanswered one.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import count
from operator import itemgetter
from typing import NamedTuple

from bridge.directory import Endpoint

# --- which groups may start a round now: a limit for each group that adapts, and one for all ---

_GROUP_SHARE = 2  # no group has more than half of all slots, whatever its settings say


class _Standing(Enum):
    """What a group's last round showed."""

    ANSWERED = "answered"
    NEW = "new"
    SILENT = "silent"


class _Group:
    """`turn`: when its waiting round was asked for; 0 if none waits."""

    __slots__ = ("in_use", "limit", "most", "standing", "turn")

    most: int
    turn: int

    def __init__(self) -> None:
        self.limit = 1
        self.in_use = 0
        self.standing = _Standing.NEW


class ConcurrencyLimiter:
    """Slots for rounds; first come, first served among those that may."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._most = {_Standing.ANSWERED: total, _Standing.NEW: max(1, total // 2), _Standing.SILENT: total // 4}
        self._groups: dict[str, _Group] = {}
        self._queues: dict[_Standing, deque[tuple[int, str]]] = {standing: deque() for standing in _Standing}
        self._used = dict.fromkeys(_Standing, 0)
        self._turns = count(1)
        self.in_use = 0

    def want(self, group: str, most: int) -> None:
        """The group has one round to start; `most`: its own limit."""
        known = self._groups.setdefault(group, _Group())
        known.most = max(1, min(most, self._total // _GROUP_SHARE))
        known.limit = min(known.limit, known.most)
        known.turn = next(self._turns)
        self._queue(group, known)

    def withdraw(self, group: str) -> None:
        """The group wants none any more."""
        known = self._groups.get(group)
        if known is not None:
            known.turn = 0

    def grant(self) -> list[str]:
        """Groups whose round may start now; each holds a slot until `give_back`."""
        granted = []
        while self.in_use < self._total and (group := self._next()) is not None:
            known = self._groups[group]
            known.turn = 0
            known.in_use += 1
            self.in_use += 1
            self._used[known.standing] += 1
            granted.append(group)
        return granted

    def give_back(self, group: str, *, was_answered: bool | None) -> None:
        """A round is over. `was_answered` None: nobody was asked, which says nothing about the group."""
        known = self._groups[group]
        self.in_use -= 1
        self._used[known.standing] -= 1
        known.in_use -= 1
        if was_answered is not None:
            # its rounds that still run count where the group now belongs
            self._used[known.standing] -= known.in_use
            known.standing = _Standing.ANSWERED if was_answered else _Standing.SILENT
            self._used[known.standing] += known.in_use
            known.limit = min(known.most, known.limit + 1) if was_answered else max(1, known.limit // 2)
        if known.turn:
            self._queue(group, known)

    def forget(self, group: str) -> None:
        """Drops what is known of a group that has nothing pending."""
        known = self._groups.get(group)
        if known is not None and not known.in_use and not known.turn:
            del self._groups[group]

    def is_silent(self, group: str) -> bool:
        """Whether the group's last round got no answer."""
        known = self._groups.get(group)
        return known is not None and known.standing is _Standing.SILENT

    def in_use_of(self, group: str) -> int:
        """How many rounds the group has now."""
        known = self._groups.get(group)
        return known.in_use if known else 0

    def limit_of(self, group: str) -> int:
        """How many rounds the group may have at once now."""
        known = self._groups.get(group)
        return known.limit if known else 1

    def _queue(self, group: str, known: _Group) -> None:
        """A group at its own limit waits aside, until a round of its own ends."""
        if known.in_use < known.limit:
            self._queues[known.standing].append((known.turn, group))

    def _next(self) -> str | None:
        """The group that has waited longest, of those that may have a slot."""
        heads = [(*head, queue) for standing, queue in self._queues.items() if (head := self._head(standing, queue))]
        if not heads:
            return None
        _, group, queue = min(heads, key=itemgetter(0))
        queue.popleft()
        return group

    def _head(self, standing: _Standing, queue: deque[tuple[int, str]]) -> tuple[int, str] | None:
        """The first that still waits in the queue; None while its kind has all slots that it may have."""
        while queue and not self._is_current(queue[0], standing):
            queue.popleft()
        return queue[0] if queue and self._used[standing] < self._most[standing] else None

    def _is_current(self, item: tuple[int, str], standing: _Standing) -> bool:
        turn, group = item
        known = self._groups.get(group)
        if known is None or known.turn != turn:
            return False
        return known.standing is standing and known.in_use < known.limit


# --- whom to ask next: the live endpoints of a group in turn ---

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
    return max(MIN_RETRY_AFTER_MS, min(read_pause_ms(header), MAX_RETRY_AFTER_MS))


def read_pause_ms(header: str | None) -> int:
    """The seconds that a Retry-After names; 0 if it is anything else."""
    if header is None or not (header.isascii() and header.isdigit() and len(header) < 10):
        return 0
    return int(header) * 1000
