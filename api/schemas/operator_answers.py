"""Bodies of answers to operators: counts, producer groups, audit, redrive."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from api.schemas.answers import Time, TransactionAnswer
from api.schemas.requests import CheckSettings, GroupName


class CountsAnswer(Struct, kw_only=True):
    """prepared = committed + rolled_back + parked + pending; `blocked` and `abandoned` are parts of committed."""

    prepared: int
    committed: int
    blocked: int
    abandoned: int
    rolled_back: int
    parked: int
    pending: int
    oldest_pending_seconds: float | None


class GroupCountsAnswer(CountsAnswer, kw_only=True):
    """Of one group. `age_histogram`: pairs of an upper bound in seconds (null: none) and pending transactions."""

    age_histogram: list[tuple[int | None, int]]


class StatsAnswer(CountsAnswer, kw_only=True):
    """Of all groups, and of each. Lags: age of the oldest journal record that is not settled, or not yet searchable."""

    settle_lag_seconds: float
    projection_lag_seconds: float
    groups: dict[str, GroupCountsAnswer]


class EndpointAnswer(Struct):
    """A callback URL, and what became of its rounds. `disabled_reason`: it said that it is gone; asked no more."""

    url: str
    leased: bool
    lease_until: Time | None
    disabled_reason: str | None
    answered: int = 0
    last_answered_at: Time | None = None
    last_latency_ms: int | None = None
    unanswered: int = 0
    last_unanswered_at: Time | None = None
    last_failure: str | None = None


class UnaskedAnswer(Struct):
    """Rounds in which the group had no endpoint to ask, or nobody fetched or answered its checks."""

    count: int
    last_at: Time | None


class FetchedAnswer(Struct):
    """Checks that the group fetched and answered."""

    answered: int
    last_answered_at: Time | None


class GroupSavedAnswer(Struct, omit_defaults=True):
    """A producer group. `secret` signs the bridge's calls; it is shown once, when a PUT created the group."""

    name: GroupName
    endpoints: list[EndpointAnswer]
    check: CheckSettings
    created_at: Time
    secret: Annotated[str, Meta(examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"])] | UnsetType = UNSET


class GroupAnswer(Struct, kw_only=True):
    """A producer group with the results of its rounds and its counts."""

    name: GroupName
    endpoints: list[EndpointAnswer]
    check: CheckSettings
    created_at: Time
    unasked: UnaskedAnswer
    fetched: FetchedAnswer
    counts: GroupCountsAnswer


class GroupList(Struct):
    """In the order of their names. `next`: cursor of the next page, null on the last."""

    producer_groups: list[GroupAnswer]
    next: str | None


class GroupRemoved(Struct):
    """A group that is no more."""

    name: GroupName


class EndpointRegisteredAnswer(Struct):
    """An endpoint of the group. `lease_until` is null for one that a PUT named: it needs no lease."""

    url: str
    leased: bool
    lease_until: Time | None


class EndpointRemovedAnswer(Struct):
    """`removed`: whether there was a lease to end. What a PUT named stays until the next PUT."""

    url: str
    removed: bool


class SecretAnswer(Struct):
    """A new signing secret, shown once. Each one before it signs for 24 h after it was replaced."""

    name: GroupName
    secret: str


class AuditEntryAnswer(Struct):
    """Who did what to what, why, and what it was before and after."""

    at: Time
    actor: str
    action: str
    target: str
    reason: str | None
    before: Any
    after: Any


class AuditPage(Struct):
    """Newest first."""

    entries: list[AuditEntryAnswer]
    next: str | None


class RedriveJobAnswer(Struct):
    """A job and how far it is: `counts` by what became of each transaction."""

    job_id: str
    state: Annotated[str, Meta(extra_json_schema={"enum": ["running", "done", "stopped", "failed"]})]
    action: Annotated[str, Meta(extra_json_schema={"enum": ["resume", "commit", "rollback"]})]
    filter: dict[str, Any]
    actor: str
    reason: str
    rate_per_second: int
    counts: dict[str, int]
    created_at: Time
    updated_at: Time


class RedriveJobList(Struct):
    """Newest first."""

    jobs: list[RedriveJobAnswer]


class RedrivePreviewAnswer(Struct):
    """What a job would act on. `more`: counting stopped at `count`."""

    count: int
    more: bool
    sample: list[TransactionAnswer]
