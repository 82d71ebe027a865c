"""Leases: one of many works, the others stand by. They save work only; nothing is safe because of them."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.bulk import make_upsert
from bridge.sql.tables import leases


class Lease(NamedTuple):
    """Who has the lease, and until when by that one's wall clock."""

    owner: str
    until_ms: int


class LeaseWatch:
    """Tells a lease that nobody renews by the monotonic clock: by a wall clock it may seem held for hours."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._seen: Lease | None = None
        self._since_ms = 0

    def note(self, lease: Lease, monotonic_ms: int) -> None:
        """The lease as it was found."""
        if lease != self._seen:
            self._seen, self._since_ms = lease, monotonic_ms

    def find_abandoned(self, monotonic_ms: int) -> Lease | None:
        """The lease, if it has stood unchanged for as long as it lasts."""
        return self._seen if monotonic_ms - self._since_ms >= self._lease_ms else None


def take_lease(
    conn: Connection, name: str, owner: str, now_ms: int, lease_ms: int, abandoned: Lease | None = None
) -> Lease:
    """Takes the lease if it is free, over, ours already, or still exactly the abandoned one; how it stands then."""
    wanted = Lease(owner, now_ms + lease_ms)
    is_free = sa.or_(leases.c.owner == owner, leases.c.until_ms <= now_ms)
    if abandoned is not None:
        is_same = sa.and_(leases.c.owner == abandoned.owner, leases.c.until_ms == abandoned.until_ms)
        is_free = sa.or_(is_free, is_same)
    taken = (
        make_upsert(conn, leases)
        .values(name=name, **wanted._asdict())
        .on_conflict_do_update(index_elements=["name"], set_=wanted._asdict(), where=is_free)
    )
    if conn.execute(taken.returning(leases.c.name)).first() is not None:
        return wanted
    found = conn.execute(sa.select(leases.c.owner, leases.c.until_ms).where(leases.c.name == name)).first()
    return Lease(*found) if found else Lease("", 0)


def release_lease(conn: Connection, name: str, owner: str) -> None:
    """Gives the lease back, if it is ours."""
    conn.execute(sa.delete(leases).where(leases.c.name == name, leases.c.owner == owner))
