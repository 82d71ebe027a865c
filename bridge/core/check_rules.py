"""Settings of checks and groups, and when a transaction is checked or parked. Pure; times are Kafka's."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from bridge.core.errors import ConfigError
from bridge.core.record import HalfMessage
from bridge.core.transaction import MAX_CHECKS, MAX_LIFE, Transaction


class Backoff:
    """A pause after each failure, twice as long as the one before, up to a limit."""

    __slots__ = ("_first_ms", "_longest_ms", "pause_ms")

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self.pause_ms = 0
        """The last one; 0 after a success."""

    def next_ms(self) -> int:
        """The pause after one more failure."""
        self.pause_ms = min(self._longest_ms, max(self._first_ms, self.pause_ms * 2))
        return self.pause_ms

    def reset(self) -> None:
        """The destination works again."""
        self.pause_ms = 0


_GROUP = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST_NAME = 120


def is_group_name(group: str) -> bool:
    """Whether a producer group can have this name."""
    return len(group) <= _LONGEST_NAME and _is_written_so(group)


@lru_cache(maxsize=4_096)  # asked for every transaction, of few groups; nothing long is remembered
def _is_written_so(group: str) -> bool:
    return _GROUP.fullmatch(group) is not None


def _bounded(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} must be {least}..{most}, not {value}")


class CheckMode(Enum):
    """push: the bridge calls an endpoint. pull: the group fetches its checks."""

    PUSH = "push"
    PULL = "pull"


@dataclass(frozen=True, slots=True)
class CheckTimes:
    """When and how often a group is asked. Defaults are RocketMQ's, but only answered checks count."""

    transaction_timeout_ms: int = 6_000
    interval_ms: int = 30_000
    max_checks: int = 15
    max_lifetime_ms: int = 86_400_000

    def __post_init__(self) -> None:
        _bounded("transaction_timeout_ms", self.transaction_timeout_ms, 1_000, 86_400_000)
        _bounded("interval_ms", self.interval_ms, 1_000, 3_600_000)
        _bounded("max_checks", self.max_checks, 1, 1_000)
        _bounded("max_lifetime_ms", self.max_lifetime_ms, 1_000, 604_800_000)


@dataclass(frozen=True, slots=True)
class CheckCalls:
    """How a group is called."""

    call_timeout_ms: int = 5_000
    batch_size: int = 100
    concurrency: int = 8
    mode: CheckMode = CheckMode.PUSH

    def __post_init__(self) -> None:
        _bounded("call_timeout_ms", self.call_timeout_ms, 100, 60_000)
        _bounded("batch_size", self.batch_size, 1, 1_000)
        _bounded("concurrency", self.concurrency, 1, 256)


class WhenExhausted(Enum):
    """What becomes of a transaction that has had all its checks, or its longest life, and is undecided."""

    PARK = "park"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """All settings of a producer group. `accepts_prepares` False: nothing new, the rest goes on.

    `pauses_checks`: nobody is asked, and nothing is parked or rolled back for its age.
    """

    times: CheckTimes = CheckTimes()
    calls: CheckCalls = CheckCalls()
    when_exhausted: WhenExhausted = WhenExhausted.PARK
    accepts_prepares: bool = True
    pauses_checks: bool = False


class Due(Enum):
    """What is due for a PREPARED transaction."""

    NOTHING = "nothing"
    ASK = "ask"
    PARK = "park"


def first_check_ms(half: HalfMessage, appended_ms: int, times: CheckTimes) -> int:
    """The earliest first check: append time + max(transaction timeout, immunity time)."""
    return appended_ms + first_wait_ms(half.immunity_s, times)


def first_wait_ms(immunity_s: int | None, times: CheckTimes) -> int:
    """How long after its append a transaction is asked about at the earliest."""
    return max(times.transaction_timeout_ms, (immunity_s or 0) * 1000)


def life_end_ms(transaction: Transaction, times: CheckTimes) -> int:
    """When the transaction's longest life is over."""
    own = transaction.max_life_s
    return transaction.since_ms + (times.max_lifetime_ms if own is None else own * 1000)


def is_exhausted(transaction: Transaction, times: CheckTimes) -> bool:
    """Whether all its checks have been answered since its life began."""
    most = times.max_checks if transaction.max_checks is None else transaction.max_checks
    return transaction.check_times - transaction.base >= most


def decide_due(transaction: Transaction, times: CheckTimes, now_ms: int, *, had_round: bool) -> tuple[Due, str]:
    """What is due now, and why if it is to be parked.

    `had_round`: this owner has asked at least once, or tried to. A life that is over never
    parks a transaction nobody was asked about since the queue was taken over: it is asked first,
    but not before its immunity ends.
    """
    if is_exhausted(transaction, times):
        return (Due.PARK, MAX_CHECKS) if now_ms >= transaction.next_due_ms else (Due.NOTHING, "")
    is_over = now_ms >= life_end_ms(transaction, times)
    if is_over and had_round:
        return Due.PARK, MAX_LIFE
    return (Due.ASK, "") if now_ms >= transaction.next_due_ms else (Due.NOTHING, "")
