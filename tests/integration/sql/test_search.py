"""Pages, look-ups and counts over rows as the projector writes them, on both databases."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.transaction import MessageSummary, TransactionState
from bridge.directory import PullCheck
from bridge.sql.bulk import insert_rows
from bridge.sql.engine import Database
from bridge.sql.fold import EventRow, KeyRow
from bridge.sql.leases import SqlPullCheckStore
from bridge.sql.projection import purge
from bridge.sql.rows import (
    ALL_COLUMNS,
    AppliedPosition,
    LogIdentity,
    MalformedCursor,
    ProjectedRow,
    all_values,
    begin_position,
    encode_messages,
    make_row,
)
from bridge.sql.search import SearchFilter, search_transactions
from bridge.sql.tables import group_counts, timeline_events, transaction_keys, transactions
from bridge.sql.transactions import count_live, find_many, find_many_by_key, read_timeline

COMMITTED, ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
PREPARED, PARKED = TransactionState.PREPARED, TransactionState.PARKED


def id_of(number: int) -> str:
    return f"{number:028d}"


def make(number: int, group: str = "shop", state: TransactionState = PREPARED, **members: Any) -> ProjectedRow:
    """A row of one message; `born_ms` is the number unless it is given."""
    row = make_row(id_of(number), group, number % 2, number, number)
    row.state = state.value
    row.live = int(state in {PREPARED, PARKED} or bool(members.get("blocked")))
    row.ended_ms = None if row.live else number
    for name, value in members.items():
        setattr(row, name, value)
    return row


def put(conn: Connection, rows: list[ProjectedRow], topic: str = "orders", key: bytes | None = b"k") -> None:
    for row in rows:
        row.messages = encode_messages([MessageSummary(topic, key, 1, -1, None)])
    begin_position(conn, 0, AppliedPosition(0, 0, 0), LogIdentity("c", "j", "o"))
    insert_rows(conn, transactions, ALL_COLUMNS, [all_values(row) for row in rows])
    insert_rows(conn, transaction_keys, KeyRow._fields, [KeyRow(topic, row.born_ms, row.id, 0, key) for row in rows])


async def test_timeline_of_an_end_that_is_repeated_for_days_is_bounded(database: Database) -> None:
    """Each repeat is an event: of very many the first and the last are told."""
    row = make(1)
    ends = [
        EventRow(row.id, 0, offset, offset, "end", "producer", '{"resolution":"COMMIT","effective":false}')
        for offset in range(2, 20_002)
    ]
    parked = EventRow(row.id, 1, 7, 10_000, "parked", None, "{}")

    def fill(conn: Connection) -> None:
        put(conn, [row])
        insert_rows(conn, timeline_events, EventRow._fields, [*ends, parked])

    await database.run(fill)
    prepared, *events = await database.read(partial(read_timeline, transaction_id=row.transaction_id))
    assert prepared.type == "prepared"
    assert len(events) == 1_000
    assert [event.at_ms for event in (events[0], events[-1])] == [2, 20_001]
    assert [event.type for event in events].count("parked") == 1


async def read_pages(database: Database, wanted: SearchFilter, limit: int) -> list[list[str]]:
    """Ids of all pages."""
    pages, cursor = [], None
    while True:
        views, cursor = await database.read(lambda conn, c=cursor: search_transactions(conn, wanted, limit, c))
        pages.append([view.transaction_id for view in views])
        if cursor is None:
            return pages


async def test_pages_are_newest_first_and_hold_everything_once(database: Database) -> None:
    """Also where many were born in the same millisecond."""
    rows = [make(n, state=Random(n).choice(list(TransactionState)), born_ms=n // 5) for n in range(23)]
    await database.run(lambda conn: put(conn, rows))
    pages = await read_pages(database, SearchFilter(), 5)
    assert [len(page) for page in pages] == [5, 5, 5, 5, 3]
    expected = sorted(rows, key=lambda row: (row.born_ms, row.id), reverse=True)
    assert [i for page in pages for i in page] == [row.transaction_id for row in expected]


async def test_new_rows_do_not_shift_the_next_page(database: Database) -> None:
    """A cursor is a place in the order, not a count."""
    await database.run(lambda conn: put(conn, [make(n) for n in range(6)]))
    first, cursor = await database.read(lambda conn: search_transactions(conn, SearchFilter(), 3, None))
    await database.run(lambda conn: put(conn, [make(n) for n in range(6, 9)]))
    second, last = await database.read(lambda conn: search_transactions(conn, SearchFilter(), 3, cursor))
    assert [view.transaction_id for view in first + second] == [id_of(n) for n in (5, 4, 3, 2, 1, 0)]
    assert last is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (SearchFilter(states=[PREPARED]), {0, 4}),
        (SearchFilter(states=[COMMITTED]), {1, 5, 6}),
        (SearchFilter(states=[COMMITTED, PARKED]), {1, 3, 5, 6}),
        (SearchFilter(states=[ROLLED_BACK], group="shop"), {2}),
        (SearchFilter(group="bank"), {4, 5, 6}),
        (SearchFilter(blocked=True), {5}),
        (SearchFilter(blocked=False, states=[COMMITTED]), {1, 6}),
        (SearchFilter(abandoned=True), {6}),
        (SearchFilter(abandoned=True, group="bank"), {6}),
        (SearchFilter(abandoned=True, group="shop"), set()),
        (SearchFilter(abandoned=True, blocked=True), set()),
        (SearchFilter(abandoned=True, states=[PREPARED]), set()),
        (SearchFilter(abandoned=True, topic="credits"), {6}),
        (SearchFilter(abandoned=True, born_before_ms=6), set()),
        (SearchFilter(abandoned=False, states=[COMMITTED]), {1, 5}),
        (SearchFilter(abandoned=False, topic="credits"), {4, 5}),
        (SearchFilter(blocked=True, states=[PREPARED]), set()),
        (SearchFilter(topic="credits"), {4, 5, 6}),
        (SearchFilter(key=b"\xff"), {4, 5, 6}),
        (SearchFilter(topic="credits", key=b"k"), set()),
        (SearchFilter(topic="credits", group="bank", states=[PREPARED]), {4}),
        (SearchFilter(topic="credits", blocked=True), {5}),
        (SearchFilter(topic="orders", group="bank"), set()),
        (SearchFilter(born_after_ms=2, born_before_ms=5), {3, 4}),
        (SearchFilter(topic="orders", born_after_ms=0, born_before_ms=3), {1, 2}),
        (SearchFilter(states=[PARKED], born_after_ms=3), set()),
    ],
)
async def test_filters_can_be_combined(database: Database, wanted: SearchFilter, expected: set[int]) -> None:
    """Each combination finds exactly what it says."""
    shop = [make(0), make(1, state=COMMITTED), make(2, state=ROLLED_BACK), make(3, state=PARKED)]
    bank = [make(4, "bank"), make(5, "bank", COMMITTED, blocked=1), make(6, "bank", COMMITTED, abandoned_ms=6)]

    def fill(conn: Connection) -> None:
        put(conn, shop)
        put(conn, bank, "credits", b"\xff")

    await database.run(fill)
    pages = await read_pages(database, wanted, 2)
    assert {int(i) for page in pages for i in page} == expected


async def test_transaction_is_found_by_its_idempotency_key(database: Database) -> None:
    """Of whichever group, of those that have ever prepared anything; an index of each group's keys leads it."""
    keyed = [make(n, "shop" if n % 2 else "bank", idempotency_key=f"order-{n // 2}") for n in range(8)]

    def fill(conn: Connection) -> None:
        put(conn, keyed)
        counts = {"prepared": 4, "committed": 0, "blocked": 0, "rolled_back": 0, "parked": 0}
        conn.execute(sa.insert(group_counts), [{"producer_group": name, **counts} for name in ("shop", "bank")])

    await database.run(fill)
    for wanted, expected in (
        (SearchFilter(idempotency_key="order-2"), [5, 4]),
        (SearchFilter(idempotency_key="order-2", group="bank"), [4]),
        (SearchFilter(idempotency_key="order-2", is_visible=lambda group: group == "shop"), [5]),
        (SearchFilter(idempotency_key="order-2", states=[COMMITTED]), []),
        (SearchFilter(idempotency_key="order"), []),
    ):
        assert [int(i) for page in await read_pages(database, wanted, 1) for i in page] == expected


