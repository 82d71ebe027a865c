"""A service's database with an outbox table, and relays on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import orm

from outbox.enqueue import enqueue
from outbox.hand_over import HandOver
from outbox.relay import Relay, RelayConfig
from outbox.sources import OutboxSource, OwnSource
from outbox.tables import make_lease_table, make_outbox_table
from tests.support.user_database import UserDatabase


@dataclass(frozen=True)
class Sent:
    """A message as `enqueue` takes it."""

    topic: str
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class OutboxWorld:
    """Tables made, and nothing in them."""

    def __init__(self, database: UserDatabase) -> None:
        metadata = sa.MetaData()
        self.database = database
        self.table = make_outbox_table(metadata)
        self.leases = make_lease_table(metadata)
        self.engine = database.engine()
        metadata.create_all(self.engine)

    def enqueue(self, *messages: Sent, ordering_key: str | None = None) -> list[str]:
        """Commits rows for these messages; their message ids."""
        with orm.Session(self.engine) as session:
            ids = enqueue(session, *messages, ordering_key=ordering_key, table=self.table)
            session.commit()
        return list(ids)

    def relay(
        self, hand_over: HandOver, config: RelayConfig | None = None, source: OutboxSource | None = None
    ) -> Relay:
        return Relay(self.database.engine(), hand_over, source or OwnSource(self.table), self.leases, config)

    def count(self) -> tuple[int, int]:
        """Rows, and leases."""
        with self.engine.connect() as conn:
            counts = [conn.scalar(sa.select(sa.func.count()).select_from(table)) for table in (self.table, self.leases)]
        return counts[0] or 0, counts[1] or 0
