"""What the processes of a run are told, what they keep, and the shop's own table."""

from pathlib import Path

import msgspec
import sqlalchemy as sa

from outbox.tables import make_tables
from tests.kills.judge import Way

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
RECORDS, OUTBOX, LEASES = make_tables(METADATA)


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of JSON in the run's folder. `planted`: the bug that is built in, if any."""

    place: str
    seed: int
    urls: tuple[str, ...]
    database_url: str
    secret: str
    planted: str

    @property
    def folder(self) -> Path:
        """Of the run; all its files are there."""
        return Path(self.place)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / "run.json"

    def write(self) -> None:
        """For `read_run`."""
        self.path.write_bytes(msgspec.json.encode(self))


class Outcome(msgspec.Struct):
    """What a producer knows of one order, written before the customer's next one begins."""

    order_id: str
    word: str


PUBLISHED = "published"  # told so by the bridge


def read_run(path: str) -> RunFile:
    """What `RunFile.write` wrote."""
    return msgspec.json.decode(Path(path).read_bytes(), type=RunFile)
