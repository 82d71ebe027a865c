"""Keys of this bridge, and up to where op records are believed without a seal. Plain functions."""

import secrets
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.keyring import SECRET_BYTES, BridgeKey
from bridge.sql.bulk import make_upsert
from bridge.sql.tables import bridge_keys, op_beliefs

_FIRST = "1"


def read_keys(conn: Connection) -> list[BridgeKey]:
    """All that are valid, the one that makes new MACs first; none where `migrate` has not made one."""
    c = bridge_keys.c
    rows = conn.execute(sa.select(c.key_id, c.secret).order_by(c.signs.desc(), c.created_ms.desc(), c.key_id))
    return [BridgeKey(row.key_id, bytes(row.secret)) for row in rows]


def read_beliefs(conn: Connection) -> dict[int, int]:
    """By queue, the op offset below which records need no seal."""
    return {row.queue_id: row.op_offset for row in conn.execute(sa.select(op_beliefs))}


def begin_seals(conn: Connection, believed: Mapping[int, int], now_ms: int) -> None:
    """The first key if there is none, and what is believed without a seal; both or nothing."""
    if not read_keys(conn):
        values = {"key_id": _FIRST, "secret": secrets.token_bytes(SECRET_BYTES), "signs": 1, "created_ms": now_ms}
        conn.execute(sa.insert(bridge_keys).values(values))
    for queue_id, op_offset in sorted(believed.items()):
        believe_from(conn, queue_id, op_offset)


def believe_from(conn: Connection, queue_id: int, op_offset: int) -> None:
    """From this offset on records need a seal."""
    upsert = make_upsert(conn, op_beliefs).values(queue_id=queue_id, op_offset=op_offset)
    conn.execute(upsert.on_conflict_do_update(index_elements=["queue_id"], set_={"op_offset": op_offset}))
