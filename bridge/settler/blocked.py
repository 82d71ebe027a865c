"""When to try blocked commits again, each set of destinations apart. Pure but for the times it is given."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.core.transaction import Transaction

Destinations = frozenset[str]

FIRST_BACKOFF_MS = 1_000
LONGEST_BACKOFF_MS = 60_000


@dataclass(slots=True)
class _Set:
    """What is known of one set of destinations. `limit`: how many to try at once, halved while one is bad."""

    not_before_ms: int = 0
    backoff_ms: int = 0
    limit: int = 0
    why: str | None = None


class Try(NamedTuple):
    """Blocked commits of one set of destinations to be put into one Kafka transaction, in order."""

    destinations: Destinations
    transactions: list[Transaction]


@dataclass(slots=True)
class BlockedSchedule:
    """Blocked commits of one queue. Outlives the queue's state: a failure is remembered across a take-over."""

    max_batch: int = 2_000
    _sets: dict[Destinations, _Set] = field(default_factory=dict)
    _later: dict[str, None] = field(default_factory=dict)  # failed alone; others of its set go first

    def failing_reason(self, destinations: Destinations, now_ms: int) -> str | None:
        """Why a commit for these destinations is not even tried now; None if it may be."""
        for known, state in self._sets.items():
            if state.why is not None and now_ms < state.not_before_ms and known & destinations:
                return state.why
        return None

    def next_due_ms(self, destinations: Iterable[Destinations]) -> int | None:
        """When the first of these sets may be tried."""
        return min((self._sets.get(d, _Set()).not_before_ms for d in destinations), default=None)

    def choose_try(
        self,
        live: Mapping[str, Transaction],
        chains: Mapping[int, list[str]],
        destinations_of: Mapping[str, Destinations],
        now_ms: int,
    ) -> Try | None:
        """The next due set with its first commits; none overtakes an earlier one of its ordering key."""
        by_set: dict[Destinations, list[Transaction]] = {}
        for chain in chains.values():
            first = destinations_of.get(chain[0])
            if first is None or now_ms < self._sets.get(first, _Set()).not_before_ms:
                continue
            chosen = by_set.setdefault(first, [])
            for transaction_id in chain:
                if len(chosen) >= self.max_batch or destinations_of.get(transaction_id) != first:
                    break
                chosen.append(live[transaction_id])
        if not by_set:
            return None
        destinations, transactions = min(by_set.items(), key=lambda item: item[1][0].end or 0)
        limit = self._sets.get(destinations, _Set()).limit or self.max_batch
        transactions.sort(key=lambda t: (t.transaction_id in self._later, t.end or 0))
        return Try(destinations, _without_overtaking(transactions[:limit], chains))

    def note_success(self, done: Try) -> None:
        """The set works: try twice as many at once, at once."""
        state = self._sets.get(done.destinations)
        for t in done.transactions:
            self._later.pop(t.transaction_id, None)
        if state is not None:
            state.limit *= 2
            state.not_before_ms = state.backoff_ms = 0
            state.why = None
            if state.limit >= self.max_batch:
                del self._sets[done.destinations]

    def note_failure(self, failed: Try, why: str, now_ms: int) -> None:
        """The set failed: fewer at once, and later each time it fails with one alone."""
        state = self._sets.setdefault(failed.destinations, _Set())
        state.why = why
        count = len(failed.transactions)
        state.limit = max(1, count // 8)
        if count == 1:
            transaction_id = failed.transactions[0].transaction_id
            self._later.pop(transaction_id, None)
            self._later[transaction_id] = None
            state.backoff_ms = min(LONGEST_BACKOFF_MS, max(FIRST_BACKOFF_MS, state.backoff_ms * 2))
            state.not_before_ms = now_ms + state.backoff_ms

    def note_refused(self, destinations: Destinations, why: str, now_ms: int) -> None:
        """The cluster itself says that nothing can be published there now."""
        state = self._sets.setdefault(destinations, _Set())
        state.why = why
        state.limit = state.limit or self.max_batch
        state.backoff_ms = min(LONGEST_BACKOFF_MS, max(FIRST_BACKOFF_MS, state.backoff_ms * 2))
        state.not_before_ms = now_ms + state.backoff_ms


def _without_overtaking(transactions: list[Transaction], chains: Mapping[int, list[str]]) -> list[Transaction]:
    """Drops those whose predecessors in their chain are not chosen too, and restores the order of ends."""
    chosen = {t.transaction_id for t in transactions}
    allowed: set[str] = set()
    for okey in {t.okey for t in transactions}:
        for transaction_id in chains[okey]:
            if transaction_id not in chosen:
                break
            allowed.add(transaction_id)
    return sorted((t for t in transactions if t.transaction_id in allowed), key=lambda t: t.end or 0)
