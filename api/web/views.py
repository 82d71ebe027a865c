"""Transactions and problems as answers show them. Times are RFC 3339 in UTC with milliseconds."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.web.bodies import GroupName, Int32, TransactionId
from api.web.openapi import Merged
from bridge.core.explanation import Explanation
from bridge.core.message import JsonText, Message, show_message
from bridge.core.transaction import MessageSummary, TimelineEvent, TransactionState, TransactionView, show_time
from bridge.service.contract import Accepted
from bridge.turns import Steps, each_in_steps

Time = Annotated[
    str, Meta(examples=["2026-01-31T12:00:00.000Z"], extra_json_schema={"format": "date-time"}, description="UTC.")
]
State = Annotated[TransactionState, Meta(description="A fact: the transaction's state.")]
By = Annotated[str, Meta(extra_json_schema={"enum": ["producer", "check", "operator"]})]
ResolutionName = Annotated[str, Meta(extra_json_schema={"enum": ["COMMIT", "ROLLBACK", "UNKNOWN"]})]
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


class ReceiptAnswer(Struct):
    """Where a message was published. `offset` is null where the log no longer knows it."""

    topic: str
    partition: Int32
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
    partition: Int32 | None = None
    timestamp_ms: int | None = None


class NextAnswer(Struct):
    """What the bridge does next by itself. `at`: when it is due; null if nothing is, or that is not known."""

    what: Literal["check", "retry", "park", "nothing"]
    at: Time | None


class PreparedAnswer(Struct):
    """A stored half message. `queue_id` and `queue_offset`: its place in the journal."""

    transaction_id: TransactionId
    producer_group: GroupName
    state: State
    born_time: Time
    first_check_at: Time
    queue_id: Int32
    queue_offset: int


class TransactionAnswer(Struct):
    """A transaction as it is recorded. `blocked`: committed, its publication is being retried, for `reason`.
    `abandoned`, true or left out: committed, and given up by an operator while it was blocked; never published.

    Answers to ends leave out what only a look at the transaction tells: the members from `born_time` on. `explanation`,
    `next` and `remark` are in the answer about one transaction.
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
    check_times: Annotated[Int32, Meta(description="Answered checks.")]
    queue_id: Int32
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
    parked_at: Annotated[Time, Meta(description="Since when it is parked.")] | UnsetType = UNSET
    explanation: (
        Annotated[str, Meta(description="Why it is as it is, and what comes next; for people.")] | UnsetType
    ) = UNSET
    next: NextAnswer | UnsetType = UNSET
    remark: (
        Annotated[str | None, Meta(description="The last one that came with an end or the answer to a check.")]
        | UnsetType
    ) = UNSET


class AcceptedAnswer(Struct):
    """An end that is durable; not waited for."""

    transaction_id: TransactionId
    resolution: ResolutionName


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
    status: Int32
    detail: str
    instance: Annotated[str, Meta(description="The request id, also in X-Request-Id.")]
    outcome: Literal["not_applied", "unknown"] | UnsetType = UNSET
    transaction_id: TransactionId | UnsetType = UNSET
    state: State | UnsetType = UNSET
    errors: list[ProblemError] | UnsetType = UNSET
    retry_after: Annotated[int, Meta(description="Seconds.")] | UnsetType = UNSET


class BatchItem(Struct, omit_defaults=True):
    """One result: `status` and the members of the single call's answer, or `status` and `problem`."""

    status: Int32
    problem: ProblemAnswer | UnsetType = UNSET
    transaction_id: TransactionId | UnsetType = UNSET
    state: State | UnsetType = UNSET


_OF_PREPARED = ("transaction_id", "producer_group", "state", "queue_id", "queue_offset")
STORED = Merged(
    "StoredAnswer",
    "A stored half message, or the transaction that it has become. `queue_id` and `queue_offset`: its place in the "
    "journal. Of one that is being decided there is no more than what a prepare says.",
    (TransactionAnswer, PreparedAnswer),
    _OF_PREPARED,
)
PUBLISHED = STORED._replace(
    name="PublishedAnswer",
    meaning="What was published. Of what is still being decided there is no more than what a prepare says.",
)
ENDED = Merged(
    "EndedAnswer",
    "The transaction, ended. `blocked`: its publication is being retried, for `reason`. With `Prefer: respond-async` "
    "only `transaction_id` and `resolution`: it is durable and was not waited for.",
    (TransactionAnswer, AcceptedAnswer),
    ("transaction_id",),
)
ITEM = Merged(
    "BatchItem",
    "One result: `status` and the members of the single call's answer, or `status` and `problem`.",
    (BatchItem, TransactionAnswer, PreparedAnswer, AcceptedAnswer),
    ("status",),
)


class BatchAnswer(Struct):
    """Results in the order of the request."""

    results: list[BatchItem]


