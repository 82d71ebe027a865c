"""What producer groups look like in answers."""

from collections.abc import Sequence

import msgspec

from api.rendering import render_counts, render_optional_time, render_time
from api.schemas.operator_answers import (
    EndpointAnswer,
    EndpointRegisteredAnswer,
    FetchedAnswer,
    GroupAnswer,
    GroupSavedAnswer,
    UnaskedAnswer,
)
from api.schemas.requests import CheckSettings
from bridge.core.config import GroupSettings
from bridge.directory import Endpoint
from bridge.service.claims import ClaimedCheck
from bridge.service.groups import EndpointRegistered, GroupSaved
from bridge.sql.rounds import EndpointHealth, GroupHealth
from checker.check_call import Subject, encode_call, render_check
from checker.nonce import NonceMaker

_NOTHING = EndpointHealth(Endpoint(""))  # rounds without an endpoint, and fetched checks, are kept under no URL


def render_group(health: GroupHealth, now_ms: int) -> GroupAnswer:
    """A group; ages at `now_ms`."""
    group = health.group
    unnamed = next((endpoint for endpoint in health.endpoints if not endpoint.endpoint.url), _NOTHING)
    return GroupAnswer(
        name=group.name,
        endpoints=[_render_health(endpoint) for endpoint in health.endpoints if endpoint.endpoint.url],
        check=render_settings(group.settings),
        created_at=render_time(group.created_ms),
        unasked=UnaskedAnswer(unnamed.unanswered, render_optional_time(unnamed.last_unanswered_ms)),
        fetched=FetchedAnswer(unnamed.answered, render_optional_time(unnamed.last_answered_ms)),
        counts=render_counts(health.stats, now_ms),
    )


def render_saved(saved: GroupSaved) -> GroupSavedAnswer:
    """A group that was put."""
    return GroupSavedAnswer(
        saved.group.name,
        [_render_endpoint(endpoint) for endpoint in saved.group.endpoints],
        render_settings(saved.group.settings),
        render_time(saved.group.created_ms),
        msgspec.UNSET if saved.secret is None else saved.secret,
    )


def render_registered(registered: EndpointRegistered) -> EndpointRegisteredAnswer:
    """An endpoint that was registered."""
    until_ms = registered.lease_until_ms
    return EndpointRegisteredAnswer(registered.url, until_ms is not None, render_optional_time(until_ms))


def render_claimed(group: str, claimed: Sequence[ClaimedCheck], make_nonce: NonceMaker) -> bytes:
    """Claimed checks as the body of a call."""
    checks = [
        render_check(Subject(v.transaction_id, number, v.born_ms, v.idempotency_key, messages), make_nonce)
        for v, number, messages in claimed
    ]
    return encode_call(group, checks).encode()


def render_settings(settings: GroupSettings) -> CheckSettings:
    """Settings as they were put: in seconds."""
    times, calls = settings.times, settings.calls
    return CheckSettings(
        times.transaction_timeout_ms / 1000,
        times.interval_ms / 1000,
        times.max_checks,
        times.max_lifetime_ms / 1000,
        calls.call_timeout_ms / 1000,
        calls.batch_size,
        calls.concurrency,
        calls.mode.value,
    )


def _render_endpoint(endpoint: Endpoint) -> EndpointAnswer:
    until = render_optional_time(endpoint.lease_until_ms)
    return EndpointAnswer(endpoint.url, endpoint.is_leased, until, endpoint.disabled_reason)


def _render_health(health: EndpointHealth) -> EndpointAnswer:
    shown = _render_endpoint(health.endpoint)
    shown.answered = health.answered
    shown.last_answered_at = render_optional_time(health.last_answered_ms)
    shown.last_latency_ms = health.last_latency_ms
    shown.unanswered = health.unanswered
    shown.last_unanswered_at = render_optional_time(health.last_unanswered_ms)
    shown.last_failure = health.last_failure
    return shown
