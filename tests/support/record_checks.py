"""Checks asked of transaction records, as the check handler asks them."""

import threading
import time

import sqlalchemy as sa

from outbox.client.checks import Check
from outbox.client.listener import Resolution
from outbox.transaction_record import TransactionRecord

YOUNG_MS = time.time_ns() // 1_000_000  # born after any cleaning


def make_check(transaction_id: str, born_ms: int = YOUNG_MS, *, is_trial: bool = False) -> Check:
    return Check(transaction_id, "orders", 1, "1-abcdefghijklmnop", born_ms, is_trial=is_trial)


def ask(
    record: TransactionRecord,
    engine: sa.Engine,
    *transaction_ids: str,
    born_ms: int = YOUNG_MS,
    is_trial: bool = False,
) -> list[Resolution]:
    """The answers to one call, in the order of the ids; each must be there."""
    told: dict[str, Resolution] = {}
    checks = [make_check(transaction_id, born_ms, is_trial=is_trial) for transaction_id in transaction_ids]
    record.answers(engine)(checks, lambda check, resolution: told.update({check.transaction_id: resolution}))
    return [told[transaction_id] for transaction_id in transaction_ids]


def ask_until_known(record: TransactionRecord, engine: sa.Engine, transaction_id: str) -> Resolution:
    """The first answer that is not UNKNOWN: a server may need a moment to see that its client is gone."""
    for _ in range(1_000):
        (resolution,) = ask(record, engine, transaction_id)
        if resolution is not Resolution.UNKNOWN:
            return resolution
        threading.Event().wait(0.02)
    raise AssertionError("UNKNOWN for ever: a dead session still holds the key")
