"""The verdict rules: every kind, and beside each what looks like it and is right."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from spark.judge.rules import FindingKind, judge
from spark.read.envelope import APPEND_TIME, EndSource, Event, Evidence, PreparedMessage, ReceiptRow, Tolerances
from tests.support.envelope_rows import (
    END_MS,
    HALF,
    HALF_MS,
    HOUR_MS,
    NOW_MS,
    OP,
    PARKED,
    SCOPE,
    TX,
    check,
    commit,
    end,
    half,
    kinds,
    op,
    record,
    rollback,
    with_extent,
)
from tests.support.verdict_cases import ABANDONED, COMMITTED, GIVE_UP, RIGHT, WRONG

UNSURE = op("COMMITTED", receipts=[ReceiptRow("orders", 0, None)])


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_no_finding(name: str) -> None:
    """A false alarm costs more trust than a missed one."""
    assert kinds(RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_by_its_kind(name: str) -> None:
    """And under no other kind."""
    events, expected = WRONG[name]
    assert kinds(events) == expected.split()


def test_every_kind_of_one_transaction_is_tried() -> None:
    """Others need more than one transaction's events, or none; unprovable ones have tests of their own."""
    elsewhere = {FindingKind.TABLE_MISMATCH, FindingKind.UNREADABLE, FindingKind.UNPROVABLE}
    assert {kind for _, expected in WRONG.values() for kind in expected.split()} == set(FindingKind) - elsewhere


@pytest.mark.parametrize(
    ("events", "topic", "members"),
    [
        pytest.param([half(), commit(), COMMITTED], "orders", {"start": 101}, id="record beyond retention"),
        pytest.param([half(), commit(), COMMITTED], "orders", {"is_compacted": True}, id="record compacted away"),
        pytest.param([half(), commit(), UNSURE], "orders", {"start": 101}, id="beyond retention, no offset known"),
        pytest.param([half(), commit(), COMMITTED], "orders", {"anew_ms": NOW_MS}, id="topic made anew"),
        pytest.param([half(), commit(), UNSURE], "orders", {"anew_ms": NOW_MS}, id="topic made anew, no offset known"),
        pytest.param([half(), op("PARKED", cause=25, parked=5)], PARKED, {"anew_ms": NOW_MS}, id="parked topic anew"),
        pytest.param([half(), commit(), UNSURE], "orders", {"is_compacted": True}, id="compacted, no offset known"),
        pytest.param(
            [half(), record(), op("COMMITTED", half=4, cause=5)],
            HALF,
            {"start": 6, "is_whole": False},
            id="half message repeated, the first beyond retention",
        ),
        pytest.param(
            [half(), op("PARKED", cause=25, parked=5)], PARKED, {"start": 6}, id="parked copy beyond retention"
        ),
        pytest.param(
            [op("ROLLED_BACK")], HALF, {"start": 11, "is_whole": False, "first_ms": HALF_MS}, id="half message"
        ),
        pytest.param(
            [half(), commit(), record()], OP, {"start": 31, "is_whole": False, "first_ms": END_MS}, id="op message"
        ),
    ],
)
def test_removed_proof_is_said_to_be_removed(events: list[Event], topic: str, members: dict[str, int]) -> None:
    """Neither right nor wrong: UNPROVABLE. With the whole log the same is a finding."""
    assert kinds(events, with_extent(SCOPE, topic, **members)) == ["UNPROVABLE"]
    assert kinds(events) not in ([], ["UNPROVABLE"])


