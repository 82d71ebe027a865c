"""The service as it was: it writes an order, and beside it a row for Debezium. Adopting the bridge changes nothing.

python service.py 42 1990
"""

import json
import os
import sys
import uuid

from sqlalchemy import Engine, create_engine, text

DATABASE_URL = os.environ.get("DATABASE_URL", "postgresql+psycopg:///orders")

INSERT_ORDER = text("INSERT INTO orders (id, cents) VALUES (:order, :cents)")
INSERT_EVENT = text(
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)"
    " VALUES (:id, 'order', :order, 'OrderCreated', CAST(:payload AS jsonb))"
)


def place_order(engine: Engine, order: int, cents: int) -> None:
    """Both rows or none."""
    payload = json.dumps({"order": order, "cents": cents})
    with engine.begin() as connection:
        connection.execute(INSERT_ORDER, {"order": order, "cents": cents})
        connection.execute(INSERT_EVENT, {"id": uuid.uuid4(), "order": str(order), "payload": payload})


if __name__ == "__main__":
    place_order(create_engine(DATABASE_URL), int(sys.argv[1]), int(sys.argv[2]))
