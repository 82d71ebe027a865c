"""Transaction x record -> the transaction after it, and what follows. Source: design section 5."""

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes, first_check_ms
from bridge.core.op_message import AnswerCode
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.transaction import BODY_EXPIRED, COMMITTED, PARKED, PREPARED, ROLLED_BACK, Transaction


class Publish(Struct, frozen=True, gc=False):
    """Put the prepared messages into their topics, and the op message with their receipts."""

    transaction: Transaction


class WriteOp(Struct, frozen=True, gc=False):
    """Write the state as an op message."""

    transaction: Transaction


class Park(Struct, frozen=True, gc=False):
    """Copy the half message to the parked topic, and write the op message with the copy's offset."""

    transaction: Transaction


class Rewrite(Struct, frozen=True, gc=False):
    """Write the op message of an ended transaction again, so that no repeat outlives it."""

    transaction_id: str


class Reply(Struct, frozen=True, gc=False):
    """Answer a caller whose record changed no state."""

    request: str
    transaction_id: str
    code: AnswerCode


class Schedule(Struct, frozen=True, gc=False):
    """Nothing to write; the next due time is another."""

    transaction: Transaction


Effect = Publish | WriteOp | Park | Rewrite | Reply | Schedule


class LogPosition(Struct, frozen=True, gc=False):
    """Where and when a record was appended to the journal."""

    offset: int
    stored_ms: int


class Transition(Struct, frozen=True, gc=False):
    """The transaction after a record, and what follows from it."""

    transaction: Transaction
    effects: tuple[Effect, ...]


_COMMIT, _UNKNOWN = Resolution.COMMIT, Resolution.UNKNOWN
_PRODUCER = Source.PRODUCER
_BY = {Source.PRODUCER: "producer", Source.CHECK: "check", Source.OPERATOR: "operator"}


def prepare(
    half: HalfMessage, place: LogPosition, ordering_hash: int, times: CheckTimes, obstacle: str | None = None
) -> Transition:
    """A new half message, not void and not a repeat; committed at once if it asks for it: see `end`."""
    is_published = half.is_published
    transaction = Transaction(
        half.transaction_id,
        half.group,
        place.offset,
        place.stored_ms,
        ordering_hash,
        COMMITTED if is_published else PREPARED,
        place.offset,
        place.stored_ms,
        first_check_ms(half, place.stored_ms, times),
        0,
        0,
        half.max_checks,
        half.max_life_s,
    )
    if is_published:
        ended = replace(
            transaction, by="producer", end=place.offset, ended_ms=place.stored_ms, requests=_requests(half.request)
        )
        return _publish(ended, obstacle)
    schedule = Schedule(transaction)
    if half.request is None:
        return Transition(transaction, (schedule,))
    return Transition(transaction, (schedule, *_reply(half.request, half.transaction_id, AnswerCode.ALREADY)))


def end(
    t: Transaction, record: EndRecord, place: LogPosition, times: CheckTimes, obstacle: str | None = None
) -> Transition:
    """The first recorded resolution wins; later ends get it as their answer. Source: design 1, F.

    `obstacle`: why a COMMIT cannot be published now; it stands all the same, and is blocked. With BODY_EXPIRED it
    changes nothing.
    """
    if record.group is not None and record.group != t.group:
        return Transition(t, _reply(record.request, t.transaction_id, AnswerCode.GROUP_MISMATCH))
    if t.is_final:
        return Transition(t, _reply(record.request, t.transaction_id, AnswerCode.ALREADY))
    if record.resolution is _UNKNOWN:
        return _count(t, record, place, times)
    if record.resolution is not _COMMIT:
        ended = _resolve(t, record, place)
        return Transition(ended, (WriteOp(ended),))
    if obstacle == BODY_EXPIRED:
        return Transition(t, _reply(record.request, t.transaction_id, AnswerCode.BODY_EXPIRED))
    return _publish(_resolve(t, record, place), obstacle)


def is_overruled(t: Transaction, record: EndRecord) -> bool:
    """Whether the end of one that is over says otherwise: what its producer, or a check, believes is not what holds."""
    is_ours = record.group is None or record.group == t.group
    return (
        is_ours and record.resolution is not _UNKNOWN and (record.resolution is _COMMIT) is not (t.state is COMMITTED)
    )


def _publish(t: Transaction, obstacle: str | None) -> Transition:
    return Transition(t, (Publish(t),)) if obstacle is None else block(t, obstacle)


