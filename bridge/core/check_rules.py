"""When a transaction is checked and when it is parked. Pure; times are Kafka's, in milliseconds."""

from enum import Enum

from bridge.core.config import CheckTimes
from bridge.core.record import HalfMessage
from bridge.core.transaction import MAX_CHECKS, MAX_LIFE, Transaction


class Due(Enum):
    """What is due for a PREPARED transaction."""

    NOTHING = "nothing"
    ASK = "ask"
    PARK = "park"


def first_check_ms(half: HalfMessage, appended_ms: int, times: CheckTimes) -> int:
    """The earliest first check: append time + max(transaction timeout, immunity time)."""
    return appended_ms + max(times.transaction_timeout_ms, (half.immunity_s or 0) * 1000)


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
