"""What answers look like: one place for every transaction, message and time."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from api.schemas.answers import (
    AcceptedAnswer,
    MessageAnswer,
    PreparedAnswer,
    ReceiptAnswer,
    TimelineEventAnswer,
    TransactionAnswer,
)
from api.schemas.answers import TransactionPage as TransactionPageAnswer
from api.schemas.operator_answers import GroupCountsAnswer, RedriveJobAnswer, StatsAnswer
from bridge.core.message import Message
from bridge.core.message_json import JsonText, show_message
from bridge.core.transaction import TransactionState
from bridge.core.view import MessageSummary, TimelineEvent, TransactionView
from bridge.service.contract import Accepted, Prepared
from bridge.service.search import BridgeStats, TransactionPage
from bridge.sql.redrive import RedriveJob
from bridge.sql.stats import GroupStats

# Python finds the members of an enum only slowly.
_PREPARED, _PARKED = TransactionState.PREPARED, TransactionState.PARKED
_MAX_SECOND = 253_402_300_799  # the last one of the year 9999

encode_json = msgspec.json.Encoder().encode


@lru_cache(maxsize=1024)
def _render_second(second: int) -> str:
    return datetime.fromtimestamp(min(max(second, 0), _MAX_SECOND), UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=4096)  # what is in one batch often has one time
def render_time(time_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    second, rest = divmod(time_ms, 1000)
    return f"{_render_second(second)}.{rest:03d}Z"


def render_optional_time(time_ms: int | None) -> str | None:
    """The same, where there may be none."""
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
    state, ended_ms, due_ms = view.state, view.ended_ms, view.next_due_ms
    is_resolved = state is not _PREPARED and state is not _PARKED
    shown = TransactionAnswer(
        view.transaction_id,
        view.group,
        state,
        view.blocked,
        view.why,
        view.by if is_resolved else None,
        None if ended_ms is None or not is_resolved else render_time(ended_ms),
        [ReceiptAnswer(r.topic, r.queue_id, r.queue_offset) for r in view.receipts],
        None if due_ms is None or state is not _PREPARED else render_time(due_ms),
        view.check_times,
        view.queue_id,
        view.queue_offset,
    )
    if view.abandoned:
        shown.abandoned = True
    if view.messages or bodies is not None:  # else it was made of an op message, which does not tell more
        shown.born_time = render_time(view.born_ms)
        shown.first_check_at = render_optional_time(view.first_check_ms)
        shown.ordering_key, shown.idempotency_key = view.ordering_key, view.idempotency_key
        shown.messages = _render_messages(view.messages, bodies)
    if view.given_up_ms is not None:
        shown.given_up_at = render_time(view.given_up_ms)
    return shown


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
    shown = msgspec.structs.asdict(TimelineEventAnswer(render_time(event.at_ms), event.type, event.by))
    for name, value in event.members.items():
        if name in {"first_ms", "last_ms"}:
            shown[name.removesuffix("_ms")] = render_time(int(str(value)))
        elif name == "receipts" and isinstance(value, list):
            shown[name] = [ReceiptAnswer(*receipt) for receipt in value]
        else:
            shown[name] = value
    return shown


def render_page(page: TransactionPage) -> TransactionPageAnswer:
    """A page of transactions."""
    return TransactionPageAnswer([render_transaction(view) for view in page.transactions], page.next)


def render_job(job: RedriveJob) -> RedriveJobAnswer:
    """A redrive job; times in its filter as elsewhere."""
    shown = {
        name.removesuffix("_ms"): render_time(value) if name.endswith("_ms") else value
        for name, value in job.filter.items()
    }
    return RedriveJobAnswer(
        job_id=job.job_id,
        state=job.state.value,
        action=job.action,
        filter=shown,
        actor=job.actor,
        reason=job.reason,
        rate_per_second=job.rate_per_s,
        counts=dict(job.counts),
        created_at=render_time(job.created_ms),
        updated_at=render_time(job.updated_ms),
    )


def render_stats(stats: BridgeStats) -> StatsAnswer:
    """Counts; ages at the moment they were read."""
    groups = {name: render_counts(group, stats.now_ms) for name, group in stats.projection.groups.items()}
    return StatsAnswer(
        **_counts(stats.projection.total, stats.now_ms),
        settle_lag_seconds=stats.lag.settle_ms / 1000,
        projection_lag_seconds=stats.lag.projection_ms / 1000,
        groups=groups,
    )


def render_counts(counted: GroupStats, now_ms: int) -> GroupCountsAnswer:
    """Counts of one group."""
    return GroupCountsAnswer(**_counts(counted, now_ms), age_histogram=list(counted.age_histogram))


def _counts(counted: GroupStats, now_ms: int) -> dict[str, Any]:
    oldest = counted.oldest_pending_ms
    return {
        "prepared": counted.prepared,
        "committed": counted.committed,
        "blocked": counted.blocked,
        "abandoned": counted.abandoned,
        "rolled_back": counted.rolled_back,
        "parked": counted.parked,
        "pending": counted.pending,
        "oldest_pending_seconds": None if oldest is None else max(0, now_ms - oldest) / 1000,
    }
