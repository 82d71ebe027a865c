"""Promise B, measured where only endpoints of some groups fail, or one destination: bystanders go on as ever."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from bridge.core.transaction import MAX_CHECKS
from tests.simulation.clients import Asked, Exchange, Heard
from tests.simulation.node import CALM_CHECKER
from tests.simulation.promises import Evidence, Violation
from tests.simulation.rules import find_parkings
from tests.simulation.schedule import START_MS, Call, FaultKind, Schedule, Verb
from tests.simulation.situations import SETTINGS

_WARM_MS = 3_500  # take-overs at the start, and first looks
_READY_MS = 2_000
_ANSWER_MS = 300
_ONE_TIMEOUT_MS = 2_400  # what a destination costs its queue each time it vanishes, and no more
_TAKEN_OVER_MS = 3_500  # and then the queue is taken over before anybody is asked
_LATE_MS = 400  # measured: 250 where nothing fails
_OPEN_SLOTS = CALM_CHECKER.total_calls - CALM_CHECKER.total_calls // 4  # of a process; silent groups have the others
_NEW_SLOTS = CALM_CHECKER.total_calls // 2  # of these, for groups that the process has not asked yet
_ENDS = {None, Verb.COMMIT, Verb.ROLLBACK}


def check_bulkhead(evidence: Evidence) -> list[Violation]:
    """All violations."""
    if not evidence.schedule.situation.is_calm:
        return []
    return [*_answers(evidence), *_checks(evidence), *_clocks(evidence)]


def find_bystanders(schedule: Schedule) -> dict[int, Call]:
    """Transactions of groups that answer, to topics that work, that share no ordering key with others, by number."""
    silent = {fault.group for fault in schedule.faults if fault.kind is FaultKind.ENDPOINT}
    bad = {fault.topic for fault in schedule.faults if fault.topic}
    bad |= {schedule.situation.bad.topic} if schedule.situation.bad is not None else set()
    touched = {_lane_of(call) for call in schedule.calls if bad & {message.topic for message in call.messages}}
    return {
        call.number: call
        for call in schedule.calls
        if call.group not in silent
        and not bad & {message.topic for message in call.messages}
        and _lane_of(call) not in touched
    }


def _lane_of(call: Call) -> tuple[object, ...]:
    """What it is kept in order with: its ordering key, else its first message's key within its topic, else nothing."""
    first = call.messages[0]
    if call.ordering_key is not None:
        return call.group, call.ordering_key
    return (call.group, first.topic, first.key) if first.key is not None else (call.number,)


def _answers(evidence: Evidence) -> Iterator[Violation]:
    """A bystander's calls are answered as soon as ever, and what it commits is published at once."""
    bystanders = find_bystanders(evidence.schedule)
    faults, bad = evidence.schedule.faults, evidence.schedule.situation.bad
    vanished = [fault.at_ms for fault in faults if fault.topic]
    vanished += [bad.at_ms, evidence.healed_ms] if vanished and bad is not None else []  # made anew, and bad at once
    for heard in evidence.heard:
        if heard.number not in bystanders or heard.verb not in _ENDS or heard.began_ms < _READY_MS:
            continue
        took_ms = heard.at_ms - heard.began_ms
        times = sum(heard.began_ms - _ONE_TIMEOUT_MS <= at_ms <= heard.at_ms for at_ms in vanished)
        most_ms = max(times, 1) * _ONE_TIMEOUT_MS if vanished else _ANSWER_MS
        is_unknown = times < 2 and (heard.outcome == "unknown" or heard.code == "unavailable")
        if took_ms > most_ms or is_unknown:
            what = f"{heard.verb} of a bystander: {heard} after {took_ms} ms"
            yield Violation("B", heard.transaction_id or str(heard.number), what)
        elif heard.view is not None and heard.view.blocked:
            yield Violation("B", heard.transaction_id or "", f"a bystander's commit is blocked: {heard.view.reason}")


