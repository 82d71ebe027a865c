"""`python -m benchmarks.console_pages`: how soon pages of the console are there, with a million transactions in SQL.

The rows are made in SQL from one real transaction; 10,000 of them are pending, 1,000 parked, of 20 groups.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx2
import sqlalchemy as sa

from bridge.sql.search import recount_pending
from bridge.sql.tables import transaction_keys, transactions
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, wait_until
from tests.support.broker import running_broker
from tests.support.postgres import PostgresServer

_PENDING, _PARKED, _GROUPS = 10_000, 1_000, 20
_AT_ONCE = 20_000
_MOST_MS = 200
PAGES = (
    "",
    "search",
    "search?state=PREPARED",
    "search?producer_group=group-7&state=COMMITTED",
    "search?producer_group=group-7&state=PARKED",
    "search?topic=orders",
    "search?topic=orders&producer_group=group-7",
    "search?key=k4711",
    "search?idempotency_key=nothing",
    "parked",
    "parked?producer_group=group-7",
    "groups",
    "groups/shop",
    "topics",
    "topics/orders",
    "reports",
    "audit",
    "settings",
)


class _Dialect(NamedTuple):
    """What the two databases write differently. `numbers`: a relation c(n) of the numbers from :first to :last."""

    numbers: str
    padded: str
    key: str


_DIALECTS = {
    "sqlite": _Dialect(
        "(WITH RECURSIVE c(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM c WHERE n < :last) SELECT n FROM c)",
        "printf('%09d', n)",
        "CAST('k' || n AS BLOB)",
    ),
    "postgresql": _Dialect(
        "(SELECT generate_series(CAST(:first AS bigint), :last) AS n)",
        "lpad(n::text, 9, '0')",
        "convert_to('k' || n, 'UTF8')",
    ),
}


def fill(database_url: str, count: int, pending: int = _PENDING, parked: int = _PARKED) -> None:
    """Copies of the one transaction that is there: ids, keys, groups and times of their own.

    The first ones are pending, so many after them parked, and the others committed.
    """
    engine = sa.create_engine(database_url)
    numbers, padded, key = _DIALECTS[engine.dialect.name]
    is_open, is_pending = f"n <= {pending + parked}", f"n <= {pending}"
    rows = {
        "id": "t.id + n * 1024",
        "transaction_id": f"substr(t.transaction_id, 1, 18) || {padded} || '0'",
        "producer_group": f"'group-' || (n % {_GROUPS})",
        "state": f"CASE WHEN {is_pending} THEN 'PREPARED' WHEN {is_open} THEN 'PARKED' ELSE 'COMMITTED' END",
        "live": f"CASE WHEN {is_open} THEN 1 ELSE 0 END",
        "queue_offset": "t.queue_offset + n",
        "born_ms": "t.born_ms - n",
        "appended_ms": "t.appended_ms - n",
    }
    keys = {"id": "t.id + n * 1024", "born_ms": "t.born_ms - n", "message_key": key}
    for first in range(1, count + 1, _AT_ONCE):
        with engine.begin() as conn:
            for table, changed in ((transactions, rows), (transaction_keys, keys)):
                names = [column.name for column in table.columns]
                values = ", ".join(changed.get(name, f"t.{name}") for name in names)
                one = f"(SELECT * FROM {table.name} ORDER BY id LIMIT 1)"
                statement = f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {values} FROM {numbers} c, {one} t"
                conn.execute(sa.text(statement), {"first": first, "last": min(first + _AT_ONCE - 1, count)})
    prepared, pending, parked = (number // _GROUPS for number in (count, pending, parked))
    with engine.begin() as conn:
        for group in range(_GROUPS):
            counts = f"'group-{group}', {prepared}, {prepared - pending - parked}, 0, 0, {parked}, 0"
            conn.execute(sa.text(f"INSERT INTO group_counts VALUES ({counts})"))
        recount_pending(conn)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(sa.text("ANALYZE"))  # as autovacuum would
    engine.dispose()


def measure(bridge: BridgeProcess, path: str, rounds: int) -> tuple[float, float]:
    """Median and 95th percentile, in milliseconds."""
    took = []
    with httpx2.Client(base_url=f"http://127.0.0.1:{bridge.port}/console/", timeout=60) as client:
        for _ in range(rounds):
            started = time.perf_counter()
            answer = client.get(path)
            took.append((time.perf_counter() - started) * 1000)
            assert answer.status_code == 200, answer.text
            time.sleep(0.05)
    return statistics.median(took), statistics.quantiles(took, n=20)[-1]


def main() -> None:
    """A line for each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--postgres", action="store_true", help="instead of SQLite")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = None
        if given.postgres:
            server = PostgresServer(is_durable=True)
            stack.callback(server.close)
            url = server.create_migrated()
        broker = stack.enter_context(running_broker())
        create_topics(broker.bootstrap, {"orders": 1})
        bridge = Bridge.create(broker.bootstrap, folder, database_url=url)
        process = stack.enter_context(bridge.serve("api,settler,projector"))
        message = {"topic": "orders", "key": "k", "value": {"n": 1}}
        body = {"producer_group": "shop", "messages": [message]}
        one = process.http.post("/v1/transactions", json=body).json()["transaction_id"]
        assert process.http.post(f"/v1/transactions/{one}/commit", json={}).status_code == 200
        wait_until(lambda: process.get("/v1/stats").json().get("pending") == 0, 30, "the projection")
        fill(bridge.database_url, given.transactions)
        for path in (*PAGES, f"transactions/{one}"):
            median, p95 = measure(process, path, given.rounds)
            print(
                f"{path or '(home)':45} median {median:7.1f} ms  p95 {p95:7.1f} ms{'  SLOW' if p95 > _MOST_MS else ''}"
            )


if __name__ == "__main__":
    main()
