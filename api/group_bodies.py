"""The body of a producer group's PUT, made into settings."""

from api.problems import invalid
from api.schemas.requests import CheckSettings, PutGroup
from bridge.core.config import CheckCalls, CheckMode, CheckTimes, GroupSettings


def make_group(body: PutGroup) -> tuple[GroupSettings, list[str]]:
    """Settings and callback URLs of a producer group. Raises Rejected."""
    urls = [endpoint.url for endpoint in body.endpoints]
    if len(set(urls)) < len(urls):
        raise invalid("/endpoints", "a URL is given twice")
    return _make_settings(body.check), urls


def _make_settings(check: CheckSettings) -> GroupSettings:
    return GroupSettings(
        CheckTimes(
            round(check.transaction_timeout_seconds * 1000),
            round(check.interval_seconds * 1000),
            check.max_checks,
            round(check.max_lifetime_seconds * 1000),
        ),
        CheckCalls(
            round(check.call_timeout_seconds * 1000), check.batch_size, check.concurrency, CheckMode(check.mode)
        ),
    )