def _resolve(t: Transaction, record: EndRecord, place: LogPosition) -> Transaction:
    """Written out, which takes a third of `replace`'s time: every end pays for it."""
    is_producers = record.source is _PRODUCER
    return Transaction(
        t.transaction_id,
        t.group,
        t.half,
        t.appended_ms,
        t.ordering_hash,
        COMMITTED if record.resolution is _COMMIT else ROLLED_BACK,
        place.offset,  # at
        t.since_ms,
        t.next_due_ms,
        t.check_times if is_producers else t.check_times + _is_next_check(t, record),
        t.base,
        t.max_checks,
        t.max_life_s,
        "producer" if is_producers else _BY[record.source],
        place.offset,  # end
        place.stored_ms,
        t.blocked,
        None,  # reason
        t.parked,
        _requests(record.request),
    )


def act(t: Transaction, record: ActRecord, place: LogPosition) -> Transition:
    """An operator asks now, gives a parked transaction a new life, or gives a blocked commit up.

    Check numbers never restart.
    """
    if record.act is Act.ABANDON:
        return _abandon(t, record, place)
    if record.act is Act.CHECK:
        replies = _reply(record.request, t.transaction_id, AnswerCode.ALREADY)
        if t.state is not PREPARED:
            return Transition(t, replies)
        is_past_first = t.check_times > 0  # before the first answer only the first due time counts
        due_ms = min(t.next_due_ms, place.stored_ms) if is_past_first else t.next_due_ms
        asked = replace(t, at=place.offset, next_due_ms=due_ms)
        return Transition(asked, (Schedule(asked), *replies))
    if t.state is not PARKED:
        return Transition(t, _reply(record.request, t.transaction_id, AnswerCode.NOT_PARKED))
    resumed = replace(
        t,
        state=PREPARED,
        at=place.offset,
        by="operator",
        since_ms=place.stored_ms,
        next_due_ms=place.stored_ms,
        base=t.check_times,
        reason=None,
        requests=_requests(record.request),
    )
    return Transition(resumed, (WriteOp(resumed), Schedule(resumed)))


def _abandon(t: Transaction, record: ActRecord, place: LogPosition) -> Transition:
    """The resolution stands and nothing is published, ever; `reason` keeps the reason of the block."""
    if not t.blocked:
        return Transition(t, _reply(record.request, t.transaction_id, AnswerCode.ALREADY))
    abandoned = replace(t, blocked=False, abandoned=True, at=place.offset, requests=_requests(record.request))
    return Transition(abandoned, (WriteOp(abandoned),))


def park(t: Transaction, reason: str, at: int) -> Transition:
    """Discard: out of checks or out of life. A late answer or an operator can still end it."""
    parked = replace(t, state=PARKED, at=at, by="timer", reason=reason, requests=())
    return Transition(parked, (Park(parked),))


def block(t: Transaction, reason: str) -> Transition:
    """A commit that stands but cannot be published now."""
    blocked = replace(t, blocked=True, reason=reason)
    return Transition(blocked, (WriteOp(blocked),))


def unblock(t: Transaction, at: int) -> Transition:
    """The next try of a blocked commit."""
    released = replace(t, blocked=False, reason=None, at=at)
    return Transition(released, (Publish(released),))


def carry_forward(t: Transaction, *, is_old: bool) -> Transition:
    """The state written again, only so that a restart has little to read.

    `is_old`: its half message will leave the journal before long. It then gets its copy in the parked
    topic, where its body is found later: blocked, or pending while checks are paused.
    """
    again = replace(t, requests=())
    if is_old and t.parked is None:
        return Transition(again, (Park(again),))
    return Transition(again, (WriteOp(again),))


def _count(t: Transaction, record: EndRecord, place: LogPosition, times: CheckTimes) -> Transition:
    """UNKNOWN changes nothing; as the answer to the next check it is counted."""
    if t.state is not PREPARED or not _is_next_check(t, record):
        return Transition(t, _reply(record.request, t.transaction_id, AnswerCode.ALREADY))
    counted = replace(
        t,
        check_times=record.check_number,
        at=place.offset,
        next_due_ms=place.stored_ms + times.interval_ms,
        requests=_requests(record.request),
    )
    return Transition(counted, (WriteOp(counted), Schedule(counted)))


def _is_next_check(t: Transaction, record: EndRecord) -> bool:
    """Only an answer that really arrived is counted, and each check once."""
    return record.source is Source.CHECK and record.check_number == t.check_times + 1


def _requests(request: str | None) -> tuple[str, ...]:
    return () if request is None else (request,)


def _reply(request: str | None, transaction_id: str, code: AnswerCode) -> tuple[Reply, ...]:
    return () if request is None else (Reply(request, transaction_id, code),)
