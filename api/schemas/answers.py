"""Bodies of answers. Times are RFC 3339 in UTC with milliseconds; members without a value are null."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.schemas.requests import GroupName, TransactionId
from bridge.core.transaction import TransactionState

Time = Annotated[
    str, Meta(examples=["2026-01-31T12:00:00.000Z"], extra_json_schema={"format": "date-time"}, description="UTC.")
]
State = Annotated[TransactionState, Meta(description="A fact: the transaction's state.")]
By = Annotated[str, Meta(extra_json_schema={"enum": ["producer", "check", "operator"]})]
EventType = Annotated[
    str,
    Meta(
        extra_json_schema={
            "enum": [
                "prepared", "check_answered", "check_unanswered", "end", "parked", "resumed", "forced", "published",
                "blocked", "abandoned", "given_up",
            ]
        }
    ),
]  # fmt: skip


class PreparedAnswer(Struct):
    """A stored half message. `queue_id` and `queue_offset`: its place in the journal."""

    transaction_id: TransactionId
    producer_group: GroupName
    state: State
    born_time: Time
    first_check_at: Time
    queue_id: int
    queue_offset: int


class ReceiptAnswer(Struct):
    """Where a message was published. `offset` is null where the log no longer knows it."""

    topic: str
    partition: int
    offset: int | None


class MessageAnswer(Struct, omit_defaults=True):
    """A prepared message. Without `include=messages` its value is left out and `value_bytes` tells its size."""

    topic: str
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value: Annotated[Raw, Meta(description="JSON or text.")] | UnsetType = UNSET
    value_base64: str | UnsetType = UNSET
    value_bytes: int | UnsetType | None = UNSET
    headers: list[tuple[str, str | None]] | UnsetType = UNSET
    headers_base64: list[tuple[str, str | None]] | UnsetType = UNSET
    partition: int | None = None
    timestamp_ms: int | None = None


class TransactionAnswer(Struct):
    """A transaction as it is recorded. `blocked`: committed, its publication is being retried, for `reason`.
    `abandoned`, true or left out: committed, and given up by an operator while it was blocked; never published.

    Answers to ends leave out what only a look at the transaction tells: the members from `born_time` on.
    """

    transaction_id: TransactionId
    producer_group: GroupName
    state: State
    blocked: bool
    reason: str | None
    resolved_by: By | None
    resolved_at: Time | None
    receipts: Annotated[list[ReceiptAnswer], Meta(description="In message order; empty until it is published.")]
    next_check_at: Time | None
    check_times: Annotated[int, Meta(description="Answered checks.")]
    queue_id: int
    queue_offset: int
    born_time: Time | UnsetType = UNSET
    first_check_at: Time | UnsetType | None = UNSET
    ordering_key: str | UnsetType | None = UNSET
    idempotency_key: str | UnsetType | None = UNSET
    messages: list[MessageAnswer] | UnsetType = UNSET
    given_up_at: (
        Annotated[
            Time, Meta(description="When an operator gave up the log that held it; shown is what was known before.")
        ]
        | UnsetType
    ) = UNSET
    abandoned: bool | UnsetType = UNSET


class AcceptedAnswer(Struct):
    """An end that is durable; not waited for."""

    transaction_id: TransactionId
    resolution: Annotated[str, Meta(extra_json_schema={"enum": ["COMMIT", "ROLLBACK", "UNKNOWN"]})]


class AskedAnswer(Struct):
    """A check that was asked for."""

    transaction_id: TransactionId


class ProblemError(Struct, omit_defaults=True):
    """A place in the request, as a JSON pointer into the body or the name of a parameter."""

    detail: str
    pointer: str | UnsetType = UNSET
    parameter: str | UnsetType = UNSET


class ProblemAnswer(Struct, omit_defaults=True):
    """An error. Source: RFC 9457. `outcome` says whether the call changed anything; `unknown`: repeat it; absent: it
    changes nothing, or nobody can say any more (`given-up`).
    """

    type: str
    title: str
    status: int
    detail: str
    instance: Annotated[str, Meta(description="The request id, also in X-Request-Id.")]
    outcome: Literal["not_applied", "unknown"] | UnsetType = UNSET
    transaction_id: TransactionId | UnsetType = UNSET
    state: State | UnsetType = UNSET
    errors: list[ProblemError] | UnsetType = UNSET
    retry_after: Annotated[int, Meta(description="Seconds.")] | UnsetType = UNSET


class BatchItem(Struct, omit_defaults=True):
    """One result: `status` and the members of the single call's answer, or `status` and `problem`."""

    status: int
    problem: ProblemAnswer | UnsetType = UNSET
    transaction_id: TransactionId | UnsetType = UNSET
    state: State | UnsetType = UNSET


class BatchAnswer(Struct):
    """Results in the order of the request."""

    results: list[BatchItem]


class TransactionPage(Struct):
    """Newest first. `next`: cursor of the next page, null on the last."""

    transactions: list[TransactionAnswer]
    next: str | None


class TimelineEventAnswer(Struct):
    """Something that happened; further members depend on the type."""

    at: Time
    type: EventType
    by: str | None


class TimelineAnswer(Struct):
    """What happened to a transaction, oldest first."""

    events: list[TimelineEventAnswer]


class ReadyAnswer(Struct):
    """Whether promises can be kept now; with `?verbose`, each check."""

    ready: bool
    checks: list["ReadyCheck"] | UnsetType = UNSET


class ReadyCheck(Struct):
    """One thing that must be so. `degraded`: told, but not a reason to be not ready."""

    name: str
    ok: bool
    detail: str
    degraded: bool = False


class LiveAnswer(Struct):
    """The process answers."""

    live: bool