_KEYED = make_transaction_id(0, 12345)  # as most digests no id with a time
_BEFORE = 5 * HOUR_MS
_REPEAT = half(off=25, ms=END_MS)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([commit(), record(), _REPEAT], id="its end is left"),
        pytest.param([commit(ms=END_MS + _BEFORE), record(), _REPEAT], id="its end is left, and young enough"),
        pytest.param([record(), _REPEAT], id="nothing but the record is left"),
        pytest.param([record(), _REPEAT, commit(26, ms=END_MS + _BEFORE)], id="ended once more"),
        pytest.param([_REPEAT, commit(26, ms=END_MS + _BEFORE)], id="ended once more, with the record"),
        pytest.param([record(), _REPEAT, rollback(26)], id="its rollback came too late"),
    ],
)
def test_repeat_of_what_was_removed_says_nothing(events: list[Event]) -> None:
    """Half message and op message of a keyed prepare are gone, its repeat is not: it may have been published."""
    removed = with_extent(with_extent(SCOPE, HALF, start=11, is_whole=False, first_ms=END_MS), OP, start=31,
                          is_whole=False, first_ms=END_MS + 4 * HOUR_MS)  # fmt: skip
    named = [event._replace(tx=_KEYED) for event in events]
    late = replace(removed, now_ms=NOW_MS + 200 * HOUR_MS)
    for scope in (removed, late):
        assert kinds(named, scope, _KEYED) == ["UNPROVABLE"]
    assert kinds([_REPEAT._replace(tx=_KEYED)], late, _KEYED) == []
    assert kinds(named, replace(SCOPE, now_ms=late.now_ms), _KEYED) not in ([], ["UNPROVABLE"])


def test_what_repeats_nothing_that_was_removed_is_judged() -> None:
    """The op topic goes back to it, or says that it began with this half message."""
    removed = with_extent(SCOPE, HALF, start=11, is_whole=False, first_ms=END_MS)
    events = [event._replace(tx=_KEYED) for event in (record(), _REPEAT)]
    assert kinds(events, removed, _KEYED) == ["PHANTOM"]
    told = [commit(), *events, op("PREPARED", half=25, cause=20)]
    assert kinds([event._replace(tx=_KEYED) for event in told], removed, _KEYED) == ["PHANTOM"]


DAY_MS = 24 * HOUR_MS


def _again(after_ms: int, *, ended: Event, told: Event | None, shown: bool = True) -> list[Event]:
    """The same once more, with half message, end, op message and record `after_ms` later, at other offsets."""
    seconds = [half(off=210, ms=HALF_MS + after_ms), ended._replace(off=220, ms=END_MS + after_ms)]
    if told is not None:
        cause, half_off, receipts = 220, 210, (ReceiptRow("orders", 0, 300),) if told.receipts else ()
        seconds.append(told._replace(off=230, ms=END_MS + after_ms, cause=cause, half=half_off, receipts=receipts))
    return [*seconds, *([record(300, ms=END_MS + after_ms)] if shown else [])]


FIRST = [half(), commit(), COMMITTED, record()]
SECOND = _again(7 * DAY_MS, ended=commit(), told=COMMITTED)
REFUSED = _again(7 * DAY_MS, ended=rollback(), told=op("ROLLED_BACK"), shown=False)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([*FIRST, *SECOND], "", id="published, and once more"),
        pytest.param([*FIRST[:2], record(), *SECOND], "", id="compaction has removed the first op message"),
        pytest.param([*FIRST, *REFUSED], "", id="published, then rolled back"),
        pytest.param([*FIRST, *SECOND[:1], op("PREPARED", 230, 215, half=210)], "STALE", id="and never decided"),
        pytest.param([half(), rollback(), op("ROLLED_BACK"), *SECOND], "", id="rolled back, then published"),
        pytest.param([half(), rollback(), *SECOND], "", id="rolled back, op message removed, then published"),
        pytest.param([half(), rollback(), record(), *SECOND], "PHANTOM", id="rolled back and visible, then published"),
        pytest.param([*FIRST, record(101), *SECOND], "DUPLICATE", id="published twice, and once more"),
        pytest.param([*FIRST[:2], record(), record(101), *SECOND], "DUPLICATE", id="the same, op message removed"),
        pytest.param([*FIRST, *SECOND[:3]], "MISSING", id="published, and once more in vain"),
        pytest.param([*FIRST[:3], *SECOND], "MISSING", id="published in vain, then once more"),
        pytest.param([*FIRST[:2], *SECOND], "UNPROVABLE", id="in vain, op message removed"),
        pytest.param([*FIRST[:2], record(content=9), *SECOND], "CORRUPT", id="altered, op message removed"),
        pytest.param(
            [*FIRST, *_again(6 * DAY_MS, ended=commit(), told=COMMITTED)],
            "DUPLICATE CONTRADICTION",
            id="before the bridge may forget",
        ),
    ],
)
def test_key_that_was_used_again_is_another_transaction(events: list[Event], expected: str) -> None:
    """After seven days the bridge has forgotten it: what has the same id is judged for itself."""
    scope = replace(SCOPE, now_ms=NOW_MS + 30 * DAY_MS)
    named = [event._replace(tx=_KEYED) for event in events]
    assert kinds(named, scope, _KEYED) == expected.split()


