"""Forgetting what ended long ago. Pending, parked and blocked rows are never purged."""

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.transaction import TransactionState
from bridge.sql.rows import decode_messages
from bridge.sql.search import chunks
from bridge.sql.tables import pull_checks, timeline_events, transaction_keys, transactions, unanswered_rounds

_T = transactions.c
_Ended = sa.Row[int, str, int, str | None]


def purge(conn: Connection, before_ms: int, limit: int) -> int:
    """Forgets at most `limit` transactions whose story ended before `before_ms`, oldest first; how many it forgot.

    A commit's story ends when it is published or abandoned, which after a block is long after its end. The
    running totals stay: they count what ever was.
    """
    found: list[_Ended] = []
    for state in (TransactionState.COMMITTED, TransactionState.ROLLED_BACK):
        query = (
            sa.select(_T.id, _T.transaction_id, _T.born_ms, _T.messages)
            .where(_T.live == 0, _T.state == state.value, _T.ended_ms < before_ms)
            .where(sa.func.coalesce(_T.published_ms, _T.abandoned_ms, _T.ended_ms) < before_ms)
            .order_by(_T.born_ms, _T.id)
            .limit(limit - len(found))
        )
        found += conn.execute(query).all()
    for chunk in chunks(found, 500):
        _forget(conn, chunk)
    return len(found)


def _forget(conn: Connection, rows: list[_Ended]) -> None:
    row_ids = [row.id for row in rows]
    keys = [(m.topic, row.born_ms, row.id) for row in rows for m in decode_messages(row.messages)]
    same = sa.tuple_(transaction_keys.c.topic, transaction_keys.c.born_ms, transaction_keys.c.id)
    for chunk in chunks(set(keys), 300):
        conn.execute(sa.delete(transaction_keys).where(same.in_(chunk)))
    conn.execute(sa.delete(timeline_events).where(timeline_events.c.id.in_(row_ids)))
    ids = [row.transaction_id for row in rows]
    conn.execute(sa.delete(unanswered_rounds).where(unanswered_rounds.c.transaction_id.in_(ids)))
    conn.execute(sa.delete(pull_checks).where(pull_checks.c.transaction_id.in_(ids)))  # an owner died with it
    conn.execute(sa.delete(transactions).where(_T.id.in_(row_ids)))
