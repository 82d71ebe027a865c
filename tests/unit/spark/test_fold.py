"""The fold, on DuckDB: the same text runs on Spark (tests/spark), here thousands of times."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from spark.judge.fold import (
    CHAINED_SQL,
    KEPT_SQL,
    OVERTAKING_SQL,
    SCATTERED_SQL,
    SEVERAL_SQL,
    SHARED_SQL,
    exchanged_sql,
    fold_sql,
)
from spark.read.envelope import COMMIT, EVENT_TYPES, Event, Evidence, OpState, PreparedMessage, ReceiptRow, pair_product
from tests.support.envelope_rows import (
    HALF_MS,
    HOUR_MS,
    NOW_MS,
    ONE,
    TWO,
    TX,
    body_of_each,
    check,
    commit,
    copy,
    end,
    half,
    hashed,
    kinds,
    op,
    place_of_each,
    record,
    rollback,
)
from tests.support.verdict_cases import RIGHT, WRONG

duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")

_TYPES = {"STRING": "VARCHAR", "INT": "INTEGER", "BIGINT": "BIGINT", "BOOLEAN": "BOOLEAN"}
_FLAT = {name: _TYPES[kind] for name, kind in EVENT_TYPES.items() if kind in _TYPES}
_LISTS = {"messages": body_of_each, "receipts": place_of_each}  # of a list the hashes are all that is asked for
_PAIRED = f"list_sum(list_transform(list_zip(messages, receipts), lambda p: {pair_product('p[1]', 'p[2]')}))"
_OTHERS = {"is_shuffled": "BOOLEAN"}
_STALE_BEFORE_MS = NOW_MS - HOUR_MS


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    """With a table `events`: the envelope, and of its arrays the hashes of what is in them."""
    with duckdb.connect(config={"threads": 1}) as connection:
        columns = ", ".join(
            f"{name} {kind}" for name, kind in (_FLAT | dict.fromkeys(_LISTS, "BIGINT[]") | _OTHERS).items()
        )
        connection.execute(f"CREATE TABLE events ({columns})")
        connection.execute("CREATE MACRO try_sum(number) AS SUM(number)")  # which has more bits here
        connection.execute(f"CREATE VIEW transactions AS {fold_sql(_STALE_BEFORE_MS)}")
        connection.execute(f"CREATE VIEW several AS {SEVERAL_SQL}")
        connection.execute(f"CREATE VIEW shared AS {SHARED_SQL}")
        connection.execute(f"CREATE VIEW chained AS {CHAINED_SQL}")
        records = (
            f"SELECT tx, topic_id, part, off FROM events WHERE leg = {Evidence.VISIBLE:d} AND tx IN ({SCATTERED_SQL})"
        )
        connection.execute(f"CREATE VIEW scattered AS {records}")
        yield connection


def fold(database: Any, events: Sequence[Event]) -> dict[str, dict[str, Any]]:
    """A row a transaction, by its id."""
    database.execute("DELETE FROM events")
    rows = [
        [
            *(getattr(event, name) for name in _FLAT),
            *(of_each(getattr(event, name)) for name, of_each in _LISTS.items()),
            is_shuffled(event.receipts or ()),
        ]
        for event in events
    ]
    if rows:
        database.executemany(f"INSERT INTO events VALUES ({', '.join('?' * len(rows[0]))})", rows)
    result = database.execute("SELECT * FROM transactions")
    names = [column[0] for column in result.description]
    return {row[0]: dict(zip(names, row, strict=True)) for row in result.fetchall()}


def is_shuffled(receipts: Sequence[ReceiptRow]) -> bool:
    """Whether one names a place before that of an earlier one in its partition."""
    pairs = combinations(receipts, 2)
    return any((a.topic, a.part) == (b.topic, b.part) and (a.off or 0) > (b.off or 0) for a, b in pairs)


def let_pass(database: Any, events: Sequence[Event]) -> set[str]:
    """Transactions that are not told event by event."""
    plain = {tx for tx, row in fold(database, events).items() if row["is_plain"]}
    return plain - {row[0] for row in database.execute(exchanged_sql(_PAIRED, "is_shuffled")).fetchall()}


PLAIN = {
    "committed": ([half(), commit(), op("COMMITTED"), record()], OpState.COMMITTED),
    "committed twice": ([half(), commit(), commit(21), op("COMMITTED"), record()], OpState.COMMITTED),
    "rolled back": ([half(), rollback(), op("ROLLED_BACK")], OpState.ROLLED_BACK),
    "several messages": (RIGHT["several messages"], OpState.COMMITTED),
    "two equal messages": (RIGHT["two equal messages"], OpState.COMMITTED),
    "several of one topic": (
        [
            half((*ONE, PreparedMessage("orders", None, 112, None))),
            commit(),
            record(),
            record(101, 112),
            op("COMMITTED", receipts=[ReceiptRow("orders", 0, 100), ReceiptRow("orders", 0, 101)]),
        ],
        OpState.COMMITTED,
    ),
    "published at once": ([half(code=8), op("COMMITTED", cause=10), record()], OpState.COMMITTED),
    "pending": ([half()], None),
}


@pytest.mark.parametrize("name", PLAIN)
def test_ordinary_transactions_are_plain(database: Any, name: str) -> None:
    """They are nearly all: none of them may have to be told event by event."""
    events, state = PLAIN[name]
    row = fold(database, events)[TX]
    assert row["is_plain"] is True
    assert (None if row["last_op"] is None else OpState(row["last_op"] % 8)) == state
    assert let_pass(database, events) == {TX}
    is_open = name == "pending"
    assert database.execute(KEPT_SQL).fetchall() == ([(TX, False, True)] if is_open else [])


def test_nothing_wrong_is_plain(database: Any) -> None:
    """Every case the rules have a finding for comes before the rules."""
    ids = {name: make_transaction_id(0, make_uuid7_bits(HALF_MS, number)) for number, name in enumerate(WRONG)}
    events = [event._replace(tx=ids[name]) for name, (events, _) in WRONG.items() for event in events]
    passed = let_pass(database, events)
    assert [name for name, tx in ids.items() if tx in passed] == []


_ENDS = st.sampled_from([8, 12, 0])
_OFFSETS = st.integers(10, 60)
_MESSAGES = st.sampled_from([ONE, TWO, (*ONE, *ONE), (PreparedMessage("orders", 1, 111, None),)])
_RECEIPTS = st.lists(st.sampled_from([ReceiptRow("orders", 0, 100), ReceiptRow("credits", 0, 7)]), max_size=2)
_EVENTS = st.one_of(
    st.builds(half, _MESSAGES, off=st.integers(10, 12), is_void=st.booleans(), life_ms=st.sampled_from([None, 1_000])),
    st.builds(half, code=st.just(8)),
    st.builds(end, _ENDS, _OFFSETS, grp=st.sampled_from([None, None, "shop", "thief"])),
    st.builds(check, st.integers(1, 3), _OFFSETS, st.integers(HALF_MS, HALF_MS + 90_000), _ENDS),
    st.builds(op, st.sampled_from([state.name for state in OpState]), _OFFSETS, _OFFSETS, _RECEIPTS),
    st.builds(op, st.sampled_from(["COMMITTED", "ROLLED_BACK"]), parked=st.sampled_from([None, 5])),
    st.builds(record, st.sampled_from([100, 101]), st.sampled_from([111, 222]), st.sampled_from(["orders", "credits"])),
    st.builds(copy, st.integers(5, 6), _MESSAGES),
)


# what may be said otherwise by a record that is there
_PLACES = [ReceiptRow("orders", 0, 100), ReceiptRow("orders", 0, 101), ReceiptRow("credits", 0, 7)]
_CHANGES: dict[int, dict[str, st.SearchStrategy[Any]]] = {
    Evidence.HALF: {"grp": st.sampled_from(["thief"]), "part": st.just(1), "off": st.sampled_from([11, 25])},
    Evidence.END: {"grp": st.sampled_from(["shop", "thief"]), "part": st.just(1), "code": _ENDS, "off": st.just(5)},
    Evidence.OP: {
        "grp": st.sampled_from(["thief"]),
        "part": st.just(1),
        "half": st.sampled_from([9, 11, 1_000]),
        "cause": st.sampled_from([10, 21, 1_000]),
        "code": st.sampled_from([int(state) for state in OpState]),
        "receipts": st.one_of(
            st.permutations(_PLACES), st.permutations(_PLACES[:2]), st.permutations(_PLACES[::2])
        ),
    },
    Evidence.VISIBLE: {
        "part": st.just(1), "off": st.sampled_from([7, 100, 101]), "content": st.sampled_from([111, 112])},
}  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, events: Sequence[Event]) -> list[Event]:
    """One record says one thing otherwise; its hashes say what it says."""
    index = draw(st.integers(0, len(events) - 1))
    event = events[index]
    name = draw(st.sampled_from(sorted(_CHANGES[event.leg])))
    told = event._replace(**{name: draw(_CHANGES[event.leg][name])})
    return [*events[:index], hashed(told), *events[index + 1 :]]


@settings(max_examples=300)
@given(st.data(), st.sampled_from(sorted(PLAIN)), st.integers(0, 2))
def test_fold_lets_nothing_pass_that_is_said_otherwise(
    database: Any, data: st.DataObject, name: str, changes: int
) -> None:
    """Of an ordinary transaction, of one message or several: another order, place, group, queue or state."""
    events = PLAIN[name][0]
    for _ in range(changes):
        events = data.draw(changed(events))
    assert not let_pass(database, events) or kinds(events) == []


@settings(max_examples=150)
@given(
    st.sampled_from([[], *(events for events, _ in PLAIN.values())]),
    st.lists(_EVENTS, max_size=3),
    st.sets(st.integers(0, 4), max_size=1),
)
def test_whatever_the_fold_lets_pass_is_right(
    database: Any, ordinary: list[Event], more: list[Event], lost: set[int]
) -> None:
    """An ordinary transaction with something added or lost: what is plain to the fold is right by the rules."""
    events = list(dict.fromkeys([event for i, event in enumerate(ordinary) if i not in lost] + more))
    assert not let_pass(database, events) or kinds(events) == []


@pytest.mark.parametrize(
    "name", ["a repeated half message", "a void repeat", "repeated ends", "op message written again"]
)
def test_what_is_over_is_not_carried_into_every_later_window(database: Any, name: str) -> None:
    """Relays repeat what they have published: what is carried would grow with each repeat there ever was."""
    for events, carried in ((RIGHT[name], set()), (RIGHT[name][:-1], {TX})):
        fold(database, events)
        assert {tx for tx, _, is_open in database.execute(KEPT_SQL).fetchall() if is_open} == carried


def keyed(number: int, okey: int | None, end: int, off: int, part: int = 0) -> list[Event]:
    """A committed transaction with an ordering key, decided at `end` and published at `off`."""
    tx = make_transaction_id(0, make_uuid7_bits(HALF_MS, number))
    told = op("COMMITTED", off=end, cause=end, half=number)
    made = [half(off=number, okey=okey), commit(end), told, record(off, part=part)]
    return [event._replace(tx=tx) for event in made]


def overtaken(database: Any, *transactions: list[Event]) -> list[tuple[int, int]]:
    """Positions of (the one decided later, the one it overtook)."""
    fold(database, [event for events in transactions for event in events])
    place = {events[0].tx: i for i, events in enumerate(transactions)}
    found = database.execute(OVERTAKING_SQL).fetchall()
    return sorted({(place[late], place[early]) for late, early in found})


def test_transaction_published_before_one_decided_earlier_is_found(database: Any) -> None:
    """O, as far as a log can show it: within a partition."""
    assert overtaken(database, keyed(1, 7, 20, 102), keyed(2, 7, 21, 101), keyed(3, 7, 22, 103)) == [(1, 0)]


@pytest.mark.parametrize("places", [[(0, 100), (0, 104)], [(0, 100), (1, 102), (1, 104)]])
def test_transaction_published_between_messages_of_an_earlier_one_is_found(
    database: Any, places: list[tuple[int, int]]
) -> None:
    """All of the earlier one come first, in each partition. Where one of them is missing, a copy of another says
    nothing."""
    receipts, part = [ReceiptRow("orders", *place) for place in places], places[-1][0]
    told = op("COMMITTED", off=20, half=1, receipts=receipts)
    made = [half(ONE * len(places), off=1, okey=7), commit(), told]
    whole = [*made, *[record(off, part=each) for each, off in places]]
    assert overtaken(database, whole, keyed(2, 7, 21, 103, part)) == [(1, 0)]
    assert overtaken(database, whole, keyed(2, 7, 21, 105, part)) == []
    assert overtaken(database, [*whole[:-1], record(900, part=part)], keyed(2, 7, 21, 103, part)) == []


@pytest.mark.parametrize(
    ("second", "why"),
    [
        pytest.param((8, 21, 101, 0), "another key", id="another key"),
        pytest.param((7, 21, 103, 0), "in order", id="in order"),
        pytest.param((7, 21, 101, 1), "another partition", id="another partition"),
        pytest.param((None, 21, 101, 0), "no key", id="no key"),
    ],
)
def test_order_is_asked_for_only_where_it_was_promised(
    database: Any, second: tuple[int | None, int, int, int], why: str
) -> None:
    """Beside a transaction of key 7, decided at 20 and published at 102."""
    assert overtaken(database, keyed(1, 7, 20, 102), keyed(2, *second)) == [], why


def test_end_before_the_half_message_decides_nothing(database: Any) -> None:
    """It is nobody's: what was decided by a later one has overtaken nobody, nor was it overtaken."""
    late = keyed(6, 7, 30, 102)
    lost = commit(5)._replace(tx=late[0].tx)
    assert overtaken(database, [*late, lost], keyed(2, 7, 20, 101)) == []


