"""Producers' rows against transactions: what is proved to be wrong, and what only looks like it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from spark.judge.history import replay
from spark.judge.row_rules import Row, fate_of, judge_row, judge_rowless
from spark.read.envelope import COMMIT, EndSource, Event, GroupTimes, OffsetRange, OpState, Scope
from spark.read.table_list import JdbcLink, Table
from tests.support.envelope_rows import (
    END_MS,
    HALF,
    HALF_MS,
    HOUR_MS,
    NOW_MS,
    SCOPE,
    TX,
    check,
    commit,
    copy,
    end,
    half,
    op,
    record,
    rollback,
    with_extent,
)

DAY_MS = 24 * HOUR_MS
RECORDS = Table("shop", "records", JdbcLink.RECORD, "transaction_id", at_ms="at_ms", groups=("shop",))
ORDERS = Table("shop", "orders", JdbcLink.ID, "tx", shown="id")
INVOICES = Table("shop", "invoices", JdbcLink.KEY, "number", topic="orders", at_ms="made")
WRITTEN = Row(TX, None, "written", END_MS)
BARRED = Row(TX, None, "barred", END_MS)
KEYED = Row(None, "42", None, END_MS)
BEGUN = with_extent(SCOPE, HALF, first_ms=HALF_MS - 1_000)
COMMITTED = [half(), commit(), op("COMMITTED"), record()]
ROLLED_BACK = [half(), rollback(), op("ROLLED_BACK")]
PARKED = [half(), op("PARKED", cause=25, parked=5), copy()]


def found(
    table: Table, row: Row, *transactions: Sequence[Event], scope: Scope = BEGUN, is_read_first: bool = True
) -> str:
    """What is told of the row, "" for nothing."""
    stories = [replay(events[0].tx, events) for events in transactions]
    one = judge_row(table, row, stories, scope, is_read_first=is_read_first)
    return "" if one is None else one.detail


@pytest.mark.parametrize(
    ("table", "row", "events"),
    [
        pytest.param(RECORDS, WRITTEN, COMMITTED, id="committed"),
        pytest.param(RECORDS, WRITTEN, [half(), commit(), op("BLOCKED")], id="blocked"),
        pytest.param(RECORDS, WRITTEN, [half(), commit(ms=NOW_MS)], id="decided, not settled"),
        pytest.param(RECORDS, WRITTEN, [half()], id="its producer died, a check will tell"),
        pytest.param(RECORDS, WRITTEN, [half(), op("PREPARED", 28, 15)], id="put back"),
        pytest.param(RECORDS, WRITTEN, [half(), op("PARKED", parked=5, ms=NOW_MS)], id="parked a moment ago"),
        pytest.param(RECORDS, WRITTEN, [half(), commit(), rollback(21), op("COMMITTED"), record()], id="first won"),
        pytest.param(RECORDS, BARRED, ROLLED_BACK, id="barred and rolled back"),
        pytest.param(RECORDS, BARRED, [half()], id="barred, the answer was lost"),
        pytest.param(RECORDS, BARRED, PARKED, id="barred, then parked"),
        pytest.param(INVOICES, KEYED, COMMITTED, id="key of a committed message"),
        pytest.param(ORDERS, Row(TX, "7"), [op("COMMITTED"), record()], id="its half message is gone"),
    ],
)
def test_row_that_agrees_is_no_finding(table: Table, row: Row, events: list[Event]) -> None:
    """Whatever the transaction may still become."""
    assert found(table, row, events) == ""


@pytest.mark.parametrize(
    ("table", "row", "events", "detail"),
    [
        (RECORDS, WRITTEN, ROLLED_BACK, "row in shop.records, but ROLLED_BACK by producer"),
        (ORDERS, Row(TX, "7"), ROLLED_BACK, "row 7 in shop.orders, but ROLLED_BACK by producer"),
        (
            RECORDS,
            WRITTEN,
            [half(), check(1, 15, HALF_MS + 7_000, 12), op("ROLLED_BACK", cause=15)],
            "row in shop.records, but ROLLED_BACK by check",
        ),
        (RECORDS, WRITTEN, PARKED, "row in shop.records, but PARKED"),
        (RECORDS, BARRED, COMMITTED, "barred in shop.records, but COMMITTED by producer"),
        (
            RECORDS,
            BARRED,
            [half(), end(COMMIT, src=EndSource.OPERATOR), op("COMMITTED"), record()],
            "barred in shop.records, but COMMITTED by operator",
        ),
        (INVOICES, KEYED, ROLLED_BACK, "row 42 in shop.invoices, but ROLLED_BACK by producer"),
    ],
)
def test_row_that_contradicts_is_told(table: Table, row: Row, events: list[Event], detail: str) -> None:
    """With who decided, and the records that prove it."""
    assert found(table, row, events) == detail
    one = judge_row(table, row, [replay(TX, events)], BEGUN)
    assert one is not None
    assert {leg.leg for leg in one.legs} >= {event.leg for event in events[:1]}


def test_row_of_an_unknown_transaction_is_told_where_it_would_be_known() -> None:
    """Its half message was stored before it: it is in the journal, or was never there."""
    assert found(RECORDS, WRITTEN) == "row in shop.records, but its transaction is unknown"
    assert found(INVOICES, KEYED) == "row 42 in shop.invoices, but no message of its key in orders"
    removed = with_extent(BEGUN, HALF, is_whole=False, start=5)
    for scope, reason in (
        (removed, "retention, or a day before it"),
        (with_extent(BEGUN, HALF, first_ms=HALF_MS + HOUR_MS), "of a bridge that was there before this one"),
        (SCOPE, "nothing was read of the journal"),
    ):
        assert found(RECORDS, WRITTEN, scope=scope) == "", reason
        assert found(INVOICES, KEYED, scope=scope) == "", reason
    long_before = with_extent(removed, HALF, first_ms=HALF_MS - DAY_MS - HOUR_MS)
    assert found(RECORDS, WRITTEN, scope=long_before) != ""
    assert found(INVOICES, KEYED, scope=long_before) == "", "a key has no id: its half message may be a life older"


def test_row_that_was_read_after_the_window_must_be_old() -> None:
    """Its half message may have come after the journal's end, whatever any clock says."""
    scope = replace(BEGUN, now_ms=HALF_MS + HOUR_MS)
    assert found(RECORDS, WRITTEN, scope=scope) != ""
    assert found(RECORDS, WRITTEN, scope=scope, is_read_first=False) == ""
    assert found(RECORDS, WRITTEN, scope=replace(scope, now_ms=HALF_MS + HOUR_MS + 1), is_read_first=False) != ""
    digest = Row("0" * 28, None, "written", END_MS)
    assert found(RECORDS, digest) != ""
    assert found(RECORDS, digest, is_read_first=False) == ""


