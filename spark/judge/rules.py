"""The verdicts: each kind of finding about one transaction has its rule here and nowhere else. Pure.

About producers' tables: `row_rules`; about order: `fold`.

A rule says what is proved, never what is likely: what a window has not read, or what may still be on its way, is
no finding. Source: `docs/records.md`, kinds of findings in reconciliation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from spark.judge.history import FINAL, Match, Pair, TransactionHistory, lives, match, replay, why_not_unpublished
from spark.read.envelope import APPEND_TIME, ROLLBACK, Event, OpState, QueuePlace, ReceiptRow, Scope, queue_of


class FindingKind(StrEnum):
    """Kinds of findings."""

    MISSING = "MISSING"
    PARTIAL = "PARTIAL"
    DUPLICATE = "DUPLICATE"
    PHANTOM = "PHANTOM"
    ORPHAN = "ORPHAN"
    CORRUPT = "CORRUPT"
    WRONG_PLACE = "WRONG_PLACE"
    WRONG_RECEIPT = "WRONG_RECEIPT"
    CONTRADICTION = "CONTRADICTION"
    UNREADABLE = "UNREADABLE"
    UNSETTLED = "UNSETTLED"
    STALE = "STALE"
    BAD_PARK = "BAD_PARK"
    BAD_CHECK = "BAD_CHECK"
    WRONG_GROUP = "WRONG_GROUP"
    OUT_OF_ORDER = "OUT_OF_ORDER"
    TABLE_MISMATCH = "TABLE_MISMATCH"
    UNPROVABLE = "UNPROVABLE"


class Found(NamedTuple):
    """What a rule says: the kind, one sentence, the events that prove it."""

    kind: FindingKind
    detail: str
    legs: tuple[Event, ...]


Rule = Callable[[TransactionHistory, Scope], Iterator[Found]]


def judge(tx: str, events: Iterable[Event], scope: Scope) -> list[Found]:
    """Everything wrong with what had one id, at most one of each kind; nothing wrong: nothing."""
    stories = [replay(tx, life) for life in lives(tx, events, scope)]
    found: dict[FindingKind, Found] = {}
    for story in stories:
        for rule in _choose_rules(story, scope, is_followed=story is not stories[-1]):
            for one in rule(story, scope):
                found.setdefault(one.kind, one)
    return [found[kind] for kind in FindingKind if kind in found]


def _choose_rules(story: TransactionHistory, scope: Scope, *, is_followed: bool) -> tuple[Rule, ...]:
    if is_followed and story.half is not None and not story.ops:
        return _RULES_WITHOUT_OP
    return _RULES_WITHOUT_HALF if story.half is None or _is_repeat_alone(story, scope) else _RULES


# --- is what was committed there?


def _published_as_prepared(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """MISSING, PARTIAL, DUPLICATE, CORRUPT, WRONG_PLACE, WRONG_RECEIPT, OUT_OF_ORDER within it, UNPROVABLE of a
    published commit."""
    if story.half is None or story.last is None or story.state != OpState.COMMITTED:
        return
    if story.decision == OpState.ROLLED_BACK:
        return  # CONTRADICTION or WRONG_GROUP, and PHANTOM, say it
    messages, receipts = story.half.messages or (), story.last.receipts or ()
    if len(receipts) != len(messages):
        told = f"{len(receipts)} receipts for {len(messages)} messages"
        yield Found(FindingKind.WRONG_RECEIPT, told, (story.half, story.last))
    matched = match(messages, receipts, story.visible)
    yield from _absent(story, story.last, matched, scope)
    yield from _extra(story, matched)
    yield from _shuffled(story.half, matched)
    for pair in matched.pairs:
        if pair.record is None:
            continue
        legs = (story.half, story.last, pair.record)
        if pair.record.content != pair.message.content:
            yield Found(FindingKind.CORRUPT, "key, value or headers are not what was prepared", legs)
        elif _is_retimed(pair.message.ts, pair.record, scope):
            yield Found(FindingKind.CORRUPT, f"timestamp {pair.record.ms}, asked for {pair.message.ts}", legs)
        if not pair.is_in_place:
            asked = pair.message.topic + ("" if pair.message.part is None else f"-{pair.message.part}")
            yield Found(FindingKind.WRONG_PLACE, f"asked for {asked}", legs)
        elif not pair.is_at_receipt:
            yield Found(FindingKind.WRONG_RECEIPT, f"receipt says {_tell_receipt(pair.receipt)}", legs)


def _published_untold(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """DUPLICATE, CORRUPT, UNPROVABLE of a commit whose op message compaction removed for one of the same id."""
    if story.half is None or story.decision != OpState.COMMITTED:
        return
    matched = match(story.half.messages or (), (), story.visible)
    yield from _extra(story, matched)
    for pair in matched.pairs:
        if pair.record is not None and pair.record.content != pair.message.content:
            legs = (story.half, pair.record)
            yield Found(FindingKind.CORRUPT, "key, value or headers are not what was prepared", legs)
    if any(pair.record is None for pair in matched.pairs):
        yield Found(FindingKind.UNPROVABLE, "the op message of its first use is no longer kept", (story.half,))


def _absent(story: TransactionHistory, last: Event, matched: Match, scope: Scope) -> Iterator[Found]:
    """Messages that are nowhere: gone, or out of reach of a proof, or not readable yet."""
    absences = [_absence(pair, last, scope) for pair in matched.pairs if pair.record is None]
    half = story.half
    assert half is not None
    missing = [where for kind, where in absences if kind is FindingKind.MISSING]
    if missing:
        is_all = len(missing) == len(matched.pairs)
        seen = tuple(pair.record for pair in matched.pairs if pair.record is not None)
        detail = f"{len(missing)} of {len(matched.pairs)} messages, by their receipts at {', '.join(missing)}"
        yield Found(FindingKind.MISSING if is_all else FindingKind.PARTIAL, detail, (half, last, *seen))
    removed = [where for kind, where in absences if kind is FindingKind.UNPROVABLE]
    if removed:
        yield Found(FindingKind.UNPROVABLE, f"no longer kept: {', '.join(removed)}", (half, last))


def _absence(pair: Pair, last: Event, scope: Scope) -> tuple[FindingKind | None, str]:
    """What the absence of a message proves, and the place its receipt names."""
    receipt = pair.receipt
    where = _tell_receipt(receipt)
    is_young = _is_young(last, scope)
    if receipt is None or receipt.off is None:
        return _absence_anywhere(pair, scope, is_young=is_young), where
    extent = scope.extents.get(QueuePlace(receipt.topic, receipt.part))
    if extent is None:  # a topic that is not read, or a partition that was added since the window was noted
        is_added = is_young and any(place.topic == receipt.topic for place in scope.extents)
        return None if is_added else FindingKind.UNPROVABLE, f"{where} (not read)"
    if receipt.off < extent.start or extent.is_compacted:
        return FindingKind.UNPROVABLE, where
    if receipt.off >= extent.end and is_young:
        return None, where  # an open Kafka transaction of anybody holds up all readers: it may be there
    if last.ms <= extent.anew_ms:
        return FindingKind.UNPROVABLE, f"{where} (the topic was deleted, and made anew, since)"
    behind = "" if receipt.off < extent.end else f" (consumers can read to {extent.end} only)"
    return FindingKind.MISSING, where + behind


def _absence_anywhere(pair: Pair, scope: Scope, *, is_young: bool) -> FindingKind | None:
    """The same where no receipt says at which offset: it may have been anywhere in its topic, or its partition."""
    part = pair.message.part if pair.receipt is None else pair.receipt.part
    places = [place for place in scope.extents if place.topic == pair.message.topic and part in {None, place.part}]
    extents = [scope.extents[place] for place in places]
    if not extents or scope.by_receipts or any(one.start > 0 or one.is_compacted or one.anew_ms for one in extents):
        return FindingKind.UNPROVABLE
    return None if is_young else FindingKind.MISSING


def _extra(story: TransactionHistory, matched: Match) -> Iterator[Found]:
    prepared = {pair.message.content for pair in matched.pairs}
    again = [record for record in matched.extra if record.content in prepared]
    if again:
        originals = [pair.record for pair in matched.pairs if pair.record and pair.record.content == again[0].content]
        told = f"{len(again)} more than prepared{_tell_elsewhere(again, matched)}"
        yield Found(FindingKind.DUPLICATE, told, (*originals, *again))
    strange = [record for record in matched.extra if record.content not in prepared]
    if strange:
        assert story.half is not None
        told = f"{len(strange)} records nobody prepared{_tell_elsewhere(strange, matched)}"
        yield Found(FindingKind.CORRUPT, told, (story.half, *strange))


def _shuffled(half: Event, matched: Match) -> Iterator[Found]:
    """Where there are copies, or equal messages, nobody can say which of them is which."""
    last: dict[QueuePlace, Event] = {}
    for record in (pair.record for pair in matched.pairs if pair.record is not None and not matched.extra):
        before = last.setdefault(QueuePlace(record.topic, record.part), record)
        if record.off < before.off and record.content != before.content:
            yield Found(FindingKind.OUT_OF_ORDER, "its messages are not in the order they were prepared in",
                        (half, record, before))  # fmt: skip
        last[QueuePlace(record.topic, record.part)] = max(before, record, key=lambda one: one.off)


def _tell_elsewhere(records: Sequence[Event], matched: Match) -> str:
    """Where all of them are in topics that were not asked for: somebody may have copied them, with their headers."""
    topics = {record.topic for record in records}
    if topics & {pair.message.topic for pair in matched.pairs}:
        return ""
    return f", in {', '.join(sorted(topics))}, which it does not name: a copy by somebody else?"


def _is_retimed(asked_ms: int | None, record: Event, scope: Scope) -> bool:
    extent = scope.extents.get(QueuePlace(record.topic, record.part))
    if asked_ms in {None, record.ms} or record.code == APPEND_TIME:
        return False
    return extent is None or not extent.has_append_time  # of what older releases have landed, all that is known


# --- is anything there that was not committed?


def _visible_without_commit(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """PHANTOM. What is undecided and behind `seen` may have been committed after the journal's end."""
    is_out = any(op.code == OpState.COMMITTED for op in story.ops)
    is_unpublished = story.state in {OpState.BLOCKED, OpState.ABANDONED} and not is_out
    if _is_of_wrong_group(story) or (story.decision == OpState.COMMITTED and not is_unpublished):
        return
    # the first resolution wins, and what was abandoned is never published: nothing later makes it right
    is_final = story.decision == OpState.ROLLED_BACK or story.state == OpState.ABANDONED
    early = [record for record in story.visible if is_final or _was_seen(record, scope)]
    if early:
        told = story.state if is_unpublished else story.decision or story.state
        state = told or OpState.PREPARED
        yield Found(FindingKind.PHANTOM, f"visible although {state.name}", (*_known(story.half, story.decided), *early))


