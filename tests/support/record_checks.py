"""Checks asked of transaction records, as the check handler asks them."""

import threading
import time
from collections.abc import Sequence

import sqlalchemy as sa

from outbox.client.checks import Check
from outbox.client.listener import Answered, Resolution, read_answered
from outbox.transaction_record import TransactionRecord

YOUNG_MS = time.time_ns() // 1_000_000  # born after any cleaning


def make_check(transaction_id: str, born_ms: int = YOUNG_MS, *, is_trial: bool = False) -> Check:
    return Check(transaction_id, "orders", 1, "1-abcdefghijklmnop", born_ms, is_trial=is_trial)


def ask(
    record: TransactionRecord, engine: sa.Engine, *transaction_ids: str, born_ms: int = YOUNG_MS, is_trial: bool = False
) -> list[Resolution]:
    """The answers to one call, in the order of the ids; each must be there."""
    checks = [make_check(transaction_id, born_ms, is_trial=is_trial) for transaction_id in transaction_ids]
    told = _ask(record, engine, checks)
    return [read_answered(told[transaction_id])[0] for transaction_id in transaction_ids]


def ask_why(record: TransactionRecord, engine: sa.Engine, transaction_id: str, born_ms: int) -> str:
    """The remark of the answer; empty if it has none."""
    told = _ask(record, engine, [make_check(transaction_id, born_ms)])
    return read_answered(told[transaction_id])[1] or ""


def _ask(record: TransactionRecord, engine: sa.Engine, checks: Sequence[Check]) -> dict[str, Answered]:
    told: dict[str, Answered] = {}
    record.answers(engine)(checks, lambda check, answered: told.update({check.transaction_id: answered}))
    return told


def ask_until_known(record: TransactionRecord, engine: sa.Engine, transaction_id: str) -> Resolution:
    """The first answer that is not UNKNOWN: a server may need a moment to see that its client is gone."""
    for _ in range(1_000):
        (resolution,) = ask(record, engine, transaction_id)
        if resolution is not Resolution.UNKNOWN:
            return resolution
        threading.Event().wait(0.02)
    raise AssertionError("UNKNOWN for ever: a dead session still holds the key")
