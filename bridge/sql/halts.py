"""Halts of queues whose log is not what was left. Only an operator's act ends one."""

import json
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.errors import HaltKind
from bridge.sql.bulk import make_upsert
from bridge.sql.tables import audit, queue_halts

GIVE_UP = "queue.give-up"  # as the audit has it


def name_target(queue_id: int) -> str:
    """The queue as the audit has it."""
    return f"queue {queue_id}"


class Halt(NamedTuple):
    """Why a queue halts, and since when."""

    queue_id: int
    kind: HaltKind
    detail: str
    since_ms: int


def read_halts(conn: Connection) -> dict[int, Halt]:
    """By queue; a handful of rows at most."""
    rows = conn.execute(sa.select(queue_halts))
    return {row.queue_id: Halt(row.queue_id, HaltKind(row.kind), row.detail, row.since_ms) for row in rows}


def read_last_act(conn: Connection, queue_id: int) -> int:
    """Which act gave up the queue's log last; 0 if none did."""
    acts = sa.select(sa.func.max(audit.c.id)).where(audit.c.what == GIVE_UP, audit.c.target == name_target(queue_id))
    return conn.execute(acts).scalar_one() or 0


def find_loss(conn: Connection, queue_id: int, since_ms: int) -> int | None:
    """When records of the queue's journal may have been lost that nobody else knew, if that was given up since then."""
    acts = sa.select(audit.c.at_ms, audit.c.after).where(
        audit.c.what == GIVE_UP, audit.c.target == name_target(queue_id), audit.c.at_ms >= since_ms
    )
    for at_ms, after in conn.execute(acts.order_by(audit.c.id.desc())):
        if json.loads(after or "{}").get("kind") != HaltKind.OTHER_PARKED.value:
            return int(at_ms)
    return None


def store_halt(conn: Connection, halt: Halt, last_act: int | None = None) -> bool:
    """Keeps the first one: what is found later may follow from it. Whether a halt of the queue is stored now.

    `last_act`: as it was when whoever found the halt took the queue over. After another act it speaks of what was
    given up, and is not stored.
    """
    if last_act is not None and last_act != read_last_act(conn, halt.queue_id):
        return False
    upsert = make_upsert(conn, queue_halts).values(halt._asdict() | {"kind": halt.kind.value})
    conn.execute(upsert.on_conflict_do_nothing(index_elements=["queue_id"]))
    return True


def clear_halt(conn: Connection, queue_id: int) -> None:
    """An operator has said what is given up."""
    conn.execute(sa.delete(queue_halts).where(queue_halts.c.queue_id == queue_id))
