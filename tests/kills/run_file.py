"""What the processes of a run are told, what they keep, and the shop's own table."""

import msgspec
import sqlalchemy as sa

from outbox.tables import make_tables
from tests.kills.judge import Way
from tests.support.run_files import RunOrders

GROUP = "orders"
TOPICS = {Way.TRANSACTION: 3, Way.OUTBOX: 3}
METADATA = sa.MetaData()
ORDERS = sa.Table(
    "orders",
    METADATA,
    sa.Column("order_id", sa.String(36), primary_key=True),
    sa.Column("customer", sa.String(40), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("way", sa.String(20), nullable=False),
    # the lock in common that gives the orders of a customer their order, whatever of a killed producer still commits
    sa.UniqueConstraint("customer", "number"),
)
RECORDS, OUTBOX, LEASES, _ = make_tables(METADATA)


class RunFile(RunOrders, frozen=True, kw_only=True):
    """Of a run of kills. `planted`: the bug that is built in, if any."""

    database_url: str
    secret: str
    planted: str


class Outcome(msgspec.Struct):
    """What a producer knows of one order, written before the customer's next one begins."""

    order_id: str
    word: str


PUBLISHED = "published"  # told so by the bridge