async def test_id_is_found_by_its_beginning(database: Database) -> None:
    """Together with other filters, newest first and page by page; an index of ids leads it."""
    rows = [make(n, "shop" if n % 2 else "bank", born_ms=n) for n in range(1, 40)]
    await database.run(lambda conn: put(conn, rows))
    beginning = id_of(10)[:27]
    for wanted, expected in (
        (SearchFilter(id_prefix=beginning), list(range(19, 9, -1))),
        (SearchFilter(id_prefix=beginning, group="bank"), [18, 16, 14, 12, 10]),
        (SearchFilter(id_prefix=beginning, states=[COMMITTED]), []),
        (SearchFilter(id_prefix=id_of(7)), [7]),
        (SearchFilter(id_prefix=beginning, born_before_ms=12), [11, 10]),
        (SearchFilter(id_prefix="v" * 8), []),
    ):
        pages = await read_pages(database, wanted, 3)
        assert [one for page in pages for one in page] == [id_of(n) for n in expected]


async def test_abandoned_ones_are_found_by_their_own_index(database: Database) -> None:
    """Few among millions of commits: no other index leads to them."""
    rows = [make(n, state=COMMITTED) for n in range(2_000)]
    few = [make(n, "bank", COMMITTED, abandoned_ms=n) for n in range(2_000, 2_003)]
    await database.run(lambda conn: put(conn, rows + few))
    for group in (None, "bank"):
        wanted = SearchFilter(group=group, abandoned=True)
        plan = await database.run(lambda conn, w=wanted: explain(conn, lambda: search_transactions(conn, w, 10)))
        assert "ix_transactions_abandoned" in plan, plan


