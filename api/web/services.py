"""What the HTTP interface needs from the rest of the process; filled in by wiring, or by fakes in tests."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry

from api.web.limits import HttpLimits
from api.web.parse import MessageLimits
from bridge.clock import SystemClock
from bridge.core.check_rules import GroupSettings
from bridge.core.message import Message
from bridge.core.record import Act, Resolution
from bridge.core.transaction import TimelineEvent, TransactionView
from bridge.service.claims import ClaimCall, ClaimedCheck
from bridge.service.contract import Accepted, EndCall, PrepareCall, Prepared, Refused, Wait
from bridge.service.groups import EndpointRegistered, GroupSaved
from bridge.service.operate import Who
from bridge.service.redrive import RedriveAction, RedrivePreview
from bridge.service.search import AuditList, BridgeStats, TransactionList
from bridge.sql.groups import GroupHealth
from bridge.sql.redrive import RedriveJob
from bridge.sql.search import SearchFilter
from bridge.turns import Turns
from checker.call import Nonces


class TransactionCalls(Protocol):
    """Transactions; answered in the order of the calls."""

    async def prepare(
        self, calls: Sequence[PrepareCall], wait_ms: int = ...
    ) -> Sequence[Prepared | TransactionView | Refused]:
        """Stores half messages."""
        ...

    async def end(
        self, calls: Sequence[EndCall], wait: Wait = ..., wait_ms: int = ...
    ) -> Sequence[TransactionView | Accepted | Refused]:
        """Records resolutions."""
        ...

    async def get(self, transaction_id: str) -> TransactionView | Refused:
        """As of now."""
        ...

    async def get_bodies(self, view: TransactionView) -> Sequence[Message] | Refused | None:
        """None: no log has them any more."""
        ...

    async def timeline(self, transaction_id: str) -> Sequence[TimelineEvent] | Refused:
        """Oldest first."""
        ...

    async def act(self, transaction_id: str, act: Act, who: Who, wait_ms: int = ...) -> TransactionView | Refused:
        """Ask now, or resume."""
        ...

    async def force(
        self, transaction_id: str, resolution: Resolution, who: Who, wait_ms: int = ...
    ) -> TransactionView | Refused:
        """An operator's resolution."""
        ...


class SearchCalls(Protocol):
    """Lists, counts and the audit; may be a moment old."""

    async def search(self, wanted: SearchFilter, limit: int, cursor: str | None = ...) -> TransactionList | Refused:
        """Newest first."""
        ...

    async def audit(self, limit: int, cursor: str | None = ...) -> AuditList | Refused:
        """Newest first."""
        ...

    async def stats(self) -> BridgeStats | Refused:
        """Counts and lags."""
        ...


class ParkedCalls(Protocol):
    """Parked transactions, and acts on many of them."""

    async def list(self, wanted: SearchFilter, limit: int, cursor: str | None = ...) -> TransactionList | Refused:
        """Newest first."""
        ...

    async def preview(self, wanted: SearchFilter) -> RedrivePreview | Refused:
        """What a job would act on."""
        ...

    async def redrive(
        self, wanted: SearchFilter, action: RedriveAction, rate_per_s: int, who: Who
    ) -> RedriveJob | Refused:
        """Begins a job."""
        ...

    async def get_job(self, job_id: str) -> RedriveJob | Refused | None:
        """None: there is no such job."""
        ...

    async def list_jobs(self, limit: int) -> Sequence[RedriveJob] | Refused:
        """Newest first."""
        ...

    async def stop(self, job_id: str, who: Who) -> RedriveJob | Refused | None:
        """None: there is no such job."""
        ...


class GroupCalls(Protocol):
    """Producer groups; every change is audited."""

    async def put(self, name: str, settings: GroupSettings, urls: Sequence[str], who: Who) -> GroupSaved | Refused:
        """Creates, or replaces settings and static endpoints."""
        ...

    async def get(self, name: str) -> GroupHealth | Refused:
        """With the results of its rounds and its counts."""
        ...

    async def list(self, limit: int, after: str = ...) -> Sequence[GroupHealth] | Refused:
        """In the order of their names."""
        ...

    async def delete(self, name: str, who: Who, wait_ms: int = ...) -> Refused | None:
        """None: it is gone."""
        ...

    async def rotate_secret(self, name: str, who: Who) -> str | Refused:
        """The new secret, told once."""
        ...

    async def register_endpoint(self, name: str, url: str, lease_ms: int, who: Who) -> EndpointRegistered | Refused:
        """Takes or renews the lease of an endpoint."""
        ...

    async def remove_endpoint(self, name: str, url: str, who: Who) -> bool | Refused:
        """False: there was no lease to end."""
        ...


class ClaimCalls(Protocol):
    """Checks of groups that fetch them."""

    async def claim(self, call: ClaimCall) -> Sequence[ClaimedCheck] | Refused:
        """Due checks, leased to the caller; none if none came while it waited."""
        ...


class CheckResult(NamedTuple):
    """Whether something is as it must be. `is_degraded`: it is not, but promises can still be kept."""

    is_ok: bool
    detail: str = ""
    is_degraded: bool = False


ReadinessCheck = Callable[[], Awaitable[CheckResult]]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the routes call. `readiness`: by name; all must be ok for /readyz to be. `nonces`: the checker's."""

    transactions: TransactionCalls
    search: SearchCalls
    parked: ParkedCalls
    groups: GroupCalls
    claims: ClaimCalls
    nonces: Nonces
    readiness: Mapping[str, ReadinessCheck] = field(default_factory=dict)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    limits: HttpLimits = field(default_factory=HttpLimits)
    message_limits: MessageLimits = field(default_factory=MessageLimits)
    now_ms: Callable[[], int] = SystemClock().now_ms
    turns: Turns = field(default_factory=Turns)
