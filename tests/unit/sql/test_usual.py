"""Usual stories are told without a look-up: the rows are those that come of looking everything up."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import OpMessage, Position, encode_op, encode_position
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end, encode_half
from bridge.core.transaction import Transaction, TransactionState, make_transaction_id
from bridge.sql.chunking import Chunk, JournalBuffer, OpBuffer, next_chunk
from bridge.sql.engine import Database, open_new_database
from bridge.sql.projection import NotAsKnown, PendingRow, PendingRows, apply_chunk, purge
from bridge.sql.rows import AppliedPosition, LogIdentity, begin_position
from bridge.sql.search import SearchFilter, recount_pending, search_transactions
from bridge.sql.tables import pending_ages, transactions
from tests.support.projector_world import PROJECTED

START = AppliedPosition(0, 0, 0)


def moment(offset: int) -> int:
    """When the journal's record at this offset was appended: minutes and hours go by."""
    return 1_000 + offset * 17_321


class History:
    """A journal and an op topic as settlers leave them, with what happens rarely happening often."""

    def __init__(self, seed: int, steps: int, *, rubbish: float = 0.05) -> None:
        self.journal: list[StoredMessage] = []
        self.ops: list[StoredMessage] = []
        self.told: dict[str, Transaction] = {}  # by the last op message of each
        self._rubbish = rubbish
        self._random = Random(seed)
        self._known: dict[str, Transaction] = {}
        self._count = 0
        for _ in range(steps):
            self._random.choice([self._prepare, self._prepare, self._end, self._end, self._end, self._rewrite])()
            if self._random.random() < 0.2:
                self._seal()
        self._seal()

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _append(self, message: Message) -> int:
        offset = len(self.journal)
        self.journal.append(StoredMessage(offset, message.key, message.value, message.headers, moment(offset)))
        return offset

    def _prepare(self) -> None:
        is_repeat = self._known and self._chance(0.15)
        transaction_id = self._any().transaction_id if is_repeat else make_transaction_id(0, self._count)
        self._count += 1
        group = self._random.choice(["shop", "bank"])
        messages = [Message("orders", self._random.choice([b"a", b"b", None]), b"v")]
        if self._chance(0.1):
            messages.append(Message("credits", b"a", b"v"))
        half = HalfMessage(transaction_id, group, len(messages), 900 + len(self.journal))
        half = replace(half, real_topic="orders") if len(messages) == 1 else half
        if self._chance(0.1):
            half = replace(half, max_checks=3, ordering_key="o")
        if self._chance(0.1):
            half = replace(half, idempotency_key="key", seen_ms=moment(len(self.journal)))
        offset = self._append(encode_half(half, messages, "half", 0))
        if not is_repeat or self._chance(0.3):  # prepared again after it was forgotten
            self._known[transaction_id] = Transaction(
                transaction_id, group, offset, moment(offset), 0, at=offset, since_ms=moment(offset)
            )
        if self._chance(self._rubbish):  # nobody has the half message any more
            self.journal[-1] = replace(self.journal[-1], headers=(("properties", b"rubbish"),))

    def _end(self) -> None:
        if not self._known:
            return
        t = self._any()
        resolution = Resolution.ROLLBACK if self._chance(0.2) else Resolution.COMMIT
        source = self._random.choice([Source.PRODUCER] * 4 + [Source.CHECK, Source.OPERATOR])
        offset = self._append(encode_end(EndRecord(t.transaction_id, resolution, source, 1), "half", 0))
        if self._chance(0.1):
            act = ActRecord(t.transaction_id, self._random.choice(list(Act)), "ann", "why", 1)
            self._append(encode_act(act, "half", 0))
        if t.is_final and not t.blocked:
            return
        state = TransactionState.COMMITTED if resolution is Resolution.COMMIT else TransactionState.ROLLED_BACK
        t = replace(
            t, state=state, at=offset, end=offset, ended_ms=moment(offset), by=source.name.lower(), requests=("r-1",)
        )
        if self._chance(0.15):
            t = replace(t, state=TransactionState.PARKED, reason="MAX_CHECKS", parked=3, end=None, by="timer")
        elif self._chance(0.15) and state is TransactionState.COMMITTED:
            t = replace(t, blocked=True, reason="UNKNOWN_TOPIC")
        elif self._chance(0.1):
            t = replace(t, check_times=1, by="check")
        self._write(t)

    def _rewrite(self) -> None:
        if self._known and self._chance(0.5):
            t = self._any()
            last = len(self.journal) - 1  # what a commit that was blocked names when it is published
            self._write(replace(t, blocked=False, reason=None, at=last) if t.blocked else t)

    def _write(self, t: Transaction) -> None:
        self._known[t.transaction_id] = self.told[t.transaction_id] = t
        is_published = t.state is TransactionState.COMMITTED and not t.blocked
        op = OpMessage(t, (Receipt("orders", 1, len(self.ops)),) if is_published else ())
        self._op(t.transaction_id.encode(), encode_op(op))

    def _seal(self) -> None:
        self._op(b"~", encode_position(Position(len(self.journal), 0, 0, "owner")))

    def _op(self, key: bytes, value: bytes) -> None:
        self.ops.append(StoredMessage(len(self.ops), key, value, (), 2_000 + len(self.ops)))

    def _any(self) -> Transaction:
        return self._random.choice(list(self._known.values()))


