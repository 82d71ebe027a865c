"""What answers look like: one place for every transaction, message and time."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from api.schemas.answers import (
    AcceptedAnswer,
    MessageAnswer,
    PreparedAnswer,
    ReceiptAnswer,
    TimelineEventAnswer,
    TransactionAnswer,
)
from bridge.core.message import Message
from bridge.core.message_json import JsonText, show_message
from bridge.core.transaction import TransactionState
from bridge.core.view import MessageSummary, TimelineEvent, TransactionView
from bridge.service.contract import Accepted, Prepared

_MAX_SECOND = 253_402_300_799  # the last one of the year 9999

encode_json = msgspec.json.Encoder().encode


@lru_cache(maxsize=1024)
def _render_second(second: int) -> str:
    return datetime.fromtimestamp(min(max(second, 0), _MAX_SECOND), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def render_time(time_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    second, rest = divmod(time_ms, 1000)
    return f"{_render_second(second)}.{rest:03d}Z"


def _optional_time(time_ms: int | None) -> str | None:
    return None if time_ms is None else render_time(time_ms)


def render_prepared(prepared: Prepared) -> PreparedAnswer:
    """A stored half message."""
    return PreparedAnswer(
        prepared.transaction_id,
        prepared.group,
        prepared.state,
        render_time(prepared.born_ms),
        render_time(prepared.first_check_ms),
        prepared.queue_id,
        prepared.queue_offset,
    )


def render_accepted(accepted: Accepted) -> AcceptedAnswer:
    """An end that is durable."""
    return AcceptedAnswer(accepted.transaction_id, accepted.resolution.name)


def render_transaction(view: TransactionView, bodies: Sequence[Message] | None = None) -> TransactionAnswer:
    """A transaction; with `bodies`, its messages are shown whole."""
    is_resolved = view.state in {TransactionState.COMMITTED, TransactionState.ROLLED_BACK}
    return TransactionAnswer(
        transaction_id=view.transaction_id,
        producer_group=view.group,
        state=view.state,
        blocked=view.blocked,
        reason=view.why,
        resolved_by=view.by if is_resolved else None,
        resolved_at=_optional_time(view.ended_ms) if is_resolved else None,
        receipts=[ReceiptAnswer(*receipt) for receipt in view.receipts],
        born_time=render_time(view.born_ms),
        first_check_at=_optional_time(view.first_check_ms),
        next_check_at=_optional_time(view.next_due_ms) if view.state is TransactionState.PREPARED else None,
        check_times=view.check_times,
        queue_id=view.queue_id,
        queue_offset=view.queue_offset,
        ordering_key=view.ordering_key,
        idempotency_key=view.idempotency_key,
        messages=_render_messages(view.messages, bodies),
    )


def _render_messages(
    summaries: Iterable[MessageSummary], bodies: Sequence[Message] | None
) -> list[MessageAnswer] | msgspec.UnsetType:
    if bodies is not None:
        return [_render_body(message) for message in bodies]
    shown = [_render_summary(summary) for summary in summaries]
    return shown or msgspec.UNSET


def _render_summary(summary: MessageSummary) -> MessageAnswer:
    members = show_message(Message(summary.topic, summary.key, None, (), summary.queue_id, summary.timestamp_ms))
    del members["value"], members["headers"]
    return MessageAnswer(value_bytes=summary.value_bytes, **members)  # type: ignore[arg-type]


def _render_body(message: Message) -> MessageAnswer:
    members = show_message(message)
    if "value" in members:
        value = members["value"]
        members["value"] = msgspec.Raw(str(value).encode() if isinstance(value, JsonText) else encode_json(value))
    return MessageAnswer(**members)  # type: ignore[arg-type]


def render_event(event: TimelineEvent) -> dict[str, object]:
    """An event of a timeline with the members of its type."""
    shown = TimelineEventAnswer(render_time(event.at_ms), event.type, event.by)
    return {**msgspec.structs.asdict(shown), **event.members}
