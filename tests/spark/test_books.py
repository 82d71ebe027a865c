"""Books and the header's guard, on events made by hand."""

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from spark.judge import totals
from spark.judge.judging import find_misplaced
from spark.read.envelope import Event, Evidence, OffsetRange, QueuePlace, ReceiptRow
from spark.read.sources import within
from spark.read.window import Window
from tests.support.envelope_rows import (
    END_MS,
    HALF,
    NOW_MS,
    OP,
    PARKED,
    SCOPE,
    TWO,
    TX,
    commit,
    half,
    op,
    record,
    rollback,
)
from tests.support.run_views import show_views

BEFORE = ReceiptRow("orders", 1, 100)  # of another window
FOREIGN = Event("", Evidence.FOREIGN, "orders", 0, 101, NOW_MS)
WINDOW = Window(
    HALF, OP, PARKED, NOW_MS, {QueuePlace(topic, 0): OffsetRange(0, 200, 200) for topic in (HALF, OP, PARKED, "orders")}
)


@pytest.mark.parametrize(
    ("events", "is_missing"),
    [
        pytest.param([op("COMMITTED"), record(), FOREIGN], False, id="with the header"),
        pytest.param([op("COMMITTED"), FOREIGN], True, id="without the header"),
        pytest.param([op("ROLLED_BACK"), FOREIGN], False, id="nothing published"),
        pytest.param([op("COMMITTED"), record(250), FOREIGN], False, id="not at its place"),
        pytest.param([op("COMMITTED", receipts=[BEFORE]), FOREIGN], False, id="told again"),
        pytest.param([op("COMMITTED")], False, id="all gone"),
    ],
)
def test_topics_without_the_header_are_noticed(spark: SparkSession, events: list[Event], is_missing: bool) -> None:
    """Else every commit there would be called missing. Of a compacted topic others may have replaced all of them,
    and of one that was made anew nothing is left."""
    show_views(spark, events)
    assert totals.is_header_missing(spark, totals.look_at(spark), WINDOW) is is_missing
    place = QueuePlace("orders", 0)
    for members in ({"is_compacted": True}, {"anew_ms": NOW_MS}):
        removed = {**WINDOW.extents, place: replace(WINDOW.extents[place], **members)}
        assert not totals.is_header_missing(spark, totals.look_at(spark), replace(WINDOW, extents=removed))


def test_record_that_was_copied_in_a_loop_is_told(spark: SparkSession) -> None:
    """As two mirrors do that copy each other: thousands of hashes do not fit into a sum, and end no run."""
    most = (1 << 52) - 1
    copies = [record(100 + number)._replace(body=most, place=most) for number in range(2_100)]
    show_views(spark, [half(), commit(), op("COMMITTED"), *copies])
    rows = spark.sql("SELECT records, is_plain FROM transactions").collect()
    assert [tuple(row) for row in rows] == [(2_100, False)]
    (book,) = totals.open_books(spark, WINDOW).count_topics()
    assert (book["committed"], book["visible"], book["is_equal"]) == (1, 2_100, False)
    assert not totals.tally(spark, NOW_MS).compare_fingerprints()["is_equal"]


def test_window_of_many_partitions_is_taken_from_what_was_landed(spark: SparkSession) -> None:
    """Each of a cluster with thousands of topics; no record of before or after."""
    show_views(spark, [half(), commit(off=199), op("COMMITTED"), record(off=200), record(off=9)])
    many = {QueuePlace(f"topic-{number}", 0): OffsetRange(0, 1, 1) for number in range(5_000)}
    window = replace(WINDOW, extents={**many, **WINDOW.extents, QueuePlace("orders", 0): OffsetRange(10, 200, 200)})
    events = spark.table("events")
    taken = within(events, window)
    assert taken.columns == events.columns
    assert sorted((row.topic, row.off) for row in taken.collect()) == [(HALF, 10), (HALF, 199), (OP, 30)]


@pytest.mark.parametrize(
    ("spread", "known_ms", "is_found"),
    [
        pytest.param(7, None, False, id="where its key belongs"),
        pytest.param(6, None, True, id="where it never belonged"),
        pytest.param(5, None, False, id="where it belonged when there were two"),
        pytest.param(5, END_MS, False, id="there were three by then, as few may know"),
        pytest.param(5, END_MS - 120_000, True, id="there were three long before"),
        pytest.param(None, END_MS - 120_000, False, id="of an older release, or without a key"),
    ],
)
def test_key_in_another_partition_is_found(
    spark: SparkSession, spread: int | None, known_ms: int | None, is_found: bool
) -> None:
    """By what was known when it was published; and once found it stands, though what proves it was read before."""
    told = op("COMMITTED", receipts=[ReceiptRow("orders", 1, 100)])
    show_views(spark, [half(), commit(), told, record(part=1, spread=spread)])
    last = None if known_ms is None else Window(HALF, OP, PARKED, known_ms, SCOPE.extents)
    found = find_misplaced(spark, SCOPE, last, [])
    assert [(one.kind, one.transaction_id) for one in found] == [("WRONG_PLACE", TX)] * is_found
    assert find_misplaced(spark, SCOPE, None, found) == found
    earlier = [event._replace(tx=f"{9:028d}", ms=event.ms - 120_000) for event in (half(), commit(), op("COMMITTED"))]
    third = record(5, part=2, spread=2)
    known = [*earlier[:2], earlier[2]._replace(place=third.place), third._replace(tx=f"{9:028d}")]
    show_views(spark, [*known, half(), commit(), told, record(part=1, spread=spread)])
    assert bool(find_misplaced(spark, SCOPE, None, [])) is (spread in {5, 6})


