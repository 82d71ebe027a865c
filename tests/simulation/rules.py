"""Rules about what a transaction says of itself: why and when it is parked, whom it was asked, by whom it was ended,
where it lies. Each names the promise that it belongs to.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from bridge.core.message import Message
from bridge.core.op_message import OpMessage
from bridge.core.record import Act, HalfMessage, Resolution, Source
from bridge.core.record_codec import decode_body, decode_parked
from bridge.core.transaction import (
    MAX_CHECKS,
    MAX_LIFE,
    NO_ENDPOINT,
    TimelineEvent,
    Transaction,
    TransactionState,
    TransactionView,
)
from bridge.sql.transactions import find_many, read_timeline
from tests.simulation.clients import Asked, same_messages
from tests.simulation.operating import PULLED
from tests.simulation.oracle import Truth
from tests.simulation.promises import Evidence, Violation
from tests.simulation.schedule import START_MS, Call, FaultKind, Verb
from tests.simulation.situations import PauseKind

_COMMITTED, _ROLLED_BACK, _PARKED, _PREPARED = (
    TransactionState.COMMITTED,
    TransactionState.ROLLED_BACK,
    TransactionState.PARKED,
    TransactionState.PREPARED,
)
_NOT_WRITTEN = {"unavailable", "connection refused"}
_ASKED = {Verb.COMMIT: Resolution.COMMIT, Verb.ROLLBACK: Resolution.ROLLBACK}
_LATE_MS = 15_000  # after the last fault: take-overs and their back-offs are longer than an interval
_STRAY_MS = 1_000
_SPARE = 4  # rounds: a process that gets a queue back asks anew


def check_rules(evidence: Evidence) -> list[Violation]:
    """All violations."""
    checks = (_parked, _asked, _refused_ends, _told, _kept_whole, _projected)
    return [violation for check in checks for violation in check(evidence)]


# --- why and when one is parked ---


def _parked(evidence: Evidence) -> Iterator[Violation]:
    """K: out of checks means that all were answered, and out of life that it is over."""
    for t, stored_ms in find_parkings(evidence):
        yield from _judge_parking(evidence, t, stored_ms)


def find_parkings(evidence: Evidence) -> Iterator[tuple[Transaction, int]]:
    """Each parking as its first op message tells it, with that one's append time."""
    lives: set[tuple[str, int]] = set()
    for stored_ms, op in evidence.op_history:
        t = op.transaction
        if t.state is _PARKED and (t.transaction_id, t.since_ms) not in lives:
            lives.add((t.transaction_id, t.since_ms))
            yield t, stored_ms


def _judge_parking(evidence: Evidence, t: Transaction, stored_ms: int) -> Iterator[Violation]:
    possible = evidence.times_of(t.group)
    if t.reason in {MAX_LIFE, NO_ENDPOINT}:
        early_ms = t.since_ms + min(times.max_lifetime_ms for times in possible) - stored_ms - evidence.clock_ms
        if early_ms > 0:
            yield Violation("K", t.transaction_id, f"parked as out of life {early_ms} ms too early")
        return
    if t.reason != MAX_CHECKS:
        yield Violation("S", t.transaction_id, f"parked, and why is {t.reason!r}")
        return
    known = {a.check_number for a in evidence.answers[t.transaction_id] if a.offset <= t.at}
    in_life = [number for number in range(t.base + 1, t.check_times + 1) if number in known]
    least = t.max_checks or min(times.max_checks for times in possible)
    if len(in_life) < least:
        what = f"parked as out of checks after {len(in_life)} answered ones of {least}"
        yield Violation("K", t.transaction_id, what)


# --- who was asked, and when ---


