"""Producers' own tables on the three databases that users have, compared with transactions made by hand."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from outbox import transaction_record
from outbox.tables import make_record_table
from spark.errors import ReconcileError
from spark.judge import judging as row_judging
from spark.judge.producer_tables import ProducerTables
from spark.read.envelope import COMMIT, Event, PreparedMessage, group_hash, key_hash
from spark.read.table_list import parse_tables
from tests.support.envelope_rows import HALF, HALF_MS, SCOPE, commit, half, op, record, rollback, with_extent
from tests.support.run_views import show_views
from tests.support.socket_front import tcp_front
from tests.support.user_database import UserDatabase

GRANTS = {
    "postgresql": ["CREATE ROLE {user} LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}"],
    "mariadb": ["CREATE USER {user}@localhost IDENTIFIED BY 'hunter2'", "GRANT SELECT ON *.* TO {user}@localhost"],
    "sqlite": [],
}
WHOLE = with_extent(SCOPE, HALF, first_ms=HALF_MS - 1_000)
Access = dict[str, Any]


def tx(number: int) -> str:
    return make_transaction_id(0, make_uuid7_bits(HALF_MS, number))


def tell_nobody(_: str) -> None:
    """Nobody waits."""


@pytest.fixture
def reach(user_database: UserDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Access]]:
    """Makes a user that may only read what is there, and says how it gets in."""
    kind, address = user_database.name, sa.make_url(user_database.url)
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    with ExitStack() as stack:

        def make() -> Access:
            if kind == "sqlite":
                return {"url": f"jdbc:sqlite:{address.database}"}
            if kind == "postgresql":
                path = Path(str(address.query["host"])) / ".s.PGSQL.5432"
            else:
                path = Path(str(address.query["unix_socket"]))
            user = f"reader_{address.database}"
            with user_database.engine().begin() as conn:
                for statement in GRANTS[kind]:
                    conn.execute(sa.text(statement.format(user=user)))
            port = stack.enter_context(tcp_front(path))
            url = f"jdbc:{kind}://127.0.0.1:{port}/{address.database}"
            return {"url": url, "user": user, "password_env": "SHOP_PASSWORD"}

        yield make


def fill(engine: sa.Engine) -> sa.Table:
    """Records of all states, orders with ids, invoices with message keys."""
    metadata = sa.MetaData()
    records = make_record_table(metadata)
    orders = sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("tx", sa.CHAR(40)))
    invoices = sa.Table(
        "invoices", metadata, sa.Column("number", sa.BigInteger, primary_key=True), sa.Column("made", sa.BigInteger),
        sa.Column("kind", sa.String(10)),
    )  # fmt: skip
    metadata.create_all(engine)
    with engine.begin() as conn:
        for number in (1, 2, 5, 6, 10, 11):
            transaction_record.insert_record(conn, records, tx(number), "shop")
        transaction_record.insert_bars(conn, records, [tx(3), tx(4)], "shop")
        conn.execute(orders.insert(), [{"tx": tx(1)}, {"tx": tx(1)}, {"tx": tx(2)}, {"tx": None}, {"tx": "none"}])
        made = [{"number": 5_000_000_000 + n, "made": HALF_MS + n, "kind": "sent"} for n in range(3)]
        draft = {"number": 7, "made": HALF_MS, "kind": "draft"}
        conn.execute(invoices.insert(), [*made, draft])
    return records


def happen(spark: SparkSession) -> None:
    """The transactions of the first to the twelfth id, but the sixth, of which nobody knows."""
    hashes = (
        f"SELECT {key_hash('CAST(text AS BINARY)')} AS key, {group_hash('text')} AS grp FROM VALUES {{}} AS t(text)"
    )
    keys = spark.sql(hashes.format("('5000000000'), ('9')")).collect()
    there, nowhere = ((PreparedMessage("orders", None, 111, None, one.key),) for one in keys)
    group = {name: spark.sql(hashes.format(f"('{name}')")).collect()[0].grp for name in ("shop", "mail")}
    committed = [half(), commit(), op("COMMITTED"), record()]
    rolled_back = [half(), rollback(), op("ROLLED_BACK")]
    stories: dict[int, list[Event]] = {
        1: committed, 2: rolled_back, 3: committed, 4: rolled_back, 5: [half()], 7: committed,
        8: [half(code=COMMIT), op("COMMITTED", cause=10), record()],
        9: [half(grp="mail"), commit(), op("COMMITTED", grp="mail"), record()],
        10: [half(there), commit(), op("COMMITTED"), record()],
        11: [half(nowhere), commit(), op("COMMITTED"), record()],
    }  # fmt: skip
    events = [event._replace(tx=tx(number)) for number, events in stories.items() for event in events]
    show_views(spark, [event._replace(grp_id=event.grp and group[event.grp]) for event in events])


def document(access: Access) -> dict[str, Any]:
    """All three tables, of which two must have a row for each committed transaction of a group."""
    rows = [
        {"table": "orders", "transaction_id": "tx", "shown": "id"},
        {
            "table": "invoices", "key": "number", "topic": "orders", "at_ms": "made", "where": "kind = 'sent'",
            "shown": "number", "groups": ["shop"],
        },
    ]  # fmt: skip
    return {"databases": [{"name": "shop", "records": [{"groups": ["shop"]}], "rows": rows, **access}]}


def compare(spark: SparkSession, access: Access, folder: Path) -> dict[str, str]:
    """What is found, by transaction."""
    folder.mkdir()
    tables = ProducerTables(spark, parse_tables(document(access)), folder, None)
    tables.read_first(tell_nobody)
    return {one.transaction_id: one.detail for one in tables.judge(WHOLE, [], is_read_first=True)}


def test_rows_and_transactions_are_compared(
    spark: SparkSession,
    user_database: UserDatabase,
    reach: Callable[[], Access],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the real database, as a user who may only read: every mismatch, and nothing that only looks like one."""
    monkeypatch.setattr(row_judging, "_BATCH", 2)  # so that there are several
    records = fill(user_database.engine())
    happen(spark)
    access = reach()
    found = compare(spark, access, tmp_path / "1")
    no_record = "no row in shop.outbox_transaction, but COMMITTED by producer"
    assert found == {
        tx(2): "row 3 in shop.orders, but ROLLED_BACK by producer; "
        "row in shop.outbox_transaction, but ROLLED_BACK by producer",
        tx(3): "barred in shop.outbox_transaction, but COMMITTED by producer",
        tx(6): "row in shop.outbox_transaction, but its transaction is unknown",
        tx(7): no_record,
        tx(11): "no row in shop.invoices, but COMMITTED by producer",
        **{
            f"shop.invoices/{number}": f"row {number} in shop.invoices, but no message of its key in orders"
            for number in (5_000_000_001, 5_000_000_002)
        },
    }
    with user_database.engine().begin() as conn:  # it says that older records may have been deleted
        transaction_record.clean_records(conn, records, 1_000_000_000, 1_000, 10)
    assert compare(spark, {**access, "rows": []}, tmp_path / "2").keys() == {tx(2), tx(3), tx(6)}


def test_database_that_does_not_let_us_in_is_named(
    spark: SparkSession, user_database: UserDatabase, reach: Callable[[], Access], tmp_path: Path
) -> None:
    """A wrong user, or a file that is not there: one line, without the password."""
    access = reach()
    with pytest.raises(ReconcileError) as raised:
        compare(spark, {**access, "user": "nobody"}, tmp_path / "1")
    assert "shop" in raised.value.reason
    assert "hunter2" not in raised.value.reason
    assert "\n" not in raised.value.reason