def test_books_count_every_transaction_once(spark: SparkSession) -> None:
    """What no op message speaks of is open; what ended before the window is in no book."""
    others = [event._replace(tx=f"{number:028d}") for number, event in enumerate([half(), half(is_void=True)])]
    ended = [event._replace(tx=f"{9:028d}") for event in (half(off=4), rollback(), op("ROLLED_BACK", off=3))]
    show_views(spark, [half(), commit(), op("COMMITTED"), record(), *others, *ended])
    began = {
        **WINDOW.extents,
        QueuePlace(HALF, 0): OffsetRange(5, 200, 200),
        QueuePlace(OP, 0): OffsetRange(4, 200, 200),
    }
    window = Window(HALF, OP, PARKED, NOW_MS, began)
    (book,) = totals.open_books(spark, window).count_groups().values()
    assert book == {**dict.fromkeys(totals.BOOK_COLUMNS, 0), "prepared": 2, "committed": 1, "open": 1}


def test_final_transaction_is_in_the_books_of_one_window(spark: SparkSession) -> None:
    """Told again in a later one it was neither open before nor prepared now."""
    show_views(spark, [half(), commit(), op("COMMITTED", off=3), record(), op("COMMITTED", off=7)])
    extents = {**WINDOW.extents, QueuePlace(OP, 0): OffsetRange(4, 200, 200)}
    later = replace(WINDOW, extents={**extents, QueuePlace(HALF, 0): OffsetRange(11, 200, 200)})
    booked = totals.open_books(spark, later)
    assert booked.count_groups() == {}
    assert booked.count_topics() == []
    half_was_late = replace(WINDOW, extents=extents)
    for window in (half_was_late, WINDOW):
        assert totals.open_books(spark, window).count_groups()["shop"]["committed"] == 1


def test_topics_are_booked_by_message(spark: SparkSession) -> None:
    """A repeated half message counts once, what is visible of rolled back ones not at all; contents are compared."""
    right = [half(TWO), half(TWO, off=11), commit(), op("COMMITTED"), record(), record(7, 222, "credits")]
    changed = [
        event._replace(tx=f"{8:028d}") for event in (half(), commit(), op("COMMITTED"), record(101, content=999))
    ]
    phantom = [event._replace(tx=f"{9:028d}") for event in (half(), rollback(), op("ROLLED_BACK"), record(102))]
    show_views(spark, [*right, *changed, *phantom])
    told = {row.pop("topic"): row for row in totals.open_books(spark, WINDOW).count_topics()}
    none = {"group": "shop", **dict.fromkeys(totals.BOOK_COLUMNS, 0)}
    assert told == {
        "credits": {**none, "prepared": 1, "committed": 1, "visible": 1, "is_equal": True},
        "orders": {**none, "prepared": 3, "committed": 2, "rolled_back": 1, "visible": 2, "is_equal": False},
    }


def test_log_that_was_given_up_is_known_by_the_positions_of_its_queue(spark: SparkSession) -> None:
    """What lies before belongs to a log that is gone: nobody can find the other half of it."""
    positions = [Event("", Evidence.POSITION, OP, 0, 10 * number, NOW_MS, cause=5) for number in range(9)]
    show_views(spark, [half(), commit(), op("COMMITTED", parked=99), record(), *positions])
    assert totals.look_at(spark).starts() == {}
    given_up = [event._replace(half=11, parked=0 if event.off < 60 else 41) for event in positions[4:]]
    show_views(spark, [half(), commit(), op("COMMITTED", parked=99), record(), *positions[:4], *given_up])
    window = WINDOW.with_starts(totals.look_at(spark).starts())
    assert {place.topic: extent.given_up for place, extent in window.extents.items()} == {
        HALF: 11, OP: 41, PARKED: 0, "orders": 0,
    }  # fmt: skip
    assert replace(window, extents=WINDOW.extents) == WINDOW


def test_partitions_that_were_not_read_as_they_should_are_named(spark: SparkSession) -> None:
    """An event twice, or one outside the window, and nothing can be said."""
    show_views(spark, [half(), record(), record(), op("COMMITTED", off=300)])
    partitions = {row["topic"]: row for row in totals.look_at(spark).count_partitions(WINDOW)}
    assert {topic: row["is_right"] for topic, row in partitions.items()} == {
        HALF: True, PARKED: True, OP: False, "orders": False,
    }  # fmt: skip
    assert (partitions[HALF]["rows"], partitions[HALF]["holes"]) == (1, 199)


def test_ages_are_counted_from_kafkas_time_where_the_clock_is_behind_it(spark: SparkSession) -> None:
    """Else nothing is late for as long as this machine's clock is slow. The last record of a queue tells, not its
    newest: a broker's clock may have been ahead once. Timestamps that producers make tell nothing."""
    show_views(spark, [half(ms=NOW_MS + 9_000), commit(ms=NOW_MS), op("COMMITTED", ms=NOW_MS + 5_000)])
    times = totals.look_at(spark).times()
    slow, fast = replace(WINDOW, taken_ms=NOW_MS - 86_400_000), replace(WINDOW, taken_ms=NOW_MS + 86_400_000)
    assert slow.with_times(times).taken_ms == slow.taken_ms
    place = QueuePlace(HALF, 0)
    appended = {**WINDOW.extents, place: replace(WINDOW.extents[place], has_append_time=True)}
    told = [replace(window, extents=appended).with_times(times) for window in (slow, fast)]
    assert [window.taken_ms for window in told] == [NOW_MS, fast.taken_ms]
    assert told[0].extents[place].first_ms == NOW_MS