def _asked(evidence: Evidence) -> Iterator[Violation]:
    """K, T: nobody is asked about what has ended, nor too often; and somebody in time."""
    by_id: dict[str, list[Asked]] = defaultdict(list)
    for asked in evidence.asked:
        by_id[asked.transaction_id].append(asked)
    slack_ms = _STRAY_MS + longest_pause_ms(evidence) + evidence.clock_ms
    for transaction_id, asks in by_id.items():
        truth = evidence.truth.get(transaction_id)
        if truth is None:
            continue
        if truth.decided_at >= 0:
            late = [a for a in asks if START_MS + a.at_ms > truth.decided_ms + slack_ms]
            if late:
                past_ms = START_MS + late[-1].at_ms - truth.decided_ms
                yield Violation("K", transaction_id, f"asked about {past_ms} ms after it ended ({len(late)} times)")
        yield from _judge_rhythm(evidence, truth, asks)
    yield from _neglected(evidence, by_id)


def _judge_rhythm(evidence: Evidence, truth: Truth, asks: Sequence[Asked]) -> Iterator[Violation]:
    """One life of one process asks once an interval; another one may begin anew, and an operator may ask at once."""
    interval_ms = min(times.interval_ms for times in evidence.times_of(truth.group))
    for node in {a.node for a in asks} - {PULLED}:
        times = [a.at_ms for a in asks if a.node == node]
        spare = _SPARE + _asked_by_hand(evidence, truth.transaction_id) + len(evidence.schedule.situation.pauses)
        most = (times[-1] - times[0]) // interval_ms + spare
        if len(times) > most:
            what = f"{node} asked {len(times)} times in {times[-1] - times[0]} ms"
            yield Violation("K", truth.transaction_id, what)


def _asked_by_hand(evidence: Evidence, transaction_id: str) -> int:
    acts = {Verb.CHECK, Verb.RESUME}
    return sum(heard.asked_id == transaction_id and heard.verb in acts for heard in evidence.heard)


def _neglected(evidence: Evidence, by_id: Mapping[str, Sequence[Asked]]) -> Iterator[Violation]:
    """T: once nothing fails any more, what is due is asked about."""
    healed_ms = START_MS + evidence.healed_ms
    if not evidence.healed_ms:
        return
    for truth in evidence.truth.values():
        timeout_ms = max(times.transaction_timeout_ms for times in evidence.times_of(truth.group))
        due_ms = truth.appended_ms + max(timeout_ms, truth.immunity_s * 1000)
        resumed_ms = START_MS + find_resumed_ms(evidence, truth.group)
        until_ms = max(due_ms, healed_ms, resumed_ms) + _LATE_MS + 2 * evidence.clock_ms
        op = evidence.ops.get(truth.transaction_id)
        has_ended = truth.decided_at >= 0 and truth.decided_ms <= until_ms
        was_parked = op is not None and op.transaction.parked is not None
        asked = any(START_MS + a.at_ms <= until_ms for a in by_id.get(truth.transaction_id, ()))
        if not (has_ended or was_parked or asked):
            yield Violation("T", truth.transaction_id, f"nobody was asked for {_LATE_MS} ms after it was due")


def find_resumed_ms(evidence: Evidence, group: str) -> int:
    """When checks of the group were surely resumed for the last time; 0: they were never paused."""
    requests = evidence.pausing.requests if evidence.pausing is not None else []
    of_group = [each.at_ms for each in requests if each.kind is PauseKind.CHECKS and each.group == group]
    return max(of_group, default=0)


def longest_pause_ms(evidence: Evidence) -> int:
    """For how long a round that had begun, or an end on its way, may have stood still; a set clock is no pause. Freezes
    may go on in each other, and are one then."""
    freezes = {FaultKind.FREEZE, FaultKind.FREEZE_AT}
    still = {*freezes, FaultKind.LOSE_ANSWER, FaultKind.LOSE_REQUEST, FaultKind.LEADERLESS}
    clocks = {FaultKind.BROKER_CLOCK, FaultKind.SKEW}
    faults = [fault for fault in evidence.schedule.faults if fault.kind not in clocks]
    frozen_ms = sum(fault.for_ms for fault in faults if fault.kind in freezes)
    return max([frozen_ms, *[fault.for_ms if fault.kind in still else fault.delay_ms for fault in faults]])


