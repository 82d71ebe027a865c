"""Journal records and op messages of one queue -> what changes in the projection's tables. Pure.

State and counts come from the op messages alone; a half message alone means PREPARED. The result is the
same however the entries are cut into chunks, as long as those of each topic come in order.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from bridge.core.check_rules import CheckTimes, first_check_ms
from bridge.core.errors import MalformedRecord
from bridge.core.op_message import encode_receipts
from bridge.core.record import Act, ActRecord, EndRecord, Source
from bridge.core.record_codec import decode_record
from bridge.core.transaction import RESOLUTION_OF, Transaction, TransactionState
from bridge.sql.chunking import HalfEntry, OpEntry, RawEntry, StateEntry, widen
from bridge.sql.rows import PREPARED, Counted, ProjectedRow, counted_as, encode_messages, make_row, make_search_key

TimesOf = Callable[[str], CheckTimes]
PendingSince = tuple[str, int]  # group, second in which the half message was appended

JOURNAL, OP = 0, 1  # sources of timeline events
_WORD_OF = {Source.PRODUCER: "producer", Source.CHECK: "check", Source.OPERATOR: "operator"}


class Answered(NamedTuple):
    """Answered rounds of an endpoint."""

    rounds: int
    last_ms: int
    latency_ms: int


class KeyRow(NamedTuple):
    """A row of `transaction_keys`."""

    topic: str
    born_ms: int
    id: int
    position: int
    message_key: bytes | None


class Moment(NamedTuple):
    """Where an event was read, and when that was appended."""

    source: int
    source_offset: int
    at_ms: int


class EventRow(NamedTuple):
    """A row of `timeline_events`."""

    id: int
    source: int
    source_offset: int
    at_ms: int
    type: str
    by: str | None
    members: str


class Fold:
    """Folds one chunk of one queue into the rows that are known. `known` must hold every id the chunk names."""

    def __init__(self, queue_id: int, known: Mapping[str, ProjectedRow], times_of: TimesOf) -> None:
        self.rows: dict[str, ProjectedRow] = dict(known)
        self.moved: dict[str, ProjectedRow] = {}  # state columns to be written
        self.enriched: dict[str, ProjectedRow] = {}  # half columns of old rows to be written
        self.keys: list[KeyRow] = []
        self.events: list[EventRow] = []
        self.answered: dict[tuple[str, str], Answered] = {}
        self.counts: dict[str, list[int]] = {}
        self.pending = Counter[PendingSince]()
        self.quarantined: list[tuple[int, str]] = []
        self._queue_id = queue_id
        self._times_of = times_of

    def apply(self, halves: Iterable[HalfEntry], ops: Iterable[StateEntry], others: Iterable[RawEntry]) -> None:
        """Folds everything and counts."""
        for half in halves:
            self._apply_half(half)
        for op in ops:
            self._apply_op(widen(op))
        for other in others:
            self._apply_other(other)
        for row in self.moved.values():
            self._count(row)

    def _apply_half(self, entry: HalfEntry) -> None:
        half, transaction_id = entry.half, entry.transaction_id
        row = self.rows.get(transaction_id)
        if row is None:
            row = make_row(transaction_id, half.group, self._queue_id, entry.offset, entry.stored_ms)
            self.rows[transaction_id] = self.moved[transaction_id] = row
            _describe(row, entry, self._times_of(half.group))
            row.next_due_ms = row.first_check_ms
        elif row.has_half or row.queue_offset != entry.offset:
            return  # a repeat
        else:
            _describe(row, entry, self._times_of(half.group))
            self.enriched[transaction_id] = row
        seen = dict.fromkeys((m.topic, make_search_key(m.key)) for m in entry.messages)
        self.keys += [KeyRow(topic, row.born_ms, row.id, n, key) for n, (topic, key) in enumerate(seen)]

    def _apply_op(self, entry: OpEntry) -> None:
        t = entry.op.transaction
        row = self.rows.get(t.transaction_id)
        if row is None:
            row = make_row(t.transaction_id, t.group, self._queue_id, t.half, t.appended_ms)
            row.max_checks, row.max_life_s = t.max_checks, t.max_life_s
            self.rows[t.transaction_id] = row
        elif row.queue_offset > t.half:
            if not _is_repeat(row, entry):
                return
            row.queue_offset, row.appended_ms = t.half, t.appended_ms
        elif row.queue_offset != t.half:
            self._begin_again(row, t)
        self.moved[t.transaction_id] = row
        self._add_op_events(row, entry)
        _move(row, entry)

    def _begin_again(self, row: ProjectedRow, t: Transaction) -> None:
        """The id was prepared again after everybody had forgotten it: another transaction, counted as one."""
        if row.state != PREPARED:  # else its end is not known, and the other takes its place
            self._count(row)
            row.was = None
        row.queue_offset, row.appended_ms = t.half, t.appended_ms
        row.state, row.blocked, row.why, row.published_ms, row.abandoned_ms = PREPARED, 0, None, None, None

    def _add_op_events(self, row: ProjectedRow, entry: OpEntry) -> None:
        t = entry.op.transaction
        if t.state is TransactionState.PARKED and row.state != t.state.value:
            members = {"why": t.reason, "check_times": t.check_times, "parked_offset": t.parked}
            self._add_event(row, Moment(OP, entry.offset, entry.stored_ms), "parked", t.by, members)
        elif t.blocked and not (row.blocked and row.why == t.reason):
            self._add_event(row, Moment(OP, entry.offset, entry.stored_ms), "blocked", None, {"why": t.reason})

    def _apply_other(self, entry: RawEntry) -> None:
        row = self.rows.get(entry.transaction_id)
        if row is None or entry.offset < row.queue_offset:
            return  # unknown to the settler at that place
        try:
            record = decode_record(entry.stored)
        except MalformedRecord as error:
            self.quarantined.append((entry.offset, str(error)))
            return
        if isinstance(record, EndRecord):
            self._apply_end(row, entry, record)
        elif isinstance(record, ActRecord):
            self._apply_act(row, entry, record)

    def _apply_end(self, row: ProjectedRow, entry: RawEntry, record: EndRecord) -> None:
        at_ms = entry.stored.stored_ms
        is_effective = (
            row.ended_ms == at_ms
            and row.resolved_by == _WORD_OF[record.source]
            and RESOLUTION_OF.get(TransactionState(row.state)) is record.resolution
        )
        members: dict[str, object] = {"resolution": record.resolution.name, "effective": is_effective}
        if record.source is Source.CHECK:
            self._count_answer(row.producer_group, record, at_ms)
            members = {
                "number": record.check_number,
                "endpoint": record.endpoint,
                "status": record.status,
                "latency_ms": record.latency_ms,
                "answer": record.resolution.name,
            }
            if record.remark is not None:
                members["remark"] = record.remark
            self._add_event(row, Moment(JOURNAL, entry.offset, at_ms), "check_answered", "check", members)
        elif record.source is Source.OPERATOR:
            members |= {"actor": record.actor, "reason": record.reason}
            self._add_event(row, Moment(JOURNAL, entry.offset, at_ms), "forced", "operator", members)
        elif record.remark is not None:
            self._add_event(
                row, Moment(JOURNAL, entry.offset, at_ms), "end", "producer", members | {"remark": record.remark}
            )
        elif not is_effective:
            self._add_event(row, Moment(JOURNAL, entry.offset, at_ms), "end", "producer", members)

    def _apply_act(self, row: ProjectedRow, entry: RawEntry, record: ActRecord) -> None:
        at_ms = entry.stored.stored_ms
        if record.act is not Act.CHECK:
            members: dict[str, object] = {"actor": record.actor, "reason": record.reason}
            kind = "resumed" if record.act is Act.RESUME else "abandoned"
            if record.act is Act.ABANDON:
                members["effective"] = row.abandoned_ms is not None and row.at_offset == entry.offset
            self._add_event(row, Moment(JOURNAL, entry.offset, at_ms), kind, "operator", members)
        elif row.state == PREPARED and entry.offset > row.at_offset and at_ms < (row.next_due_ms or 0):
            row.next_due_ms = at_ms
            self.moved[row.transaction_id] = row

    def _count_answer(self, group: str, record: EndRecord, at_ms: int) -> None:
        place = (group, record.endpoint or "")
        earlier = self.answered.get(place, Answered(0, 0, 0))
        self.answered[place] = Answered(earlier.rounds + 1, at_ms, record.latency_ms)

    def _add_event(self, row: ProjectedRow, moment: Moment, kind: str, by: str | None, members: object) -> None:
        text = json.dumps(members, separators=(",", ":"))
        self.events.append(EventRow(row.id, *moment, kind, by, text))

    def _count(self, row: ProjectedRow) -> None:
        now = counted_as(row)
        if row.was == now:
            return
        counts = self.counts.get(row.producer_group)
        if counts is None:
            counts = self.counts[row.producer_group] = [0] * len(COUNTS)
        if row.was is None:
            counts[0] += 1
        else:
            self._add(row.producer_group, row.was, -1)
        self._add(row.producer_group, now, 1)
        row.was = now

    def _add(self, group: str, counted: Counted, sign: int) -> None:
        if counted.pending_since_ms is not None:
            self.pending[group, counted.pending_since_ms // 1000] += sign
        place = _PLACE.get(counted.state)
        if place is not None:
            counts = self.counts[group]
            counts[place] += sign
            if counted.blocked:
                counts[2] += sign
            if counted.abandoned:
                counts[5] += sign


def _is_repeat(row: ProjectedRow, entry: OpEntry) -> bool:
    """Whether the only half message that is left is a repeat of the one that the op message speaks of.

    Deciding a repeat writes the op message of an ended transaction again, and nothing else about the repeat. One that
    was written before the half message is of an earlier transaction with this id, which everybody had forgotten.
    """
    is_undecided = row.state == PREPARED and row.at_offset == row.queue_offset and not row.check_times
    return is_undecided and entry.stored_ms >= row.appended_ms


COUNTS = ("prepared", "committed", "blocked", "rolled_back", "parked", "abandoned")
_COMMITTED = TransactionState.COMMITTED.value
_FINAL = {_COMMITTED, TransactionState.ROLLED_BACK.value}
_PLACE = {_COMMITTED: 1, TransactionState.ROLLED_BACK.value: 3, TransactionState.PARKED.value: 4}


def _describe(row: ProjectedRow, entry: HalfEntry, times: CheckTimes) -> None:
    half = entry.half
    row.has_half = 1
    row.born_ms = half.born_ms
    row.first_check_ms = first_check_ms(half, entry.stored_ms, times)
    row.max_checks, row.max_life_s = half.max_checks, half.max_life_s
    row.idempotency_key, row.ordering_key = half.idempotency_key, half.ordering_key
    row.messages = encode_messages(entry.messages)


def _move(row: ProjectedRow, entry: OpEntry) -> None:
    t = entry.op.transaction
    row.state = state = t.state._value_
    row.blocked = int(t.blocked)
    row.live = int(t.blocked or state not in _FINAL)
    row.at_offset = t.at
    row.next_due_ms = t.next_due_ms if state == PREPARED else None
    row.check_times, row.base, row.since_ms = t.check_times, t.base, t.since_ms
    row.resolved_by, row.ended_ms, row.why = t.by, t.ended_ms, t.reason
    row.parked_offset = t.parked
    row.receipts = encode_receipts(entry.op.receipts) if entry.op.receipts else None
    is_published = state == _COMMITTED and not t.blocked and not t.abandoned
    row.published_ms = _since(row.published_ms, entry) if is_published else None
    row.abandoned_ms = _since(row.abandoned_ms, entry) if t.abandoned else None


def _since(known_ms: int | None, entry: OpEntry) -> int:
    """When an op message said so first: later ones repeat it."""
    return entry.stored_ms if known_ms is None else known_ms
