"""`python -m benchmarks.peers.plain_relay DATABASE KAFKA TOPIC`: the loop that many services write for themselves.

Rows are locked, produced, awaited and deleted in one transaction of the database; `enable.idempotence` covers what the
client sends again by itself, and after a crash the rows of the last batch are published twice. One such loop keeps all
rows in order; two keep none.
"""

import sys
import time
from typing import Any

import psycopg
from confluent_kafka import Producer

TABLE = "plain_outbox"
_AT_ONCE = 1_000  # as many as our relay takes
_PAUSE_S = 0.01
_TAKE = f"SELECT id, key, value FROM {TABLE} ORDER BY id LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED"
_DELETE = f"DELETE FROM {TABLE} WHERE id = ANY(%s)"


def main(database: str, kafka: str, topic: str) -> None:
    """Until it is killed."""
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 5})
    with psycopg.connect(database, autocommit=True) as connection:
        while True:
            if not relay_once(connection, producer, topic):
                time.sleep(_PAUSE_S)


def relay_once(connection: "psycopg.Connection[Any]", producer: Producer, topic: str) -> int:
    """One batch; how many rows it had."""
    errors: list[str] = []

    def on_delivery(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(str(error))

    with connection.transaction():
        rows = connection.execute(_TAKE).fetchall()
        for _, key, value in rows:
            producer.produce(topic, value, key, on_delivery=on_delivery)
        if producer.flush(30) or errors:
            raise RuntimeError(f"not delivered: {errors[:1]}")
        if rows:
            connection.execute(_DELETE, ([number for number, _, _ in rows],))
    return len(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
