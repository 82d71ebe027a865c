"""A row of `transactions` while it is folded, and which of its columns are written when."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from bridge.core.transaction import TransactionState
from bridge.sql.rows import make_row_id

# Columns an op message decides, columns a half message decides, and those that never change.
STATE_COLUMNS = (
    "state", "live", "blocked", "queue_offset", "at_offset", "next_due_ms", "check_times", "base", "since_ms",
    "resolved_by", "ended_ms", "published_ms", "why", "parked_offset", "receipts", "abandoned_ms",
)  # fmt: skip
HALF_COLUMNS = (
    "has_half", "born_ms", "first_check_ms", "max_checks", "max_life_s", "idempotency_key", "ordering_key", "messages",
)  # fmt: skip
FIXED_COLUMNS = ("id", "transaction_id", "producer_group", "queue_id", "appended_ms")
ALL_COLUMNS = (*FIXED_COLUMNS, *HALF_COLUMNS, *STATE_COLUMNS)
LOADED_COLUMNS = (*FIXED_COLUMNS, "has_half", *STATE_COLUMNS)

PREPARED = TransactionState.PREPARED.value


class Counted(NamedTuple):
    """What a transaction is counted as."""

    state: str
    blocked: int
    abandoned: bool


class ProjectedRow:
    """Columns as attributes. `was`: state, blocked and abandoned as they are counted, None if not at all."""

    __slots__ = (*ALL_COLUMNS, "is_new", "was")

    id: int
    transaction_id: str
    producer_group: str
    queue_id: int
    appended_ms: int
    has_half: int
    born_ms: int
    first_check_ms: int | None
    max_checks: int | None
    max_life_s: int | None
    idempotency_key: str | None
    ordering_key: str | None
    messages: str | None
    state: str
    live: int
    blocked: int
    queue_offset: int
    at_offset: int
    next_due_ms: int | None
    check_times: int
    base: int
    since_ms: int | None
    resolved_by: str | None
    ended_ms: int | None
    published_ms: int | None
    why: str | None
    parked_offset: int | None
    receipts: str | None
    abandoned_ms: int | None
    is_new: bool
    was: Counted | None


def make_row(transaction_id: str, group: str, queue_id: int, half: int, appended_ms: int) -> ProjectedRow:
    """A PREPARED row of which only the half message's place is known."""
    row = ProjectedRow()
    row.id = make_row_id(queue_id, half)
    row.transaction_id = transaction_id
    row.producer_group = group
    row.queue_id = queue_id
    row.queue_offset = row.at_offset = half
    row.appended_ms = row.born_ms = row.since_ms = appended_ms
    row.has_half = row.blocked = row.check_times = row.base = 0
    row.live = 1
    row.state = PREPARED
    row.first_check_ms = row.max_checks = row.max_life_s = row.next_due_ms = None
    row.idempotency_key = row.ordering_key = row.messages = row.receipts = None
    row.resolved_by = row.ended_ms = row.published_ms = row.abandoned_ms = row.why = row.parked_offset = None
    row.is_new = True
    row.was = None
    return row


def load_row(values: Iterable[Any]) -> ProjectedRow:
    """A row read back in the order of LOADED_COLUMNS; the other columns are not known and not written."""
    row = ProjectedRow()
    (
        row.id, row.transaction_id, row.producer_group, row.queue_id, row.appended_ms, row.has_half,
        row.state, row.live, row.blocked, row.queue_offset, row.at_offset, row.next_due_ms, row.check_times,
        row.base, row.since_ms, row.resolved_by, row.ended_ms, row.published_ms, row.why, row.parked_offset,
        row.receipts, row.abandoned_ms,
    ) = values  # fmt: skip
    row.is_new = False
    row.was = counted_as(row)
    return row


def counted_as(row: ProjectedRow) -> Counted:
    """How a row is counted now."""
    return Counted(row.state, row.blocked, row.abandoned_ms is not None)


all_values = attrgetter(*ALL_COLUMNS)
state_values = attrgetter(*STATE_COLUMNS, "id")
half_values = attrgetter(*HALF_COLUMNS, "id")
