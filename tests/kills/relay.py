"""A relay process, at one of the bridge's api processes: `outbox-bridge relay`, or one with a bug.

python -m tests.kills.relay RUN_FILE NAME NUMBER
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import sqlalchemy as sa

from outbox.hand_over import HandOver, HttpHandOver, OutboxRow, PublishResult
from outbox.relay import Relay, RelayConfig
from outbox.sources import OwnSource
from tests.kills.planted import DELETED_FIRST
from tests.kills.run_file import GROUP, LEASES, OUTBOX, RunFile

# short leases: what a killed one had is soon free, and a slow one loses what it still hands over
_LEASE_S, _ROWS, _DELAY_S, _MAX_DELAY_S = 4, 50, 0.05, 1
_CONFIG = RelayConfig(max_rows=_ROWS, lease_ms=_LEASE_S * 1_000, hand_over_ms=2_000)


class DeletingHandOver:
    """Planted: forgets its rows before the bridge has them."""

    def __init__(self, engine: sa.Engine, hand_over: HandOver) -> None:
        self._engine = engine
        self._hand_over = hand_over

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        with self._engine.begin() as conn:
            conn.execute(sa.delete(OUTBOX).where(OUTBOX.c.message_id.in_([row.idempotency_key for row in rows])))
        return self._hand_over.publish(rows)


def main() -> None:
    """Works until SIGTERM."""
    run, number = RunFile.read(sys.argv[1]), int(sys.argv[3])
    url = run.urls[number % len(run.urls)]
    if run.planted != DELETED_FIRST:
        _become_command(run, url)
    _relay_with_a_bug(run, url)


def _become_command(run: RunFile, url: str) -> NoReturn:
    """The same process goes on as what a user starts."""
    pairs = {
        "--database-url": run.database_url,
        "--bridge": url,
        "--producer-group": GROUP,
        "--lease": _LEASE_S,
        "--batch-size": _ROWS,
        "--retry-delay": _DELAY_S,
        "--max-retry-delay": _MAX_DELAY_S,
    }
    options = [str(word) for pair in pairs.items() for word in pair]
    os.execv(sys.executable, [sys.executable, "-m", "api", "relay", *options])


def _relay_with_a_bug(run: RunFile, url: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    engine = sa.create_engine(run.database_url)
    hand_over = DeletingHandOver(engine, HttpHandOver(url, GROUP))
    thread = threading.Thread(
        target=Relay(engine, hand_over, OwnSource(OUTBOX), LEASES, _CONFIG).run_forever, args=(stopping,)
    )
    thread.start()  # a signal must not find it under one of its locks
    thread.join()


if __name__ == "__main__":
    main()