def test_record_of_a_key_whose_earlier_use_was_removed_is_not_provable() -> None:
    """Of the first transaction of this id only what was published is left."""
    removed = with_extent(replace(SCOPE, now_ms=NOW_MS + 30 * DAY_MS), HALF, start=31, is_whole=False, first_ms=NOW_MS)
    named = [event._replace(tx=_KEYED) for event in (record(), *SECOND)]
    assert kinds(named, removed, _KEYED) == ["UNPROVABLE"]
    assert kinds(named, replace(removed, extents=SCOPE.extents), _KEYED) == ["DUPLICATE"]


def test_what_lay_in_a_log_that_was_given_up_is_not_provable() -> None:
    """Nobody can settle it any more, or find its half message: an operator knows, and everything else is judged."""
    op_lost = with_extent(with_extent(SCOPE, HALF, given_up=11), OP, given_up=25)
    late = replace(op_lost, now_ms=NOW_MS + 200 * HOUR_MS)
    for events in ([half(), commit(), record()], [half()], [half(), rollback()]):
        assert kinds(events, late) == ["UNPROVABLE"]
        behind = [event._replace(off=event.off + 1) if event.leg == Evidence.HALF else event for event in events]
        assert kinds(behind, late) not in ([], ["UNPROVABLE"])
    assert kinds([half(), commit(), COMMITTED, record()], late) == []
    assert kinds([half(), rollback(), op("ROLLED_BACK"), record()], late) == ["PHANTOM"]
    journal_lost = with_extent(with_extent(SCOPE, HALF, first_ms=END_MS), OP, given_up=31)
    for events in ([op("COMMITTED"), record()], [op("ROLLED_BACK", cause=2_001, half=2_000)], [record()], [commit()]):
        assert kinds(events, journal_lost) == ["UNPROVABLE"]
        assert kinds([event._replace(off=event.off + 1) for event in events], SCOPE) == ["ORPHAN"]
    assert kinds([op("ROLLED_BACK", off=31)], journal_lost) == ["ORPHAN"]


def test_resolution_younger_than_the_op_topic_must_have_its_op_message() -> None:
    """The topic's beginning is gone, but what followed this one would be left; as would something, each day."""
    for first_ms in (0, END_MS - 5_000):
        scope = with_extent(SCOPE, OP, start=31, is_whole=False, first_ms=first_ms)
        assert kinds([half(), commit(), record()], scope) == ["UNSETTLED"]


def test_id_with_a_later_time_must_have_its_half_message() -> None:
    """The journal's beginning is gone, but this transaction is younger than what is left, if anything is."""
    scope = with_extent(replace(SCOPE, now_ms=NOW_MS + 2 * HOUR_MS), HALF, start=11, is_whole=False, first_ms=HALF_MS)
    young = make_transaction_id(0, make_uuid7_bits(HALF_MS + HOUR_MS + 1, 1))
    doubtful = make_transaction_id(0, make_uuid7_bits(HALF_MS + HOUR_MS - 1, 1))  # of an api whose clock is ahead
    unknown = make_transaction_id(0, 12345)
    for tx, kind in ((young, "ORPHAN"), *((tx, "UNPROVABLE") for tx in (TX, doubtful, unknown))):
        assert kinds([record()._replace(tx=tx)], scope, tx) == [kind]
    assert kinds([record()._replace(tx=young)], with_extent(scope, HALF, first_ms=0), young) == ["UNPROVABLE"]


