"""Halts of queues whose log is not what was left. Only an operator's act ends one."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.errors import HaltKind
from bridge.sql.bulk import make_upsert
from bridge.sql.tables import queue_halts


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


def store_halt(conn: Connection, halt: Halt) -> None:
    """Keeps the first one: what is found later may follow from it."""
    upsert = make_upsert(conn, queue_halts).values(halt._asdict() | {"kind": halt.kind.value})
    conn.execute(upsert.on_conflict_do_nothing(index_elements=["queue_id"]))


def clear_halt(conn: Connection, queue_id: int) -> None:
    """An operator has said what is given up."""
    conn.execute(sa.delete(queue_halts).where(queue_halts.c.queue_id == queue_id))
