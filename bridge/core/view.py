"""A transaction as readers see it: what the projection holds and what every answer shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from bridge.core.message import Receipt
from bridge.core.transaction import TransactionState


class MessageSummary(Struct, frozen=True, gc=False):
    """A prepared message without its value. `value_bytes` None: null."""

    topic: str
    key: bytes | None
    value_bytes: int | None
    queue_id: int
    timestamp_ms: int | None


class TransactionView(Struct, frozen=True, gc=False):
    """One transaction. Times are milliseconds; `by`: producer, check, operator or timer.

    `given_up_ms`: when an operator gave up the log that held it. What is shown is what was known before.
    """

    transaction_id: str
    group: str
    state: TransactionState
    queue_id: int
    queue_offset: int
    born_ms: int
    appended_ms: int
    check_times: int = 0
    blocked: bool = False
    why: str | None = None
    by: str | None = None
    ended_ms: int | None = None
    next_due_ms: int | None = None
    first_check_ms: int | None = None
    idempotency_key: str | None = None
    ordering_key: str | None = None
    parked_offset: int | None = None
    max_checks: int | None = None
    max_life_s: int | None = None
    since_ms: int | None = None
    base: int = 0
    receipts: Sequence[Receipt] = ()
    messages: Sequence[MessageSummary] = ()
    given_up_ms: int | None = None
    abandoned: bool = False

    @property
    def is_unproven(self) -> bool:
        """Whether no log says how it ends, and none will."""
        return self.given_up_ms is not None and (
            self.blocked or self.state in (TransactionState.PREPARED, TransactionState.PARKED)
        )


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that happened to a transaction. `members`: what the type of event says besides, JSON values."""

    at_ms: int
    type: str
    by: str | None
    members: Mapping[str, object]