def test_id_of_a_queue_that_is_not_there_was_never_prepared() -> None:
    """Nobody but a forger numbers queues so, if the journal's others are there from their beginning."""
    nowhere = make_transaction_id(7, make_uuid7_bits(HALF_MS, 1))
    assert kinds([record()._replace(tx=nowhere)], SCOPE, nowhere) == ["ORPHAN"]
    removed = with_extent(SCOPE, HALF, start=11, is_whole=False, first_ms=HALF_MS)
    assert kinds([record()._replace(tx=nowhere)], removed, nowhere) == ["UNPROVABLE"]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([half(), commit(ms=NOW_MS), op("COMMITTED", ms=NOW_MS)], id="record not readable yet"),
        pytest.param(
            [half(), commit(ms=NOW_MS), op("COMMITTED", ms=NOW_MS, receipts=UNSURE.receipts)],
            id="record not readable yet, no offset known",
        ),
        pytest.param(
            [half(), commit(ms=NOW_MS), op("COMMITTED", ms=NOW_MS, receipts=[ReceiptRow("orders", 9, 0)])],
            id="published to a partition that was added meanwhile",
        ),
        pytest.param([half(), record(off=995)], id="committed behind the journal's end"),
        pytest.param(
            [half(), op("COMMITTED", cause=1_000, receipts=[ReceiptRow("orders", 0, 995)], ms=NOW_MS), record(off=995)],
            id="settled behind the journal's end",
        ),
        pytest.param([record(off=995)], id="prepared behind the journal's end"),
        pytest.param([op("COMMITTED", cause=1_001, half=1_000, ms=NOW_MS)], id="both behind the journal's end"),
        pytest.param([half(), op("PARKED", cause=25, parked=1_000, ms=NOW_MS)], id="parked copy not readable yet"),
    ],
)
def test_what_happens_while_ends_are_noted_is_no_finding(events: list[Event]) -> None:
    """A run during live traffic is as right as one at rest. Real topics were seen to 990 before the journal's end."""
    live = with_extent(with_extent(SCOPE, "orders", seen=990, end=100), PARKED, seen=990)
    assert kinds(events, live) == []


def test_nothing_is_published_after_a_rollback_or_an_abandonment() -> None:
    """So what is visible of it is a finding at once: no later run would be told of it again."""
    live = with_extent(SCOPE, "orders", seen=990, end=100)
    assert kinds([half(), rollback(), op("ROLLED_BACK"), record(off=995)], live) == ["PHANTOM"]
    assert kinds([half(), commit(), op("BLOCKED"), GIVE_UP, ABANDONED, record(off=995)], live) == ["PHANTOM"]
    told_first = op("ABANDONED", cause=1_000, ms=NOW_MS)  # of its end and its act the journal shows nothing yet
    assert kinds([half(), told_first, record(off=995)], live) == ["PHANTOM"]
    assert kinds([half(), commit(), op("BLOCKED"), record(off=995)], live) == []
    assert kinds([half(), record(off=995)], live) == []


def test_unreadable_record_becomes_a_finding_with_time() -> None:
    """A Kafka transaction that hangs keeps committed messages from their readers."""
    beyond = with_extent(SCOPE, "orders", end=100)
    assert kinds(RIGHT["committed"][:3], beyond) == ["MISSING"]


def test_topic_with_append_time_may_change_the_timestamp() -> None:
    """Its own clock overrules what was asked for."""
    events = [half([PreparedMessage("orders", None, 111, 77)]), commit(), COMMITTED, record()]
    assert kinds(events, with_extent(SCOPE, "orders", has_append_time=True)) == []
    assert kinds([*events[:-1], record(code=APPEND_TIME)]) == []


def test_what_waits_for_checks_that_are_paused_is_not_stale() -> None:
    """An operator has paused them: nobody is asked, and nothing is parked for its age."""
    late = replace(SCOPE, now_ms=NOW_MS + 30 * HOUR_MS)
    paused = replace(late, groups={"shop": replace(SCOPE.groups["shop"], is_paused=True)})
    assert kinds([half()], late) == ["STALE"]
    assert kinds([half()], paused) == []
    assert kinds([half(), commit()], paused) == ["UNSETTLED"]


