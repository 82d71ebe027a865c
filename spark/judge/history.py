"""What the journal alone says of a transaction, replayed from its events in order; and what else was seen of it.

This is not the settler's state machine but a second reading of the same rules, so that neither hides the other's
errors: the first recorded resolution of the right group wins, an end before the half message is nobody's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark.read.envelope import (
    ACT_ABANDON,
    ACT_RESUME,
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    EndSource,
    Event,
    Evidence,
    OpState,
    PreparedMessage,
    ReceiptRow,
    Scope,
    queue_of,
)

FINAL = frozenset({OpState.COMMITTED, OpState.ROLLED_BACK, OpState.BLOCKED, OpState.ABANDONED})
_OF_QUEUE = frozenset({Evidence.HALF, Evidence.END, Evidence.ACT, Evidence.OP})
_DECISIONS = {COMMIT: OpState.COMMITTED, ROLLBACK: OpState.ROLLED_BACK}


@dataclass(slots=True)
class TransactionHistory:
    """One transaction.

    `half`: its first half message that counts; `halves`: all of them. `decided`: the record that decided it.
    `lost_ends`: ends that say something, with no half message before them. `foreign_ends`: ends by another group.
    `checks`: all answers to checks; `check_times`: those that count; `most_checks`: the most of them in one life,
    begun at `life_ms`. `given_up`: operators' acts to abandon it. `astray`: records of the internal topics in
    queues that its id does not name. `remark`: the last one of its producer, with an end or the answer to a check.
    """

    tx: str
    half: Event | None = None
    halves: list[Event] = field(default_factory=list)
    decided: Event | None = None
    lost_ends: list[Event] = field(default_factory=list)
    foreign_ends: list[Event] = field(default_factory=list)
    checks: list[Event] = field(default_factory=list)
    check_times: int = 0
    most_checks: int = 0
    life_ms: int = 0
    given_up: list[Event] = field(default_factory=list)
    ops: list[Event] = field(default_factory=list)
    copies: list[Event] = field(default_factory=list)
    visible: list[Event] = field(default_factory=list)
    astray: list[Event] = field(default_factory=list)
    remark: str | None = None

    @property
    def last(self) -> Event | None:
        """The last op message, which is the state."""
        return self.ops[-1] if self.ops else None

    @property
    def state(self) -> OpState | None:
        """The state in the op topic; None if it does not speak of the transaction."""
        return None if self.last is None else OpState(self.last.code or 0)

    @property
    def decision(self) -> OpState | None:
        """COMMITTED or ROLLED_BACK, as the first recorded resolution says; None while there is none."""
        return None if self.decided is None else _DECISIONS[self.decided.code or 0]

    @property
    def group(self) -> str | None:
        """The producer group, from whatever names it."""
        named = [self.half, self.last, *self.copies, *self.lost_ends, *self.astray]
        return next((event.grp for event in named if event is not None and event.grp is not None), None)


def replay(tx: str, events: Iterable[Event]) -> TransactionHistory:
    """The story of one transaction; its events may come in any order, and twice."""
    by_leg: dict[int, list[Event]] = {}
    astray = []
    for event in sorted(set(events), key=lambda event: (event.leg, event.topic, event.part, event.off)):
        if event.leg in _OF_QUEUE and event.part != queue_of(tx):
            astray.append(event)
        else:
            by_leg.setdefault(event.leg, []).append(event)
    copies, visible = by_leg.get(Evidence.PARKED, []), by_leg.get(Evidence.VISIBLE, [])
    halves = by_leg.get(Evidence.HALF, [])
    story = TransactionHistory(
        tx, halves=halves, ops=by_leg.get(Evidence.OP, []), copies=copies, visible=visible, astray=astray
    )
    journal = [event for leg in (Evidence.HALF, Evidence.END, Evidence.ACT) for event in by_leg.get(leg, [])]
    journal.sort(key=lambda event: event.off)
    _replay(story, journal)
    story.remark = _last_remark(journal, -1 if story.half is None else story.half.off)
    return story


_KNOWN_MS = 7 * 86_400_000 - 3_600_000  # the bridge knows what has ended for seven days


def lives(tx: str, events: Iterable[Event], scope: Scope) -> list[list[Event]]:
    """The events of each transaction that had this id, oldest first: more than one where an idempotency key was used
    again after the bridge had forgotten it. What was visible long before the first half message is of an earlier one.
    """
    known = sorted(set(events), key=lambda event: (event.leg, event.off))
    own = [event for event in known if event.leg not in _OF_QUEUE or event.part == queue_of(tx)]
    halves = [event for event in own if event.leg == Evidence.HALF and not event.is_void]
    told = {event.half for event in own if event.leg == Evidence.OP}
    begun = halves[:1]
    for half in halves[1:]:
        ended_ms = _ended_ms(begun[-1], half, own)
        if half.off in told and ended_ms is not None and half.ms - ended_ms >= _KNOWN_MS:
            begun.append(half)
    first = 1 if scope.is_provable(tx) or _asks_for_times(begun) else 0
    if len(begun) <= first:
        return [known]
    found: list[list[Event]] = [[] for _ in range(1 + len(begun))]
    for event in known:
        found[max(first, _life_of(event, begun, own))].append(event)
    return [life for life in found if life]


def _asks_for_times(halves: Sequence[Event]) -> bool:
    return any(message.ts is not None for half in halves for message in half.messages or ())


def _ended_ms(half: Event, behind: Event, own: Sequence[Event]) -> int | None:
    """When what began with `half` was decided, and published if it was; of what lies before `behind`."""
    told = [e.ms for e in own if e.leg == Evidence.OP and e.half == half.off and e.code in FINAL - {OpState.BLOCKED}]
    ends = [e.ms for e in own if e.leg == Evidence.END and e.code in _DECISIONS and half.off < e.off < behind.off]
    decided = [half.ms] if half.code == COMMIT else ends[:1]
    return max([*decided, *told[:1]], default=None)


def _life_of(event: Event, begun: Sequence[Event], own: Sequence[Event]) -> int:
    """1 for what began with the first of `begun`; 0: an earlier one, of which only records may be left."""
    half_off = event.half
    if event.leg == Evidence.VISIBLE:
        place = ReceiptRow(event.topic, event.part, event.off)
        half_off = next((op.half for op in own if op.leg == Evidence.OP and place in (op.receipts or ())), None)
        if half_off is None:
            return sum(half.ms - _KNOWN_MS < event.ms for half in begun)
    if event.leg in {Evidence.OP, Evidence.VISIBLE}:
        return next((number for number, half in enumerate(begun, start=1) if half_off == half.off), 1)
    if event.leg == Evidence.PARKED:
        return max(1, sum(half.ms <= event.ms for half in begun))
    return max(1, sum(half.off <= event.off for half in begun))


def _last_remark(journal: Sequence[Event], half_off: int) -> str | None:
    """What was said before the half message is nobody's; operators have reasons instead."""
    said = (event.remark for event in reversed(journal) if event.off > half_off and event.src != EndSource.OPERATOR)
    return next((remark for remark in said if remark is not None), None)


