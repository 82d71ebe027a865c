"""What clients tell, joined with what the run left behind: all the facts of each transaction."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from bridge.core.message import Receipt
from tests.support.history.clients import Told, describe, read_history
from tests.support.history.content import print_of, prints_of
from tests.support.history.events import Call, Event
from tests.support.history.evidence import (
    COMMITTED,
    FINAL,
    PARKED,
    PREPARED,
    ActRow,
    CheckCall,
    CountsRow,
    EndRow,
    Evidence,
    Gone,
    HalfRow,
    JournalRow,
    OpRow,
    RealRecord,
    Rules,
    ShownRow,
)
from tests.support.history.facts import FINAL_OF, Facts
from tests.support.history.violation import Kind, Violation

Offsets = dict[tuple[str, int], dict[int, RealRecord]]
"""Records by topic and partition, then by offset."""


class Joined(Struct):
    """Everything. `has`: which parts of the evidence there are; `found`: what was wrong already while joining."""

    told: Told
    rules: Rules
    has: frozenset[str]
    transactions: dict[str, Facts]
    visible: Offsets
    counts: list[CountsRow]
    positions: dict[int, int]
    found: list[Violation]
    foreign: int = 0
    aborted: int = 0
    gone: Sequence[Gone] = ()


def join(events: Iterable[Event], evidence: Evidence, rules: Rules) -> Joined:
    """One pass over each part. Raises ValueError for a history that is not one."""
    told = read_history(events)
    has = frozenset(name for name in Evidence.__struct_fields__ if getattr(evidence, name) is not None)
    joined = Joined(told, rules, has, told.transactions, {}, list(evidence.counts or ()), {}, told.violations)
    for position in evidence.positions or ():
        joined.positions[position.queue_id] = max(position.s, joined.positions.get(position.queue_id, 0))
    _add_journal(joined, evidence.journal or ())
    _add_op(joined, evidence.op or ())
    _add_shown(joined, evidence.sql or (), _set_sql)
    _add_shown(joined, evidence.shown or (), _set_shown)
    for parked in evidence.parked or ():
        told.find(parked.transaction_id).parked = parked
    _add_checks(joined, evidence.checks or ())
    for entry in evidence.audited or ():
        told.find(entry.transaction_id).is_audited = True
    joined.gone = list(evidence.gone)
    for number, gone in enumerate(joined.gone):
        _add_visible(joined, gone.committed, name_gone(gone.topic, number))
    _add_visible(joined, evidence.committed)
    if evidence.uncommitted is not None:
        _compare_levels(joined, evidence.uncommitted)
    _compare_consumed(joined, evidence.consumed or ())
    for facts in joined.transactions.values():
        if facts.contents is None:
            _link(joined, facts)
        facts.state = _state_of(joined, facts)
    return joined


def _add_journal(joined: Joined, rows: Iterable[JournalRow]) -> None:
    for row in rows:
        facts = joined.told.find(row.transaction_id)
        if isinstance(row, HalfRow):
            _add_half(joined, facts, row)
        elif isinstance(row, ActRow):
            if row.act == "ABANDON" and facts.given_up is None and _is_settled(joined, row):
                facts.given_up = row
        elif facts.half is not None and facts.decided is None and _decides(joined, facts.half, row):
            facts.decided = row


def _add_half(joined: Joined, facts: Facts, row: HalfRow) -> None:
    """The first that is not void; later ones are repeats."""
    if row.is_void or facts.half is not None:
        return
    if row.contents == facts.contents:
        row = msgspec.structs.replace(row, contents=facts.contents)  # one copy in memory
    facts.half = row
    if row.is_published and _is_settled(joined, row):
        facts.decided = row


def _decides(joined: Joined, half: HalfRow, row: EndRow) -> bool:
    return row.resolution in FINAL_OF and row.group in {None, half.group} and _is_settled(joined, row)


def _is_settled(joined: Joined, row: JournalRow) -> bool:
    """Whether the queue's owner has decided the record; taken for granted where no position is known."""
    return row.offset < joined.positions.get(row.queue_id, row.offset + 1)


def _add_op(joined: Joined, rows: Iterable[OpRow]) -> None:
    for row in rows:
        facts = joined.told.find(row.transaction_id)
        before = facts.op
        if before is not None and before.state in FINAL and _end_of(row) != _end_of(before):
            is_unblocked = before.blocked and row.state == COMMITTED
            facts.op_odd = facts.op_odd or (None if is_unblocked else before)
        if facts.published_ms is None and row.state == COMMITTED and not (row.blocked or row.abandoned):
            facts.published_ms = row.stored_ms
        if row.state == PARKED:
            facts.add_park(row)
        facts.op = row


def _end_of(row: OpRow) -> tuple[str, bool]:
    return row.state, row.abandoned


def _set_sql(facts: Facts, row: ShownRow) -> None:
    facts.sql = row


def _set_shown(facts: Facts, row: ShownRow) -> None:
    facts.shown = row


def _add_shown(joined: Joined, rows: Iterable[ShownRow], put: Callable[[Facts, ShownRow], None]) -> None:
    for row in rows:
        put(joined.told.find(row.transaction_id), row)


def _add_checks(joined: Joined, calls: Iterable[CheckCall]) -> None:
    for call in calls:
        facts = joined.told.find(call.transaction_id)
        facts.add_check(call)
        if call.answer == "COMMIT":
            facts.committing().may_begin(call.at_ms)
        elif call.answer == "ROLLBACK":
            facts.rolling_back().may_begin(call.at_ms)


# --- records ---


def name_gone(topic: str, number: int) -> str:
    """What `visible` calls the deleted topic with this number; no topic has such a name."""
    return f"{topic} deleted {number}"


