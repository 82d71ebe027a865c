"""Why a transaction is still pending, or what became of it: a sentence for each case."""

from dataclasses import replace as dc_replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core import transition
from bridge.core.check_rules import CheckCalls, CheckMode, CheckTimes, GroupSettings, WhenExhausted
from bridge.core.explanation import Circumstances, Explanation, NextStep, Unanswered, explain
from bridge.core.message import Receipt
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.transaction import (
    BODY_EXPIRED,
    COMMITTED,
    MAX_CHECKS,
    MAX_LIFE,
    ORDER,
    PARKED,
    PREPARED,
    ROLLED_BACK,
    SPLIT,
    UNTRIED,
    Transaction,
    TransactionView,
)
from bridge.core.transition import LogPosition
from checker.call import Failure

ID = "0" * 28
BORN_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
DUE_MS = BORN_MS + 6_000
SETTINGS = GroupSettings(CheckTimes(max_lifetime_ms=3_600_000))
PULL = GroupSettings(SETTINGS.times, CheckCalls(mode=CheckMode.PULL))
PARKED_THEN = "it is parked at 2026-01-31T13:00:00Z if it is undecided then"
ROUNDS = Unanswered(DUE_MS, DUE_MS + 60_000, 3, "refused", "https://shop/checks")
ONCE = replace(ROUNDS, count=1, last_ms=DUE_MS, failure="no-endpoint", endpoint=None)
RECEIPTS = (Receipt("orders", 0, 7), Receipt("orders", 1, 8))


def view(**members: Any) -> TransactionView:
    known = {"state": PREPARED, "next_due_ms": DUE_MS, "since_ms": BORN_MS} | members
    return TransactionView(ID, "shop", queue_id=3, queue_offset=0, born_ms=BORN_MS, appended_ms=BORN_MS, **known)


def ended(state: Any, **members: Any) -> TransactionView:
    return view(state=state, ended_ms=BORN_MS + 2_000, **{"by": "producer", "next_due_ms": None} | members)


def around(after_ms: int = 1_000, **members: Any) -> Circumstances:
    return Circumstances(BORN_MS + after_ms, **{"settings": SETTINGS} | members)


def blocked(reason: str) -> TransactionView:
    return ended(COMMITTED, blocked=True, reason=reason)


RETRIED = (
    "the bridge tries again by itself, after a minute at the latest, until it succeeds or an operator abandons it."
)
NOT_YET = "Committed by its producer at 2026-01-31T12:00:02Z, not published yet: "