def explain(conn: Connection, work: Callable[[], object]) -> str:
    """How the database would run the first statement about transactions."""
    statements: list[tuple[str, Any]] = []
    listen = partial(_note_statement, statements)
    sa.event.listen(conn, "before_cursor_execute", listen)
    work()
    sa.event.remove(conn, "before_cursor_execute", listen)
    statement, parameters = next(each for each in statements if "transactions" in each[0])
    is_sqlite = conn.dialect.name == "sqlite"
    conn.exec_driver_sql("ANALYZE")
    explained = f"EXPLAIN {'QUERY PLAN ' if is_sqlite else ''}{statement}"
    return "\n".join(str(row) for row in conn.exec_driver_sql(explained, parameters))


def _note_statement(found: list[tuple[str, Any]], _: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
    found.append((statement, parameters))


@pytest.mark.parametrize("cursor", ["", "x", "!!", "MTox", "MTo5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5Ojk", "ä"])
async def test_malformed_cursor_is_refused(database: Database, cursor: str) -> None:
    """A cursor comes from outside: it is an error of the caller, never of the database."""
    with pytest.raises(MalformedCursor):
        await database.read(lambda conn: search_transactions(conn, SearchFilter(), 5, cursor))


async def test_newest_transaction_of_a_key_is_found(database: Database) -> None:
    """A key may be used again when everybody has forgotten the first one (30, 31)."""
    rows = [make(1, idempotency_key="a"), make(2, idempotency_key="a"), make(3, "bank", idempotency_key="a"), make(4)]
    await database.run(lambda conn: put(conn, rows))
    pairs = [("shop", "a"), ("bank", "a"), ("bank", "b")]
    many = await database.read(lambda conn: find_many_by_key(conn, pairs))
    assert {pair: view.transaction_id for pair, view in many.items()} == {pairs[0]: id_of(2), pairs[1]: id_of(3)}


async def test_many_ids_are_looked_up_at_once(database: Database) -> None:
    """A batch asks for a thousand; unknown ones are left out."""
    await database.run(lambda conn: put(conn, [make(n) for n in range(1_200)]))
    found = await database.read(lambda conn: find_many(conn, [id_of(n) for n in range(1_100, 2_000)]))
    assert sorted(int(i) for i in found) == list(range(1_100, 1_200))
    assert await database.read(lambda conn: read_timeline(conn, id_of(5_000))) == []


async def test_live_ones_are_pending_parked_and_blocked(database: Database) -> None:
    """A group with any of them cannot be deleted."""
    rows = [make(0), make(1, state=PARKED), make(2, state=COMMITTED, blocked=1), make(3, state=COMMITTED)]
    await database.run(lambda conn: put(conn, [*rows, make(4, "bank")]))
    assert await database.read(lambda conn: count_live(conn, "shop")) == 3
    assert await database.read(lambda conn: count_live(conn, "nobody")) == 0


async def test_purge_takes_checks_that_a_dead_owner_left(database: Database) -> None:
    """Nobody takes them from the board any more; those of pending transactions stay."""
    board = SqlPullCheckStore(database)
    await board.take_queue(0, "dead")
    await board.put(0, "dead", 0, [PullCheck(id_of(n), "shop", 1, 1) for n in (0, 6)])
    await database.run(lambda conn: put(conn, [make(0, state=COMMITTED), make(6)]))
    await database.run(lambda conn: purge(conn, 0, 0, 5, 3))
    assert [check.transaction_id for check in await board.claim("shop", 9, 1)] == [id_of(6)]


async def test_purge_takes_only_what_ended_before(database: Database) -> None:
    """Of one queue, oldest first, at most as many as it may, never what is live (S)."""
    rows = [make(n, state=Random(n).choice([COMMITTED, ROLLED_BACK])) for n in range(12)]
    live = [make(12), make(14, state=PARKED), make(16, state=COMMITTED, blocked=1, ended_ms=1)]
    await database.run(lambda conn: put(conn, rows + live))
    assert await database.run(lambda conn: purge(conn, 0, 0, 10, 3)) == 3
    assert await database.run(lambda conn: purge(conn, 0, 0, 10, 3)) == 2
    assert await database.run(lambda conn: purge(conn, 0, 0, 10, 3)) == 0
    left = await database.read(lambda conn: conn.execute(sa.select(transactions.c.transaction_id)).scalars().all())
    assert sorted(left) == [id_of(n) for n in (1, 3, 5, 7, 9, 10, 11, 12, 14, 16)]
    keys = await database.read(lambda conn: conn.execute(sa.select(sa.func.count(transaction_keys.c.id))).scalar_one())
    assert keys == 10


async def test_what_may_be_purged_is_found_by_its_own_index(database: Database) -> None:
    """As a rule it is nothing, among all that has ended in seven days: no other index leads to it."""
    await database.run(lambda conn: put(conn, [make(n, state=COMMITTED) for n in range(2_000)]))
    plan = await database.run(lambda conn: explain(conn, lambda: purge(conn, 0, 0, 5, 2_000)))
    assert "ix_transactions_ended" in plan, plan