# --- ends that were refused, or only taken ---


def _refused_ends(evidence: Evidence) -> Iterator[Violation]:
    """A: what was refused as not applied was not written; what was accepted was."""
    written = Counter((e.transaction_id, e.resolution) for e in evidence.ends if e.source is Source.PRODUCER)
    first_ms: dict[tuple[str, Resolution], int] = {}
    for e in evidence.ends:
        if e.source is Source.PRODUCER:
            first_ms.setdefault((e.transaction_id, e.resolution), e.stored_ms)
    possible: Counter[tuple[str, Resolution]] = Counter()
    for heard in evidence.heard:
        if heard.verb not in _ASKED or heard.asked_id is None:
            continue
        place = (heard.asked_id, _ASKED[heard.verb])
        possible[place] += not (heard.outcome == "fail" and heard.code in _NOT_WRITTEN)
        latest_ms = START_MS + heard.at_ms + evidence.clock_ms
        if heard.code == "accepted" and first_ms.get(place, latest_ms + 1) > latest_ms:
            yield Violation("L", heard.asked_id, f"{heard.verb} was accepted before it was in the journal")
    for place, count in written.items():
        if place[1] is not Resolution.UNKNOWN and count > possible[place]:
            what = f"{count} records of {place[1].name}, although all calls but {possible[place]} heard not applied"
            yield Violation("A", place[0], what)


# --- what an op message and an answer say ---


def _told(evidence: Evidence) -> Iterator[Violation]:
    """F, I: op message and every answer name the end that decided, who gave it, and where the records lie."""
    for transaction_id, op in evidence.ops.items():
        truth = evidence.truth.get(transaction_id)
        if truth is not None:
            yield from _judge_op(evidence, truth, op)
    for heard in evidence.heard:
        op = evidence.ops.get(heard.transaction_id or "")
        if heard.view is not None and op is not None:
            yield from _judge_view(heard.view, op)


def _judge_op(evidence: Evidence, truth: Truth, op: OpMessage) -> Iterator[Violation]:
    t = op.transaction
    is_known = truth.decided_at >= 0 and truth.state is t.state
    if is_known and (t.by, t.ended_ms) != (truth.by, truth.decided_ms):
        what = f"ended by {t.by} at {t.ended_ms}, not by {truth.by} at {truth.decided_ms}"
        yield Violation("F", truth.transaction_id, what)
    if t.check_times > len({a.check_number for a in evidence.answers[truth.transaction_id]}):
        yield Violation("K", truth.transaction_id, f"{t.check_times} checks are counted; fewer were answered")
    yield from _judge_giving_up(truth, op)
    if t.state is _COMMITTED and not t.blocked and not t.abandoned:
        yield from _judge_receipts(evidence, truth, op)
    elif op.receipts:
        yield Violation("P", truth.transaction_id, f"it is {t.state.value} and has receipts")


def _judge_giving_up(truth: Truth, op: OpMessage) -> Iterator[Violation]:
    """F: abandoned by an act in the journal alone; and what was still blocked there is never published."""
    t = op.transaction
    if t.abandoned:
        if t.at not in truth.given_up_at or t.at < truth.decided_at:
            what = f"abandoned at {t.at}, where nobody gave it up: {truth.given_up_at}"
            yield Violation("F", truth.transaction_id, what)
        if t.state is not _COMMITTED or t.blocked:
            yield Violation("F", truth.transaction_id, f"abandoned, and {t.state.value}, blocked {t.blocked}")
    elif t.state is _COMMITTED and any(truth.decided_at < at <= t.at for at in truth.given_up_at):
        what = f"given up at {truth.given_up_at}, and published or blocked at {t.at} all the same"
        yield Violation("P", truth.transaction_id, what)