CASES: dict[str, tuple[TransactionView, Circumstances, Explanation]] = {
    "checks paused": (
        view(check_times=2), around(7_200_000, settings=dc_replace(SETTINGS, pauses_checks=True)), Explanation(
            "Pending: an operator has paused the checks of its producer group, so nobody is asked and it is not "
            "parked until they go on; its producer can end it, and 2 of 15 checks are used up."),
    ),
    "not ended yet": (
        view(), around(), Explanation(
            "Pending: its producer has not ended it yet; its producer group is asked at 2026-01-31T12:00:06Z, and "
            f"{PARKED_THEN}.", NextStep.CHECK, DUE_MS),
    ),
    "not ended yet, of a group that fetches": (
        view(), around(settings=PULL), Explanation(
            "Pending: its producer has not ended it yet; its producer group can fetch the check at "
            f"2026-01-31T12:00:06Z, and {PARKED_THEN}.", NextStep.CHECK, DUE_MS),
    ),
    "being asked": (
        view(), around(7_000), Explanation(
            f"Pending: its producer group is being asked now; {PARKED_THEN}.", NextStep.CHECK, DUE_MS),
    ),
    "late": (
        view(), around(60_000), Explanation(
            "Pending: its producer group was to be asked at 2026-01-31T12:00:06Z and no answer is recorded yet; it is "
            f"asked as soon as its queue has been read and there is a free call; {PARKED_THEN}.",
            NextStep.CHECK, DUE_MS),
    ),
    "to be fetched": (
        view(), around(60_000, settings=PULL), Explanation(
            "Pending: its check is due since 2026-01-31T12:00:06Z and its producer group can fetch it now; "
            f"{PARKED_THEN}.", NextStep.CHECK, DUE_MS),
    ),
    "unanswered": (
        view(), around(70_000, unanswered=[ONCE, ROUNDS]), Explanation(
            "Pending: its endpoint took no connection (https://shop/checks), 3 times, from 2026-01-31T12:00:06Z to "
            "2026-01-31T12:01:06Z; that does not count as a check, and its producer group is asked again every 30 s; "
            f"{PARKED_THEN}.", NextStep.CHECK, DUE_MS + 90_000),
    ),
    "no endpoint": (
        view(), around(8_000, unanswered=[ONCE]), Explanation(
            "Pending: its producer group has no live endpoint, once, at 2026-01-31T12:00:06Z; that does not count as a "
            f"check, and its producer group is asked again every 30 s; {PARKED_THEN}.",
            NextStep.CHECK, DUE_MS + 30_000),
    ),
    "answered since": (
        view(check_times=1, next_due_ms=DUE_MS + 120_000), around(70_000, unanswered=[ROUNDS]), Explanation(
            "Pending: 1 of 15 checks was answered UNKNOWN; its producer group is asked again at "
            f"2026-01-31T12:02:06Z, and {PARKED_THEN}.", NextStep.CHECK, DUE_MS + 120_000),
    ),
    "own limits": (
        view(check_times=2, next_due_ms=DUE_MS + 60_000, max_checks=3, max_life_s=600), around(), Explanation(
            "Pending: 2 of 3 checks were answered UNKNOWN; its producer group is asked again at 2026-01-31T12:01:06Z, "
            "and it is parked at 2026-01-31T12:10:00Z if it is undecided then.", NextStep.CHECK, DUE_MS + 60_000),
    ),
    "resumed": (
        view(check_times=15, base=15, since_ms=BORN_MS + 1_000), around(), Explanation(
            "Pending again: an operator resumed it; its producer group is asked at 2026-01-31T12:00:06Z, and it is "
            "parked at 2026-01-31T13:00:01Z if it is undecided then.", NextStep.CHECK, DUE_MS),
    ),
    "out of checks": (
        view(check_times=15), around(), Explanation(
            "Pending: 15 of 15 checks were answered UNKNOWN, so it is parked at 2026-01-31T12:00:06Z unless it ends "
            "before.", NextStep.PARK, DUE_MS),
    ),
    "out of checks, to be rolled back": (
        view(check_times=15), around(settings=GroupSettings(when_exhausted=WhenExhausted.ROLLBACK)), Explanation(
            "Pending: 15 of 15 checks were answered UNKNOWN, so it is rolled back at 2026-01-31T12:00:06Z unless it "
            "ends before.", NextStep.PARK, DUE_MS),
    ),
    "out of life": (
        view(), around(3_700_000, unanswered=[ROUNDS]), Explanation(
            "Pending: its longest life ended at 2026-01-31T13:00:00Z: its endpoint took no connection "
            "(https://shop/checks), 3 times, from 2026-01-31T12:00:06Z to 2026-01-31T12:01:06Z, so it is parked once "
            "its producer group is asked a last time without a decision.", NextStep.PARK, BORN_MS + 3_600_000),
    ),
    "halted": (
        view(), around(70_000, unanswered=[ROUNDS], halt="the op topic holds no position"), Explanation(
            "Pending: queue 3 halts (the op topic holds no position), so nothing is decided about it, and nobody is "
            "asked, until an operator has acted."),
    ),
    "parked, out of checks": (
        view(state=PARKED, by="timer", reason=MAX_CHECKS), around(), Explanation(
            "Parked: every check it was allowed was answered UNKNOWN; nobody is asked any more, and it ends when its "
            "producer or an operator ends it, or begins anew when an operator resumes it."),
    ),
    "parked, out of life": (
        view(state=PARKED, by="timer", reason=MAX_LIFE), around(), Explanation(
            "Parked: its longest life was over and it was still undecided; nobody is asked any more, and it ends when "
            "its producer or an operator ends it, or begins anew when an operator resumes it."),
    ),
    "parked and halted": (
        view(state=PARKED), around(halt="gone"), Explanation(
            "Parked: queue 3 halts (gone), so nothing is decided about it, and nobody is asked, until an operator has "
            "acted."),
    ),
    "blocked by a topic": (
        blocked("UNKNOWN_TOPIC"), around(), Explanation(
            f"{NOT_YET}a topic, or the partition asked for, does not exist; {RETRIED}", NextStep.RETRY),
    ),
    "blocked by an order": (
        blocked(ORDER), around(), Explanation(
            f"{NOT_YET}an earlier commit with the same ordering key is blocked; it follows that one; {RETRIED}",
            NextStep.RETRY),
    ),
    "blocked by what only Kafka knows": (
        blocked("Local: Unknown partition"), around(), Explanation(
            f"{NOT_YET}Local: Unknown partition; {RETRIED}", NextStep.RETRY),
    ),
    "blocked and halted": (
        blocked(SPLIT), around(halt="gone"), Explanation(
            f"{NOT_YET}queue 3 halts (gone), so nothing is tried until an operator has acted."),
    ),
    "abandoned": (
        ended(COMMITTED, abandoned=True, reason="UNKNOWN_TOPIC"), around(), Explanation(
            "Committed by its producer at 2026-01-31T12:00:02Z and given up by an operator while it was blocked (a "
            "topic, or the partition asked for, does not exist): its messages are never published."),
    ),
    "committed": (
        ended(COMMITTED, by="check", receipts=RECEIPTS), around(), Explanation(
            "Committed by the answer to a check at 2026-01-31T12:00:02Z: its 2 messages are published, and nothing is "
            "left to do."),
    ),
    "rolled back": (
        ended(ROLLED_BACK, by="operator"), around(halt="gone"), Explanation(
            "Rolled back by an operator at 2026-01-31T12:00:02Z: its messages are never published."),
    ),
    "given up while undecided": (
        view(given_up_ms=BORN_MS), around(), Explanation(
            "An operator gave up the log that held it at 2026-01-31T12:00:00Z, when it was PREPARED: no log says how "
            "it ends, and the bridge does nothing about it any more."),
    ),
    "given up after its end": (
        ended(ROLLED_BACK, given_up_ms=BORN_MS), around(), Explanation(
            "Rolled back by its producer at 2026-01-31T12:00:02Z: its messages are never published."),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_case_has_its_own_sentence(name: str) -> None:
    """What an operator reads at night: why, what is next, and when."""
    seen, circumstances, said = CASES[name]
    assert explain(seen, circumstances) == said


@pytest.mark.parametrize("failure", [failure.value for failure in Failure])
def test_each_failure_of_a_round_is_put_into_words(failure: str) -> None:
    """A word that is added to the checker needs one here."""
    said = explain(view(), around(60_000, unanswered=[replace(ROUNDS, failure=failure)]))
    assert f"({failure})" not in said.text


@pytest.mark.parametrize("reason", [SPLIT, UNTRIED, ORDER, BODY_EXPIRED, "LEADERLESS", "NO_ANSWER", "KEY_REQUIRED"])
def test_each_own_reason_of_a_block_is_put_into_words(reason: str) -> None:
    """Constants are for programs."""
    assert reason not in explain(blocked(reason), around()).text


def reach(choices: list[int]) -> Transaction:
    """A transaction after these records and timers, as its queue's owner has it."""
    times = SETTINGS.times
    t = transition.prepare(HalfMessage(ID, "shop", 1, 0), LogPosition(0, BORN_MS), 0, times).transaction
    for number, choice in enumerate(choices, 1):
        place = LogPosition(number, BORN_MS + number * 20_000)
        resolution = (Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN)[choice % 3]
        if choice < 6:
            source = Source.CHECK if choice < 3 else Source.PRODUCER
            obstacle = "UNKNOWN_TOPIC" if choice % 2 else None
            record = EndRecord(ID, resolution, source, 0, check_number=t.check_times + 1)
            t = transition.end(t, record, place, times, obstacle).transaction
        elif choice < 9:
            act = (Act.CHECK, Act.RESUME, Act.ABANDON)[choice - 6]
            t = transition.act(t, ActRecord(ID, act, "me", "because", 0, "a"), place).transaction
        elif choice == 9 and t.state is PREPARED:
            t = transition.park(t, MAX_LIFE, number).transaction
        elif t.blocked:
            t = (transition.block(t, ORDER) if choice % 2 else transition.unblock(t, number)).transaction
    return t


@given(
    st.lists(st.integers(0, 11), max_size=25),
    st.integers(0, 10_000_000),
    st.sampled_from([None, "gone"]),
    st.sampled_from([[], [ROUNDS], [ONCE, ROUNDS]]),
    st.sampled_from([SETTINGS, PULL]),
)
def test_every_reachable_state_is_explained(
    choices: list[int], after_ms: int, halt: str | None, unanswered: list[Unanswered], settings: GroupSettings
) -> None:
    """One sentence; a step is named exactly where the bridge goes on by itself."""
    t = reach(choices)
    seen = view(
        state=t.state, next_due_ms=t.next_due_ms if t.state is PREPARED else None, check_times=t.check_times,
        base=t.base, since_ms=t.since_ms or BORN_MS, blocked=t.blocked, abandoned=t.abandoned, reason=t.reason,
        by=t.by, ended_ms=t.ended_ms,
    )  # fmt: skip
    said = explain(seen, Circumstances(BORN_MS + after_ms, settings, unanswered, halt))
    assert said.text.endswith(".")
    assert ". " not in said.text
    assert "None" not in said.text
    assert "not known" not in said.text
    goes_on = halt is None and (t.state is PREPARED or t.blocked)
    assert (said.next is not NextStep.NOTHING) is goes_on
    assert (said.at_ms is not None) is (goes_on and t.state is PREPARED)
