"""Rows of the projection: their JSON columns, positions, and what is shown of a row."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from bridge.core.message import Receipt
from bridge.core.op_message import encode_receipts
from bridge.core.transaction import MessageSummary, TransactionState, TransactionView, make_transaction_id
from bridge.sql.engine import open_new_database
from bridge.sql.rows import (
    ALL_COLUMNS,
    LOADED_COLUMNS,
    AppliedPosition,
    Counted,
    LogIdentity,
    all_values,
    begin_position,
    decode_messages,
    decode_receipts,
    encode_messages,
    load_row,
    make_row,
    make_search_key,
    make_view,
    move_position,
    read_position,
    read_positions,
    select_views,
)
from bridge.sql.tables import transactions

ID = make_transaction_id(3, 7)
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True)
NUMBERS = st.none() | st.integers(0, 2**41)
MESSAGES = st.builds(MessageSummary, NAMES, st.none() | st.binary(max_size=4), NUMBERS, st.integers(-1, 9), NUMBERS)
RECEIPTS = st.builds(Receipt, NAMES, st.integers(0, 9), NUMBERS)


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[Connection]:
    database = open_new_database(tmp_path)
    with database.engine.begin() as connection:
        yield connection
    database.dispose()


@given(st.lists(MESSAGES, max_size=3).map(tuple), st.lists(RECEIPTS, max_size=3).map(tuple))
def test_messages_and_receipts_come_back(messages: tuple[MessageSummary, ...], receipts: tuple[Receipt, ...]) -> None:
    """Null is not empty; a row that has none of them shows none."""
    assert decode_messages(encode_messages(messages)) == messages
    assert decode_receipts(encode_receipts(receipts)) == receipts
    assert (decode_messages(None), decode_receipts(None)) == ((), ())


def test_long_keys_are_told_apart_by_all_their_bytes() -> None:
    """Up to 1,000 bytes are searched for as they are."""
    short, long, other = b"k" * 1_000, b"k" * 1_001, b"k" * 1_000 + b"l"
    assert (make_search_key(None), make_search_key(b""), make_search_key(short)) == (None, b"", short)
    assert len({make_search_key(key) for key in (short, long, other)}) == 3
    assert [len(make_search_key(key) or b"") for key in (long, other)] == [1_032, 1_032]


def test_position_is_begun_once_and_moved_from_where_it_is(conn: Connection) -> None:
    """Another projector's step is not done again; each queue has its own."""
    begun, identity = AppliedPosition(1, 2, 3), LogIdentity("c", "h", "o")
    for position in (begun, AppliedPosition(7, 7, 7)):
        begin_position(conn, 3, position, identity)
    begin_position(conn, 4, AppliedPosition(4, 5, 6), identity)
    assert read_position(conn, 3) == (begun, identity)
    assert read_position(conn, 5) is None
    for wrong in (AppliedPosition(0, 2, 3), AppliedPosition(1, 0, 3), AppliedPosition(1, 2, 0)):
        assert not move_position(conn, 3, wrong, AppliedPosition(8, 8, 8))
    assert move_position(conn, 3, begun, AppliedPosition(11, 12, 13))
    assert read_positions(conn) == {3: AppliedPosition(11, 12, 13), 4: AppliedPosition(4, 5, 6)}


@pytest.mark.parametrize(("blocked", "abandoned_ms"), [(0, None), (1, None), (0, 15)])
def test_row_is_shown_and_read_back_as_it_was_written(
    conn: Connection, *, blocked: int, abandoned_ms: int | None
) -> None:
    """Every column; and it is counted as what it is."""
    row = make_row(ID, "shop", 3, 10, 1_000)
    assert {row.first_check_ms, row.max_checks, row.max_life_s, row.next_due_ms} == {None}
    row.born_ms, row.first_check_ms, row.max_checks, row.max_life_s = 1, 2, 3, 4
    row.idempotency_key, row.ordering_key, row.messages = "key", "okey", encode_messages([])
    row.state, row.live, row.blocked, row.abandoned_ms = "COMMITTED", blocked, blocked, abandoned_ms
    row.at_offset, row.next_due_ms, row.check_times, row.base, row.since_ms = 5, 6, 7, 8, 9
    row.resolved_by, row.ended_ms, row.published_ms, row.why, row.parked_offset = "check", 12, 13, "GONE", 14
    row.receipts = encode_receipts([Receipt("orders", 1, 2)])
    conn.execute(sa.insert(transactions), dict(zip(ALL_COLUMNS, all_values(row), strict=True)))
    assert make_view(conn.execute(select_views()).one()) == TransactionView(
        ID, "shop", TransactionState.COMMITTED, 3, 10, 1, 1_000, 7, bool(blocked), "GONE", "check", 12, 6, 2, "key",
        "okey", 14, 3, 4, 9, 8, (Receipt("orders", 1, 2),), (), None, abandoned_ms is not None,
    )  # fmt: skip
    loaded = load_row(conn.execute(sa.select(*[transactions.c[name] for name in LOADED_COLUMNS])).one())
    assert [getattr(loaded, name) for name in LOADED_COLUMNS] == [getattr(row, name) for name in LOADED_COLUMNS]
    assert (loaded.is_new, loaded.was) == (False, Counted("COMMITTED", blocked, abandoned_ms is not None))
    assert (row.is_new, row.was) == (True, None)
