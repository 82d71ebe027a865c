"""`python -m benchmarks.console_pages`: how soon pages of the console are there, with a million transactions in SQLite.

The rows are made in SQL from one real transaction; 10,000 of them are pending, 1,000 parked, of 20 groups.
"""

import argparse
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import httpx2

from tests.support.socket_bridge import SocketBridge, socket_bridge

_PENDING, _PARKED, _GROUPS = 10_000, 1_000, 20
_AT_ONCE = 20_000
_MOST_MS = 200
_PAGES = (
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


def fill(file: Path, count: int) -> None:
    """Copies of the one transaction that is there: ids, keys, groups and times of their own."""
    is_open, is_pending = f"n <= {_PENDING + _PARKED}", f"n <= {_PENDING}"
    rows = {
        "id": "t.id + n * 1024",
        "transaction_id": "substr(t.transaction_id, 1, 18) || printf('%09d', n) || '0'",
        "producer_group": f"'group-' || (n % {_GROUPS})",
        "state": f"CASE WHEN {is_pending} THEN 'PREPARED' WHEN {is_open} THEN 'PARKED' ELSE 'COMMITTED' END",
        "live": is_open,
        "queue_offset": "t.queue_offset + n",
        "born_ms": "t.born_ms - n",
        "appended_ms": "t.appended_ms - n",
    }
    keys = {"id": "t.id + n * 1024", "born_ms": "t.born_ms - n", "message_key": "CAST('k' || n AS BLOB)"}
    with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as conn:
        for first in range(1, count + 1, _AT_ONCE):
            last = min(first + _AT_ONCE - 1, count)
            numbers = f"WITH RECURSIVE c(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last})"
            for table, changed in (("transactions", rows), ("transaction_keys", keys)):
                columns = [row[1] for row in conn.execute(f"PRAGMA table_info({table})")]
                values = ", ".join(changed.get(name, f"t.{name}") for name in columns)
                conn.execute(f"{numbers} INSERT INTO {table} SELECT {values} FROM c, (SELECT * FROM {table} LIMIT 1) t")
        prepared, pending, parked = (number // _GROUPS for number in (count, _PENDING, _PARKED))
        for group in range(_GROUPS):
            counts = (f"group-{group}", prepared, prepared - pending - parked, parked)
            conn.execute("INSERT INTO group_counts VALUES (?, ?, ?, 0, 0, ?, 0)", counts)


def measure(bridge: SocketBridge, path: str, rounds: int) -> tuple[float, float]:
    """Median and 95th percentile, in milliseconds."""
    took = []
    with httpx2.Client(base_url=f"{bridge.url}/console/", timeout=60) as client:
        for _ in range(rounds):
            started = time.perf_counter()
            answer = client.get(path)
            took.append((time.perf_counter() - started) * 1000)
            assert answer.status_code == 200, answer.text
            time.sleep(0.05)
    return statistics.median(took), statistics.quantiles(took, n=20)[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket_bridge(Path(folder), {"orders": 1}) as bridge:
        message = {"topic": "orders", "key": "k", "value": {"n": 1}}
        body = {"producer_group": "shop", "messages": [message]}
        one = bridge.post_json("/v1/transactions", body)["transaction_id"]
        bridge.post_json(f"/v1/transactions/{one}/commit", {})
        bridge.states_of("shop")
        fill(next(Path(folder).glob("bridge-*.db")), given.transactions)
        for path in (*_PAGES, f"transactions/{one}"):
            median, p95 = measure(bridge, path, given.rounds)
            print(
                f"{path or '(home)':45} median {median:7.1f} ms  p95 {p95:7.1f} ms{'  SLOW' if p95 > _MOST_MS else ''}"
            )


if __name__ == "__main__":
    main()
