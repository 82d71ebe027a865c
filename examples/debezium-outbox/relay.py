"""Publishes the rows of Debezium's outbox table through the bridge, in Debezium's place. Any number may run.

python relay.py
"""

import logging
import os
import signal
import threading

from sqlalchemy import MetaData, Table, create_engine

from outbox.hand_over import HttpHandOver
from outbox.relay import Relay
from outbox.sources import debezium_source
from outbox.tables import make_lease_table

BRIDGE_URL = os.environ.get("BRIDGE_URL", "http://127.0.0.1:8780")
DATABASE_URL = os.environ.get("DATABASE_URL", "postgresql+psycopg:///orders")
GROUP = "debezium-outbox"


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    engine = create_engine(DATABASE_URL, pool_pre_ping=True)
    metadata = MetaData()
    source = debezium_source(Table("outbox", metadata, autoload_with=engine), sequence="position")
    hand_over = HttpHandOver(BRIDGE_URL, GROUP)
    relay = Relay(engine, hand_over, source, make_lease_table(metadata))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    relay.run_forever(stop)
    hand_over.close()


if __name__ == "__main__":
    main()
