"""A relay as a process of its own: `python -m tests.support.relay_process DATABASE_URL BRIDGE_URL`."""

import sys
import threading

import sqlalchemy as sa

from outbox.hand_over import HttpHandOver
from outbox.relay import Relay, RelayConfig
from outbox.sources import OwnSource
from outbox.tables import make_lease_table, make_outbox_table

# short, so that what a killed relay had is soon free
CONFIG = RelayConfig(max_rows=7, lease_ms=1_500, hand_over_ms=500, poll_ms=20, min_delay_ms=10, max_delay_ms=50)


def main(database_url: str, bridge_url: str) -> None:
    metadata = sa.MetaData()
    source, leases = OwnSource(make_outbox_table(metadata)), make_lease_table(metadata)
    relay = Relay(sa.create_engine(database_url), HttpHandOver(bridge_url, "orders"), source, leases, CONFIG)
    relay.run_forever(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
