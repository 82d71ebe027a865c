"""A transaction's timeline: what its row tells, what was kept beside, and rounds that nobody answered."""

import json
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.transaction import RESOLUTION_OF, TransactionState
from bridge.core.view import TimelineEvent
from bridge.sql.rows import decode_receipts
from bridge.sql.tables import given_up, timeline_events, transactions, unanswered_rounds

_T = transactions.c
_E = timeline_events.c
_U = unanswered_rounds.c


def read_timeline(conn: Connection, transaction_id: str) -> list[TimelineEvent]:
    """What happened to a transaction, in order of time; empty if it is not known."""
    row = conn.execute(sa.select(transactions).where(_T.transaction_id == transaction_id)).one_or_none()
    if row is None:
        return list(_read_given_up(conn, transaction_id))
    events = [TimelineEvent(row.appended_ms, "prepared", "producer", {"queue_offset": row.queue_offset})]
    events += _read_kept(conn, row.id)
    events += _read_unanswered(conn, transaction_id)
    if row.ended_ms is not None and TransactionState(row.state) in RESOLUTION_OF:
        resolution = RESOLUTION_OF[TransactionState(row.state)].name
        events.append(
            TimelineEvent(row.ended_ms, "end", row.resolved_by, {"resolution": resolution, "effective": True})
        )
    if row.published_ms is not None:
        receipts = [[r.topic, r.queue_id, r.queue_offset] for r in decode_receipts(row.receipts)]
        events.append(TimelineEvent(row.published_ms, "published", None, {"receipts": receipts}))
    return sorted(events, key=lambda event: (event.at_ms, _RANK[event.type]))


# Of events in the same millisecond the one that leads to the other comes first.
_RANK = {
    name: place
    for place, name in enumerate(
        (
            "prepared",
            "check_unanswered",
            "check_answered",
            "parked",
            "resumed",
            "forced",
            "end",
            "blocked",
            "abandoned",
            "published",
        )
    )
}


def _read_given_up(conn: Connection, transaction_id: str) -> Iterator[TimelineEvent]:
    """What led there has gone with the log."""
    query = sa.select(given_up.c.given_up_ms, given_up.c.state)
    for at_ms, state in conn.execute(query.where(given_up.c.transaction_id == transaction_id)):
        yield TimelineEvent(at_ms, "given_up", "operator", {"state": state})


def _read_kept(conn: Connection, row_id: int) -> Iterator[TimelineEvent]:
    query = sa.select(_E.at_ms, _E.type, _E.by, _E.members).where(_E.id == row_id)
    for at_ms, kind, by, members in conn.execute(query.order_by(_E.at_ms, _E.source, _E.source_offset)):
        yield TimelineEvent(at_ms, kind, by, json.loads(members))


def _read_unanswered(conn: Connection, transaction_id: str) -> Iterator[TimelineEvent]:
    query = sa.select(_U.failure, _U.endpoint, _U.first_ms, _U.last_ms, _U.count)
    for failure, endpoint, first_ms, last_ms, count in conn.execute(query.where(_U.transaction_id == transaction_id)):
        members = {"first_ms": first_ms, "last_ms": last_ms, "count": count, "failure": failure, "endpoint": endpoint}
        yield TimelineEvent(first_ms, "check_unanswered", "check", members)