class TimelineEventAnswer(Struct):
    """Something that happened; its type tells which of the members behind `by` it has."""

    at: Time
    type: EventType
    by: str | None
    queue_offset: int | UnsetType = UNSET  # prepared
    number: Int32 | UnsetType | None = UNSET  # check_answered
    status: Int32 | UnsetType | None = UNSET
    latency_ms: int | UnsetType | None = UNSET
    answer: ResolutionName | UnsetType = UNSET
    first: Time | UnsetType = UNSET  # check_unanswered
    last: Time | UnsetType = UNSET
    count: int | UnsetType = UNSET
    failure: str | UnsetType = UNSET
    endpoint: str | UnsetType | None = UNSET  # both
    resolution: ResolutionName | UnsetType = UNSET  # end, forced
    effective: Annotated[bool, Meta(description="Whether it is the one that counts.")] | UnsetType = UNSET
    remark: str | UnsetType | None = UNSET
    actor: str | UnsetType | None = UNSET  # forced, resumed, abandoned
    reason: str | UnsetType | None = UNSET
    why: str | UnsetType | None = UNSET  # parked, blocked
    check_times: Int32 | UnsetType = UNSET  # parked
    parked_offset: int | UnsetType | None = UNSET
    receipts: list[ReceiptAnswer] | UnsetType = UNSET  # published
    state: State | UnsetType = UNSET  # given_up


class TimelineAnswer(Struct):
    """What happened to a transaction, oldest first."""

    events: list[TimelineEventAnswer]


# Python finds the members of an enum only slowly.
_PREPARED, _PARKED = TransactionState.PREPARED, TransactionState.PARKED

encode_json = msgspec.json.Encoder().encode


def render_optional_time(time_ms: int | None) -> str | None:
    """The same, where there may be none."""
    return None if time_ms is None else show_time(time_ms)


def render_accepted(accepted: Accepted) -> AcceptedAnswer:
    """An end that is durable."""
    return AcceptedAnswer(accepted.transaction_id, accepted.resolution.name)


def render_explained(view: TransactionView, said: Explanation, bodies: Raw | None = None) -> TransactionAnswer:
    """A transaction with why it is so; with `bodies`, its messages are shown whole."""
    shown = render_transaction(view, bodies)
    shown.explanation = said.text
    shown.next = NextAnswer(said.next.value, render_optional_time(said.at_ms))
    shown.remark = said.remark
    return shown


def render_transaction(view: TransactionView, bodies: Raw | None = None) -> TransactionAnswer:
    """A transaction; with `bodies`, its messages are shown whole."""
    state, ended_ms, due_ms = view.state, view.ended_ms, view.next_due_ms
    is_resolved = state is not _PREPARED and state is not _PARKED
    shown = TransactionAnswer(
        view.transaction_id,
        view.group,
        state,
        view.blocked,
        view.reason,
        view.by if is_resolved else None,
        None if ended_ms is None or not is_resolved else show_time(ended_ms),
        [ReceiptAnswer(r.topic, r.queue_id, r.queue_offset) for r in view.receipts],
        None if due_ms is None or state is not _PREPARED else show_time(due_ms),
        view.check_times,
        view.queue_id,
        view.queue_offset,
    )
    if view.abandoned:
        shown.abandoned = True
    if view.parked_ms is not None:
        shown.parked_at = show_time(view.parked_ms)
    if view.messages or bodies is not None:  # else it was made of an op message, which has no more members
        shown.born_time = show_time(view.born_ms)
        shown.first_check_at = render_optional_time(view.first_check_ms)
        shown.ordering_key, shown.idempotency_key = view.ordering_key, view.idempotency_key
        if bodies is not None:
            shown.messages = bodies  # type: ignore[assignment]  # JSON already
        elif view.messages:
            shown.messages = [_render_summary(summary) for summary in view.messages]
    if view.given_up_ms is not None:
        shown.given_up_at = show_time(view.given_up_ms)
    return shown


def bodies_in_steps(messages: Sequence[Message]) -> Steps[Raw]:
    """Whole messages, in the place of their summaries."""
    return Raw(b"[%b]" % b",".join((yield from each_in_steps(messages, _encode_body))))


def _render_summary(summary: MessageSummary) -> MessageAnswer:
    members = show_message(Message(summary.topic, summary.key, None, (), summary.queue_id, summary.timestamp_ms))
    del members["value"], members["headers"]
    return MessageAnswer(value_bytes=summary.value_bytes, **members)  # type: ignore[arg-type]


def _encode_body(message: Message) -> bytes:
    members = show_message(message)
    if "value" in members:
        value = members["value"]
        members["value"] = msgspec.Raw(str(value).encode() if isinstance(value, JsonText) else encode_json(value))
    return encode_json(MessageAnswer(**members))  # type: ignore[arg-type]


def render_event(event: TimelineEvent) -> dict[str, object]:
    """An event of a timeline with the members of its type."""
    shown: dict[str, object] = {"at": show_time(event.at_ms), "type": event.type, "by": event.by}
    for name, value in event.members.items():
        if name in {"first_ms", "last_ms"}:
            shown[name.removesuffix("_ms")] = show_time(int(str(value)))
        elif name == "receipts" and isinstance(value, list):
            shown[name] = [ReceiptAnswer(*receipt) for receipt in value]
        else:
            shown[name] = value
    return shown
