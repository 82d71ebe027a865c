"""Rules about operators and what they are told, checks that are claimed, and what was prepared or refused."""

import itertools
from collections import defaultdict
from collections.abc import Iterator

from bridge.core.record import Act, Resolution, Source
from bridge.core.topics import NotTaken
from bridge.core.transaction import TransactionState
from bridge.sql.leases import read_terms
from bridge.sql.search import SearchFilter, search_transactions
from tests.simulation.clients import Asked
from tests.simulation.operating import PULLED, Done
from tests.simulation.oracle import Truth
from tests.simulation.promises import Evidence, Violation
from tests.simulation.rules import find_parkings, longest_pause_ms
from tests.simulation.schedule import START_MS, FaultKind
from tests.simulation.situations import ENDPOINT_LEASE_MS, PULL_LEASE_MS, BadKind, Chore, ChoreKind, is_surely_small

_PARKED = TransactionState.PARKED
_SEEN_MS = 2 * 1_000 + 500  # two refreshes of the directory: one to see the lease, one to see it over
_STEP_MS = 4_000  # for a step of a redrive that was on its way when it was stopped
_ACTED = {ChoreKind.RESUME: Act.RESUME, ChoreKind.COMMIT: Resolution.COMMIT, ChoreKind.ROLLBACK: Resolution.ROLLBACK}


def check_operated(evidence: Evidence) -> list[Violation]:
    """All violations."""
    checks = (_prepared, _sized, _claimed, _leased, _deleted, _redriven, _listed)
    return [violation for check in checks for violation in check(evidence)]


# --- prepares ---


def _prepared(evidence: Evidence) -> Iterator[Violation]:
    """A, K: a prepare names the place of its half message, and when the first check is due."""
    calls = {call.number: call for call in evidence.schedule.calls}
    for heard in evidence.heard:
        truth = evidence.truth.get(heard.transaction_id or "")
        if heard.prepared is None or truth is None:
            continue
        told = heard.prepared
        if (told.queue_id, told.queue_offset) != (truth.queue_id, truth.half_offset):
            what = f"a prepare named offset {told.queue_offset}, its half message lies at {truth.half_offset}"
            yield Violation("A", truth.transaction_id, what)
        immunity_ms = (calls[heard.number].immunity_s or 0) * 1000
        timeouts = {times.transaction_timeout_ms for times in evidence.times_of(truth.group)}
        due = {truth.appended_ms + max(timeout_ms, immunity_ms) for timeout_ms in timeouts}
        if told.first_check_ms not in due:
            yield Violation("A", truth.transaction_id, f"its first check is told for {told.first_check_ms}, not {due}")


def _sized(evidence: Evidence) -> Iterator[Violation]:
    """A: too large is said at prepare, of what is, and never at commit where no limit was lowered since."""
    limit_bytes, bad = evidence.schedule.situation.limit_bytes, evidence.schedule.situation.bad
    is_lowered = (bad is not None and bad.kind is BadKind.SHRUNK) or any(
        fault.kind is FaultKind.SHRINK for fault in evidence.schedule.faults
    )
    if not limit_bytes or is_lowered:
        return
    calls = {call.number: call for call in evidence.schedule.calls}
    for heard in evidence.heard:
        if heard.code == "message-too-large":
            messages = calls[heard.number].messages
            if all(is_surely_small(message, limit_bytes) for message in messages):
                yield Violation("A", str(heard.number), "refused as too large, and it is not")
    for _, op in evidence.op_history:
        if op.transaction.blocked and op.transaction.reason == NotTaken.MESSAGE_TOO_LARGE:
            what = "accepted, and larger than its topic has ever taken"
            yield Violation("A", op.transaction.transaction_id, what)


# --- checks that are claimed ---


def _claimed(evidence: Evidence) -> Iterator[Violation]:
    """K: a claimed check is nobody else's until its lease is over, or its transaction was parked and resumed."""
    slack_ms = evidence.clock_ms
    resumed: dict[str, list[int]] = defaultdict(list)
    for stored_ms, act in evidence.acts:
        if act.act is Act.RESUME:
            resumed[act.transaction_id].append(stored_ms - START_MS)
    by_check: dict[tuple[str, int], list[Asked]] = defaultdict(list)
    for asked in evidence.asked:
        if asked.node == PULLED:
            by_check[asked.transaction_id, asked.check_number].append(asked)
    for (transaction_id, number), claims in by_check.items() if not evidence.is_restored else ():
        for before, after in itertools.pairwise(claims):
            lives = resumed.get(transaction_id, ())
            is_new_life = any(before.began_ms - slack_ms <= at_ms <= after.at_ms + slack_ms for at_ms in lives)
            if after.at_ms < before.began_ms + PULL_LEASE_MS and not is_new_life:
                what = f"check {number} was claimed again {after.at_ms - before.began_ms} ms after it was claimed"
                yield Violation("K", transaction_id, what)


# --- endpoints with a lease ---


