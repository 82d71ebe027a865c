"""What the HTTP interface needs from the rest of the process; filled in by wiring, or by fakes in tests."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from api.web.limits import HttpLimits
from api.web.metrics import Exposition
from bridge.clock import SystemClock
from bridge.service.access import AccessService
from bridge.service.claims import ClaimService
from bridge.service.consumers import ConsumerWatch
from bridge.service.groups import GroupService
from bridge.service.redrive import ParkedService
from bridge.service.search import SearchService
from bridge.service.sessions import Sessions
from bridge.service.signing import SigningSecrets
from bridge.service.transactions import TransactionService
from bridge.turns import Turns
from checker.call import Nonces
from checker.endpoint_trial import EndpointTrials
from checker.service import CallsOfGroup
from checker.webhooks import Webhooks


class CheckResult(NamedTuple):
    """Whether something is as it must be. `is_degraded`: it is not, but promises can still be kept."""

    is_ok: bool
    detail: str = ""
    is_degraded: bool = False


ReadinessCheck = Callable[[], Awaitable[CheckResult]]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the routes call. `readiness`: by name; all must be ok for /readyz to be. `nonces`: the checker's.

    `signing`: secrets beside keys, for clients of RocketMQ. `sessions`: of people at the pages; None: nobody signs in.
    `webhooks`: who is told of the bridge's own events. `is_read_only`: pages let nobody do anything.
    `settings`: name, value and origin of each as they may be shown. `reports`: the folder of the runs of `report`.
    `calls_of`: to the endpoints of a group, by this process; None if it asks nobody.
    """

    access: AccessService
    transactions: TransactionService
    search: SearchService
    parked: ParkedService
    groups: GroupService
    claims: ClaimService
    nonces: Nonces
    trials: EndpointTrials
    readiness: Mapping[str, ReadinessCheck] = field(default_factory=dict)
    exposition: Exposition = field(default_factory=Exposition)
    limits: HttpLimits = field(default_factory=HttpLimits)
    now_ms: Callable[[], int] = SystemClock().now_ms
    turns: Turns = field(default_factory=Turns)
    sessions: Sessions | None = None
    signing: SigningSecrets | None = None
    webhooks: Webhooks | None = None
    is_read_only: bool = False
    settings: Sequence[tuple[str, str, str]] = ()
    consumers: ConsumerWatch | None = None
    reports: Path | None = None
    calls_of: Callable[[str], CallsOfGroup | None] = lambda _: None