def cut(history: History, random: Random, *, knows_decided: bool = True) -> list[Chunk]:
    """The chunks of a projector that reads it by and by, and has little room."""
    room = random.choice([3, 1_000])
    ops, position = OpBuffer(0, room), START
    journal = JournalBuffer(0, room, decided=ops.decided if knows_decided else {})
    chunks = []
    while True:
        chunk = next_chunk(0, position, journal, ops)
        if chunk is not None:
            chunks.append(chunk)
            position = chunk.after
            continue
        if ops.groups or ops.next_offset == len(history.ops):
            if journal.next_offset == len(history.journal):
                return chunks
            end = min(len(history.journal), journal.next_offset + random.randint(1, room))
            journal.add(history.journal[journal.next_offset : end], end)
        else:
            end = min(len(history.ops), ops.next_offset + random.randint(1, 30))
            ops.add(history.ops[ops.next_offset : end], end)


def times_of(_: str) -> CheckTimes:
    return CheckTimes()


def project(database: Database, chunks: list[Chunk], pending: PendingRows | None) -> Mapping[str, list[Any]]:
    """Applies them; what the tables hold then. The running ages are those of the rows."""
    with database.engine.begin() as conn:
        begin_position(conn, 0, START, LogIdentity("c", "h", "o"))
    for chunk in chunks:
        try:
            with database.engine.begin() as conn:
                result = apply_chunk(conn, chunk, times_of, pending)
        except NotAsKnown:
            with database.engine.begin() as conn:
                result = apply_chunk(conn, chunk, times_of)
        assert result is not None
        if pending is not None:
            pending.note(chunk, result.pending)
    with database.engine.begin() as conn:
        dump = {table.name: sorted(map(tuple, conn.execute(sa.select(table))), key=repr) for table in PROJECTED}
        recount_pending(conn)
        assert sorted(map(tuple, conn.execute(sa.select(pending_ages))), key=repr) == dump["pending_ages"]
    return dump


@pytest.mark.parametrize("part", range(4))
def test_rows_are_those_of_looking_everything_up(tmp_path: Path, part: int) -> None:
    """Of any history, however it is cut, and however few rows are remembered (C)."""
    for seed in range(25 * part, 25 * part + 25):
        history = History(seed, 120)
        dumps = []
        for pending in (None, PendingRows(Random(seed).choice([2, 1_000]))):
            database = open_new_database(tmp_path)
            chunks = cut(history, Random(seed), knows_decided=pending is not None)
            dumps.append(project(database, chunks, pending))
            database.dispose()
        assert dumps[0] == dumps[1], f"seed {seed}"


def test_last_op_message_is_the_state_however_history_is_cut(tmp_path: Path) -> None:
    """Also where one read brings a position, and behind it more op messages than may wait."""
    for seed in range(60):
        history = History(seed, 120, rubbish=0)
        database = open_new_database(tmp_path)
        project(database, cut(history, Random(seed), knows_decided=False), None)
        with database.engine.begin() as conn:
            rows = conn.execute(sa.select(transactions.c["transaction_id", "state", "blocked", "queue_offset"])).all()
        database.dispose()
        found = {row.transaction_id: tuple(row[1:]) for row in rows if row.transaction_id in history.told}
        told = {name: (t.state.value, t.blocked, t.half) for name, t in history.told.items()}
        assert found == told, f"seed {seed}"


