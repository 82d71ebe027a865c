"""Which transactions are due, in order, per queue and producer group. Pure: every time is an argument.

Due times are Kafka's. Nothing scans what is not due, and one group's backlog is never between another group
and its work. A group is either at rest (`wake` finds it when something is due), or awake: then it takes by
itself until it `rest`s.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bridge.core.check_rules import Due, decide_due, is_exhausted, life_end_ms
from bridge.core.config import CheckTimes
from bridge.core.transaction import MAX_LIFE, NO_ENDPOINT, Transaction
from checker.lanes import Entry, Head, Moment, QueueTable

_STALE_STEP = 2_000


class Ask(NamedTuple):
    """A transaction that was taken to be asked about, as it was then."""

    transaction: Transaction
    queue_id: int
    due_ms: int


class Taken(NamedTuple):
    """What a step gives a group. `parks`: why, by queue and transaction; `unread`: queues to be read further
    first; `is_more`: the step was cut short."""

    asks: list[Ask]
    parks: dict[int, dict[str, str]]
    unread: list[int]
    is_more: bool = False


class Timetable:
    """Due times of everything PREPARED in the queues of this process."""

    def __init__(self, times_of: Callable[[str], CheckTimes], *, report_wait_ms: int, max_lag_ms: int) -> None:
        self._times_of = times_of
        self._report_wait_ms = report_wait_ms
        self._max_lag_ms = max_lag_ms
        self._tables: dict[int, QueueTable] = {}
        self._in_flight: set[str] = set()

    # --- what the settler says ---

    def add_queue(self, queue_id: int, prepared: Iterable[Transaction], taken: Moment | None = None) -> None:
        """Takes note of a queue, `taken` over just now; `tidy` brings its transactions into order bit by bit."""
        self._tables[queue_id] = QueueTable(queue_id, prepared, taken)

    def drop_queue(self, queue_id: int) -> None:
        """Forgets a queue; what is in flight stays in flight."""
        self._tables.pop(queue_id, None)

    def tidy(self, max_count: int) -> bool:
        """A bounded step: brings up to so many transactions of new queues into order, drops stale due times of one
        lane. True if there is more to be done."""
        is_more = False
        for table in self._tables.values():
            for _ in range(min(max_count, len(table.unsorted))):
                max_count -= 1
                self._add(table, Entry(table.unsorted.popitem()[1]))
            if not table.unsorted:
                table.unsorted = {}  # an emptied dict keeps its size
            is_more = is_more or bool(table.unsorted)
        return any(table.compact_one() for table in self._tables.values()) or is_more

    def set_prepared(self, queue_id: int, transactions: Sequence[Transaction], read_monotonic_ms: int) -> None:
        """New or changed transactions; the first check of a new one waits by the monotonic clock too."""
        table = self._tables.get(queue_id)
        if table is None:
            return
        for transaction in transactions:
            before = table.unsorted.pop(transaction.transaction_id, None)
            entry = table.entries.get(transaction.transaction_id)
            if entry is not None:
                before = entry.transaction
            else:
                entry = Entry(transaction)
                if transaction.at == transaction.half and not transaction.check_times:
                    first_delay_ms = transaction.next_due_ms - transaction.appended_ms
                    entry.not_before_ms = read_monotonic_ms + first_delay_ms
            if before is None or before.since_ms != transaction.since_ms:
                entry.since_ms, entry.life_end_ms = read_monotonic_ms, 0
            entry.transaction = transaction
            self._add(table, entry)

    def set_ended(self, queue_id: int, transaction_ids: Iterable[str]) -> None:
        """Forgets transactions."""
        table = self._tables.get(queue_id)
        for transaction_id in transaction_ids if table else ():
            assert table is not None
            table.remove(transaction_id)

    # --- what is due ---

    def wake(self, queue_id: int, now_ms: int) -> set[str]:
        """Groups that have something due in the queue and were at rest."""
        return self._tables[queue_id].wake(now_ms)

    def rest(self, group: str) -> None:
        """The group found nothing due: `wake` will find it when it has."""
        for table in self._tables.values():
            table.rest(group)

    def next_front_ms(self, queue_id: int) -> int | None:
        """The earliest due time in the queue of any group at rest."""
        return self._tables[queue_id].next_front_ms()

    def take(self, group: str, moment_of: Callable[[int], Moment], max_asks: int) -> Taken:
        """What the group is to be asked about now, and what is to be parked: the longest due queue first."""
        taken = Taken([], {}, [])
        steps = max_asks + _STALE_STEP
        for table in self._by_head(group):
            moment = moment_of(table.queue_id)
            while steps > 0 and len(taken.asks) < max_asks:
                head = table.pop(group, moment, self._max_lag_ms)
                if head is Head.NOTHING:
                    break
                if head is Head.UNREAD:
                    taken.unread.append(table.queue_id)
                    break
                steps -= 1
                if isinstance(head, Entry):
                    self._decide(table, head, moment, taken)
        return taken._replace(is_more=steps <= 0 or len(taken.asks) >= max_asks)

    def is_pending(self, ask: Ask) -> bool:
        """Whether its queue is held and nothing has been heard of an end of it."""
        table = self._tables.get(ask.queue_id)
        return table is not None and ask.transaction.transaction_id in table.entries

    def is_current(self, ask: Ask) -> bool:
        """Whether it is pending, and no other answer has been counted since it was taken."""
        table = self._tables.get(ask.queue_id)
        entry = table.entries.get(ask.transaction.transaction_id) if table else None
        return entry is not None and entry.transaction.check_times == ask.transaction.check_times

    # --- how it went ---

    def set_answered(self, ask: Ask, now_ms: int) -> None:
        """Its answer is in the journal: it is not asked again before the settler says so, within a bound."""
        entry = self._land(ask, now_ms + self._report_wait_ms, was_tried=True)
        if entry is not None and entry.transaction.check_times <= ask.transaction.check_times:
            entry.answered = ask.transaction.check_times + 1

    def set_unanswered(self, ask: Ask, retry_ms: int, *, found_no_endpoint: bool) -> None:
        """Nobody answered: again at `retry_ms`, or parked when its life is over."""
        table = self._tables.get(ask.queue_id)
        known = table.entries.get(ask.transaction.transaction_id) if table else None
        entry = self._land(ask, retry_ms if known is None else self._within_life(known, retry_ms), was_tried=True)
        if entry is not None:
            entry.found_no_endpoint = found_no_endpoint

    def set_offered(self, ask: Ask, until_ms: int, *, found_nobody: bool) -> None:
        """Its check lies ready to be fetched until then at least, whatever its life says."""
        entry = self._land(ask, until_ms, was_tried=True)
        if entry is not None:
            entry.found_no_endpoint = found_nobody

    def set_postponed(self, ask: Ask, until_ms: int, *, was_tried: bool) -> None:
        """It was not asked about, or its answer may not be in the journal."""
        self._land(ask, until_ms, was_tried=was_tried)

    # --- gauges ---

    @property
    def in_flight(self) -> int:
        """Transactions taken and not landed."""
        return len(self._in_flight)

    def count_pending(self) -> int:
        """All transactions known."""
        return sum(len(table.entries) + len(table.unsorted) for table in self._tables.values())

    def count_due(self, now_of: Callable[[int], int], most: int) -> int:
        """How many are due and not taken, counted up to about `most`; walks only through what is due."""
        count = 0
        for queue_id, table in self._tables.items():
            count += table.count_due(now_of(queue_id), most - count)
        return count

    # --- inside ---

    def _add(self, table: QueueTable, entry: Entry) -> None:
        transaction_id = entry.transaction.transaction_id
        table.entries[transaction_id] = entry
        is_news = entry.transaction.check_times >= entry.answered
        if transaction_id not in self._in_flight and is_news:
            table.schedule(entry, self._due_ms(entry))

    def _due_ms(self, entry: Entry) -> int:
        """The end of its life counts only for one that was asked about: the others are asked first."""
        transaction = entry.transaction
        if not entry.had_round:
            return transaction.next_due_ms
        return self._within_life(entry, transaction.next_due_ms)

    def _within_life(self, entry: Entry, due_ms: int) -> int:
        times = self._times_of(entry.transaction.group)
        if is_exhausted(entry.transaction, times):
            return due_ms
        return min(due_ms, max(life_end_ms(entry.transaction, times), entry.life_end_ms))

    @staticmethod
    def _left_of_life_ms(table: QueueTable, entry: Entry, end_ms: int, moment: Moment) -> int:
        """What is left of its life by the monotonic clock: append times jump when a broker's clock is set."""
        if entry.since_ms is not None:
            return end_ms - entry.transaction.since_ms - (moment.monotonic_ms - entry.since_ms)
        if table.taken is None:
            return 0
        return end_ms - table.taken.now_ms - (moment.monotonic_ms - table.taken.monotonic_ms)

    def _by_head(self, group: str) -> list[QueueTable]:
        heads = [(table.head_ms(group), table.queue_id) for table in self._tables.values()]
        return [self._tables[queue_id] for head_ms, queue_id in sorted(h for h in heads if h[0] is not None)]

    def _decide(self, table: QueueTable, entry: Entry, moment: Moment, taken: Taken) -> None:
        transaction = entry.transaction
        times = self._times_of(transaction.group)
        due, why = decide_due(transaction, times, moment.now_ms, had_round=entry.had_round)
        entry.answered = 0
        if why == MAX_LIFE:
            left_ms = self._left_of_life_ms(table, entry, life_end_ms(transaction, times), moment)
            if left_ms > 0:
                entry.life_end_ms = moment.now_ms + left_ms
                due = Due.ASK if moment.now_ms >= transaction.next_due_ms else Due.NOTHING
        if due is Due.ASK:
            self._in_flight.add(transaction.transaction_id)
            taken.asks.append(Ask(transaction, table.queue_id, entry.due_ms))
        elif due is Due.PARK:
            found_nobody = why == MAX_LIFE and entry.found_no_endpoint
            whys = taken.parks.setdefault(table.queue_id, {})
            whys[transaction.transaction_id] = NO_ENDPOINT if found_nobody else why
            table.schedule(entry, moment.now_ms + self._report_wait_ms)
        else:
            table.schedule(entry, self._due_ms(entry))

    def _land(self, ask: Ask, next_ms: int, *, was_tried: bool) -> Entry | None:
        """Ends the flight: due again at `next_ms`, or when the settler said so meanwhile for another answer."""
        asked = ask.transaction
        self._in_flight.discard(asked.transaction_id)
        table = self._tables.get(ask.queue_id)
        entry = table.entries.get(asked.transaction_id) if table else None
        if table is None or entry is None:
            return None
        entry.had_round |= was_tried
        entry.found_no_endpoint = False
        known = entry.transaction
        is_news = known.check_times > asked.check_times or known.since_ms > asked.since_ms
        table.schedule(entry, self._due_ms(entry) if is_news else next_ms)
        return entry