def _judge_receipts(evidence: Evidence, truth: Truth, op: OpMessage) -> Iterator[Violation]:
    """Each names the place of its message, in their order."""
    places = {
        (r.topic, r.queue_id, r.stored.queue_offset, r.stored.value)
        for r in evidence.visible.get(truth.transaction_id, [])
    }
    if len(op.receipts) != len(truth.messages):
        what = f"{len(op.receipts)} receipts of {len(truth.messages)} messages"
        yield Violation("I", truth.transaction_id, what)
        return
    for message, receipt in zip(truth.messages, op.receipts, strict=True):
        place = (receipt.topic, receipt.queue_id, receipt.queue_offset, message.value)
        is_buried = (receipt.topic, truth.transaction_id) in evidence.archive.buried
        if place not in places and not is_buried and receipt.queue_offset is not None:
            yield Violation("I", truth.transaction_id, f"a receipt names another place than its message's: {place[:3]}")


def _judge_view(view: TransactionView, op: OpMessage) -> Iterator[Violation]:
    t = op.transaction
    is_out = view.state is _COMMITTED and not view.blocked and not view.abandoned
    if (is_out and t.abandoned) or (view.abandoned and not t.abandoned):
        what = f"an answer says abandoned {view.abandoned}, blocked {view.blocked}, the op message {t.abandoned}"
        yield Violation("A", t.transaction_id, what)
    if is_out and not t.blocked and list(view.receipts) != list(op.receipts):
        yield Violation("A", t.transaction_id, "an answer has other receipts than the op message")
    if view.state in {_COMMITTED, _ROLLED_BACK} and (view.by, view.ended_ms) != (t.by, t.ended_ms):
        what = f"an answer says by {view.by} at {view.ended_ms}, the op message by {t.by} at {t.ended_ms}"
        yield Violation("A", t.transaction_id, what)
    if (view.reason is not None) is not (view.blocked or view.abandoned or view.state is _PARKED):
        what = f"an answer says {view.state.value}, blocked {view.blocked}, why {view.reason}"
        yield Violation("A", t.transaction_id, what)


# --- messages in every view ---


def _kept_whole(evidence: Evidence) -> Iterator[Violation]:
    """I: journal, parked copy, answers and check calls show the messages as they were prepared."""
    calls = {call.marker: call for call in evidence.schedule.calls}
    for truth in evidence.truth.values():
        call = _call_of(calls, truth.messages)
        if call is None or not same_messages(call.messages, truth.messages):
            yield Violation("I", truth.transaction_id, "the journal holds other messages than were prepared")
    for _, stored_ones in evidence.archive.read(evidence.topics.parked):
        for stored in stored_ones:
            half: HalfMessage = decode_parked(stored)
            truth = evidence.truth[half.transaction_id]
            if not same_messages(decode_body(half, stored), truth.messages):
                yield Violation("I", truth.transaction_id, "the parked copy holds other messages than were prepared")
    for heard in evidence.heard:
        shown = evidence.truth.get(heard.transaction_id or "")
        if heard.bodies is not None and shown is not None and not same_messages(heard.bodies, shown.messages):
            yield Violation("I", shown.transaction_id, "a look showed other messages than were prepared")
    for asked in evidence.asked:
        if asked.strange is not None:
            yield Violation("I", asked.transaction_id, f"a check call shows {asked.strange}")


def _call_of(calls: Mapping[bytes, Call], messages: Sequence[Message]) -> Call | None:
    return calls.get((messages[0].value or b"").split(b"|", 1)[0] + b"|")


# --- the projection ---


