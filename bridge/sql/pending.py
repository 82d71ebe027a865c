"""How many transactions are pending, from the running totals alone: cheap whatever their number."""

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.tables import group_counts

_G = group_counts.c


def count_pending(conn: Connection) -> int:
    """Transactions of all groups that are PREPARED, as applied."""
    pending = _G.prepared - _G.committed - _G.rolled_back - _G.parked
    return int(conn.execute(sa.select(sa.func.coalesce(sa.func.sum(pending), 0))).scalar_one())
