"""A relay process, at one of the bridge's api processes.

python -m tests.kills.relay RUN_FILE NAME NUMBER
"""

import signal
import sys
import threading
from collections.abc import Sequence

import sqlalchemy as sa

from outbox.hand_over import HandedOver, HandOver, HttpHandOver, OutboxRow
from outbox.relay import Relay, RelayConfig
from outbox.sources import OwnSource
from tests.kills.planted import DELETED_FIRST
from tests.kills.run_file import GROUP, LEASES, OUTBOX, RunFile

# short leases: what a killed one had is soon free, and a slow one loses what it still hands over
_CONFIG = RelayConfig(max_rows=50, lease_ms=4_000, hand_over_ms=2_000, min_delay_ms=50, max_delay_ms=1_000)


class DeletingHandOver:
    """Planted: forgets its rows before the bridge has them."""

    def __init__(self, engine: sa.Engine, hand_over: HandOver) -> None:
        self._engine = engine
        self._hand_over = hand_over

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[HandedOver]:
        with self._engine.begin() as conn:
            conn.execute(sa.delete(OUTBOX).where(OUTBOX.c.message_id.in_([row.idempotency_key for row in rows])))
        return self._hand_over.publish(rows)


def main() -> None:
    """Works until SIGTERM."""
    run, number = RunFile.read(sys.argv[1]), int(sys.argv[3])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    engine = sa.create_engine(run.database_url)
    hand_over: HandOver = HttpHandOver(run.urls[number % len(run.urls)], GROUP)
    if run.planted == DELETED_FIRST:
        hand_over = DeletingHandOver(engine, hand_over)
    thread = threading.Thread(
        target=Relay(engine, hand_over, OwnSource(OUTBOX), LEASES, _CONFIG).run_forever, args=(stopping,)
    )
    thread.start()  # a signal must not find it under one of its locks
    thread.join()


if __name__ == "__main__":
    main()
