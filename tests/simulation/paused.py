"""Rules about what operators pause. While they are sure to be known to a process, from two seconds on in which neither
it nor the database stood still, and until somebody asks to resume:

* K: nobody of a group whose checks are paused is asked by it, and no check is handed out to who fetches them;
* K: nothing of the group is parked; and what came of age meanwhile is asked about once more before it is;
* A: where prepares are paused nothing new is taken, and its refusal is definite; what was acknowledged is answered as
  before, and ends are taken;
* B: other groups hear nothing of it, and are asked in time; T: nor does the group, once a process must know that it is
  over.

That nothing of a refused prepare is stored or seen, that all is asked about soon after it was resumed, and that all is
decided or parked in the end, is judged as in every run.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bridge.core.transaction import MAX_LIFE, NO_ENDPOINT
from tests.simulation.clients import Heard
from tests.simulation.node import EVER_MS, Node
from tests.simulation.pausing import Switched
from tests.simulation.promises import Evidence, Violation
from tests.simulation.rules import find_parkings, longest_pause_ms
from tests.simulation.schedule import MILD, START_MS, FaultKind, Verb
from tests.simulation.situations import ChoreKind, PauseKind

_NOTICE_MS = 2_000
_STRAY_MS = 1_000
_WARM_MS, _LATE_MS = 4_000, 3_000  # take-overs at the start; and a tick, a read to the end and a call
_OFF, _OFF_FOR_ALL = "switched off prepares", "switched off prepares of all groups"
_PREPARES = {None, Verb.PREPARE_AGAIN}


class _Window(NamedTuple):
    """From when an operator has heard that it is paused until one asks to resume it, or it may be undone otherwise."""

    kind: PauseKind
    group: str
    since_ms: int
    until_ms: int

    def is_of(self, group: str) -> bool:
        return self.kind is PauseKind.BRIDGE or self.group == group


def check_paused(evidence: Evidence) -> list[Violation]:
    """All violations."""
    if not evidence.schedule.situation.pauses:
        return []
    windows = _find_windows(evidence)
    checks = [each for each in windows if each.kind is PauseKind.CHECKS]
    prepares = [each for each in windows if each.kind is not PauseKind.CHECKS]
    return [
        *_asked(evidence, checks), *_parked(evidence, checks), *_bystanders(evidence), *_taken(evidence, prepares),
        *_refused(evidence),
    ]  # fmt: skip


# --- when something is paused, and who knows it ---


def _requests(evidence: Evidence) -> Sequence[Switched]:
    return evidence.pausing.requests if evidence.pausing is not None else ()


def _processes(evidence: Evidence) -> dict[str, Node]:
    return evidence.operating.processes if evidence.operating is not None else {}


def _find_windows(evidence: Evidence) -> list[_Window]:
    """A pause counts if nothing that may undo it was under way when it was asked for."""
    found = []
    for on in _requests(evidence):
        undone = [off for off in _find_undone(evidence, on) if off[1] >= on.began_ms]
        if on.is_paused and on.is_ok and not any(began_ms <= on.at_ms for began_ms, _ in undone):
            until_ms = min([began_ms for began_ms, _ in undone], default=EVER_MS)
            found.append(_Window(on.kind, on.group, on.at_ms, until_ms))
    return found


def _find_undone(evidence: Evidence, on: Switched) -> list[tuple[int, int]]:
    """From when until when a pause may have been undone: by an operator who resumes, or by what else was written."""
    is_bridge = on.kind is PauseKind.BRIDGE
    found = [
        (off.began_ms, off.at_ms) for off in _requests(evidence)
        if not off.is_paused and off.kind is on.kind and (is_bridge or off.group == on.group)
    ]  # fmt: skip
    written = evidence.operating.written if evidence.operating is not None else []
    is_of = [each for each in written if on.kind in each.kinds and each.group in {None, on.group}]
    return found + [(each.began_ms, each.at_ms) for each in is_of]


def _knows_ms(evidence: Evidence, node: Node, since_ms: int) -> int:
    """From when on a process knows what was written by then."""
    if node.began_ms >= since_ms:
        return node.began_ms
    at_ms = max(since_ms, node.ready_ms or EVER_MS)
    outages = evidence.operating.outages if evidence.operating is not None else []
    for began_ms, ended_ms in sorted([*node.stood, *outages]):
        if began_ms >= at_ms + _NOTICE_MS:
            break
        at_ms = max(at_ms, ended_ms)
    return at_ms + _NOTICE_MS


def _all_know_ms(evidence: Evidence, window: _Window) -> int:
    living = [node for node in _processes(evidence).values() if node.ended_ms > window.since_ms]
    begun = [node for node in living if node.began_ms < window.until_ms]
    return max([_knows_ms(evidence, node, window.since_ms) for node in begun], default=EVER_MS)


# --- paused checks ---


def _asked(evidence: Evidence, windows: Sequence[_Window]) -> Iterator[Violation]:
    """K: nobody is asked, and nobody is handed a check, by a process that knows."""
    processes = _processes(evidence)
    claims = evidence.operating.claims if evidence.operating is not None else []
    for window in windows:
        for begun in evidence.begun:
            knows_ms = _knows_ms(evidence, processes[begun.node], window.since_ms)
            if begun.group == window.group and knows_ms <= begun.at_ms < window.until_ms:
                what = f"{begun.node} asked {window.group} {begun.at_ms - window.since_ms} ms after it was paused"
                yield Violation("K", min(begun.asked_ids, default=""), what)
        for claim in claims:
            knows_ms = _knows_ms(evidence, processes[claim.node], window.since_ms)
            if claim.group == window.group and knows_ms <= claim.began_ms and claim.at_ms < window.until_ms:
                what = f"{claim.node} handed out checks of {window.group}, which is paused"
                yield Violation("K", min(claim.asked_ids), what)


def _parked(evidence: Evidence, windows: Sequence[_Window]) -> Iterator[Violation]:
    """K: nothing is parked meanwhile, nor afterwards for the age it came to, unasked."""
    slack_ms = _STRAY_MS + longest_pause_ms(evidence) + evidence.clock_ms
    for window in windows:
        know_ms = _all_know_ms(evidence, window)
        for t, stored_ms in find_parkings(evidence):
            at_ms = stored_ms - START_MS
            if t.group != window.group:
                continue
            if know_ms + slack_ms < at_ms < window.until_ms - evidence.clock_ms:
                yield Violation("K", t.transaction_id, f"parked {at_ms - window.since_ms} ms after it was paused")
            ages_ms = {t.since_ms + times.max_lifetime_ms - START_MS for times in evidence.times_of(t.group)}
            came_of_age = know_ms + evidence.clock_ms < min(ages_ms)
            came_of_age &= max(ages_ms) < window.until_ms - _NOTICE_MS - evidence.clock_ms
            is_for_age = t.reason in {MAX_LIFE, NO_ENDPOINT} and at_ms >= window.until_ms
            if came_of_age and is_for_age and not _was_asked(evidence, t.transaction_id, window, at_ms):
                yield Violation("K", t.transaction_id, "came of age while it was paused, and was parked unasked")


def _was_asked(evidence: Evidence, transaction_id: str, window: _Window, parked_ms: int) -> bool:
    """Whether somebody was asked before it was parked; of a group that fetches its checks, or had no endpoint, nobody
    tells."""
    situation = evidence.schedule.situation
    is_deleted = any(c.kind is ChoreKind.DELETE and c.group == window.group for c in situation.chores)
    return (
        window.group in situation.pull_groups
        or is_deleted
        or any(
            transaction_id in begun.asked_ids and window.until_ms <= begun.at_ms <= parked_ms + evidence.clock_ms
            for begun in evidence.begun
        )
    )


def _bystanders(evidence: Evidence) -> Iterator[Violation]:
    """B: where nothing else holds anybody up, groups that are not paused are asked as soon as ever."""
    if any(fault.kind not in {*MILD, FaultKind.ENDPOINT} for fault in evidence.schedule.faults):
        return
    pauses = evidence.schedule.situation.pauses
    others = {pause.group for pause in pauses if pause.kind is PauseKind.CHECKS}
    others |= {fault.group for fault in evidence.schedule.faults}
    firsts: dict[str, int] = {}
    for begun in evidence.begun:
        for transaction_id in begun.asked_ids:
            firsts.setdefault(transaction_id, begun.at_ms)
    for truth in evidence.truth.values():
        due_ms = max(evidence.first_due_ms(truth) - START_MS, _WARM_MS)
        latest_ms = due_ms + _LATE_MS
        ended_ms = truth.decided_ms - START_MS if truth.decided_at >= 0 else latest_ms
        if truth.group not in others and min(ended_ms, firsts.get(truth.transaction_id, latest_ms)) >= latest_ms:
            what = f"nobody of {truth.group} was asked for {_LATE_MS} ms, and another group was paused"
            yield Violation("B", truth.transaction_id, what)


# --- paused prepares ---


def _taken(evidence: Evidence, windows: Sequence[_Window]) -> Iterator[Violation]:
    """A: nothing new is taken by a process that knows, and who asks for it hears so for certain."""
    calls, before = {call.number: call for call in evidence.schedule.calls}, _find_earlier(evidence)
    processes = _processes(evidence)
    for heard in evidence.heard:
        call = calls[heard.number]
        may_be_stored = call.is_delivered_late or any(each.outcome != "fail" for each in before[id(heard)])
        if heard.verb not in _PREPARES or may_be_stored or heard.code == "connection lost":
            continue
        for window in windows:
            knows_ms = _knows_ms(evidence, processes[heard.node], window.since_ms)
            is_within = window.is_of(call.group) and knows_ms <= heard.began_ms and heard.at_ms < window.until_ms
            if is_within and heard.outcome != "fail":
                what = f"client {heard.number} heard {heard} while {window.kind.value} were paused"
                yield Violation("A", heard.transaction_id or "", what)


def _find_earlier(evidence: Evidence) -> dict[int, Sequence[Heard]]:
    """What was heard before of the same prepare, by the identity of what was heard."""
    known: dict[int, list[Heard]] = defaultdict(list)
    found: dict[int, Sequence[Heard]] = {}
    for heard in evidence.heard:
        found[id(heard)] = [each for each in known[heard.number] if each.at_ms <= heard.began_ms]
        if heard.verb in _PREPARES:
            known[heard.number].append(heard)
    return found


def _refused(evidence: Evidence) -> Iterator[Violation]:
    """A, B, T: who is refused because of a pause asked for something new, of what is paused."""
    groups, before = {call.number: call.group for call in evidence.schedule.calls}, _find_earlier(evidence)
    for heard in [heard for heard in evidence.heard if _OFF in heard.detail]:
        if heard.verb not in _PREPARES:
            yield Violation("A", heard.asked_id or "", f"{heard.verb} was refused because prepares are paused")
        known = [each.transaction_id for each in before[id(heard)] if each.outcome == "ok"]
        if known:
            yield Violation("A", known[0] or "", "a repeat of what had been acknowledged was refused as new")
        kind = PauseKind.BRIDGE if _OFF_FOR_ALL in heard.detail else PauseKind.PREPARES
        group = groups[heard.number]
        ons, offs = [
            [each for each in _requests(evidence) if each.kind is kind and each.is_paused is is_paused
             and (kind is PauseKind.BRIDGE or each.group == group)] for is_paused in (True, False)
        ]  # fmt: skip
        ons = [on for on in ons if on.began_ms <= heard.at_ms]
        if not ons:
            yield Violation("B", str(heard.number), f"refused as paused: {kind.value} of {group} never were")
        elif not evidence.is_restored:
            yield from _judge_late(evidence, heard, ons, [off for off in offs if off.is_ok])


def _judge_late(
    evidence: Evidence, heard: Heard, ons: Sequence[Switched], offs: Sequence[Switched]
) -> Iterator[Violation]:
    node, on_ms = _processes(evidence)[heard.node], max(on.at_ms for on in ons)
    over = [off.at_ms for off in offs if off.began_ms > on_ms]
    if over and _knows_ms(evidence, node, min(over)) <= heard.began_ms:
        what = f"refused as paused {heard.began_ms - min(over)} ms after that was over"
        yield Violation("T", str(heard.number), what)
