"""Leases: one of many works, the others stand by. They save work only; nothing is safe because of them."""

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.bulk import make_upsert
from bridge.sql.tables import leases


def take_lease(conn: Connection, name: str, owner: str, now_ms: int, lease_ms: int) -> bool:
    """Takes the lease if it is free, over, or ours already; whether it is ours until `now_ms + lease_ms`."""
    upsert = make_upsert(conn, leases).values(name=name, owner=owner, until_ms=now_ms + lease_ms)
    is_free = sa.or_(leases.c.owner == owner, leases.c.until_ms <= now_ms)
    taken = upsert.on_conflict_do_update(
        index_elements=["name"], set_={"owner": owner, "until_ms": now_ms + lease_ms}, where=is_free
    )
    return conn.execute(taken.returning(leases.c.name)).first() is not None


def release_lease(conn: Connection, name: str, owner: str) -> None:
    """Gives the lease back, if it is ours."""
    conn.execute(sa.delete(leases).where(leases.c.name == name, leases.c.owner == owner))
