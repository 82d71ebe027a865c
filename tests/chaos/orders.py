"""What a run is told: how large it is, and what its client processes must know."""

from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.shop import make_shop
from tests.support.history.evidence import GroupRules
from tests.support.run_files import RunOrders

_ENOUGH = {
    "ci": {
        "transactions": 8_000, "kills": 16, "broker_faults": 3, "held_ends": 12, "minutes": 2.3, "pending": 4_000,
        "destination_faults": 6, "longest_hold_s": 10.0, "hold_skew": 4, "workers": 24, "singles": 0.75,
        "largest_batch": 20,
    },
    # one of the parts of a release: together 1,000,000 transactions, 300 kills, 60 broker faults, 500 held EndTxn
    "release": {
        "transactions": 250_000, "kills": 75, "broker_faults": 15, "held_ends": 125, "minutes": 22.0,
        "pending": 100_000, "destination_faults": 24, "longest_hold_s": 60.0, "hold_skew": 12, "workers": 48,
        "singles": 0.4, "largest_batch": 100,
    },
}  # fmt: skip
RELEASE_PARTS = 4

QUIET = {"orders": 3, "credits": 2, "line": 1}  # topics with their partitions
GROWN, REMADE, SMALL, COMPACTED = "grown", "remade", "small", "compacted"
TROUBLED = {GROWN: 1, REMADE: 2, SMALL: 2, COMPACTED: 2}  # what their names say happens to them


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """At least so much of everything. `minutes`: over which the faults are spread; the load is paced to fit."""

    transactions: int
    kills: int
    broker_faults: int
    held_ends: int
    minutes: float
    pending: int  # at once, while both settlers start
    longest_hold_s: float
    hold_skew: int  # the higher, the more of the holds are short
    workers: int  # threads of a producer: while one queue stands still, most of them wait for it
    singles: float  # share of the calls that are no batch
    largest_batch: int
    destination_faults: int = 0
    brokers: int = 1
    producers: int = 2

    @property
    def topics(self) -> dict[str, int]:
        """Real topics, with the partitions they have at first."""
        return {**QUIET, **TROUBLED} if self.destination_faults else QUIET

    @property
    def sql_faults(self) -> int:
        """Half as many as of brokers, at least one of each kind."""
        return max(2, self.broker_faults // 2)

    @property
    def network_faults(self) -> int:
        """As many as of brokers."""
        return max(3, self.broker_faults)

    @property
    def pauses(self) -> int:
        """One for four kills."""
        return max(2, self.kills // 4)

    @property
    def client_kills(self) -> int:
        """One for six kills of the bridge."""
        return max(2, self.kills // 6)


def make_size(name: str, **chosen: Any) -> Size:
    """A named size with some of its numbers changed."""
    return Size(**{**_ENOUGH[name], **{key: value for key, value in chosen.items() if value is not None}})


STEADY, MOODY, DOUBTFUL, WAITING = "steady", "moody", "doubtful", "waiting"
SETTINGS: dict[str, dict[str, float]] = {
    # answers what its database says
    STEADY: {"transaction_timeout_seconds": 2, "interval_seconds": 1, "max_checks": 15},
    # hangs, or answers in a form that is no answer, half of the time
    MOODY: {"transaction_timeout_seconds": 2, "interval_seconds": 1, "max_checks": 15, "call_timeout_seconds": 1},
    # does not know, until somebody has looked after it
    DOUBTFUL: {"transaction_timeout_seconds": 2, "interval_seconds": 1, "max_checks": 2},
    # prepared in masses and left alone for a while
    WAITING: {"transaction_timeout_seconds": 86_400},
}
RULES = {
    name: GroupRules(
        int(settings["transaction_timeout_seconds"] * 1_000),
        int(settings.get("interval_seconds", 30) * 1_000),
        int(settings.get("max_checks", 15)),
    )
    for name, settings in SETTINGS.items()
}


class RunFile(RunOrders, frozen=True, kw_only=True):
    """Of a chaos run."""

    kafka: str
    topics: dict[str, int]  # with the partitions they have at first
    endpoint_ports: dict[str, tuple[int, ...]]  # of each group, one for each endpoint process
    rate: float  # transactions a second of each producer
    workers: int
    singles: float
    largest_batch: int

    def write(self) -> None:
        """For its processes, and the empty databases of its groups."""
        for group in self.endpoint_ports:
            make_shop(self.database(group))
        super().write()

    def database(self, group: str) -> Path:
        """The group's own database, shared by its producers and endpoints."""
        return self.folder / f"{group}.db"