def _leased(evidence: Evidence) -> Iterator[Violation]:
    """T: an instance that has gone is asked no more once a process has seen its lease unchanged for its length."""
    operating = evidence.operating
    if operating is None or evidence.is_restored:
        return
    still = {FaultKind.FREEZE, FaultKind.FREEZE_AT}
    frozen_ms = sum(fault.for_ms for fault in evidence.schedule.faults if fault.kind in still)
    slack_ms = ENDPOINT_LEASE_MS + _SEEN_MS + frozen_ms + operating.down_ms
    with evidence.engine.begin() as connection:
        left = read_terms(connection)
    if left and operating.over_ms > operating.gone_ms + slack_ms:
        yield Violation("T", "", f"leases that nobody renewed are still there: {left}")
    for at_ms, node in evidence.late_calls:
        over_ms = max(operating.gone_ms, operating.processes[node].ready_ms) + slack_ms
        if at_ms > over_ms:
            yield Violation("T", node, f"an instance that had gone was asked {at_ms - over_ms} ms after its lease")


# --- operators ---


def _chores(evidence: Evidence, *kinds: ChoreKind) -> list[Done]:
    done = evidence.operating.done if evidence.operating is not None else []
    return [one for one in done if one.chore.kind in kinds]


def _deleted(evidence: Evidence) -> Iterator[Violation]:
    """S: no group is deleted while something of it is to be done."""
    for done in _chores(evidence, ChoreKind.DELETE):
        if not done.is_ok:
            continue
        began_ms = START_MS + done.began_ms - evidence.clock_ms
        ended_ms = START_MS + done.at_ms + evidence.clock_ms
        for truth in evidence.truth.values():
            is_open = truth.decided_at < 0 or truth.decided_ms > ended_ms
            if truth.group == done.chore.group and truth.appended_ms < began_ms and is_open:
                yield Violation("S", truth.transaction_id, "its group was deleted while it was pending or parked")


def _redriven(evidence: Evidence) -> Iterator[Violation]:
    """S, K: a redrive does what it was told, to parked ones of its group alone, and not after it was stopped."""
    if evidence.operating is None or not evidence.operating.done:
        return
    if any(done.is_ok and done.is_running for done in _chores(evidence, ChoreKind.STOP)):
        yield Violation("A", "", "a redrive that was stopped is told to run")
    begun = {done.chore.reason: done.chore for done in _chores(evidence, *_ACTED)}
    stopped_ms = _find_stops(evidence)
    once_parked = {t.transaction_id for t, _ in find_parkings(evidence)}
    acted = [(e.transaction_id, e.reason, e.resolution, e.stored_ms) for e in evidence.ends
             if e.source is Source.OPERATOR]  # fmt: skip
    acted += [(a.transaction_id, a.reason, a.act, ms) for ms, a in evidence.acts]
    for transaction_id, reason, word, at_ms in acted:
        chore, truth = begun.get(reason or ""), evidence.truth.get(transaction_id)
        if chore is None or truth is None:
            continue
        yield from _judge_act(chore, truth, word)
        if transaction_id not in once_parked:
            yield Violation("S", transaction_id, f"{chore.kind.value} of one that was never parked")
        if at_ms > stopped_ms.get(chore.reason, at_ms):
            yield Violation("S", transaction_id, f"{chore.kind.value} went on {at_ms} after it was stopped")
    parked = sum(op.transaction.state is _PARKED for op in evidence.ops.values())
    if evidence.operating.parked not in {None, parked}:
        what = f"a preview counts {evidence.operating.parked} parked ones, there are {parked}"
        yield Violation("C", "", what)


def _judge_act(chore: Chore, truth: Truth, word: object) -> Iterator[Violation]:
    if word is not _ACTED[chore.kind]:
        yield Violation("F", truth.transaction_id, f"{chore.kind.value} did {word}")
    if truth.group != chore.group:
        yield Violation("S", truth.transaction_id, f"a redrive of {chore.group} acted on one of {truth.group}")


def _find_stops(evidence: Evidence) -> dict[str, int]:
    """When each stopped redrive may have acted last. A database that was set back knows nothing of a stop."""
    if evidence.is_restored:
        return {}
    slack_ms = _STEP_MS + longest_pause_ms(evidence) + evidence.clock_ms
    ids = {done.chore.reason: done.job_ids for done in _chores(evidence, *_ACTED)}
    return {
        reason: START_MS + stop.at_ms + slack_ms
        for stop in _chores(evidence, ChoreKind.STOP)
        if stop.is_ok
        for reason, job_ids in ids.items()
        if set(job_ids) & set(stop.job_ids)
    }


# --- lists ---


def _listed(evidence: Evidence) -> Iterator[Violation]:
    """S: what is blocked or parked to the end is listed, the newest first; no rebuild finds what Kafka never had."""
    if not evidence.schedule.has_sql:
        return
    if evidence.operating is not None and evidence.operating.orphans:
        yield Violation("L", "", f"a rebuild of the projection found {evidence.operating.orphans} orphans")
    with evidence.engine.begin() as connection:
        for name, wanted in (("blocked", SearchFilter(blocked=True)), ("parked", SearchFilter(states=(_PARKED,)))):
            views, _ = search_transactions(connection, wanted, 100)
            is_meant = [
                i for i, op in evidence.ops.items()
                if (op.transaction.blocked if name == "blocked" else op.transaction.state is _PARKED)
            ]  # fmt: skip
            if sorted(view.transaction_id for view in views) != sorted(is_meant):
                yield Violation("S", "", f"{len(views)} {name} ones are listed, there are {len(is_meant)}")
            if [view.born_ms for view in views] != sorted((view.born_ms for view in views), reverse=True):
                yield Violation("S", "", f"{name} ones are listed out of order")
