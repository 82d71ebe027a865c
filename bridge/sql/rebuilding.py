"""Emptying the projection so that projectors read Kafka again, and what was in it and is not in Kafka."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.transaction import TransactionState
from bridge.sql.tables import (
    check_results,
    group_counts,
    projection_positions,
    projection_previous,
    timeline_events,
    transaction_keys,
    transactions,
)

_T = transactions.c
_P = projection_previous.c


class Orphan(NamedTuple):
    """A transaction that only the database knew."""

    transaction_id: str
    group: str
    state: TransactionState


def clear_projection(conn: Connection) -> None:
    """Empties everything that comes from Kafka and remembers which transactions there were.

    Positions go too: a projector at work fails its compare-and-set and begins anew. Groups, audit and
    unanswered rounds stay. Readers keep their view until this is committed (so no TRUNCATE, which PostgreSQL
    shows to views that are older).
    """
    allow_long_statements(conn)
    if conn.dialect.name == "postgresql":  # no projector begins a queue meanwhile
        conn.exec_driver_sql(f"LOCK TABLE {projection_positions.name} IN SHARE ROW EXCLUSIVE MODE")
    conn.execute(sa.delete(projection_positions))
    known = sa.select(_T.transaction_id, _T.producer_group, _T.state)
    known = known.where(~sa.exists().where(_P.transaction_id == _T.transaction_id))
    conn.execute(sa.insert(projection_previous).from_select(["transaction_id", "producer_group", "state"], known))
    for table in (transactions, transaction_keys, timeline_events, group_counts):
        conn.execute(sa.delete(table))
    conn.execute(sa.update(check_results).values(answered=0, last_answered_ms=None, last_latency_ms=None))


def read_orphans(conn: Connection, limit: int) -> tuple[int, list[Orphan]]:
    """How many transactions Kafka does not know any more, and the first of them."""
    is_unknown = ~sa.exists().where(_T.transaction_id == _P.transaction_id)
    count = conn.execute(sa.select(sa.func.count()).select_from(projection_previous).where(is_unknown)).scalar_one()
    query = sa.select(projection_previous).where(is_unknown).order_by(_P.transaction_id).limit(limit)
    orphans = [Orphan(i, group, TransactionState(state)) for i, group, state in conn.execute(query)]
    return count, orphans


def forget_previous(conn: Connection) -> None:
    """The rebuild is over."""
    conn.execute(sa.delete(projection_previous))


def allow_long_statements(conn: Connection) -> None:
    """Millions of rows at once take longer than any statement of a service may."""
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql("SET LOCAL statement_timeout = 0")
