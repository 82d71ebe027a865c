"""F: the first recorded resolution wins, and every answer, view and report says so. C: the counts add up."""

from collections import Counter
from collections.abc import Iterator

from tests.support.history.evidence import (
    COMMITTED,
    FINAL,
    PARKED,
    PREPARED,
    ROLLED_BACK,
    CountsRow,
    HalfRow,
    OpRow,
    ShownRow,
)
from tests.support.history.facts import FINAL_OF, Facts, Heard, are_other_receipts
from tests.support.history.incarnations import find_records, is_gone
from tests.support.history.joined import Joined
from tests.support.history.violation import Kind, Violation

Found = Iterator[Violation]
_ABANDONED = "abandoned"


def compare_decisions(joined: Joined, facts: Facts) -> Found:
    """The op topic says what the journal decided, once."""
    op, decided = facts.op, facts.decided
    if facts.op_odd is not None and op is not None:
        text = f"op says {_name(facts.op_odd)} at offset {facts.op_odd.offset}, later {_name(op)} at {op.offset}"
        yield Violation(Kind.CONTRADICTION, facts.transaction_id, text)
    if "op" not in joined.has or "journal" not in joined.has:
        return
    if facts.half is None:
        if op is not None:
            text = f"the op topic says {op.state}, and the journal has no half message"
            yield Violation(Kind.DISAGREEMENT, facts.transaction_id, text)
        return
    if decided is not None:
        wanted = COMMITTED if isinstance(decided, HalfRow) else FINAL_OF[decided.resolution]
        if facts.state != wanted:
            text = f"journal offset {decided.offset} decides {wanted}, the op topic says {facts.state}"
            yield Violation(Kind.CONTRADICTION, facts.transaction_id, text)
    elif facts.state in FINAL:
        text = f"the op topic says {facts.state}, and nothing in the journal decides so"
        yield Violation(Kind.CONTRADICTION, facts.transaction_id, text)


def _name(row: OpRow) -> str:
    return f"{row.state}{' abandoned' if row.abandoned else ' blocked' if row.blocked else ''}"


def compare_abandoned(joined: Joined, facts: Facts) -> Found:
    """A commit is given up by an operator alone, audited, and for ever."""
    told = facts.first_abandoned
    if told is not None and not facts.is_abandoned():
        text = f"{told.call_id} heard at {told.heard_ms} that it is abandoned, and it is not"
        yield Violation(Kind.CONTRADICTION, facts.transaction_id, text)
    if not facts.is_abandoned():
        return
    for is_known, is_so, what in (
        ("journal" in joined.has, facts.given_up is not None, "the journal has no operator's act"),
        ("checks" in joined.has, facts.given_up_by is not None, "nobody asked for it"),
        ("audited" in joined.has, facts.is_audited, "the audit does not say so"),
    ):
        if is_known and not is_so:
            yield Violation(Kind.CONTRADICTION, facts.transaction_id, f"it is abandoned, and {what}")


def compare_shown(_: Joined, facts: Facts) -> Found:
    """SQL and GET against the truth."""
    for name, row in (("SQL", facts.sql), ("GET", facts.shown)):
        if row is None:
            continue
        for what, shown, true in _shown_differences(facts, row):
            text = f"{name} has {what} {shown}, the truth is {true}"
            yield Violation(Kind.DISAGREEMENT, facts.transaction_id, text)


def _shown_differences(facts: Facts, row: ShownRow) -> Iterator[tuple[str, object, object]]:
    if row.state != facts.state:
        yield "state", row.state, facts.state
    if facts.group is not None and row.group != facts.group:
        yield "group", row.group, facts.group
    op = facts.op
    if op is None:
        return
    if row.blocked != op.blocked:
        yield "blocked", row.blocked, op.blocked
    if row.abandoned != op.abandoned:
        yield "abandoned", row.abandoned, op.abandoned
    if row.check_times != op.check_times:
        yield "check times", row.check_times, op.check_times
    if row.state == COMMITTED and are_other_receipts(_triples(row), _triples(op)):
        yield "receipts", list(_triples(row)), list(_triples(op))


