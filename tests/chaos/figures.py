"""PURE. How long the bridge took to recover, fault by fault, as its clients saw it."""

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.chaos.schedule import BROKER_KINDS, HELD_KINDS, SESSION_S, Done, Kind
from tests.support.history.events import COMMITTING, Event, Invoke, Ok

KILL_TO_COMMIT = "kill to first successful commit"
TAKE_OVER = "take-over of the queues of a killed or frozen settler"
BROKER_BACK = "broker back to first successful commit"
READ_BACK = "pending transactions read back"
GOALS_S = {KILL_TO_COMMIT: 5.0, TAKE_OVER: 15.0, BROKER_BACK: 5.0, READ_BACK: 30.0}
ALONE = "the same, nothing else being broken meanwhile"
_NEEDED = {*BROKER_KINDS, *HELD_KINDS, Kind.SQL_KILL, Kind.SQL_FREEZE, Kind.CUT, Kind.REFUSE, Kind.SLOW}
_BASE32 = "0123456789abcdefghijklmnopqrstuv"


class Commit(NamedTuple):
    """A commit that succeeded: asked, answered, in which queue."""

    asked_ms: int
    told_ms: int
    queue: int


class Distribution(NamedTuple):
    """Seconds."""

    n: int
    min: float
    p50: float
    p90: float
    p99: float
    max: float


def read_commits(events: Iterable[Event]) -> list[Commit]:
    """Sorted by the time at which they were asked."""
    asked: dict[str, int] = {}
    commits = []
    for event in events:
        if isinstance(event, Invoke):
            if event.call in COMMITTING:
                asked[event.call_id] = event.at_ms
            continue
        asked_ms = asked.pop(event.call_id, None)
        if asked_ms is not None and isinstance(event, Ok) and event.state == "COMMITTED" and event.transaction_id:
            commits.append(Commit(asked_ms, event.at_ms, queue_of(event.transaction_id)))
    commits.sort()
    return commits


def queue_of(transaction_id: str) -> int:
    """The queue is in the id's first two digits."""
    return _BASE32.index(transaction_id[0]) * 32 + _BASE32.index(transaction_id[1])


def first_commit_after(commits: Sequence[Commit], at_ms: int, queue: int | None = None) -> float | None:
    """Seconds until the first answer to a commit asked after that time, of one queue or of any."""
    first: int | None = None
    for commit in commits[bisect_left(commits, (at_ms,)) :]:
        if first is not None and commit.asked_ms >= first:
            break
        if queue is None or commit.queue == queue:
            first = commit.told_ms if first is None else min(first, commit.told_ms)
    return None if first is None else (first - at_ms) / 1_000


class Recovery(NamedTuple):
    """What one fault cost: from `at_ms` on so many seconds. `is_alone`: nothing that the bridge needs was away then."""

    figure: str
    at_ms: int
    seconds: float
    is_alone: bool


def find_recoveries(commits: Sequence[Commit], done: Sequence[Done]) -> list[Recovery]:
    """Of each fault that has a figure; those after which nobody asked any more are left out."""
    found = []
    for fault in done:
        for figure, at_ms, queue in _counted(fault):
            seconds = first_commit_after(commits, at_ms, queue)
            if seconds is not None:
                others = (other for other in done if other is not fault and other.kind in _NEEDED)
                is_alone = not any(o.at_ms <= at_ms + seconds * 1_000 and o.until_ms >= at_ms for o in others)
                found.append(Recovery(figure, at_ms, seconds, is_alone))
    return found


def _counted(fault: Done) -> Iterator[tuple[str, int, int | None]]:
    """The figures of a fault: from when, and in which queue."""
    if fault.kind is Kind.KILL:
        yield KILL_TO_COMMIT, fault.at_ms, None
    if fault.kind is Kind.KILL or (fault.kind is Kind.PAUSE and fault.seconds > SESSION_S):
        for queue in fault.queues:
            yield TAKE_OVER, fault.at_ms, queue
    if fault.kind in BROKER_KINDS:
        yield BROKER_BACK, fault.until_ms, None


def distributions(recoveries: Sequence[Recovery]) -> dict[str, dict[str, Distribution | None]]:
    """Of each figure, all of them and those alone."""
    return {
        figure: {
            "": distribution([r.seconds for r in recoveries if r.figure == figure]),
            ALONE: distribution([r.seconds for r in recoveries if r.figure == figure and r.is_alone]),
        }
        for figure in GOALS_S
    }


def distribution(seconds: Sequence[float]) -> Distribution | None:
    """None of nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive") if len(ordered) > 1 else ordered * 99
    return Distribution(len(ordered), ordered[0], statistics.median(ordered), cuts[89], cuts[98], ordered[-1])
