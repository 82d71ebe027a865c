"""What the HTTP interface needs from the rest of the process; filled in by wiring, or by fakes in tests."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry

from api.web.limits import HttpLimits
from api.web.parse import MessageLimits
from bridge.clock import SystemClock
from bridge.core.message import Message
from bridge.core.record import Act, Resolution
from bridge.core.transaction import TimelineEvent, TransactionView
from bridge.service.claims import ClaimService
from bridge.service.contract import Accepted, EndCall, PrepareCall, Prepared, Refused, Wait
from bridge.service.groups import GroupService
from bridge.service.operate import Who
from bridge.service.redrive import ParkedService
from bridge.service.search import SearchService
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
    search: SearchService
    parked: ParkedService
    groups: GroupService
    claims: ClaimService
    nonces: Nonces
    readiness: Mapping[str, ReadinessCheck] = field(default_factory=dict)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    limits: HttpLimits = field(default_factory=HttpLimits)
    message_limits: MessageLimits = field(default_factory=MessageLimits)
    now_ms: Callable[[], int] = SystemClock().now_ms
    turns: Turns = field(default_factory=Turns)
