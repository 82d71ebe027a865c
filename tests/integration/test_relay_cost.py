"""What a claim reads grows with what it takes, not with what is held back; nor a cleaning with what it keeps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.interfaces import CacheStats

from outbox import relay_queries
from outbox.hand_over import MemoryHandOver, OutboxRow, PublishResult
from outbox.inbox import Inbox
from outbox.relay import Relay, RelayConfig
from outbox.relay_queries import Tables, find_heads
from outbox.sources import ColumnMap, MappedSource, OwnSource
from outbox.tables import make_inbox_table, make_record_table
from outbox.transaction_record import DatabaseNow, RecordConfig, TransactionRecord
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.user_database import UserDatabase

BACKLOG = 3_000
MOST_READ = 250  # rows and index entries, for the six that are taken


@pytest.fixture
def world(user_database: UserDatabase) -> Iterator[OutboxWorld]:
    made = OutboxWorld(user_database)
    yield made
    made.engine.dispose()


def count_postgres_rows(plan: Mapping[str, Any]) -> int:
    """Rows that the nodes of a plan have read."""
    read = sum(plan.get(name, 0) for name in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter"))
    inner = sum(count_postgres_rows(one) for one in plan.get("Plans", ()))
    return round(read * plan["Actual Loops"]) + inner


def explain(conn: sa.Connection, statement: str, parameters: Any) -> int:
    cursor = conn.connection.cursor()
    cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
    ((plans,),) = cursor.fetchall()
    return count_postgres_rows(plans[0]["Plan"])


def count_handler_reads(conn: sa.Connection) -> int:
    cursor = conn.connection.cursor()
    cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(number) for _, number in cursor.fetchall())


@contextmanager
def counted_reads(engine: sa.Engine) -> Iterator[list[int]]:
    """What each SELECT of an outbox reads: rows on PostgreSQL and MariaDB, steps of its machine / 20 on SQLite."""
    reads: list[int] = []

    def before(conn: sa.Connection, *_: Any) -> None:
        if conn.dialect.name == "sqlite":
            steps = conn.info["steps"] = [0]
            conn.connection.driver_connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 20)
        elif conn.dialect.name != "postgresql":
            conn.info["reads"] = count_handler_reads(conn)

    def after(conn: sa.Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        if not statement.startswith(("SELECT", "WITH")) or "outbox" not in statement:
            return
        if conn.dialect.name == "sqlite":
            reads.append(conn.info["steps"][0])
        elif conn.dialect.name == "postgresql":
            reads.append(explain(conn, statement, parameters))
        else:
            reads.append(count_handler_reads(conn) - conn.info["reads"])

    listeners: list[tuple[str, Callable[..., None]]] = [
        ("before_cursor_execute", before),
        ("after_cursor_execute", after),
    ]
    for name, listener in listeners:
        event.listen(engine, name, listener)
    yield reads
    for name, listener in listeners:
        event.remove(engine, name, listener)


@contextmanager
def compiled_anew(engine: sa.Engine) -> Iterator[list[str]]:
    """Statements that SQLAlchemy did not find in its cache."""
    compiled: list[str] = []

    def note(_: sa.Connection, __: Any, statement: str, ___: Any, context: Any, ____: bool) -> None:
        if context.compiled is not None and context.cache_hit is not CacheStats.CACHE_HIT:
            compiled.append(statement)

    event.listen(engine, "after_cursor_execute", note)
    yield compiled
    event.remove(engine, "after_cursor_execute", note)


def fill(world: OutboxWorld) -> None:
    """A hot key, and behind it one row each of three others, and two without one."""
    for _ in range(10):
        world.enqueue(*[Sent("orders", b"hot", b"%d" % n) for n in range(BACKLOG // 10)])
    world.enqueue(*[Sent("orders", key, b"v") for key in (b"a", b"b", b"c", None, None)])
    if world.database.name != "sqlite":
        with world.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            for table in (world.table, world.leases):
                conn.execute(sa.text(f"ANALYZE {'TABLE' if world.database.name == 'mariadb' else ''} {table.name}"))


def test_rows_behind_a_hot_key_are_not_read(world: OutboxWorld) -> None:
    """Thousands wait behind one row: taking six reads a handful, also while the hot row is leased."""
    fill(world)
    bridge = MemoryHandOver()
    relay = world.relay(bridge, RelayConfig(max_rows=100, min_delay_ms=60_000))
    with counted_reads(relay._engine) as reads:
        assert relay.run_once().published == 6
        assert relay.run_once().published == 1
        bridge.unsure_topics.add("orders")
        assert (relay.run_once().delayed, relay.run_once().claimed) == (1, 0)
    assert reads
    assert sum(reads) <= MOST_READ, reads


def find_repeated(plan: Mapping[str, Any]) -> list[str]:
    """Conditions with a list of keys, which PostgreSQL reads anew, of nodes that were run more than once."""
    conditions = [str(plan.get(name, "")) for name in ("Index Cond", "Filter", "Recheck Cond")]
    own = [condition for condition in conditions if "ANY" in condition and plan["Actual Loops"] > 1]
    return own + [found for one in plan.get("Plans", ()) for found in find_repeated(one)]


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_keys_of_a_claim_are_looked_for_at_once(world: OutboxWorld) -> None:
    """Once the table was analysed, and so by autovacuum: a claim of a thousand rows took seconds, and more than a short
    lease lasts, for each row was looked for among all of them."""
    world.enqueue(*[Sent("orders", None, b"%d" % number) for number in range(BACKLOG)])
    with world.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(sa.text(f"ANALYZE {world.table.name}"))
    repeated: list[str] = []

    def note(conn: sa.Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        if statement.startswith("SELECT") and "outbox" in statement:
            cursor = conn.connection.cursor()
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            repeated.extend(find_repeated(cursor.fetchall()[0][0][0]["Plan"]))

    relay = world.relay(MemoryHandOver(), RelayConfig(max_rows=200))
    event.listen(relay._engine, "after_cursor_execute", note)
    assert relay.run_once().published == 200
    assert repeated == []


def list_conditions(plan: Mapping[str, Any]) -> list[str]:
    """Of all nodes."""
    own = [str(plan.get(name, "")) for name in ("Index Cond", "Filter", "Recheck Cond")]
    return own + [found for one in plan.get("Plans", ()) for found in list_conditions(one)]


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("is_analysed", [True, False])
def test_list_of_keys_is_no_part_of_a_condition(world: OutboxWorld, is_analysed: bool) -> None:
    """PostgreSQL reads a table whole that is small, or that nobody has analysed, and read the list anew for each of its
    rows: seconds for a thousand. With 30,000 rows each claim outlasted its lease, and none was ever published."""
    world.enqueue(*[Sent("orders", None, b"%d" % number) for number in range(BACKLOG // 3)])
    if is_analysed:
        with world.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.execute(sa.text(f"ANALYZE {world.table.name}"))
    conditions: list[str] = []

    def note(conn: sa.Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        if "ANY (" in statement:
            cursor = conn.connection.cursor()
            cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
            conditions.extend(list_conditions(cursor.fetchall()[0][0][0]["Plan"]))

    relay = world.relay(MemoryHandOver(), RelayConfig(max_rows=800))
    event.listen(relay._engine, "before_cursor_execute", note)
    assert relay.run_once().published == 800
    lists = [condition for condition in conditions if "ANY" in condition]
    assert len(lists) >= 4
    assert [one[:80] for one in lists if '{"' in one] == []


def test_rows_without_a_key_are_read_in_their_order(world: OutboxWorld) -> None:
    """Where nobody has analysed the table, each claim read and sorted all, and of a million it outlasted its lease."""
    world.enqueue(*[Sent("orders", None, b"%d" % number) for number in range(BACKLOG)])
    relay = world.relay(MemoryHandOver(), RelayConfig(max_rows=5))
    with counted_reads(relay._engine) as reads:
        assert relay.run_once().published == 5
    assert sum(reads) <= MOST_READ, reads


@pytest.mark.parametrize("kind", ["records", "inbox"])
def test_cleaning_reads_what_it_deletes(user_database: UserDatabase, kind: str) -> None:
    """Of thousands of rows three are old: they are found by the index, and so is that there are no more."""
    table = make_record_table(sa.MetaData()) if kind == "records" else make_inbox_table(sa.MetaData())
    key, named = ("transaction_id", "producer_group") if kind == "records" else ("message_id", "consumer")
    old = {named: "stamps", "at_ms": 1, **({"state": "written"} if kind == "records" else {})}
    engine = user_database.engine()
    table.metadata.create_all(engine)
    with engine.begin() as conn:
        conn.execute(sa.insert(table), [{**old, key: f"new-{n}"} for n in range(BACKLOG)])
        for suffix in "abc":  # so many that PostgreSQL does not read all of a few pages instead
            values = {**dict(table.c), key: table.c[key] + suffix}
            conn.execute(sa.insert(table).from_select(list(values), sa.select(*values.values())))
        conn.execute(sa.update(table).values(at_ms=DatabaseNow()))
        conn.execute(sa.insert(table), [{**old, key: f"old-{n}"} for n in range(3)])
        if user_database.name == "postgresql":
            conn.execute(sa.text(f"ANALYZE {table.name}"))
    record = TransactionRecord(table, RecordConfig(max_clean_rows=100))
    clean = record.clean if kind == "records" else partial(Inbox("stamps", table).clean, max_rows=100)
    with counted_reads(engine) as reads:
        assert [clean(engine) for _ in range(2)] == [3, 0]
    assert sum(reads) <= MOST_READ, reads
    engine.dispose()


def test_rounds_compile_no_statement_anew(world: OutboxWorld) -> None:
    """However many rows they take: compiling a list of rows costs a relay more than all else."""
    bridge = MemoryHandOver()
    engine = world.database.engine()

    def publish(count: int, max_rows: int) -> None:
        config = RelayConfig(max_rows=max_rows, min_delay_ms=1, max_delay_ms=1)
        relay = Relay(engine, bridge, OwnSource(world.table), world.leases, config)
        world.enqueue(*[Sent("orders", b"%d" % (number % 40)) for number in range(count)], Sent("orders"))
        bridge.unsure_topics.add("orders")
        relay.run_once()
        bridge.unsure_topics.clear()
        while world.count()[0]:
            relay.run_once()

    publish(10, max_rows=3)
    with compiled_anew(engine) as compiled:
        publish(60, max_rows=30)
    assert compiled == []
    engine.dispose()


def test_enqueue_compiles_no_statement_anew(world: OutboxWorld) -> None:
    """Compiling the INSERT would cost a local transaction more than the row does."""
    world.enqueue(Sent("orders", b"a", b"1"))
    with compiled_anew(world.engine) as compiled:
        world.enqueue(Sent("payments", None, None, [("h", b"1")]), ordering_key="k")
    assert compiled == []


def test_every_key_has_its_turn(world: OutboxWorld) -> None:
    """More keys than a claim takes, each with rows that never end: none waits longer than a lap."""
    keys = [b"%d" % number for number in range(25)]
    world.enqueue(*[Sent("orders", key, b"%d" % number) for number in range(3) for key in keys], Sent("orders", None))
    bridge = MemoryHandOver()
    relay = world.relay(bridge, RelayConfig(max_rows=10))
    for lap in range(3):
        for _ in range(3):
            relay.run_once()
        assert {key: sum(row.key == key for row in bridge.published) for key in keys} == dict.fromkeys(keys, lap + 1)
    assert world.count()[0] == 0


def test_walk_ends_where_everything_is_taken(world: OutboxWorld) -> None:
    """Wherever it begins, and however many keys a step visits: a claim must not turn in circles under its locks."""
    world.enqueue(*[Sent("orders", b"%d" % number) for number in range(6)])
    bridge = MemoryHandOver()
    bridge.refused_topics.add("orders")
    while world.relay(bridge).run_once().claimed:
        pass
    tables = Tables(OwnSource(world.table), world.leases)
    with world.engine.connect() as conn:
        for place in (None, "0" * 32, "8" * 32, "f" * 32):
            for step in range(1, 8):
                assert list(find_heads(conn, tables, place, step).keys) == []


def test_outbox_without_the_index_is_served_too(world: OutboxWorld) -> None:
    """Somebody else's table: in order of its keys, by reading it from the front."""
    events = sa.Table(
        "events",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        *[sa.Column(name, sa.String(20)) for name in ("topic", "key", "payload")],
    )
    events.create(world.engine)
    with world.engine.begin() as conn:
        rows = [(1, "a"), (2, "a"), (3, None), (4, "b")]
        conn.execute(sa.insert(events), [{"id": n, "topic": "t", "key": key, "payload": f"{n}"} for n, key in rows])
    bridge = MemoryHandOver()
    relay = world.relay(bridge, source=MappedSource(events, ColumnMap(), "events"))
    assert [relay.run_once().published for _ in range(3)] == [3, 1, 0]
    assert [row.value for row in bridge.published] == [b"1", b"3", b"4", b"2"]