def _add_visible(joined: Joined, records: Iterable[RealRecord], topic: str = "") -> None:
    """`topic`: what it is called, if not by its name."""
    ids_of_places = _Places(joined)
    for record in records:
        if joined.rules.is_foreign(record):
            joined.foreign += 1
            continue
        transaction_id = record.transaction_id or ids_of_places.find(record)
        if transaction_id is None:
            text = f"{show_place(record)} belongs to no transaction and is not foreign"
            joined.found.append(Violation(Kind.PHANTOM, None, text))
            continue
        facts = joined.told.find(transaction_id)
        kept = _share(facts, record)
        facts.add_record(kept)
        joined.visible.setdefault((topic or record.topic, record.partition), {})[record.offset] = kept


def _share(facts: Facts, record: RealRecord) -> RealRecord:
    """The same record with its id, its bytes shared with what was asked for: one copy in memory."""
    for content in facts.contents or ():
        if (content.topic, content.key, content.value, content.headers) == (
            record.topic,
            record.key,
            record.value,
            record.headers,
        ):
            return RealRecord(
                content.topic,
                record.partition,
                record.offset,
                record.timestamp_ms,
                content.key,
                content.value,
                content.headers,
                facts.transaction_id,
            )
    return msgspec.structs.replace(record, transaction_id=facts.transaction_id)


class _Places:
    """Transactions by receipt, for real records without the transaction id header; made when first needed."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._ids: dict[Receipt, str] | None = None

    def find(self, record: RealRecord) -> str | None:
        if self._ids is None:
            self._ids = {
                receipt: facts.transaction_id
                for facts in self._joined.transactions.values()
                for receipt in (facts.op.receipts if facts.op is not None else ())
            }
        return self._ids.get(Receipt(record.topic, record.partition, record.offset))


def _compare_levels(joined: Joined, records: Iterable[RealRecord]) -> None:
    """What committed readers see must be a part of what is there; the rest was aborted."""
    deleted = {name_gone(gone.topic, number) for number, gone in enumerate(joined.gone)}
    unseen = {queue: set(offsets) for queue, offsets in joined.visible.items() if queue[0] not in deleted}
    for record in records:
        if joined.rules.is_foreign(record):
            continue
        queue = (record.topic, record.partition)
        seen = joined.visible.get(queue, {}).get(record.offset)
        if seen is None:
            joined.aborted += 1
            if record.transaction_id is not None:
                joined.told.find(record.transaction_id).aborted = record
        else:
            unseen[queue].discard(record.offset)
            _compare_copies(joined, seen, record, "read_uncommitted")
    for queue, offsets in unseen.items():
        for offset in offsets:
            record = joined.visible[queue][offset]
            text = f"read_committed has {show_place(record)}, read_uncommitted has not"
            joined.found.append(Violation(Kind.ABORTED_READ, record.transaction_id, text))


def _compare_consumed(joined: Joined, records: Iterable[RealRecord]) -> None:
    for record in records:
        if joined.rules.is_foreign(record):
            continue
        seen = joined.visible.get((record.topic, record.partition), {}).get(record.offset)
        if seen is None:
            text = f"a read_committed consumer got {show_place(record)}, which is not committed"
            joined.found.append(Violation(Kind.ABORTED_READ, record.transaction_id, text))
        else:
            _compare_copies(joined, seen, record, "a consumer")


def _compare_copies(joined: Joined, seen: RealRecord, record: RealRecord, who: str) -> None:
    if (seen.timestamp_ms, seen.key, seen.value, seen.headers) != (
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
    ):
        text = f"{who} got something else at {show_place(record)} than read_committed"
        joined.found.append(Violation(Kind.ABORTED_READ, seen.transaction_id, text))


def show_place(record: RealRecord) -> str:
    """For people."""
    return f"{record.topic}-{record.partition}@{record.offset}"


# --- transactions whose id no client heard ---


def _link(joined: Joined, facts: Facts) -> None:
    """Finds the call that made a transaction which no answer named."""
    half, sql = facts.half, facts.sql
    key = half.idempotency_key if half is not None else sql.idempotency_key if sql is not None else None
    group = next((view.group for view in (half, facts.op, sql, facts.shown) if view is not None), None)
    claim = joined.told.claims.take(group, key, list(_prints(facts)))
    if claim is None:
        facts.group = group
        return
    describe(facts, claim.invoke)
    if claim.is_refused:
        facts.refused = claim.invoke.call_id
        return
    facts.unknown = facts.unknown or claim.invoke.call_id
    if claim.invoke.call is Call.PUBLISH:
        facts.committing().may_begin(claim.invoke.at_ms)


def _prints(facts: Facts) -> Iterator[bytes]:
    if facts.half is not None:
        yield from prints_of(facts.half.contents)
    elif facts.parked is not None:
        yield from prints_of(facts.parked.contents)
    else:
        seen = facts.records or (() if facts.aborted is None else (facts.aborted,))
        for record in seen:
            yield print_of(record.topic, record.key, record.value, record.headers)


def _state_of(joined: Joined, facts: Facts) -> str | None:
    """The truth: the op message, else PREPARED for a half message; the next best view where Kafka's is not given."""
    if facts.op is not None:
        return facts.op.state
    is_stored = facts.half is not None or (
        "journal" not in joined.has and (facts.acked is not None or facts.sql is not None or facts.shown is not None)
    )
    if "op" in joined.has:
        return PREPARED if is_stored else None
    for view in (facts.sql, facts.shown):
        if view is not None:
            return view.state
    if facts.decided is not None:
        return COMMITTED if isinstance(facts.decided, HalfRow) else FINAL_OF[facts.decided.resolution]
    if facts.first_final is not None:
        return facts.first_final.state
    return PREPARED if is_stored else None