def test_key_waits_for_its_relay() -> None:
    """An outbox row is committed before anybody hands it to the bridge."""
    assert found(INVOICES, KEYED, scope=replace(BEGUN, now_ms=END_MS + 60_000)) == ""
    assert found(INVOICES, KEYED, scope=replace(BEGUN, now_ms=END_MS + 60_001)) != ""
    assert found(INVOICES, KEYED._replace(at_ms=None)) == ""


def test_key_is_right_if_any_of_its_transactions_is() -> None:
    """An order is created, then changed: the second may be rolled back, or wait."""
    other = make_transaction_id(0, make_uuid7_bits(HALF_MS, 2))
    again = [event._replace(tx=other) for event in COMMITTED]
    assert found(INVOICES, KEYED, ROLLED_BACK, again) == ""
    assert found(INVOICES, KEYED, ROLLED_BACK, [half()._replace(tx=other)]) == ""


@pytest.mark.parametrize(
    ("table", "events", "detail"),
    [
        (RECORDS, COMMITTED, "no row in shop.records, but COMMITTED by producer"),
        (RECORDS, [half(), commit(), op("BLOCKED")], "no row in shop.records, but COMMITTED by producer"),
        (RECORDS, ROLLED_BACK, ""),
        (RECORDS, [half()], ""),
        (RECORDS, PARKED, ""),
        (RECORDS, [half(code=COMMIT), op("COMMITTED", cause=10), record()], ""),
        (INVOICES, [half(code=COMMIT), op("COMMITTED", cause=10), record()], "no row in shop.invoices, but COMMITTED"),
    ],
)
def test_committed_transaction_needs_its_row(table: Table, events: list[Event], detail: str) -> None:
    """What was published at once has no transaction record, but a relay's messages have a row with their key."""
    one = judge_rowless([table], replay(TX, events))
    assert ("" if one is None else one.detail) == detail


_EVENTS = st.lists(
    st.sampled_from([half(), commit(), rollback(21), op("COMMITTED"), op("ROLLED_BACK"), op("BLOCKED"), record(),
                     copy(), op("PARKED", cause=15, parked=5), op("PREPARED", 28, 15), commit(15, grp="thief")]),
    unique=True,
)  # fmt: skip


@given(_EVENTS, st.sampled_from([WRITTEN, BARRED]), st.booleans())
def test_one_row_and_no_row_are_never_both_wrong(events: list[Event], row: Row, is_read_first: bool) -> None:
    """A transaction with a fate is right with a row, or without one, or waits; it is never wrong either way."""
    story = replay(TX, events)
    fate = fate_of(story)
    one = judge_row(RECORDS, row, [story], BEGUN, is_read_first=is_read_first)
    none = judge_rowless([RECORDS], story)
    assert fate is None or row is BARRED or one is None or none is None
    assert (none is not None) <= (fate is OpState.COMMITTED)
    if fate is OpState.PREPARED:
        assert one is None


@given(st.integers(-2 * DAY_MS, 2 * DAY_MS), st.booleans(), st.booleans())
def test_no_clock_makes_a_young_row_a_finding(skew_ms: int, is_whole: bool, is_read_first: bool) -> None:
    """An id by a service whose clock is wrong, of a row read after the window: told only if it is surely old."""
    tx = make_transaction_id(0, make_uuid7_bits(NOW_MS + skew_ms, 1))
    scope = with_extent(BEGUN, HALF, is_whole=is_whole, first_ms=HALF_MS - 10 * DAY_MS)
    told = found(RECORDS, Row(tx, None, "written", NOW_MS), scope=scope, is_read_first=is_read_first)
    assert told == "" or is_read_first or skew_ms < -HOUR_MS


def test_groups_of_the_scope_bound_a_life() -> None:
    """A keyed row is judged a day after the longest life of the groups that are known."""
    journal = {place: OffsetRange(5, 1_000, 1_000, first_ms=END_MS - DAY_MS - 2 * HOUR_MS, is_whole=False)
               if place.topic == HALF else extent for place, extent in SCOPE.extents.items()}  # fmt: skip
    short = replace(SCOPE, extents=journal, groups={"shop": GroupTimes(6_000, 15, HOUR_MS)})
    assert found(INVOICES, KEYED, scope=short) != ""
    assert found(INVOICES, KEYED, scope=replace(short, groups={})) == ""
