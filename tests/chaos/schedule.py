"""PURE. The faults of a run, drawn from one seed: four lanes of faults that overlap each other."""

import random
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tests.chaos.orders import Size

SESSION_S = 6.0  # of the settlers' group


class Kind(StrEnum):
    """What is done."""

    KILL = "kill"
    PAUSE = "pause"
    KILL_CLIENT = "kill client"
    BROKER_KILL = "broker kill"
    BROKER_PAUSE = "broker pause"
    DISK_FULL = "disk full"
    CUT = "connections cut"
    REFUSE = "connections refused"
    SLOW = "slow network"
    SQL_KILL = "sql kill"
    SQL_FREEZE = "sql freeze"
    HOLD_REQUEST = "EndTxn held"
    HOLD_REPLY = "EndTxn reply held"
    LATE_COPY = "EndTxn in the next Kafka transaction"
    FROZEN_OWNER = "EndTxn of a frozen settler after a take-over"
    GROW = "topic grown"
    REMAKE = "topic deleted and made again"
    SHRINK = "topic takes small messages only"
    COMPACT = "topic compacted"


BROKER_KINDS = (Kind.BROKER_KILL, Kind.DISK_FULL, Kind.BROKER_PAUSE)
_NETWORK_KINDS = (Kind.CUT, Kind.SLOW, Kind.REFUSE)
_SQL_KINDS = (Kind.SQL_KILL, Kind.SQL_FREEZE)
HELD_KINDS = (Kind.HOLD_REQUEST, Kind.HOLD_REPLY, Kind.LATE_COPY, Kind.FROZEN_OWNER)
FREEZING_KINDS = (Kind.PAUSE, Kind.FROZEN_OWNER)  # of processes of the bridge

DESTINATION_KINDS = (Kind.REMAKE, Kind.SHRINK, Kind.GROW, Kind.COMPACT)


class Fault(NamedTuple):
    """`at_s` from the start of its lane, or when the one before it is over; `target`: which of those it can hit."""

    at_s: float
    kind: Kind
    target: int
    seconds: float


class Done(msgspec.Struct, omit_defaults=True):
    """A fault that was done. `until_ms`: when what was broken was started or let go again."""

    kind: Kind
    target: str
    at_ms: int
    until_ms: int = 0
    queues: tuple[int, ...] = ()  # settled by the process that was hit
    note: str = ""

    @property
    def seconds(self) -> float:
        return (self.until_ms - self.at_ms) / 1_000


def make_lanes(size: Size, seed: int) -> dict[str, list[Fault]]:
    """The same for the same numbers. Each lane has its faults one after the other."""
    rng = random.Random(seed)
    processes = [Kind.KILL] * size.kills + [Kind.PAUSE] * size.pauses + [Kind.KILL_CLIENT] * size.client_kills
    surroundings = [
        *_repeated(BROKER_KINDS, size.broker_faults),
        *_repeated(_NETWORK_KINDS, size.network_faults),
        *_repeated(_SQL_KINDS, size.sql_faults),
    ]
    held = _repeated(HELD_KINDS, size.held_ends)
    destinations = _repeated(DESTINATION_KINDS, size.destination_faults)
    return {
        "processes": _spread(processes, size, rng),
        "surroundings": _spread(surroundings, size, rng),
        "ends": _spread(held, size, rng),
        **({"destinations": _spread(destinations, size, rng)} if destinations else {}),
    }


def _repeated(kinds: tuple[Kind, ...], count: int) -> list[Kind]:
    return [kinds[number % len(kinds)] for number in range(count)]


def _spread(kinds: list[Kind], size: Size, rng: random.Random) -> list[Fault]:
    rng.shuffle(kinds)
    gap_s = size.minutes * 60 / len(kinds)
    return [
        Fault((number + 0.8 * rng.random()) * gap_s, kind, rng.randrange(1_000), _seconds(kind, size, rng))
        for number, kind in enumerate(kinds)
    ]


def _seconds(kind: Kind, size: Size, rng: random.Random) -> float:
    if kind in HELD_KINDS:
        return 1 + (size.longest_hold_s - 1) * rng.random() ** size.hold_skew
    if kind is Kind.PAUSE:
        return rng.choice((rng.uniform(0.5, 3), SESSION_S + rng.uniform(1, 4)))
    if kind is Kind.KILL:
        return rng.choice((0.0, rng.uniform(0, 3)))  # until it is started again
    return rng.uniform(1, 5)
