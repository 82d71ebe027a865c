"""When to try blocked commits again: each set of destinations apart, until its topics are seen to work. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.core.check_rules import Backoff
from bridge.core.transaction import ORDER, SPLIT, UNTRIED, Transaction

DestinationSet = frozenset[str]

NOWHERE: DestinationSet = frozenset()  # of a commit whose body no log has
FIRST_BACKOFF_MS = 1_000
LONGEST_BACKOFF_MS = 60_000
LONGEST_SPLIT_MS = 4_000  # after its end; callers wait for 10 s


@dataclass(slots=True)
class _Pause:
    """Not before this time."""

    not_before_ms: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS))

    def extend(self, now_ms: int) -> None:
        self.not_before_ms = now_ms + self.backoff.next_ms()


@dataclass(slots=True)
class _Failing:
    """A set of destinations that failed. `limit`: how many to try at once, fewer while one of them is bad."""

    reason: str | None
    limit: int
    pause: _Pause = field(default_factory=_Pause)


class Try(NamedTuple):
    """Blocked commits for one Kafka transaction, in the order of their ends.

    All have these destinations; `is_joint`: they have these and fewer, and all of them are seen to work.
    """

    destinations: DestinationSet
    transactions: list[Transaction]
    is_joint: bool = False

    def without(self, transaction_ids: Collection[str], blocked_queues: Mapping[int, list[str]]) -> "Try":
        """Leaves these out, and whatever would overtake them."""
        chosen = {t.transaction_id for t in self.transactions}.difference(transaction_ids)
        return self._replace(transactions=_without_overtaking(self.transactions, chosen, blocked_queues))


@dataclass(slots=True)
class BlockedSchedule:
    """Blocked commits of one queue. Outlives the queue's state: a failure is remembered across a take-over."""

    max_batch: int = 2_000
    _sets: dict[DestinationSet, _Failing] = field(default_factory=dict)
    _suspended: dict[str, _Pause] = field(default_factory=dict)
    _working: set[str] = field(default_factory=set)  # topics that have taken a commit since something failed there

    @property
    def is_any_failing(self) -> bool:
        """Whether any destination has failed lately."""
        return bool(self._sets)

    def failing_reason(self, destinations: DestinationSet) -> str | None:
        """Why a commit for these destinations is not tried together with others; None if it may be."""
        for known, failing in self._sets.items():
            if failing.reason is not None and known <= destinations:
                return failing.reason
        return None

    def next_due_ms(self, now_ms: int) -> int:
        """When something may be tried again that may not be now."""
        pauses = [failing.pause for failing in self._sets.values()] + list(self._suspended.values())
        later = [pause.not_before_ms for pause in pauses if pause.not_before_ms > now_ms]
        return min(later, default=now_ms + FIRST_BACKOFF_MS)

    def explain_split(
        self,
        live: Mapping[str, Transaction],
        blocked_queues: Mapping[int, list[str]],
        destinations_of: Mapping[str, DestinationSet],
        split_before_ms: int | None,
    ) -> dict[str, str]:
        """Reasons for split commits that are not about to be tried, so that callers who wait get an answer (A).

        `split_before_ms`: those that ended before this moment of Kafka's time have been split for long enough;
        None: nothing is to be tried now, so none may stay.
        """
        reasons: dict[str, str] = {}
        for waiting in blocked_queues.values():
            is_behind = False
            for transaction_id in waiting:
                t = live[transaction_id]
                if t.reason == SPLIT:
                    is_late = split_before_ms is None or (t.ended_ms or 0) < split_before_ms
                    if not is_behind and not is_late:
                        continue
                    reason = self.failing_reason(destinations_of.get(transaction_id, NOWHERE))
                    reasons[transaction_id] = reason or (ORDER if is_behind else UNTRIED)
                is_behind = True
        return reasons

    def choose_try(
        self,
        live: Mapping[str, Transaction],
        blocked_queues: Mapping[int, list[str]],
        destinations_of: Mapping[str, DestinationSet],
        now_ms: int,
    ) -> Try | None:
        """What is due, the first of it; none overtakes an earlier one of its ordering key."""
        return self._choose_joint(live, blocked_queues, destinations_of) or self._choose_set(
            live, blocked_queues, destinations_of, now_ms
        )

    def _choose_joint(
        self,
        live: Mapping[str, Transaction],
        blocked_queues: Mapping[int, list[str]],
        destinations_of: Mapping[str, DestinationSet],
    ) -> Try | None:
        """All for topics that work: among many sets, each set apart would be a transaction or two a try."""
        found: list[Transaction] = []
        for waiting in blocked_queues.values() if self._working else ():
            for transaction_id in waiting:
                destinations = destinations_of.get(transaction_id)
                if destinations is None or not destinations <= self._working or transaction_id in self._suspended:
                    break
                found.append(live[transaction_id])
        if not found:
            return None
        found.sort(key=lambda t: t.end or 0)  # so the first of all hold the first of each ordering key
        chosen = found[: self.max_batch]
        return Try(frozenset().union(*[destinations_of[t.transaction_id] for t in chosen]), chosen, is_joint=True)

    def _choose_set(
        self,
        live: Mapping[str, Transaction],
        blocked_queues: Mapping[int, list[str]],
        destinations_of: Mapping[str, DestinationSet],
        now_ms: int,
    ) -> Try | None:
        """The next due set with its first commits."""
        by_set: dict[DestinationSet, list[Transaction]] = {}
        for waiting in blocked_queues.values():
            first = destinations_of.get(waiting[0])
            if first is None or self._is_paused(first, now_ms):
                continue
            for transaction_id in waiting:
                if destinations_of.get(transaction_id) != first or self._is_suspended(transaction_id, now_ms):
                    break
                by_set.setdefault(first, []).append(live[transaction_id])
        if not by_set:
            return None
        destinations, transactions = min(by_set.items(), key=lambda item: min(t.end or 0 for t in item[1]))
        failing = self._sets.get(destinations)
        limit = failing.limit if failing else self.max_batch
        transactions.sort(key=lambda t: (blocked_queues[t.ordering_hash][0] in self._suspended, t.end or 0))
        chosen = transactions[:limit]
        return Try(destinations, _without_overtaking(chosen, {t.transaction_id for t in chosen}, blocked_queues))

    def note_success(self, done: Try) -> None:
        """These topics work: of each set of them try twice as many next time, at once."""
        self._working |= done.destinations
        self.forget([t.transaction_id for t in done.transactions])
        for destinations in [known for known in self._sets if known <= done.destinations]:
            failing = self._sets[destinations]
            failing.limit *= 2
            failing.reason = None
            failing.pause = _Pause()
            if failing.limit >= self.max_batch:
                del self._sets[destinations]

    def clear(self) -> None:
        """Nothing is blocked any more, so what has failed says nothing of what comes."""
        self._sets.clear()
        self._suspended.clear()

    def note_failure(self, failed: Try, reason: str, now_ms: int) -> None:
        """A Kafka transaction with these failed: fewer at once, and later each time one alone fails."""
        self.doubt()
        if failed.is_joint:
            return
        count = len(failed.transactions)
        failing = self._fail(failed.destinations, reason)
        failing.limit = max(1, count // 8)
        if count == 1:
            failing.pause.extend(now_ms)
            self.suspend([failed.transactions[0].transaction_id], now_ms)

    def note_refused(self, destinations: DestinationSet, reason: str, now_ms: int) -> None:
        """The cluster itself says that nothing can be published there now."""
        self._working -= destinations
        self._fail(destinations, reason).pause.extend(now_ms)

    def forget(self, transaction_ids: Collection[str]) -> None:
        """These are not to be tried any more."""
        for transaction_id in transaction_ids:
            self._suspended.pop(transaction_id, None)

    def doubt(self) -> None:
        """Something failed, and which topic it was is not known: each set is tried apart again."""
        self._working.clear()

    def suspend(self, transaction_ids: Collection[str], now_ms: int) -> None:
        """These cannot be published now, whatever becomes of others of their set."""
        for transaction_id in transaction_ids:
            self._suspended.setdefault(transaction_id, _Pause()).extend(now_ms)

    def _fail(self, destinations: DestinationSet, reason: str) -> _Failing:
        failing = self._sets.setdefault(destinations, _Failing(reason, self.max_batch))
        failing.reason = reason
        return failing

    def _is_paused(self, destinations: DestinationSet, now_ms: int) -> bool:
        failing = self._sets.get(destinations)
        return failing is not None and now_ms < failing.pause.not_before_ms

    def _is_suspended(self, transaction_id: str, now_ms: int) -> bool:
        pause = self._suspended.get(transaction_id)
        return pause is not None and now_ms < pause.not_before_ms


def _without_overtaking(
    transactions: list[Transaction], chosen: Collection[str], blocked_queues: Mapping[int, list[str]]
) -> list[Transaction]:
    """The chosen transactions whose predecessors of the ordering key are chosen too, in the order of their ends."""
    allowed: set[str] = set()
    for ordering_hash in {t.ordering_hash for t in transactions}:
        for transaction_id in blocked_queues[ordering_hash]:
            if transaction_id not in chosen:
                break
            allowed.add(transaction_id)
    return sorted((t for t in transactions if t.transaction_id in allowed), key=lambda t: t.end or 0)
