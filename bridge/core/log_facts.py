"""Whether a queue's log is the one its position speaks of, with everything that was decided still in it. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from bridge.core.errors import HaltKind, QueueHalted
from bridge.core.op_message import LogStart, LogTopics, Position

MIGRATE_OWNER = "migrate"  # shown as the owner in positions that an operator's act wrote


class Span(NamedTuple):
    """First offset a queue still has, and the next it will assign."""

    minimum: int
    maximum: int


class Witness(NamedTuple):
    """Somebody who has seen `s` committed in the log of these topics, with this start if that is known, and all op
    offsets below `op_next`."""

    s: int
    half: str
    op: str
    start: LogStart | None = None
    op_next: int = 0


class LogFacts(NamedTuple):
    """The cluster's description of one queue. `last_ms`: append time of the record at S-1, None if it is gone."""

    topics: LogTopics
    journal: Span
    op: Span
    last_ms: int | None
    witnesses: Sequence[Witness] = ()


def check_position(position: Position | None, facts: LogFacts) -> Position:
    """The position, if the log holds everything it speaks of. Raises QueueHalted with the kind.

    What concerns the op topic is judged first: where it is not what was left, nothing it says counts.
    """
    if position is None:
        raise QueueHalted("the op topic holds no position", HaltKind.NO_POSITION)
    _check_op(position, facts)
    _check_journal(position, facts)
    known = position.topics
    if known is not None and known.parked != facts.topics.parked:
        raise _other("parked topic", known.parked, facts.topics.parked, HaltKind.OTHER_PARKED)
    return position


def find_fault(position: Position | None, facts: LogFacts) -> HaltKind | None:
    """What `check_position` would raise."""
    try:
        check_position(position, facts)
    except QueueHalted as halted:
        return halted.kind
    return None


def check_topics(known: LogTopics, now: LogTopics) -> None:
    """Raises QueueHalted where a topic is another one than it was."""
    if known.op != now.op:
        raise _other("op topic", known.op, now.op, HaltKind.OTHER_OP)
    if known.half != now.half:
        raise _other("journal", known.half, now.half, HaltKind.OTHER_JOURNAL)
    if known.parked != now.parked:
        raise _other("parked topic", known.parked, now.parked, HaltKind.OTHER_PARKED)


def _check_op(position: Position, facts: LogFacts) -> None:
    known, op = position.topics, facts.op
    if known is not None and known.op != facts.topics.op:
        raise _other("op topic", known.op, facts.topics.op, HaltKind.OTHER_OP)
    if not op.minimum <= position.o <= op.maximum:
        detail = f"position needs op offset {position.o}, the topic holds {op.minimum}..{op.maximum}"
        raise QueueHalted(detail, HaltKind.OP_LOST)
    if position.owner == MIGRATE_OWNER:  # an act a moment ago: witnesses speak of what was before
        return
    witnesses = [w for w in facts.witnesses if _speaks_of_this(w, position, facts)]
    written, seen = max((w.op_next for w in witnesses), default=0), max((w.s for w in witnesses), default=0)
    if op.maximum < written:
        raise QueueHalted(f"the op topic held offsets below {written}, and ends at {op.maximum}", HaltKind.OP_LOST)
    if position.s < seen:
        detail = f"journal offsets below {seen} were decided, the last position left in the op topic says {position.s}"
        raise QueueHalted(detail, HaltKind.OP_LOST)


def _check_journal(position: Position, facts: LogFacts) -> None:
    known, journal = position.topics, facts.journal
    if known is not None and known.half != facts.topics.half:
        raise _other("journal", known.half, facts.topics.half, HaltKind.OTHER_JOURNAL)
    needs = f"position needs journal {position.l}..{position.s}"
    if position.s > journal.maximum or position.l > position.s:
        detail = f"{needs}, which ends at {journal.maximum}"
        raise QueueHalted(detail, HaltKind.JOURNAL_LOST)
    if None not in (position.s_ms, facts.last_ms) and position.s_ms != facts.last_ms:
        detail = f"another record lies before journal offset {position.s} than the one that was decided"
        raise QueueHalted(detail, HaltKind.JOURNAL_LOST)
    if position.l < journal.minimum:
        raise QueueHalted(f"{needs}, which begins at {journal.minimum}", HaltKind.JOURNAL_GAP)


def _speaks_of_this(witness: Witness, position: Position, facts: LogFacts) -> bool:
    is_same_log = witness.half == facts.topics.half and witness.op == facts.topics.op
    return is_same_log and witness.start in {None, position.start}


def _other(what: str, known: str, now: str, kind: HaltKind) -> QueueHalted:
    return QueueHalted(f"the {what} is another one: its id was {known}, now it is {now}", kind)
