"""Reads of the projection, timelines included. Plain functions; the caller owns the connection."""

import json
from collections.abc import Collection, Iterable, Iterator

import sqlalchemy as sa
from msgspec.structs import asdict
from sqlalchemy import Connection

from bridge.core.explanation import Unanswered
from bridge.core.transaction import RESOLUTION_OF, TimelineEvent, TransactionState, TransactionView
from bridge.sql.bulk import chunks
from bridge.sql.identity import find_given_up, find_given_up_keys, read_halts
from bridge.sql.rows import decode_receipts, make_view, select_views
from bridge.sql.tables import given_up, timeline_events, transactions, unanswered_rounds

_T = transactions.c
_E = timeline_events.c
_U = unanswered_rounds.c
_MOST_AT_AN_END = 500  # of a timeline's events, in the order in which they were written


def read_timeline(conn: Connection, transaction_id: str) -> list[TimelineEvent]:
    """What happened to a transaction, in order of time; empty if it is not known."""
    row = conn.execute(sa.select(transactions).where(_T.transaction_id == transaction_id)).one_or_none()
    if row is None:
        return list(_read_given_up(conn, transaction_id))
    events = [TimelineEvent(row.appended_ms, "prepared", "producer", {"queue_offset": row.queue_offset})]
    remark: dict[str, object] = {}
    for event in _read_kept(conn, row.id):
        if event.type == "end" and event.members["effective"]:
            remark = {"remark": event.members["remark"]}  # the row has the rest of it
        else:
            events.append(event)
    events += _read_unanswered(conn, transaction_id)
    if row.ended_ms is not None and TransactionState(row.state) in RESOLUTION_OF:
        resolution = RESOLUTION_OF[TransactionState(row.state)].name
        members = {"resolution": resolution, "effective": True, **remark}
        events.append(TimelineEvent(row.ended_ms, "end", row.resolved_by, members))
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
    """Of very many the first and the last ones: somebody may repeat an end for days, and each is one."""
    query = sa.select(_E.source, _E.source_offset, _E.at_ms, _E.type, _E.by, _E.members).where(_E.id == row_id)
    place = (_E.source, _E.source_offset)
    first = conn.execute(query.order_by(*place).limit(_MOST_AT_AN_END)).all()
    found = {row[:2]: row for row in first}
    if len(first) == _MOST_AT_AN_END:
        last = query.order_by(*[column.desc() for column in place]).limit(_MOST_AT_AN_END)
        found |= {row[:2]: row for row in conn.execute(last)}
    for _, _, at_ms, kind, by, members in sorted(found.values(), key=lambda row: (row.at_ms, *row[:2])):
        yield TimelineEvent(at_ms, kind, by, json.loads(members))


def _read_unanswered(conn: Connection, transaction_id: str) -> Iterator[TimelineEvent]:
    for rounds in _read_rounds(conn, transaction_id):
        yield TimelineEvent(rounds.first_ms, "check_unanswered", "check", asdict(rounds))


def _read_rounds(conn: Connection, transaction_id: str) -> list[Unanswered]:
    query = sa.select(_U.first_ms, _U.last_ms, _U.count, _U.failure, _U.endpoint)
    return [Unanswered(*row) for row in conn.execute(query.where(_U.transaction_id == transaction_id))]


def read_surroundings(conn: Connection, view: TransactionView) -> tuple[list[Unanswered], str | None, str | None]:
    """Rounds without an answer and why its queue halts, as long as it is not over; the last remark about it."""
    row_id = sa.select(_T.id).where(_T.transaction_id == view.transaction_id).scalar_subquery()
    query = sa.select(_E.members).where(_E.id == row_id, _E.members.contains('"remark":'))
    kept = conn.execute(query.order_by(_E.at_ms.desc(), _E.source_offset.desc()).limit(1)).scalar()
    remark = None if kept is None else json.loads(kept).get("remark")
    if view.state in RESOLUTION_OF and not view.blocked:
        return [], None, remark
    halt = read_halts(conn).get(view.queue_id)
    return _read_rounds(conn, view.transaction_id), halt and halt.detail, remark


def find_many(conn: Connection, transaction_ids: Collection[str]) -> dict[str, TransactionView]:
    """The known ones of these ids, as far as the projection has applied the log."""
    found: dict[str, TransactionView] = {}
    for chunk in chunks(set(transaction_ids), 500):
        for row in conn.execute(select_views().where(_T.transaction_id.in_(chunk))):
            found[row.transaction_id] = make_view(row)
    missing = set(transaction_ids).difference(found)
    return found | find_given_up(conn, missing) if missing else found


def find_many_by_key(conn: Connection, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], TransactionView]:
    """The newest transaction of each (group, idempotency key) that is known."""
    found: dict[tuple[str, str], TransactionView] = {}
    keys: dict[str, set[str]] = {}
    for group, key in pairs:
        keys.setdefault(group, set()).add(key)
    for group, wanted in keys.items():
        for chunk in chunks(wanted, 500):
            found.update(find_given_up_keys(conn, group, chunk))
            query = select_views().where(_T.producer_group == group, _T.idempotency_key.in_(chunk))
            for row in conn.execute(query.order_by(_T.appended_ms, _T.id)):
                found[group, row.idempotency_key] = make_view(row)
    return found


def count_live(conn: Connection, group: str) -> int:
    """Transactions of the group for which something is still to be done: pending, parked, blocked."""
    query = sa.select(sa.func.count()).select_from(transactions).where(_T.producer_group == group, _T.live == 1)
    return int(conn.execute(query).scalar_one())
