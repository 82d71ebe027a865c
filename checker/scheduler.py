"""Which transactions are due, in order, per queue and producer group. Pure: every time is an argument.

Due times are Kafka's. Nothing scans what is not due, and one group's backlog is never between another group
and its work. A group is either at rest (`wake` finds it when something is due), or awake: then it takes by
itself until it `rest`s.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes, Due, decide_due, is_exhausted, life_end_ms
from bridge.core.pending_table import DueRow, PendingTable
from bridge.core.transaction import MAX_LIFE, NO_ENDPOINT, Transaction
from checker.queue_schedule import HeapItem, PopResult, QueueSchedule, QueueTime

_STALE_STEP = 2_000
_OPEN_STEP = 2_000
_FAR_MS = 10_000  # what was read back and is due later than this is put in order later too


class DueCheck(NamedTuple):
    """A transaction that was taken to be asked about, as it was then."""

    transaction: Transaction
    queue_id: int
    due_ms: int


class InFlight(NamedTuple):
    """What a step gives a group. `parks`: why, by queue and transaction; `unread`: queues to be read further
    first; `is_more`: the step was cut short."""

    asks: list[DueCheck]
    parks: dict[int, dict[str, str]]
    unread: list[int]
    is_more: bool = False


class CheckScheduler:
    """Due times of everything PREPARED in the queues of this process. `max_objects`: new ones of a queue that are not
    packed."""

    def __init__(
        self, times_of: Callable[[str], CheckTimes], *, report_wait_ms: int, max_lag_ms: int, max_objects: int = 4_096
    ) -> None:
        self._max_objects = max_objects
        self._times_of = times_of
        self._report_wait_ms = report_wait_ms
        self._max_lag_ms = max_lag_ms
        self._tables: dict[int, QueueSchedule] = {}
        self._in_flight: set[str] = set()
        self._eras: Counter[str] = Counter()  # how often each group was resumed

    # --- what the settler says ---

    def add_queue(
        self,
        queue_id: int,
        prepared: Iterable[Transaction],
        taken: QueueTime | None = None,
        rows: PendingTable | None = None,
    ) -> None:
        """Takes note of a queue, `taken` over just now; what is due in `rows` is brought into order bit by bit."""
        table = self._tables[queue_id] = QueueSchedule(queue_id, taken, self._max_objects)
        if rows is not None:
            table.new.adopt(rows, partial(self._is_ahead, table), partial(self._bring_back, table))
        for transaction_id in sorted(self._in_flight):
            if (found := table.new.pop(transaction_id)) is not None:
                self._add(table, self._take_up(table, found[0]))
        for transaction in prepared:
            brought = self._bring_back(table, transaction)
            is_far = taken is not None and brought.next_due_ms > taken.now_ms + _FAR_MS
            if is_far and brought.transaction_id not in self._in_flight:
                table.new.add(brought, None)
            else:
                self._add(table, self._take_up(table, brought))
        table.new.compact()

    def drop_queue(self, queue_id: int) -> None:
        """Forgets a queue; what is in flight stays in flight."""
        self._tables.pop(queue_id, None)

    def tidy(self) -> bool:
        """A bounded step: drops stale due times of one lane. True if there is more to be done."""
        return any(table.compact_one() for table in self._tables.values())

    def set_prepared(self, queue_id: int, transactions: Sequence[Transaction], read_monotonic_ms: int) -> None:
        """New or changed transactions; a first check, and one after an answer, wait by the monotonic clock too.

        Append times may be behind the owner's time for long: a broker's clock was set back, or another leads.
        """
        table = self._tables.get(queue_id)
        if table is None:
            return
        new, entries = table.new, table.entries
        for transaction in transactions:
            id_ = transaction.transaction_id
            is_first = transaction.at == transaction.half and not transaction.check_times
            if is_first and id_ not in new and id_ not in entries:
                new.add(transaction, read_monotonic_ms)
                continue
            if (known := new.pop(id_)) is not None:
                self._set(table, *known)
            self._set(table, transaction, read_monotonic_ms)
        new.compact()

    def set_ended(self, queue_id: int, transaction_ids: Iterable[str]) -> None:
        """Forgets transactions."""
        table = self._tables.get(queue_id)
        if table is None:
            return
        read = table.new.transactions
        for transaction_id in transaction_ids:
            if read.pop(transaction_id, None) is None and not table.new.drop_packed(transaction_id):
                table.remove(transaction_id)

    # --- what is due ---

    def is_behind(self, queue_id: int, now_ms: int) -> bool:
        """Whether there are new ones that are due and not in order yet."""
        first_ms = self._tables[queue_id].new.first_ms
        return first_ms is not None and first_ms <= now_ms

    def wake(self, queue_id: int, now_ms: int) -> list[str]:
        """Groups that have something due in the queue and were at rest, earliest first."""
        table = self._tables[queue_id]
        self._open(table, now_ms)
        return table.wake(now_ms)

    def rest(self, group: str) -> None:
        """The group found nothing due: `wake` will find it when it has."""
        for table in self._tables.values():
            table.rest(group)

    def resume(self, group: str) -> None:
        """Nobody was asked for a while: rounds before do not count, so what came of age is asked about again first."""
        self._eras[group] += 1
        self.rest(group)

    def next_front_ms(self, queue_id: int) -> int | None:
        """The earliest due time in the queue of any group at rest."""
        return self._tables[queue_id].next_front_ms()

    def take(self, group: str, moment_of: Callable[[int], QueueTime], max_asks: int) -> InFlight:
        """What the group is to be asked about now, and what is to be parked: the longest due queue first."""
        taken = InFlight([], {}, [])
        steps = max_asks + _STALE_STEP
        for table in self._tables.values():
            self._open(table, moment_of(table.queue_id).now_ms)
        for table in self._by_head(group):
            moment = moment_of(table.queue_id)
            while steps > 0 and len(taken.asks) < max_asks:
                head = table.pop(group, moment, self._max_lag_ms)
                if head is PopResult.NOTHING:
                    break
                if head is PopResult.UNREAD:
                    taken.unread.append(table.queue_id)
                    break
                steps -= 1
                if isinstance(head, HeapItem):
                    self._decide(table, head, moment, taken)
        return taken._replace(is_more=steps <= 0 or len(taken.asks) >= max_asks)

    def is_pending(self, ask: DueCheck) -> bool:
        """Whether its queue is held and no end of it is known."""
        table = self._tables.get(ask.queue_id)
        return table is not None and ask.transaction.transaction_id in table.entries

    def is_current(self, ask: DueCheck) -> bool:
        """Whether it is pending, and no other answer has been counted since it was taken."""
        table = self._tables.get(ask.queue_id)
        entry = table.entries.get(ask.transaction.transaction_id) if table else None
        return entry is not None and entry.transaction.check_times == ask.transaction.check_times

    # --- how it went ---

    def set_answered(self, ask: DueCheck, moment: QueueTime) -> None:
        """Its answer is in the journal: it is not asked again before the settler says so, within a bound."""
        entry = self._land(ask, moment, self._report_wait_ms)
        if entry is not None and entry.transaction.check_times <= ask.transaction.check_times:
            entry.answered = ask.transaction.check_times + 1

    def set_unanswered(self, ask: DueCheck, moment: QueueTime, wait_ms: int, *, found_no_endpoint: bool) -> None:
        """Nobody answered: again after so long, or parked when its life is over."""
        entry = self._land(ask, moment, wait_ms, outlasts_life=False)
        if entry is not None:
            entry.found_no_endpoint = found_no_endpoint

    def set_offered(self, ask: DueCheck, moment: QueueTime, wait_ms: int, *, found_nobody: bool) -> None:
        """Its check can be claimed for so long at least, whatever its life says."""
        entry = self._land(ask, moment, wait_ms)
        if entry is not None:
            entry.found_no_endpoint = found_nobody

    def set_postponed(self, ask: DueCheck, moment: QueueTime, wait_ms: int, *, was_tried: bool) -> None:
        """The check was not sent, or its answer may not be in the journal. `wait_ms` 0: it is due as it was."""
        self._land(ask, moment, wait_ms, was_tried=was_tried)

    # --- gauges ---

    @property
    def in_flight(self) -> int:
        """Transactions taken and not landed."""
        return len(self._in_flight)

    def count_pending(self) -> int:
        """All transactions known."""
        tables = self._tables.values()
        return sum(len(table.entries) + len(table.new) for table in tables)

    def count_due(self, now_of: Callable[[int], int], most: int) -> int:
        """How many are due and not taken, counted up to about `most`; walks only through what is due."""
        count = 0
        for queue_id, table in self._tables.items():
            self._open(table, now_of(queue_id))
            count += table.count_due(now_of(queue_id), most - count)
        return count

    # --- inside ---

    def _open(self, table: QueueSchedule, now_ms: int) -> None:
        """Brings new ones that are due into order, so many at once."""
        for transaction, read_ms in table.new.pop_due(now_ms, _OPEN_STEP):
            self._set(table, transaction, read_ms)

    def _set(self, table: QueueSchedule, transaction: Transaction, read_ms: int | None) -> None:
        """One that is new or has changed, read live at `read_ms`, or was read back."""
        if read_ms is None:
            self._add(table, self._take_up(table, transaction))
            return
        entry = table.entries.get(transaction.transaction_id)
        before = None if entry is None else entry.transaction
        if entry is None:
            entry = HeapItem(transaction)
            if transaction.at == transaction.half and not transaction.check_times:
                entry.not_before_ms = read_ms + transaction.next_due_ms - transaction.appended_ms
        if before is None or before.since_ms != transaction.since_ms:
            entry.since_ms, entry.life_end_ms = read_ms, 0
        is_first = entry.since_ms is None and not transaction.check_times
        entry.transaction = self._bring_back(table, transaction) if is_first else transaction
        if before is not None and (transaction.check_times or entry.had_round):  # an answer, or an operator asks now
            is_answered = transaction.check_times > before.check_times
            entry.not_before_ms = self._next_check_ms(table, entry, read_ms) if is_answered else 0
        self._add(table, entry)

    def _bring_back(self, table: QueueSchedule, t: Transaction) -> Transaction:
        """One that was read back. If a clock was ahead when its wait began, that begins with the take-over."""
        if table.taken is None:
            return t
        is_counted = t.check_times > t.base
        ahead_ms = self._began_ms(t, is_counted=is_counted, since_ms=t.since_ms) - table.taken.now_ms
        return replace(t, next_due_ms=t.next_due_ms - ahead_ms) if ahead_ms > 0 else t

    def _take_up(self, table: QueueSchedule, t: Transaction) -> HeapItem:
        """One that was brought back waits by the monotonic clock too: Kafka's time may jump to where its wait began."""
        item, taken = HeapItem(t), table.taken
        began_ms = self._began_ms(t, is_counted=t.check_times > t.base, since_ms=t.since_ms)
        if taken is not None and began_ms >= taken.now_ms:
            item.not_before_ms = taken.monotonic_ms + t.next_due_ms - taken.now_ms
        return item

    def _is_ahead(self, table: QueueSchedule, row: DueRow) -> bool:
        """Whether one in a row would be brought back."""
        began_ms = self._began_ms(row, is_counted=row.check_times > 0, since_ms=row.appended_ms)
        return table.taken is not None and began_ms > table.taken.now_ms

    def _began_ms(self, t: Transaction | DueRow, *, is_counted: bool, since_ms: int) -> int:
        """When the wait for its next check began."""
        return t.next_due_ms - self._times_of(t.group).interval_ms if is_counted else since_ms

    def _add(self, table: QueueSchedule, entry: HeapItem) -> None:
        transaction_id = entry.transaction.transaction_id
        table.entries[transaction_id] = entry
        is_news = entry.transaction.check_times >= entry.answered
        if transaction_id not in self._in_flight and is_news:
            table.schedule(entry, self._due_ms(entry))

    def _due_ms(self, entry: HeapItem) -> int:
        """The end of its life counts only for one that was asked about: the others are asked first."""
        due_ms = entry.transaction.next_due_ms
        return self._within_life(entry, due_ms) if self._had_round(entry) else due_ms

    def _had_round(self, entry: HeapItem) -> bool:
        return entry.had_round > self._eras[entry.transaction.group]

    def _within_life(self, entry: HeapItem, due_ms: int) -> int:
        times = self._times_of(entry.transaction.group)
        if is_exhausted(entry.transaction, times):
            return due_ms
        return min(due_ms, max(life_end_ms(entry.transaction, times), entry.life_end_ms))

    def _next_check_ms(self, table: QueueSchedule, entry: HeapItem, monotonic_ms: int) -> int:
        """By the monotonic clock: an interval after an answer that was read just now, or the end of its life."""
        interval_ms = self._times_of(entry.transaction.group).interval_ms
        return monotonic_ms + min(interval_ms, self._left_of_life_ms(table, entry, monotonic_ms))

    def _left_of_life_ms(self, table: QueueSchedule, entry: HeapItem, monotonic_ms: int) -> int:
        """What is left of its life by the monotonic clock: append times jump when a broker's clock is set."""
        end_ms = life_end_ms(entry.transaction, self._times_of(entry.transaction.group))
        if entry.since_ms is not None:
            return end_ms - entry.transaction.since_ms - (monotonic_ms - entry.since_ms)
        if table.taken is None:
            return 0
        return end_ms - table.taken.now_ms - (monotonic_ms - table.taken.monotonic_ms)

    def _by_head(self, group: str) -> list[QueueSchedule]:
        heads = [(table.head_ms(group), table.queue_id) for table in self._tables.values()]
        return [self._tables[queue_id] for head_ms, queue_id in sorted(h for h in heads if h[0] is not None)]

    def _decide(self, table: QueueSchedule, entry: HeapItem, moment: QueueTime, taken: InFlight) -> None:
        transaction = entry.transaction
        times = self._times_of(transaction.group)
        due, reason = decide_due(transaction, times, moment.now_ms, had_round=self._had_round(entry))
        entry.answered = 0
        if reason == MAX_LIFE:
            left_ms = self._left_of_life_ms(table, entry, moment.monotonic_ms)
            if left_ms > 0:
                entry.life_end_ms = moment.now_ms + left_ms
                due = Due.ASK if moment.now_ms >= transaction.next_due_ms else Due.NOTHING
        if due is Due.ASK:
            self._in_flight.add(transaction.transaction_id)
            taken.asks.append(DueCheck(transaction, table.queue_id, entry.due_ms))
        elif due is Due.PARK:
            found_nobody = reason == MAX_LIFE and entry.found_no_endpoint
            reasons = taken.parks.setdefault(table.queue_id, {})
            reasons[transaction.transaction_id] = NO_ENDPOINT if found_nobody else reason
            table.schedule(entry, moment.now_ms + self._report_wait_ms)
        else:
            table.schedule(entry, self._due_ms(entry))

    def _land(
        self, ask: DueCheck, moment: QueueTime, wait_ms: int, *, was_tried: bool = True, outlasts_life: bool = True
    ) -> HeapItem | None:
        """Ends the flight: due again after so long by both clocks, or when the settler said so for another answer."""
        asked = ask.transaction
        self._in_flight.discard(asked.transaction_id)
        table = self._tables.get(ask.queue_id)
        entry = table.entries.get(asked.transaction_id) if table else None
        if table is None or entry is None:
            return None
        if was_tried:
            entry.had_round = self._eras[asked.group] + 1
        entry.found_no_endpoint = False
        known = entry.transaction
        if known.check_times > asked.check_times or known.since_ms > asked.since_ms:
            table.schedule(entry, self._due_ms(entry))
            return entry
        retry_ms = moment.now_ms + wait_ms if wait_ms else ask.due_ms
        if not outlasts_life:
            retry_ms = self._within_life(entry, retry_ms)
            wait_ms = min(wait_ms, self._left_of_life_ms(table, entry, moment.monotonic_ms))
        entry.not_before_ms = max(entry.not_before_ms, moment.monotonic_ms + wait_ms)
        table.schedule(entry, retry_ms)
        return entry