def test_idempotency_key_that_was_used_again_is_in_the_order_of_neither_use(database: Any) -> None:
    """The first of them was decided before, and its record is removed; the second is published behind."""
    first, between = keyed(1, 7, 20, 100), keyed(2, 7, 25, 101)
    again = [event._replace(tx=first[0].tx) for event in keyed(30, 7, 31, 102)]
    assert overtaken(database, [*first[:2], *again], between) == []


def test_void_publication_decides_nothing(database: Any) -> None:
    """What came too late and was sent again is decided where the second half message lies."""
    between = keyed(1, 7, 20, 100)
    published = [event for event in keyed(2, 7, 22, 101) if event.leg != Evidence.END]
    void, again = (published[0]._replace(off=off, code=COMMIT, is_void=off == 15) for off in (15, 22))
    assert overtaken(database, between, [void, again, *published[1:]]) == []
    (row,) = fold(database, [void, again]).values()
    assert (row["half_off"], row["end_off"]) == (22, 22)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("repeats", [1, 2])
def test_duplicate_long_after_overtakes_nobody(database: Any, part: int, repeats: int) -> None:
    """It is a DUPLICATE; those published between are in order, also where the duplicate has a partition for itself.

    A half message that was repeated announces nothing more.
    """
    first = keyed(1, 7, 20, 100)
    halves = [first[0]._replace(off=number) for number in range(1, repeats)]
    duplicate = first[-1]._replace(off=900, part=part)
    later = keyed(2, 7, 21, 101), keyed(3, 7, 22, 102, part=1)
    assert overtaken(database, [*first, *halves, duplicate], *later) == []