def _checks(evidence: Evidence) -> Iterator[Violation]:
    """A bystander is asked about when it is due.

    What is promised is that groups that do not answer hold up nobody: they share a quarter of a process's slots once
    a round of theirs had no answer. Groups that answer, however slowly, and groups not yet known to be silent have
    the others, first come, first served; half of all, while nobody knows whether they answer. So a bystander may wait
    while such rounds hold all of these, for as many of the longest of them as its place in the line asks for; see
    `_full_ms`.
    """
    bystanders = find_bystanders(evidence.schedule)
    is_about_topics = any(fault.topic for fault in evidence.schedule.faults)
    late_ms = _LATE_MS + (_TAKEN_OVER_MS if is_about_topics else 0) + 2 * evidence.clock_ms
    rounds = _find_open_rounds(evidence.exchanges)
    firsts: dict[str, Asked] = {}
    for asked in evidence.asked:
        firsts.setdefault(asked.transaction_id, asked)
    known: dict[str, Heard] = {h.transaction_id: h for h in evidence.heard if h.transaction_id is not None}
    for transaction_id, heard in known.items():
        truth = evidence.truth.get(transaction_id)
        if heard.number not in bystanders or truth is None:
            continue
        due_ms = truth.appended_ms + max(SETTINGS.times.transaction_timeout_ms, truth.immunity_s * 1000)
        ended_ms = truth.decided_ms if truth.decided_at >= 0 else due_ms + late_ms + SETTINGS.times.max_lifetime_ms
        first = firsts.get(transaction_id)
        until_ms = min(ended_ms, first.at_ms + START_MS if first is not None else ended_ms)
        if due_ms <= START_MS + _WARM_MS or until_ms - due_ms <= late_ms:
            continue
        full_ms = _full_ms(rounds, bystanders[heard.number].group, first, due_ms - START_MS, until_ms - START_MS)
        if until_ms - due_ms > late_ms + full_ms:
            what = f"nobody was asked about a bystander for {until_ms - due_ms} ms after it was due"
            yield Violation("B", transaction_id, f"{what}; slots were full for {full_ms} ms of them")


def _find_open_rounds(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Those that began before the group was known to be silent to the process that asked; in order of their ends."""
    ended: dict[tuple[str, str], list[Exchange]] = defaultdict(list)
    found = []
    for exchange in exchanges:
        before = [each for each in ended[exchange.node, exchange.group] if each.at_ms <= exchange.began_ms]
        if not before or before[-1].was_answered:
            found.append(exchange)
        ended[exchange.node, exchange.group].append(exchange)
    return found


def _full_ms(rounds: Sequence[Exchange], group: str, first: Asked | None, due_ms: int, until_ms: int) -> int:
    """How long rounds of others held all slots that the group may have, within what a place in the line may cost.

    Each group has at most one round in the line, so whoever comes waits until all slots became free once, and once
    more for every so many groups. Who asked in the end is the process that counts; if none did, any.
    """
    longest = 0
    for node in {first.node} if first is not None else {each.node for each in rounds}:
        there = [each for each in rounds if each.node == node]
        slots = _OPEN_SLOTS if any(each.group == group and each.at_ms < until_ms for each in there) else _NEW_SLOTS
        met = [each for each in there if each.group != group and each.began_ms < until_ms and each.at_ms > due_ms]
        full_ms = sum(_held(met, ms) >= slots for ms in range(due_ms, until_ms))
        turns = len({each.group for each in met}) // slots + 1
        longest = max(longest, min(full_ms, turns * max((each.at_ms - each.began_ms for each in met), default=0)))
    return longest


def _held(rounds: Sequence[Exchange], at_ms: int) -> int:
    return sum(each.began_ms <= at_ms < each.at_ms for each in rounds)


def _clocks(evidence: Evidence) -> Iterator[Violation]:
    """K: whatever brokers' clocks say, nobody is asked, and nothing is parked as out of life, before its real time.

    Every owner has read these half messages itself; one that reads them back must believe the log.
    """
    if not evidence.clock_ms:
        return
    out_of_life = {t.transaction_id for t, _ in find_parkings(evidence) if t.reason != MAX_CHECKS}
    firsts: dict[str, int] = {}
    for asked in evidence.asked:
        firsts.setdefault(asked.transaction_id, asked.at_ms)
    for heard in evidence.heard:
        if heard.prepared is None or heard.transaction_id is None or heard.began_ms < _READY_MS:
            continue
        least_ms = heard.began_ms + SETTINGS.times.transaction_timeout_ms
        if firsts.get(heard.transaction_id, least_ms) < least_ms:
            early_ms = least_ms - firsts[heard.transaction_id]
            yield Violation("K", heard.transaction_id, f"asked {early_ms} ms too early, by the time that there was")
        if heard.transaction_id in out_of_life:  # all endpoints answer, so checks are over long before a life is
            yield Violation("K", heard.transaction_id, "parked as out of life before that was over")