def test_unknown_group_is_judged_by_the_bounds() -> None:
    """Its settings may be anything that is allowed: nobody is accused by a default."""
    early = [half(grp="new"), check(1, 15, HALF_MS + 1_500), op("PREPARED", cause=15, grp="new")]
    assert kinds(early, replace(SCOPE, graces=Tolerances(slack_ms=0))) == []
    assert kinds([half(), early[1], op("PREPARED", cause=15)], replace(SCOPE, graces=Tolerances(slack_ms=0))) == [
        "BAD_CHECK"
    ]


def test_answer_of_a_check_that_was_late_by_itself_is_right() -> None:
    """It was asked before the end and answered long after: nobody asked after the end."""
    slow = check(1, 25, END_MS + 70_000, latency_ms=69_500)
    assert kinds([half(), commit(), COMMITTED, record(), slow]) == []


def test_answer_to_a_check_that_was_fetched_may_come_long_after_the_end() -> None:
    """Nobody knows when it was handed out: its lease may be an hour. Before it was due nobody may have had it."""
    fetched = check(1, 25, END_MS + 70_000, latency_ms=None)
    assert kinds([half(), commit(), COMMITTED, record(), fetched]) == []
    early = check(1, 15, HALF_MS + 500, latency_ms=None)
    strict = replace(SCOPE, graces=Tolerances(slack_ms=0))
    assert kinds([half(), early, commit(), COMMITTED, record()], strict) == ["BAD_CHECK"]


def test_finding_names_its_evidence() -> None:
    """Offsets that an operator can look at."""
    (found,) = judge(TX, [half(), commit(), COMMITTED, record(), record(900)], SCOPE)
    assert [(leg.topic, leg.part, leg.off) for leg in found.legs] == [("orders", 0, 100), ("orders", 0, 900)]
    assert found.detail == "1 more than prepared"


@pytest.mark.parametrize("content", [111, 999])
def test_copy_in_a_topic_that_was_not_asked_for_is_told_as_such(content: int) -> None:
    """Streams, mirrors and connectors pass headers on: who is woken by it must see that its own topic is right."""
    (found,) = judge(TX, [half(), commit(), COMMITTED, record(), record(7, content, "enriched")], SCOPE)
    assert found.detail.endswith(", in enriched, which it does not name: a copy by somebody else?")
    (own,) = judge(TX, [half(), commit(), COMMITTED, record(), record(900, content)], SCOPE)
    assert own.kind is found.kind
    assert "copy" not in own.detail


def test_message_behind_what_consumers_can_read_is_told_as_such() -> None:
    """An open Kafka transaction of another producer holds it up: it is not to be sent once more."""
    (found,) = judge(TX, [half(), commit(), COMMITTED], with_extent(SCOPE, "orders", end=100, seen=100))
    assert found.kind is FindingKind.MISSING
    assert found.detail.endswith("orders-0@100 (consumers can read to 100 only)")
    (gone,) = judge(TX, [half(), commit(), COMMITTED], SCOPE)
    assert gone.detail.endswith("orders-0@100")


@given(data=st.data(), name=st.sampled_from([*RIGHT, *WRONG]))
def test_verdict_depends_on_the_events_alone(data: st.DataObject, name: str) -> None:
    """Not on their order, nor on an event that was landed twice: runs are repeated, windows overlap."""
    events = RIGHT.get(name) or WRONG[name][0]
    again = data.draw(st.permutations(events)) + data.draw(st.lists(st.sampled_from(events)))
    assert judge(TX, again, SCOPE) == judge(TX, events, SCOPE)


@given(st.sampled_from([EndSource.PRODUCER, EndSource.OPERATOR]), st.lists(st.sampled_from("CRU"), max_size=4))
def test_later_ends_change_nothing(source: EndSource, later: list[str]) -> None:
    """The first recorded resolution wins for ever."""
    made = {"C": 8, "R": 12, "U": 0}
    ends = [end(made[letter], 50 + i, src=source) for i, letter in enumerate(later)]
    for name in ("committed", "rolled back"):
        assert kinds([*RIGHT[name], *ends]) == []