def compare_answers(joined: Joined, facts: Facts) -> Found:
    """Answers over time: once final, for ever so; and what was heard is what is true. Parked is not final."""
    final, odd, slack_ms = facts.first_final, facts.odd, joined.rules.clock_slack_ms
    if final is None:
        return
    if odd is not None:
        text = f"{_tell(final)}, {_tell(odd)}"
        yield Violation(Kind.CONTRADICTION, facts.transaction_id, text)
    if facts.state != final.state:
        text = f"{_tell(final)}, the truth is {facts.state}"
        yield Violation(Kind.CONTRADICTION, facts.transaction_id, text)
    for before, after in (
        (final, facts.last_open),
        (facts.first_published, facts.last_blocked),
        (facts.first_abandoned, facts.last_blocked),
    ):
        if before is not None and after is not None and after.asked_ms > before.heard_ms + slack_ms:
            text = f"{_tell(before)}, and {_tell(after)}, asked for at {after.asked_ms}"
            yield Violation(Kind.CHANGED_ANSWER, facts.transaction_id, text)


def compare_groups(_: Joined, facts: Facts) -> Found:
    """The op topic and the journal know the group that prepared it."""
    for name, row in (("op topic", facts.op), ("journal", facts.half)):
        if row is not None and facts.group is not None and row.group != facts.group:
            text = f"the {name} says group {row.group}, {facts.group} prepared it"
            yield Violation(Kind.DISAGREEMENT, facts.transaction_id, text)


def compare_receipts(joined: Joined, facts: Facts) -> Found:
    """Receipts point at the records, in the order of the messages; in answers too."""
    if facts.contents is None or not facts.records:
        return
    answer = facts.first_published
    if answer is not None and answer.state != COMMITTED:
        answer = None
    for kind, name, receipts in (
        (Kind.WRONG_RECEIPT, "the op message", () if facts.op is None else _triples(facts.op)),
        (Kind.FALSE_ACCEPT, "" if answer is None else answer.call_id, () if answer is None else answer.receipts),
    ):
        if receipts and (wrong := _find_wrong_receipt(joined, facts, receipts)):
            yield Violation(kind, facts.transaction_id, f"{name} {wrong}")


def _find_wrong_receipt(joined: Joined, facts: Facts, receipts: tuple[tuple[str, int, int | None], ...]) -> str | None:
    contents = facts.contents or ()
    if len(receipts) != len(contents):
        return f"has {len(receipts)} receipts for {len(contents)} messages"
    for content, (topic, partition, offset) in zip(contents, receipts, strict=True):
        if offset is None:
            continue
        records = find_records(joined, topic, partition, offset)
        own = [record for record in records if record.transaction_id == facts.transaction_id]
        if content.topic != topic or not any(record.value == content.value for record in own):
            if not own and content.topic == topic and is_gone(joined, facts, content):
                continue
            return f"names {topic}-{partition}@{offset}, where its message is not"
    return None


def check_counts(joined: Joined) -> Found:
    """Prepared = committed + rolled back + parked + pending, whenever anybody looked; at last, the true numbers."""
    true = Counter((facts.group, facts.state) for facts in joined.transactions.values() if facts.state is not None)
    true.update((facts.group, _ABANDONED) for facts in joined.transactions.values() if facts.is_abandoned())
    for row in joined.counts:
        yield from _check_sum(row)
        if row.is_last:
            for state, counted in (
                (COMMITTED, row.committed),
                (ROLLED_BACK, row.rolled_back),
                (PARKED, row.parked),
                (PREPARED, row.pending),
                (_ABANDONED, row.abandoned),
            ):
                if counted != true[row.group, state]:
                    text = f"group {row.group} counts {counted} {state}, the truth is {true[row.group, state]}"
                    yield Violation(Kind.NOT_CONSERVED, None, text)


def _check_sum(row: CountsRow) -> Found:
    parts = (row.committed, row.rolled_back, row.parked, row.pending)
    if row.prepared != sum(parts):
        text = f"group {row.group} at {row.at_ms}: prepared {row.prepared} is not {' + '.join(map(str, parts))}"
        yield Violation(Kind.NOT_CONSERVED, None, text)
    if min(*parts, row.blocked, row.abandoned) < 0 or row.blocked + row.abandoned > row.committed:
        unseen = f"{row.blocked} blocked, {row.abandoned} abandoned"
        text = f"group {row.group} at {row.at_ms}: {parts} with {unseen} cannot be"
        yield Violation(Kind.NOT_CONSERVED, None, text)


def _triples(row: ShownRow | OpRow) -> tuple[tuple[str, int, int | None], ...]:
    return tuple((r.topic, r.queue_id, r.queue_offset) for r in row.receipts)


def _tell(heard: Heard) -> str:
    return f"{heard.call_id} heard {heard.state}{' blocked' if heard.blocked else ''} at {heard.heard_ms}"