def _replay(story: TransactionHistory, journal: Sequence[Event]) -> None:
    answered = 0
    for event in journal:
        if event.leg == Evidence.HALF:
            _begin(story, event)
        elif story.half is None:
            if event.leg == Evidence.END and event.code != UNKNOWN:
                story.lost_ends.append(event)
        elif event.leg == Evidence.ACT and event.code == ACT_ABANDON:
            story.given_up.append(event)
        elif event.leg == Evidence.ACT:
            if event.code == ACT_RESUME and story.decided is None:
                answered, story.life_ms = 0, event.ms
        elif event.grp is not None and event.grp != story.half.grp:
            story.foreign_ends.append(event)
        else:
            answered += _count(story, event)
            story.most_checks = max(story.most_checks, answered)
            if story.decided is None and event.code in _DECISIONS:
                story.decided = event


def _begin(story: TransactionHistory, half: Event) -> None:
    """A repeat changes nothing, and one that came too late is nobody's."""
    if story.half is None and not half.is_void:
        story.half, story.life_ms = half, half.ms
        story.decided = half if half.code == COMMIT else None


def _count(story: TransactionHistory, end: Event) -> int:
    """1 if the end is an answer to the next check of a transaction not yet decided, which uses one up; else 0."""
    if end.src != EndSource.CHECK:
        return 0
    story.checks.append(end)
    is_next = story.decided is None and end.num == story.check_times + 1
    story.check_times += is_next
    return int(is_next)


