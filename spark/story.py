"""What the journal alone says of a transaction, told from its events in order; and what else was seen of it.

This is not the settler's state machine but a second reading of the same rules, so that neither hides the other's
errors: the first recorded resolution of the right group wins, an end before the half message is nobody's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark.columns import ACT_ABANDON, ACT_RESUME, COMMIT, ROLLBACK, UNKNOWN, EndSource, Event, Leg, OpState
from spark.scope import queue_of

FINAL = frozenset({OpState.COMMITTED, OpState.ROLLED_BACK, OpState.BLOCKED, OpState.ABANDONED})
_OF_QUEUE = frozenset({Leg.HALF, Leg.END, Leg.ACT, Leg.OP})
_DECISIONS = {COMMIT: OpState.COMMITTED, ROLLBACK: OpState.ROLLED_BACK}


@dataclass(slots=True)
class Story:
    """One transaction.

    `half`: its first half message that counts; `halves`: all of them. `decided`: the record that decided it.
    `lost_ends`: ends that say something, with no half message before them. `foreign_ends`: ends by another group.
    `checks`: all answers to checks; `check_times`: those that count; `most_checks`: the most of them in one life,
    begun at `life_ms`. `given_up`: operators' acts to abandon it. `astray`: records of the internal topics in
    queues that its id does not name.
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

    @property
    def last(self) -> Event | None:
        """The last op message, which is the state."""
        return self.ops[-1] if self.ops else None

    @property
    def state(self) -> OpState | None:
        """The state the op topic tells; None if it does not speak of the transaction."""
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


def tell(tx: str, events: Iterable[Event]) -> Story:
    """The story of one transaction; its events may come in any order, and twice."""
    by_leg: dict[int, list[Event]] = {}
    astray = []
    for event in sorted(set(events), key=lambda event: (event.leg, event.topic, event.part, event.off)):
        if event.leg in _OF_QUEUE and event.part != queue_of(tx):
            astray.append(event)
        else:
            by_leg.setdefault(event.leg, []).append(event)
    copies, visible = by_leg.get(Leg.PARKED, []), by_leg.get(Leg.VISIBLE, [])
    halves = by_leg.get(Leg.HALF, [])
    story = Story(tx, halves=halves, ops=by_leg.get(Leg.OP, []), copies=copies, visible=visible, astray=astray)
    journal = [event for leg in (Leg.HALF, Leg.END, Leg.ACT) for event in by_leg.get(leg, [])]
    _replay(story, sorted(journal, key=lambda event: event.off))
    return story


def _replay(story: Story, journal: Sequence[Event]) -> None:
    answered = 0
    for event in journal:
        if event.leg == Leg.HALF:
            _begin(story, event)
        elif story.half is None:
            if event.leg == Leg.END and event.code != UNKNOWN:
                story.lost_ends.append(event)
        elif event.leg == Leg.ACT and event.code == ACT_ABANDON:
            story.given_up.append(event)
        elif event.leg == Leg.ACT:
            if event.code == ACT_RESUME and story.decided is None:
                answered, story.life_ms = 0, event.ms
        elif event.grp is not None and event.grp != story.half.grp:
            story.foreign_ends.append(event)
        else:
            answered += _count(story, event)
            story.most_checks = max(story.most_checks, answered)
            if story.decided is None and event.code in _DECISIONS:
                story.decided = event


def _begin(story: Story, half: Event) -> None:
    """A repeat changes nothing, and one that came too late is nobody's."""
    if story.half is None and not half.is_void:
        story.half, story.life_ms = half, half.ms
        story.decided = half if half.code == COMMIT else None


def _count(story: Story, end: Event) -> int:
    """1 if the end is an answer to the next check of a transaction not yet decided, which uses one up; else 0."""
    if end.src != EndSource.CHECK:
        return 0
    story.checks.append(end)
    is_next = story.decided is None and end.num == story.check_times + 1
    story.check_times += is_next
    return int(is_next)