def test_decided_end_does_not_wait() -> None:
    """Its op message was read before it. What else is at that offset, another answer above all, is told of."""
    (h1, e1, o1), (h2, e2, o2) = half_and_commit(1, 0), half_and_commit(2, 2)
    check = EndRecord(make_transaction_id(0, 1), Resolution.COMMIT, Source.CHECK, 1, check_number=1)
    others = [
        replace(e1, headers=encode_end(check, "half", 0).headers),
        replace(e1, stored_ms=1_002),
        replace(e2, queue_offset=1),
    ]
    ops = OpBuffer(0, 10)
    journal = JournalBuffer(0, 10, decided=ops.decided)
    ops.add([o1], 1)
    journal.add([h1, e1, *others, h2, e2], 4)
    assert [[entry.offset for entry in entries] for entries in journal.take_below(9)] == [[0, 2], [1, 1, 1, 3]]
    ops.add([o2, StoredMessage(2, b"~", encode_position(Position(4, 0, 0, "o")), (), 3_000)], 3)
    assert next_chunk(0, START, journal, ops) is not None
    assert ops.decided == {}


def test_rows_are_the_same_on_both_databases(database_url: str, tmp_path: Path) -> None:
    """PostgreSQL takes them by other statements."""
    chunks = cut(History(1, 1_000), Random(1))
    database, file = Database(database_url), open_new_database(tmp_path)
    try:
        assert project(database, chunks, PendingRows()) == project(file, chunks, None)
    finally:
        database.engine.dispose()
        file.dispose()


def test_key_of_any_length_is_projected_and_found(database_url: str) -> None:
    """PostgreSQL has no place for more than 2,704 bytes in an index."""
    key, other = Random(1).randbytes(100_000), Random(2).randbytes(100_000)
    half = HalfMessage(make_transaction_id(0, 1), "shop", 1, 5, "orders")
    raw = encode_half(half, [Message("orders", key, b"v")], "half", 0)
    journal = [StoredMessage(0, raw.key, raw.value, raw.headers, 1_000)]
    database = Database(database_url)
    try:
        project(database, [make_chunk(START, journal, [])], PendingRows())
        with database.engine.begin() as conn:
            found = [len(search_transactions(conn, SearchFilter(key=wanted), 10)[0]) for wanted in (key, other)]
    finally:
        database.engine.dispose()
    assert found == [1, 0]


def half_and_commit(number: int, at: int) -> tuple[StoredMessage, StoredMessage, StoredMessage]:
    """Half message, end and op message of a transaction whose half message is at `at`, its end at the next offset."""
    transaction_id = make_transaction_id(0, number)
    raw = encode_half(HalfMessage(transaction_id, "shop", 1, 1, "orders"), [Message("orders", b"k", b"v")], "half", 0)
    end = encode_end(EndRecord(transaction_id, Resolution.COMMIT, Source.PRODUCER, 1), "half", 0)
    t = Transaction(
        transaction_id, "shop", at, 1_000, 0, TransactionState.COMMITTED, at + 1, 1_000, by="producer", end=at + 1,
        ended_ms=1_001,
    )  # fmt: skip
    op = StoredMessage(0, transaction_id.encode(), encode_op(OpMessage(t, (Receipt("orders", 0, 1),))), (), 2_000)
    return (
        StoredMessage(at, raw.key, raw.value, raw.headers, 1_000),
        StoredMessage(at + 1, end.key, None, end.headers, 1_001),
        op,
    )


def make_chunk(before: AppliedPosition, journal: list[StoredMessage], ops: list[StoredMessage]) -> Chunk:
    halves, records = JournalBuffer(before.journal_next, 100), OpBuffer(before.op_next, 100)
    s = journal[-1].queue_offset + 1 if journal else before.s
    halves.add(journal, s)
    position = StoredMessage(before.op_next + 9, b"~", encode_position(Position(s, 0, 0, "o")), (), 3_000)
    records.add([*ops, position], before.op_next + 10)
    chunk = next_chunk(0, before, halves, records)
    assert chunk is not None
    return chunk


@pytest.fixture
def statements() -> list[str]:
    return []


@pytest.fixture
def watched(make_sqlite_url: Callable[[], str], statements: list[str]) -> Database:
    """A database that notes its statements."""
    database = Database(make_sqlite_url())

    @sa.event.listens_for(database.engine, "before_cursor_execute")
    def note(_: object, __: object, statement: str, *___: object) -> None:
        statements.append(statement)

    return database


