"""Which window's books a transaction is in, on DuckDB: what one leaves not final is what the next one begins with."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark.judge.fold import fold_sql
from spark.judge.totals import booked_sql
from spark.read.envelope import EVENT_TYPES, Event, OffsetRange, OpState, QueuePlace
from spark.read.events import _ahead_sql
from spark.read.window import Window
from tests.support.envelope_rows import HALF, NOW_MS, OP, PARKED, TX, commit, half, op, record

duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")

_TYPES = {"STRING": "VARCHAR", "INT": "INTEGER", "BIGINT": "BIGINT", "BOOLEAN": "BOOLEAN"}
_FLAT = {name: _TYPES[kind] for name, kind in EVENT_TYPES.items() if kind in _TYPES}
_NOT_FINAL = {"blocked", "parked", "open"}
_START = [half(), commit(), record()]


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    """With a table `events`, and `transactions`, its fold."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"CREATE TABLE events ({', '.join(f'{name} {kind}' for name, kind in _FLAT.items())})")
        connection.execute("CREATE MACRO try_sum(number) AS SUM(number)")  # which has more bits here
        connection.execute(f"CREATE VIEW transactions AS {fold_sql(0)}")
        yield connection


def make_window(start: int) -> Window:
    """From offset `start` of journal and op topic on."""
    places = [QueuePlace(topic, part) for topic in (HALF, OP) for part in (0, 1)]
    return Window(HALF, OP, PARKED, NOW_MS, dict.fromkeys(places, OffsetRange(start, 1_000, 1_000)))


def book(database: Any, events: Sequence[Event], window: Window) -> list[tuple[str, bool]]:
    """State, and whether it was open before, of what is in the window's books."""
    database.execute("DELETE FROM events")
    rows = [[getattr(event, name) for name in _FLAT] for event in events]
    database.executemany(f"INSERT INTO events VALUES ({', '.join('?' * len(_FLAT))})", rows)
    found: list[tuple[str, bool]] = database.execute(f"SELECT state, was_open FROM ({booked_sql(window)})").fetchall()
    return found


_OPS = st.builds(
    op, st.sampled_from([state.name for state in OpState]), st.integers(30, 70), part=st.sampled_from([0, 0, 0, 1])
)


@settings(max_examples=200)
@given(st.lists(_OPS, max_size=4, unique_by=lambda event: event.off), st.integers(30, 71))
@example([op("COMMITTED", off=30), op("PREPARED", off=31)], 40)
@example([op("COMMITTED", off=60, part=1)], 61)
def test_next_window_begins_with_what_one_leaves_not_final(database: Any, ops: list[Event], cut: int) -> None:
    """Whatever is told afterwards of a transaction that is final, and whatever lies in another queue than its own."""
    seen = [*_START, *(event for event in ops if event.off < cut)]
    left = [state for state, _ in book(database, seen, make_window(0)) if state in _NOT_FINAL]
    begun = [was_open for _, was_open in book(database, [*_START, *ops], make_window(cut)) if was_open]
    assert len(begun) == len(left)


def test_half_message_read_after_its_op_message_is_booked_with_it(database: Any) -> None:
    """It was in no book before."""
    window = make_window(0)
    later = replace(window, extents={**window.extents, QueuePlace(OP, 0): OffsetRange(40, 1_000, 1_000)})
    assert book(database, [*_START, op("COMMITTED"), op("PREPARED", off=50)], later) == [("committed", False)]


def test_transaction_whose_repeat_is_still_to_be_read_is_carried(database: Any) -> None:
    """The op message written again after the repeat was read before it: alone, the repeat would seem undecided."""
    places = {QueuePlace(HALF, 0): OffsetRange(0, 25, 25), QueuePlace(OP, 0): OffsetRange(0, 50, 35)}
    for off, carried in ((34, []), (35, [(TX,)])):
        book(database, [*_START, op("COMMITTED"), op("COMMITTED", off=off)], make_window(0))
        assert database.execute(_ahead_sql(replace(make_window(0), extents=places))).fetchall() == carried