class WeighingHandOver(MemoryHandOver):
    """Notes how many bytes are in memory at once."""

    def __init__(self) -> None:
        super().__init__()
        self.most_bytes = 0

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        self.most_bytes = max(self.most_bytes, sum(len(row.value or b"") for row in rows))
        return super().publish(rows)


def test_large_rows_are_claimed_some_at_a_time(world: OutboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand that are as large as messages may be would take gigabytes: the relay would be killed each time."""
    assert relay_queries.MAX_CLAIM_BYTES <= 32 * 1024 * 1024
    monkeypatch.setattr(relay_queries, "MAX_CLAIM_BYTES", 12_000)
    bridge = WeighingHandOver()
    relay = world.relay(bridge)
    world.enqueue(*[Sent("orders", str(n).encode() if n % 2 else None, bytes([n]) * 1_000) for n in range(20)])
    world.enqueue(Sent("orders", b"too large for any claim", b"\xff" * 20_000), Sent("orders", b"small", b"\xff"))
    weights = []
    while world.count() != (0, 0):
        relay.run_once()
        weights.append(bridge.most_bytes)
        bridge.most_bytes = 0
    assert len(weights) == 4
    *others, largest = sorted(weights)
    assert largest == 20_000
    assert max(others) <= 12_000
    assert sorted(row.value[0] for row in bridge.published if row.value) == [*range(20), 255, 255]
