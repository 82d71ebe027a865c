"""How far the projection has come in each queue, moved by compare-and-set."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.bulk import make_upsert
from bridge.sql.tables import projection_positions

_P = projection_positions.c


class AppliedPosition(NamedTuple):
    """`s`: everything the settler decided below this journal offset is in the rows.

    `journal_next`, `op_next`: where the projector goes on reading. All are 0 or the logs' beginning at first.
    """

    s: int
    journal_next: int
    op_next: int


class LogIdentity(NamedTuple):
    """The log that offsets belong to; after a deleted and recreated topic they mean nothing."""

    cluster_id: str
    journal_topic_id: str
    op_topic_id: str


def read_positions(conn: Connection) -> dict[int, AppliedPosition]:
    """Position of each queue that a projector has begun."""
    query = sa.select(_P.queue_id, _P.s, _P.journal_next, _P.op_next)
    return {row.queue_id: AppliedPosition(row.s, row.journal_next, row.op_next) for row in conn.execute(query)}


def read_position(conn: Connection, queue_id: int) -> tuple[AppliedPosition, LogIdentity] | None:
    """Position of a queue, and the log it belongs to."""
    row = conn.execute(sa.select(projection_positions).where(_P.queue_id == queue_id)).one_or_none()
    if row is None:
        return None
    identity = LogIdentity(row.cluster_id, row.journal_topic_id, row.op_topic_id)
    return AppliedPosition(row.s, row.journal_next, row.op_next), identity


def begin_position(conn: Connection, queue_id: int, position: AppliedPosition, identity: LogIdentity) -> None:
    """Begins a queue that has no position; nothing if another projector did."""
    values = {"queue_id": queue_id, **position._asdict(), **identity._asdict()}
    upsert = make_upsert(conn, projection_positions).values(values)
    conn.execute(upsert.on_conflict_do_nothing(index_elements=["queue_id"]))


def move_position(conn: Connection, queue_id: int, before: AppliedPosition, after: AppliedPosition) -> bool:
    """Moves the position if it is still `before`; locks it until the SQL transaction ends. Else False."""
    return (
        conn.execute(_MOVE, {"queue": queue_id, **_prefixed("before", before), **_prefixed("after", after)}).rowcount
        == 1
    )


def _prefixed(prefix: str, position: AppliedPosition) -> dict[str, int]:
    return {f"{prefix}_{name}": value for name, value in position._asdict().items()}


# made once: to put it together takes longer than to run it
_MOVE = (
    sa.update(projection_positions)
    .where(
        _P.queue_id == sa.bindparam("queue"),
        *[_P[name] == sa.bindparam(f"before_{name}") for name in AppliedPosition._fields],
    )
    .values({name: sa.bindparam(f"after_{name}") for name in AppliedPosition._fields})
)
