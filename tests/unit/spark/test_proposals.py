"""What is proposed, over all kinds of findings and everything that may be missing: nothing is ever published again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from spark.judge.findings import propose_repair, report
from spark.judge.history import replay
from spark.judge.rules import FindingKind, Found, judge
from spark.read.envelope import Event, Evidence, OpState, Scope
from tests.support.envelope_rows import (
    HALF,
    HALF_MS,
    NOW_MS,
    SCOPE,
    TX,
    check,
    commit,
    half,
    op,
    record,
    rollback,
    with_extent,
)
from tests.support.verdict_cases import RIGHT, WRONG

CASES = RIGHT | {name: events for name, (events, _) in WRONG.items()}
NOT_READ = replace(SCOPE, extents={p: e for p, e in SCOPE.extents.items() if p.topic not in {"orders", "credits"}})
ANEW = replace(SCOPE, extents={p: e.as_anew(NOW_MS) if p.topic == "orders" else e for p, e in SCOPE.extents.items()})
NEVER_PUBLISHED = [half(), commit()]


def proposals(events: Sequence[Event], scope: Scope = SCOPE) -> Iterator[tuple[FindingKind, dict[str, Any]]]:
    """What would be proposed for each kind, whether it was found or not."""
    for kind in FindingKind:
        finding = report(TX, events, Found(kind, "of a test", tuple(events)), NOW_MS)
        proposal = propose_repair(finding, events, scope)
        if proposal is not None:
            yield kind, proposal


def may_publish(proposal: dict[str, Any]) -> bool:
    """A forced commit publishes, and so does a check that is answered with one."""
    return proposal["path"].endswith("/check") or proposal["body"]["resolution"] == "COMMIT"


def beyond(topics: str) -> Scope:
    """Retention has removed what these topics held first."""
    scope = SCOPE
    for topic in topics.split():
        first_ms = HALF_MS + 10_000 if topic == HALF else 0
        scope = with_extent(scope, topic, start=950, is_whole=False, first_ms=first_ms)
    return scope


def losses(events: Sequence[Event]) -> Iterator[tuple[list[Event], Scope]]:
    """What may be left of a transaction, with a window that admits it: any op messages lost, and records removed."""
    ops = [event for event in events if event.leg == Evidence.OP]
    others = [event for event in events if event.leg != Evidence.OP]
    hidden = [event for event in others if event.leg != Evidence.VISIBLE]
    compacted = with_extent(with_extent(SCOPE, "orders", is_compacted=True), "credits", is_compacted=True)
    for count in range(len(ops) + 1):
        for left in combinations(ops, count):
            yield [*others, *left], SCOPE
            for scope in (beyond("orders credits"), compacted, NOT_READ, replace(SCOPE, by_receipts=True)):
                yield [*hidden, *left], scope
            for first in sorted({event.off for event in hidden if event.topic == HALF}):
                journal = with_extent(beyond("orders credits"), HALF, start=first, is_whole=False, first_ms=HALF_MS + 1)
                kept = [event for event in hidden if event.topic != HALF or event.off >= first]
                yield [*kept, *left], journal


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_proposed_that_publishes_what_was_published(name: str) -> None:
    """Whatever was found of it, whatever is left of it: what the bridge has published, or anybody can read, stays so.

    A phantom that retention has removed was published by nobody: the journal knows of no commit.
    """
    events = CASES[name]
    is_commit = replay(TX, events).decision == OpState.COMMITTED and any(
        event.leg == Evidence.VISIBLE for event in events
    )
    for left, scope in losses(events):
        was_published = is_commit or any(event.leg == Evidence.VISIBLE for event in left)
        for kind, proposal in proposals(left, scope):
            assert kind in {FindingKind.STALE, FindingKind.UNSETTLED}
            assert not (was_published and may_publish(proposal)), (kind, proposal, left)
            assert proposal["precondition"] == {"state": ["PREPARED"], "published": False}


def test_lost_op_message_of_a_visible_commit_is_told_as_such() -> None:
    """The journal says commit, the record is there, nothing has followed: it is published, and no end is missing."""
    events = [half(), commit(), record()]
    (found,) = judge(TX, events, SCOPE)
    assert found.kind is FindingKind.UNSETTLED
    assert "it was published, its op message is gone" in found.detail
    assert [leg.leg for leg in found.legs] == [Evidence.HALF, Evidence.END, Evidence.VISIBLE]
    assert propose_repair(report(TX, events, found, NOW_MS), events, SCOPE) is None


@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        pytest.param(beyond("orders"), "records of orders were removed", id="retention"),
        pytest.param(with_extent(SCOPE, "orders", is_compacted=True), "records of orders were removed", id="compacted"),
        pytest.param(ANEW, "records of orders were removed", id="made anew"),
        pytest.param(NOT_READ, "orders was not read", id="not read"),
        pytest.param(replace(SCOPE, by_receipts=True), "records do not name their transactions", id="no header"),
        pytest.param(beyond(HALF), "an earlier half message may have been removed", id="journal"),
    ],
)
def test_commit_is_not_sent_again_where_nobody_can_say_that_it_was_not_published(scope: Scope, reason: str) -> None:
    """An absence proves something only where a record would have been read; the finding says what is unknown."""
    found = next(found for found in judge(TX, NEVER_PUBLISHED, scope) if found.kind is FindingKind.UNSETTLED)
    assert reason in found.detail
    assert propose_repair(report(TX, NEVER_PUBLISHED, found, NOW_MS), NEVER_PUBLISHED, scope) is None


def test_rollback_is_proposed_also_where_nothing_can_be_said_of_records() -> None:
    """It publishes nothing; but a visible record is for people."""
    assert [kind for kind, one in proposals([half(), rollback()], beyond("orders")) if not may_publish(one)] == [
        FindingKind.UNSETTLED
    ]
    assert list(proposals([half(), rollback(), record()])) == []


def test_what_was_never_published_is_still_repaired() -> None:
    """By a forced end where one is recorded, by a check where none is; records of other topics do not matter."""
    for events, kind, verb in (
        (NEVER_PUBLISHED, FindingKind.UNSETTLED, "force"),
        ([half()], FindingKind.STALE, "check"),
    ):
        for scope in (SCOPE, beyond("credits")):
            assert [(kind, one["path"].rpartition("/")[2]) for kind, one in proposals(events, scope)] == [(kind, verb)]


def test_proposal_tells_what_the_producer_remarked_last() -> None:
    """Whoever asks again wants to know why nobody could say; without one there is no such member."""
    answered = check(1, 15, HALF_MS + 60_000, remark="database away")
    ((kind, proposal),) = proposals([half(), answered, op("PREPARED", cause=answered.off)])
    assert (kind, proposal["remark"]) == (FindingKind.STALE, "database away")
    assert all("remark" not in one for _, one in proposals([half()]))


@pytest.mark.parametrize("ending", [commit(), rollback()])
def test_settling_what_is_recorded_is_proposed(ending: Event) -> None:
    """By the recorded resolution, never the other."""
    events = [half(), ending]
    (found,) = judge(TX, events, SCOPE)
    proposal = propose_repair(report(TX, events, found, NOW_MS), events, SCOPE)
    assert proposal is not None
    assert proposal["path"] == f"/v1/transactions/{TX}/force"
    assert proposal["body"]["resolution"] == ("COMMIT" if ending == commit() else "ROLLBACK")


def test_what_is_missing_or_there_twice_is_for_people() -> None:
    """It was published once."""
    for events in ([half(), commit(), op("COMMITTED")], [half(), commit(), op("COMMITTED"), record(), record(900)]):
        for found in judge(TX, events, SCOPE):
            assert found.kind in {FindingKind.MISSING, FindingKind.DUPLICATE}
            assert propose_repair(report(TX, events, found, NOW_MS), events, SCOPE) is None