def _projected(evidence: Evidence) -> Iterator[Violation]:
    """F, C: rows and timelines say what the op topic and the journal say."""
    if not evidence.schedule.has_sql:
        return
    with evidence.engine.begin() as connection:
        rows = find_many(connection, list(evidence.truth))
        timelines = {i: read_timeline(connection, i) for i in rows}
    parkings = Counter(t.transaction_id for t, _ in find_parkings(evidence))
    for transaction_id, row in rows.items():
        op, truth = evidence.ops.get(transaction_id), evidence.truth[transaction_id]
        if op is not None:
            t = op.transaction
            blocks = (row.blocked, row.abandoned), (t.blocked, t.abandoned)
            said = (row.check_times, *blocks[0], row.reason, row.by, row.ended_ms, row.parked_offset, row.base)
            wanted = (t.check_times, *blocks[1], t.reason, t.by, t.ended_ms, t.parked, t.base)
            if said != wanted or list(row.receipts) != list(op.receipts):
                what = f"the projection says {(*said, row.receipts)}, the op message {(*wanted, op.receipts)}"
                yield Violation("F", transaction_id, what)
        events = timelines[transaction_id]
        yield from _judge_timeline(evidence, truth, events, parkings[transaction_id])


def _judge_timeline(
    evidence: Evidence, truth: Truth, events: Sequence[TimelineEvent], parkings: int
) -> Iterator[Violation]:
    op, answers = evidence.ops.get(truth.transaction_id), evidence.answers[truth.transaction_id]

    def broken(what: str) -> Violation:
        return Violation("F", truth.transaction_id, f"the timeline {what}: {[(e.at_ms, e.type) for e in events]}")

    kinds = Counter(event.type for event in events)
    if [e.at_ms for e in events] != sorted(e.at_ms for e in events):
        yield broken("is out of order")
    prepared = [e.at_ms for e in events if e.type == "prepared"]
    apart = {FaultKind.BROKER_CLOCK, FaultKind.SKEW}  # a call is told by its process's clock, the rest by brokers'
    is_first = events[0].type == "prepared" or any(f.kind in apart for f in evidence.schedule.faults)
    if prepared != [truth.appended_ms] or not is_first:
        yield broken("does not begin with one prepare")
    told = Counter((e.members["number"], e.members["answer"]) for e in events if e.type == "check_answered")
    given = Counter((a.check_number, a.resolution.name) for a in answers)
    if told - given or (given - told and not evidence.is_restored):
        yield broken(f"tells of other answers than {answers}")
    if kinds["parked"] > parkings or (kinds["parked"] < parkings and not evidence.is_restored):
        yield broken(f"tells of {kinds['parked']} parkings instead of {parkings}")
    yield from _judge_reasons(evidence, truth, events)
    if op is None or op.transaction.state not in {_COMMITTED, _ROLLED_BACK}:
        return
    decisive = [e for e in events if e.type == "end" and e.members.get("effective")]
    if [(e.at_ms, e.by) for e in decisive] != [(truth.decided_ms, truth.by)]:
        yield broken(f"does not tell of the end by {truth.by} at {truth.decided_ms}")
    t = op.transaction
    if kinds["published"] != (t.state is _COMMITTED and not t.blocked and not t.abandoned):
        yield broken(f"tells of {kinds['published']} publications")
    given_up = [e.members["effective"] for e in events if e.type == "abandoned"]
    is_whole = len(given_up) == len(truth.given_up_at) and given_up.count(True) == t.abandoned
    if not is_whole and not evidence.is_restored:
        yield broken(f"tells {given_up} of acts at {truth.given_up_at}")


def _judge_reasons(evidence: Evidence, truth: Truth, events: Sequence[TimelineEvent]) -> Iterator[Violation]:
    """Who forced or resumed it, and why, is told as the journal holds it."""
    told = Counter((e.type, e.members["actor"], e.members["reason"]) for e in events if e.type in {"forced", "resumed"})
    given = Counter(
        ("forced", e.actor, e.reason) for e in evidence.ends_of[truth.transaction_id] if e.source is Source.OPERATOR
    )
    given.update(("resumed", a.actor, a.reason) for a in evidence.acts_of[truth.transaction_id] if a.act is Act.RESUME)
    if told - given or (given - told and not evidence.is_restored):
        what = f"the timeline names {dict(told)} as its operators, the journal {dict(given)}"
        yield Violation("F", truth.transaction_id, what)