class Pair(NamedTuple):
    """A prepared message, where its receipt says it is, and the record taken for it (None: it is nowhere)."""

    message: PreparedMessage
    receipt: ReceiptRow | None
    record: Event | None

    @property
    def is_in_place(self) -> bool:
        """Whether the record is in the topic, and in the partition, that was asked for."""
        record, asked = self.record, self.message.part
        return record is not None and record.topic == self.message.topic and asked in {None, record.part}

    @property
    def is_at_receipt(self) -> bool:
        """Whether the receipt points at the record, or says nothing."""
        return self.receipt is None or self.record is None or _is_at(self.record, self.receipt)


@dataclass(slots=True)
class Match:
    """One pair for each prepared message, in message order; `extra`: records nobody prepared another of."""

    pairs: list[Pair]
    extra: list[Event] = field(default_factory=list)


def match(messages: Sequence[PreparedMessage], receipts: Sequence[ReceiptRow], visible: Sequence[Event]) -> Match:
    """Takes the likeliest record for each message: first what is the same, then what is where the receipt says.

    Records of a topic nobody asked for are taken last, so that one of them is not mistaken for the right one.
    """
    known = [receipts[i] if len(receipts) == len(messages) else None for i in range(len(messages))]
    taken: list[Event | None] = [None] * len(messages)
    left = sorted(visible, key=lambda record: (record.topic, record.part, record.off))
    for is_same in _DEGREES:
        for index, message in enumerate(messages):
            if taken[index] is None:
                receipt = known[index]
                found = next((record for record in left if is_same(message, receipt, record)), None)
                if found is not None:
                    taken[index] = found
                    left.remove(found)
    pairs = [Pair(*three) for three in zip(messages, known, taken, strict=True)]
    return Match(pairs, left)


def published(story: TransactionHistory) -> Iterator[tuple[Event, Event]]:
    """Of what was committed, the half message with each record taken for one of its messages."""
    half, last = story.half, story.last
    if half is None or last is None or story.state != OpState.COMMITTED or story.decision != OpState.COMMITTED:
        return
    for pair in match(half.messages or (), last.receipts or (), story.visible).pairs:
        if pair.record is not None and pair.is_in_place:
            yield half, pair.record


_Likeness = Callable[[PreparedMessage, ReceiptRow | None, Event], bool]


def _degrees() -> Iterator[_Likeness]:
    """From the surest to the most doubtful."""
    yield lambda m, r, v: m.content == v.content and m.topic == v.topic and r is not None and _is_at(v, r)
    yield lambda m, _, v: m.content == v.content and m.topic == v.topic and m.part in {None, v.part}
    yield lambda m, _, v: m.content == v.content and m.topic == v.topic
    yield lambda _, r, v: r is not None and _is_at(v, r)
    yield lambda m, _, v: m.content == v.content
    yield lambda m, _, v: m.topic == v.topic


_DEGREES = tuple(_degrees())


def _is_at(record: Event, receipt: ReceiptRow) -> bool:
    """Whether a receipt names this record; an offset the log did not know names any."""
    return (record.topic, record.part) == (receipt.topic, receipt.part) and receipt.off in {None, record.off}


def why_not_unpublished(story: TransactionHistory, scope: Scope) -> str | None:
    """What speaks against it, or leaves it open; None: nothing was published.

    Without a recorded commit the journal is proof enough: the bridge publishes nothing else.
    """
    if story.half is None:
        return "there is no half message"
    if story.visible or any(op.code == OpState.COMMITTED for op in (*story.ops, *story.astray)):
        return "it was published"
    if not scope.is_provable(story.tx):
        return "an earlier half message may have been removed"
    if story.decision != OpState.COMMITTED:
        return None
    if scope.by_receipts:
        return "records do not name their transactions"
    return next(_unknown_topics({message.topic for message in story.half.messages or ()}, scope), None)


def _unknown_topics(topics: Iterable[str], scope: Scope) -> Iterator[str]:
    for topic in sorted(topics):
        extents = [extent for place, extent in scope.extents.items() if place.topic == topic]
        if not extents:
            yield f"{topic} was not read"
        if not all(extent.is_whole and not extent.is_compacted for extent in extents):
            yield f"records of {topic} were removed, or may have been"
