"""A shop's own database, real and durable, with the tables of the outbox, of its peers, and one for orders."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from benchmarks.peers import plain_relay
from outbox.tables import make_lease_table, make_outbox_table, make_record_table
from tests.support.postgres import PostgresServer

GROUP = "bench"
CUSTOMERS = 10_000
_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")

METADATA = sa.MetaData()
ORDERS = sa.Table(
    "shop_order",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("customer", sa.String(40), nullable=False),
    sa.Column("amount", sa.Integer, nullable=False),
)
OUTBOX = make_outbox_table(METADATA)
LEASES = make_lease_table(METADATA)
RECORDS = make_record_table(METADATA)
PLAIN_OUTBOX = make_outbox_table(METADATA, plain_relay.TABLE)


class Order(NamedTuple):
    """A message of the shop: a customer has some, which a relay has to keep in order."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Shop:
    """`url`: with psycopg. `settings`: what its commits are worth."""

    url: str
    engine: sa.Engine
    settings: str

    def vacuum(self) -> None:
        """So that nobody reads what another, or a round before, has left behind."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.execute(sa.text("VACUUM ANALYZE"))


def make_orders(first: int, count: int) -> list[Order]:
    """Numbered, JSON of 300 B each."""
    return [
        Order(b"customer-%d" % (n % CUSTOMERS), json.dumps({"order": n, "text": "x" * 270}).encode().ljust(300))
        for n in range(first, first + count)
    ]


@contextmanager
def running_shop() -> Iterator[Shop]:
    """Gone afterwards."""
    server = PostgresServer(is_durable=True)
    try:
        url = server.create()
        engine = sa.create_engine(url)
        METADATA.create_all(engine)
        with engine.connect() as conn:
            version = conn.scalar(sa.text("SHOW server_version"))
            told = [f"{name} {conn.scalar(sa.text(f'SHOW {name}'))}" for name in _SETTINGS]
        yield Shop(url, engine, f"PostgreSQL {version}, {', '.join(told)}")
        engine.dispose()
    finally:
        server.close()