# --- does the op topic say what the journal says?


def _op_against_journal(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """CONTRADICTION, WRONG_GROUP."""
    ahead = next((op for op in story.ops if _names_nothing(op, story.tx, scope)), None)
    if ahead is not None:
        what = f"names journal offset {max(ahead.cause or 0, ahead.half or 0)}, where the queue has not come to"
        yield Found(FindingKind.CONTRADICTION, what, (*_known(story.half, story.decided), ahead))
    finals = [op for op in story.ops if op.code in FINAL and not _is_caused_later(op, story.tx, scope)]
    if not finals:
        return
    legs = (*_known(story.half, story.decided), *finals)
    if _is_of_wrong_group(story):
        yield Found(FindingKind.WRONG_GROUP, f"ended by {story.foreign_ends[0].grp}", (*legs, *story.foreign_ends))
        return
    states = {_fact(op) for op in finals}
    if len(states) > 1:
        yield Found(FindingKind.CONTRADICTION, "both COMMITTED and ROLLED_BACK", legs)
    elif story.decision is None:
        yield Found(FindingKind.CONTRADICTION, f"{_fact(finals[0]).name} without a recorded resolution", legs)
    elif story.decision not in states:
        yield Found(FindingKind.CONTRADICTION, f"recorded {story.decision.name}, told {_fact(finals[0]).name}", legs)
    elif len({op.receipts for op in finals if op.code == OpState.COMMITTED}) > 1:
        yield Found(FindingKind.CONTRADICTION, "published twice, with different receipts", legs)
    elif story.ops[-1].code not in FINAL:
        yield Found(FindingKind.CONTRADICTION, "not final any more", (*legs, story.ops[-1]))
    else:
        yield from _given_up(story, scope, finals, legs)


def _given_up(
    story: TransactionHistory, scope: Scope, finals: Sequence[Event], legs: tuple[Event, ...]
) -> Iterator[Found]:
    """CONTRADICTION: commits that are blocked, abandoned and published in another order than there is."""
    last, told = finals[-1].code, {op.code for op in finals}
    if last == OpState.BLOCKED and OpState.COMMITTED in told:
        yield Found(FindingKind.CONTRADICTION, "blocked after it was published", legs)
    elif OpState.ABANDONED in told and (last != OpState.ABANDONED or OpState.COMMITTED in told):
        what = "abandoned after it was published" if last == OpState.ABANDONED else "not abandoned any more"
        yield Found(FindingKind.CONTRADICTION, what, (*legs, *story.given_up))
    acts, journal = {act.off for act in story.given_up}, scope.journal_of(story.tx)
    since = 0 if journal is None or story.half is None else min(journal.start, story.half.off)
    for op in finals:
        if op.code == OpState.ABANDONED and op.cause not in acts and (op.cause or 0) >= since:
            yield Found(FindingKind.CONTRADICTION, "abandoned, and no operator's act says so", (*legs, *story.given_up))


def _op_of_another(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """CONTRADICTION: an op message that names a half message, or a group, that is not the transaction's."""
    half, journal = story.half, scope.journal_of(story.tx)
    if half is None or journal is None:
        return
    own = {one.off for one in story.halves}
    for op in story.ops:
        legs = (half, op)
        if op.grp is not None and half.grp is not None and op.grp != half.grp:
            yield Found(FindingKind.CONTRADICTION, f"told as one of {op.grp}, prepared by {half.grp}", legs)
        if op.half is not None and journal.start <= op.half < journal.end and op.half not in own:
            yield Found(FindingKind.CONTRADICTION, f"told as prepared at {op.half}, where another record lies", legs)


def _in_another_queue(story: TransactionHistory, _: Scope) -> Iterator[Found]:
    """CONTRADICTION: a record where the bridge neither writes it nor looks for it."""
    if story.astray:
        queues = sorted({event.part for event in story.astray})
        where = f"queue {', '.join(map(str, queues))}: its id names {queue_of(story.tx)}"
        yield Found(FindingKind.CONTRADICTION, f"lies in {where}", (*_known(story.half), *story.astray))


def _decided_but_unsettled(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """UNSETTLED, UNPROVABLE."""
    if story.decided is None or any(op.code in FINAL for op in story.ops):
        return
    age_ms = scope.now_ms - story.decided.ms
    if age_ms > scope.graces.settle_ms:
        legs = (*_known(story.half, story.decided, story.last), *story.visible)
        if not scope.is_op_provable(story.decided) or (story.half is not None and scope.is_given_up(story.half)):
            yield Found(FindingKind.UNPROVABLE, "its op message, if there was one, is no longer kept", legs)
            return
        yield Found(FindingKind.UNSETTLED, f"decided {age_ms // 1_000} s ago{_tell_unsent(story, scope)}", legs)


def _tell_unsent(story: TransactionHistory, scope: Scope) -> str:
    """Why a recorded commit must not be sent once more."""
    if story.decision != OpState.COMMITTED:
        return ""
    if story.visible:
        return "; it was published, its op message is gone: sent again, it would be published again"
    reason = why_not_unpublished(story, scope)
    return "" if reason is None else f"; whether it was published cannot be said: {reason}"


def _undecided_for_too_long(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """STALE."""
    half, last = story.half, story.last
    if half is None or story.decided is not None or story.state not in {None, OpState.PREPARED}:
        return
    began_ms = max(story.life_ms, (last.since_ms or 0) if last is not None else 0)
    times = scope.times_of(half.grp)
    life_ms = times.max_lifetime_ms if half.life_ms is None else half.life_ms
    age_ms = scope.now_ms - began_ms
    if age_ms > life_ms + scope.graces.stale_ms and not times.is_paused:
        if scope.is_given_up(half):
            yield Found(FindingKind.UNPROVABLE, "an operator has given up its log", _known(half, last, *story.visible))
            return
        yield Found(
            FindingKind.STALE,
            f"{age_ms // 1_000} s old, longest life {life_ms // 1_000} s",
            (*_known(half, last), *story.visible),
        )


# --- parking and checks


def _parked_with_its_message(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """BAD_PARK, UNPROVABLE."""
    half, last = story.half, story.last
    if half is None or last is None or story.state != OpState.PARKED:
        return
    copy = next((copy for copy in story.copies if copy.off == last.parked), None)
    if copy is not None:
        if copy.body != half.body:
            yield Found(FindingKind.BAD_PARK, "the parked message is another one", (half, last, copy))
        return
    extents = [extent for place, extent in scope.extents.items() if place.topic == scope.parked_topic]
    if last.parked is None:
        yield Found(FindingKind.BAD_PARK, "no parked message", (half, last, *story.copies))
    elif _is_young(last, scope) and any(last.parked >= extent.end for extent in extents):
        return  # it is behind the end that was read
    elif any(last.parked < extent.start or last.ms <= extent.anew_ms for extent in extents):
        yield Found(FindingKind.UNPROVABLE, f"parked message {last.parked} is no longer kept", (half, last))
    else:
        yield Found(FindingKind.BAD_PARK, f"nothing at parked offset {last.parked}", (half, last, *story.copies))


def _checked_as_agreed(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """BAD_CHECK. An answer's append time less its latency is never before the moment it was asked.

    Without a latency it may have been asked at any time before: a check that was fetched is leased for up to an hour.
    """
    half = story.half
    if half is None or not story.checks:
        return
    times = scope.times_of(half.grp)
    most = times.max_checks if half.max_checks is None else half.max_checks
    if story.most_checks > most:
        yield Found(FindingKind.BAD_CHECK, f"{story.most_checks} answered checks, at most {most}", tuple(story.checks))
    due_ms = half.ms + max(times.transaction_timeout_ms, half.immunity_ms or 0)
    for check in story.checks:
        asked_ms = check.ms - (check.latency_ms or 0)
        if asked_ms + scope.graces.slack_ms < due_ms:
            yield Found(FindingKind.BAD_CHECK, f"asked {due_ms - asked_ms} ms too early", (half, check))
        late_ms = 0 if story.decided is None or check.latency_ms is None else asked_ms - story.decided.ms
        if late_ms > scope.graces.settle_ms:
            yield Found(
                FindingKind.BAD_CHECK, f"asked {late_ms // 1_000} s after the end", _known(story.decided, check)
            )


# --- without a half message


def _without_half(story: TransactionHistory, scope: Scope) -> Iterator[Found]:
    """ORPHAN, or UNPROVABLE where the half message may have been removed.

    A rollback alone is what a producer rightly sends that does not know whether its half message is stored.
    """
    legs = (
        *_known(story.decided),
        *(end for end in story.lost_ends if end.code != ROLLBACK),
        *(op for op in story.ops if not _is_prepared_later(op, story.tx, scope)),
        *(event for event in (*story.visible, *story.copies) if _was_seen(event, scope)),
    )
    if not legs:
        return
    if scope.is_provable(story.tx) or _should_have_half(story, scope):
        yield Found(FindingKind.ORPHAN, "no half message", legs)
    else:
        yield Found(FindingKind.UNPROVABLE, "its half message, if there was one, is no longer kept", legs)


def _is_repeat_alone(story: TransactionHistory, scope: Scope) -> bool:
    """Whether the half message that was read repeats, or may repeat, one before all that was read.

    Whatever had ended has its op message written again after a repeat.
    """
    half, journal = story.half, scope.journal_of(story.tx)
    if journal is not None and any(op.half is not None and op.half < journal.start for op in story.ops):
        return True
    if half is None or story.ops or scope.is_provable(story.tx):
        return False
    return bool(story.lost_ends) or not scope.is_op_provable(half)


def _should_have_half(story: TransactionHistory, scope: Scope) -> bool:
    """Whether an op message names an offset that was read, or that nobody has written."""
    journal = scope.journal_of(story.tx)
    settled = [op for op in story.ops if not (_is_prepared_later(op, story.tx, scope) or scope.is_given_up(op))]
    return journal is not None and any(journal.start <= (op.half or 0) for op in settled)


# --- shared


def _is_caused_later(op: Event, tx: str, scope: Scope) -> bool:
    """Whether what caused an op message is behind the journal's end, as it may for a moment."""
    return _is_young(op, scope) and _is_beyond(op.cause, tx, scope)


def _is_prepared_later(op: Event, tx: str, scope: Scope) -> bool:
    """The same of the half message."""
    return _is_young(op, scope) and _is_beyond(op.half, tx, scope)


def _names_nothing(op: Event, tx: str, scope: Scope) -> bool:
    """Whether an op message names a journal record that should be there by now, and is not."""
    return not _is_young(op, scope) and (_is_beyond(op.cause, tx, scope) or _is_beyond(op.half, tx, scope))


def _is_young(op: Event, scope: Scope) -> bool:
    return scope.now_ms - op.ms <= scope.graces.settle_ms


def _is_beyond(offset: int | None, tx: str, scope: Scope) -> bool:
    journal = scope.journal_of(tx)
    return journal is not None and (offset or 0) >= journal.end


def _is_of_wrong_group(story: TransactionHistory) -> bool:
    """Whether the op topic's state comes from another group's end alone."""
    foreign = {end.off for end in story.foreign_ends}
    is_decided_elsewhere = story.decided is None or story.decision != story.state
    return any(op.code in FINAL and op.cause in foreign for op in story.ops) and is_decided_elsewhere


def _was_seen(event: Event, scope: Scope) -> bool:
    extent = scope.extents.get(QueuePlace(event.topic, event.part))
    return extent is None or event.off < extent.seen


def _fact(op: Event) -> OpState:
    """A blocked or abandoned commit is a commit."""
    return OpState.COMMITTED if op.code in {OpState.BLOCKED, OpState.ABANDONED} else OpState(op.code or 0)


def _known(*events: Event | None) -> tuple[Event, ...]:
    return tuple(event for event in events if event is not None)


def _tell_receipt(receipt: ReceiptRow | None) -> str:
    return "no receipt" if receipt is None else f"{receipt.topic}-{receipt.part}@{receipt.off}"


_RULES: tuple[Rule, ...] = (
    _published_as_prepared,
    _visible_without_commit,
    _op_against_journal,
    _op_of_another,
    _in_another_queue,
    _decided_but_unsettled,
    _undecided_for_too_long,
    _parked_with_its_message,
    _checked_as_agreed,
)
_RULES_WITHOUT_OP: tuple[Rule, ...] = (_published_untold, _visible_without_commit)
_RULES_WITHOUT_HALF: tuple[Rule, ...] = (_without_half, _in_another_queue)