def test_usual_chunk_looks_nothing_up_and_writes_no_row_twice(watched: Database, statements: list[str]) -> None:
    """Prepared and committed together, prepared alone, committed later."""
    (h1, e1, o1), (h2, e2, o2) = half_and_commit(1, 0), half_and_commit(2, 2)
    first = make_chunk(START, [h1, e1, h2], [o1])
    second = make_chunk(first.after, [e2], [o2])
    rows = project(watched, [first, second], PendingRows())
    assert [row[3] for row in rows["transactions"]] == ["COMMITTED", "COMMITTED"]
    assert not [text for text in statements if text.startswith("SELECT") and "json_each" in text]
    assert len([text for text in statements if text.startswith("UPDATE transactions")]) == 1
    watched.engine.dispose()


def test_repeated_half_message_counts_once(watched: Database) -> None:
    """What looked new is known: the chunk is applied all the same, whole."""
    (h1, e1, o1), (h2, e2, o2) = half_and_commit(1, 0), half_and_commit(2, 3)
    first = make_chunk(START, [h1, e1], [o1])
    repeat = replace(h1, queue_offset=2)
    second = make_chunk(first.after, [repeat, h2, e2], [o2])
    rows = project(watched, [first, second], PendingRows())
    assert len(rows["transactions"]) == 2
    assert rows["group_counts"] == [("shop", 2, 2, 0, 0, 0, 0)]
    watched.engine.dispose()


@pytest.mark.parametrize(
    ("appended_ms", "row"),
    [(1_000, ("COMMITTED", 0)), (2_001, ("PREPARED", 2))],
    ids=["a repeat of it", "written after that end: another transaction"],
)
def test_commit_of_a_half_message_elsewhere_is_looked_up(
    watched: Database, appended_ms: int, row: tuple[str, int]
) -> None:
    """The half message at the place that the op message names is gone; another one of this id is there."""
    h1, _, o1 = half_and_commit(1, 0)
    project(watched, [make_chunk(START, [replace(h1, queue_offset=2, stored_ms=appended_ms)], [o1])], PendingRows())
    with watched.engine.begin() as conn:
        rows = conn.execute(sa.text("SELECT state, queue_offset FROM transactions")).all()
    assert rows == [row]
    watched.engine.dispose()


def test_only_the_newest_rows_are_remembered() -> None:
    """So many; and none that a later chunk says anything of, for it is not as it was written any more."""
    pending = PendingRows(2)
    (h1, e1, o1), (h2, e2, _), (h3, _, _) = (half_and_commit(number, 2 * number) for number in range(3))
    ids = [make_transaction_id(0, number) for number in range(3)]
    rows = {name: PendingRow(number, 1_000, "shop") for number, name in enumerate(ids)}
    pending.note(make_chunk(START, [h1, h2, h3], []), rows)
    assert [pending.get(name) for name in ids] == [None, rows[ids[1]], rows[ids[2]]]
    again = PendingRows(3)
    again.note(make_chunk(START, [h1, h2, h3], []), rows)
    again.note(make_chunk(AppliedPosition(5, 5, 10), [e1], [o1]), {})
    assert [again.get(name) for name in ids] == [None, rows[ids[1]], rows[ids[2]]]
    again.note(make_chunk(AppliedPosition(6, 6, 20), [replace(e2, queue_offset=6)], []), {})
    assert [again.get(name) for name in ids] == [None, None, rows[ids[2]]]


def test_row_that_is_not_there_is_written_anew(watched: Database) -> None:
    """What this process remembers is a guess; what the statement changed is a fact."""
    h1, e1, o1 = half_and_commit(1, 0)
    pending = PendingRows()
    first = make_chunk(START, [h1], [])
    second = make_chunk(first.after, [e1], [o1])
    project(watched, [first], pending)
    with watched.engine.begin() as conn:
        for table in PROJECTED:
            conn.execute(sa.delete(table))
        assert purge(conn, 0, 0, 0, 10) == 0
    with pytest.raises(NotAsKnown), watched.engine.begin() as conn:
        apply_chunk(conn, second, times_of, pending)
    with watched.engine.begin() as conn:
        assert apply_chunk(conn, second, times_of) is not None
        assert conn.execute(sa.text("SELECT state, has_half FROM transactions")).all() == [("COMMITTED", 0)]
    watched.engine.dispose()
