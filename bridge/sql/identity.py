"""Which cluster and which topics this bridge's database belongs to."""

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.bulk import make_upsert
from bridge.sql.tables import cluster_identity


class TopicIdentity(NamedTuple):
    """A topic of a cluster; deleted and created again, it has another id."""

    cluster_id: str
    topic_id: str


def read_identity(conn: Connection) -> dict[str, TopicIdentity]:
    """What was recorded, by topic name; empty where this bridge never ran."""
    return {row.topic: TopicIdentity(row.cluster_id, row.topic_id) for row in conn.execute(sa.select(cluster_identity))}


def record_identity(conn: Connection, topics: Mapping[str, TopicIdentity], now_ms: int) -> None:
    """Records, or replaces what was recorded."""
    for name, identity in sorted(topics.items()):
        values = {"topic_id": identity.topic_id, "cluster_id": identity.cluster_id, "recorded_ms": now_ms}
        upsert = make_upsert(conn, cluster_identity).values(topic=name, **values)
        conn.execute(upsert.on_conflict_do_update(index_elements=["topic"], set_=values))
