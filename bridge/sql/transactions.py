"""Reads of the projection. Plain functions; whoever calls them owns the connection and the SQL transaction."""

from collections.abc import Collection, Iterable

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.view import TransactionView
from bridge.sql.given_up import find_given_up, find_given_up_keys
from bridge.sql.positions import AppliedPosition, read_positions
from bridge.sql.purge import purge
from bridge.sql.rows import make_view, select_views
from bridge.sql.search import SearchFilter, chunks, search_transactions
from bridge.sql.stats import GroupStats, ProjectionStats, read_stats
from bridge.sql.tables import transactions
from bridge.sql.timeline import read_timeline

__all__ = [
    "AppliedPosition",
    "GroupStats",
    "ProjectionStats",
    "SearchFilter",
    "count_live",
    "find_by_idempotency_key",
    "find_many",
    "find_many_by_key",
    "find_transaction",
    "purge",
    "read_positions",
    "read_stats",
    "read_timeline",
    "search_transactions",
]

_T = transactions.c


def find_transaction(conn: Connection, transaction_id: str) -> TransactionView | None:
    """The transaction as far as the projection has applied the log; None if it does not know it."""
    row = conn.execute(select_views().where(_T.transaction_id == transaction_id)).one_or_none()
    return find_given_up(conn, [transaction_id]).get(transaction_id) if row is None else make_view(row)


def find_many(conn: Connection, transaction_ids: Collection[str]) -> dict[str, TransactionView]:
    """Those of the ids that are known."""
    found: dict[str, TransactionView] = {}
    for chunk in chunks(set(transaction_ids), 500):
        for row in conn.execute(select_views().where(_T.transaction_id.in_(chunk))):
            found[row.transaction_id] = make_view(row)
    missing = set(transaction_ids).difference(found)
    return found | find_given_up(conn, missing) if missing else found


def find_by_idempotency_key(conn: Connection, group: str, idempotency_key: str) -> TransactionView | None:
    """The newest transaction of the group with this key."""
    return find_many_by_key(conn, [(group, idempotency_key)]).get((group, idempotency_key))


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
