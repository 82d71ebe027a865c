"""What a checker works with, in memory: a directory of groups, a board of due checks, endpoints that are called."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bridge.clock import Clock
from bridge.core.check_rules import GroupSettings
from bridge.directory import (
    DEFAULT_SETTINGS,
    LEASE_SLACK_MS,
    Endpoint,
    ProducerGroup,
    PullCheck,
    UnansweredRound,
    place_of,
)
from checker.call import FIRST_BYTES, TELLING_STATUSES, CheckCaller, EndpointCall, EndpointReply, Failure, failure_of


@dataclass(slots=True)
class MemoryDirectory:
    """A directory that lives as long as its process."""

    groups: dict[str, ProducerGroup] = field(default_factory=dict)
    rounds: list[UnansweredRound] = field(default_factory=list)
    on_disable: Callable[[str, str, str], None] = lambda group, url, reason: None

    def get(self, group: str) -> ProducerGroup | None:
        return self.groups.get(group)

    def settings_of(self, group: str) -> GroupSettings:
        known = self.groups.get(group)
        return known.settings if known else DEFAULT_SETTINGS

    async def disable_endpoint(self, group: str, url: str, reason: str) -> None:
        self.on_disable(group, url, reason)
        known = self.groups[group]
        endpoints = tuple(
            Endpoint(e.url, e.is_leased, e.lease_until_ms, reason) if e.url == url else e for e in known.endpoints
        )
        self.groups[group] = replace(known, endpoints=endpoints)

    async def record_rounds(self, rounds: Sequence[UnansweredRound]) -> None:
        self.rounds.extend(rounds)


@dataclass(slots=True)
class _StoredCheck:
    check: PullCheck
    queue_id: int
    owner: str
    lease_until_ms: int = 0


@dataclass(slots=True)
class MemoryPullCheckStore:
    """A board that lives as long as its process."""

    lying: dict[str, _StoredCheck] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    ticks: Counter[int] = field(default_factory=Counter)

    async def take_queue(self, queue_id: int, owner: str) -> int:
        self.owners[queue_id] = owner
        return self.ticks[queue_id]

    async def put(
        self, queue_id: int, owner: str, tick_ms: int, checks: Sequence[PullCheck]
    ) -> Mapping[str, int] | None:
        if self.owners.get(queue_id) != owner:
            return None
        self.ticks[queue_id] = max(tick_ms, self.ticks[queue_id])
        for check in checks:
            found = self.lying.get(check.transaction_id)
            if found is None or found.check.check_number != check.check_number:
                self.lying[check.transaction_id] = _StoredCheck(check._replace(claims=0), queue_id, owner)
            else:
                found.owner = owner
        return {check.transaction_id: self.lying[check.transaction_id].check.claims for check in checks}

    async def tick(self, queue_id: int, owner: str, tick_ms: int) -> bool:
        if self.owners.get(queue_id) != owner:
            return False
        self.ticks[queue_id] = max(tick_ms, self.ticks[queue_id])
        self._sweep(queue_id, lambda lying: lying.owner != owner)
        return True

    async def leave_queue(self, queue_id: int, owner: str) -> None:
        if self.owners.get(queue_id) == owner:
            self.owners[queue_id] = ""
        self._sweep(queue_id, lambda lying: lying.owner == owner)

    async def remove(self, checks: Collection[PullCheck]) -> None:
        for check in checks:
            found = self.lying.get(check.transaction_id)
            if found is not None and found.check.check_number == check.check_number:
                del self.lying[check.transaction_id]

    async def claim(self, group: str, limit: int, lease_ms: int) -> Sequence[PullCheck]:
        free = sorted(self._free({group}), key=lambda lying: (lying.check.due_ms, lying.check.transaction_id))[:limit]
        for lying in free:
            lying.check = lying.check._replace(claims=lying.check.claims + 1)
            lying.lease_until_ms = self.ticks[lying.queue_id] + lease_ms + LEASE_SLACK_MS
        return [lying.check for lying in free]

    async def release(self, checks: Collection[PullCheck]) -> None:
        for check in checks:
            found = self.lying.get(check.transaction_id)
            if found is not None and found.check == check:
                found.lease_until_ms = 0

    async def count_free(self, groups: Collection[str]) -> Mapping[str, int]:
        return Counter(lying.check.group for lying in self._free(groups))

    def _free(self, groups: Collection[str]) -> list[_StoredCheck]:
        return [
            lying
            for lying in self.lying.values()
            if lying.check.group in groups and lying.owner == self.owners.get(lying.queue_id) and self._is_free(lying)
        ]

    def _is_free(self, lying: _StoredCheck) -> bool:
        return lying.lease_until_ms <= self.ticks[lying.queue_id]

    def _sweep(self, queue_id: int, is_meant: Callable[[_StoredCheck], bool]) -> None:
        for id_, lying in list(self.lying.items()):
            if lying.queue_id == queue_id and is_meant(lying) and self._is_free(lying):
                del self.lying[id_]


@dataclass(frozen=True, slots=True)
class Response:
    """What an endpoint sends."""

    status: int = 200
    body: bytes = b""
    retry_after: str | None = None
    is_compressed: bool = False


Handler = Callable[[EndpointCall], Awaitable[Response]]


@dataclass(slots=True)
class MemoryCaller(CheckCaller):
    """Endpoints by URL; any other URL refuses the connection."""

    clock: Clock
    endpoints: dict[str, Handler] = field(default_factory=dict)

    async def call(self, call: EndpointCall) -> EndpointReply:
        start_ms = self.clock.monotonic_ms()
        endpoint = place_of(call.url)
        handler = self.endpoints.get(call.url)
        response = None if handler is None else await self._within(handler, call)
        latency_ms = self.clock.monotonic_ms() - start_ms
        if response is None:
            failure = Failure.REFUSED if handler is None else Failure.TIMEOUT
            return EndpointReply(endpoint, latency_ms, failure=failure)
        failed = _failure_in(response, call)
        shown = FIRST_BYTES if response.status in TELLING_STATUSES else 0
        body = response.body[:shown] if failed else response.body
        return EndpointReply(endpoint, latency_ms, response.status, body, response.retry_after, failed)

    async def close(self) -> None:
        """Holds nothing."""

    async def _within(self, handler: Handler, call: EndpointCall) -> Response | None:
        """The response, or None when the deadline came first."""
        answering = asyncio.ensure_future(handler(call))
        deadline = asyncio.ensure_future(self.clock.sleep_ms(call.timeout_ms))
        try:
            await asyncio.wait((answering, deadline), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            for task in (answering, deadline):
                task.cancel()


def _failure_in(response: Response, call: EndpointCall) -> Failure | None:
    failure = failure_of(response.status)
    if failure is None and response.is_compressed:
        return Failure.COMPRESSED
    if failure is None and len(response.body) > call.max_answer_bytes:
        return Failure.TOO_LARGE
    return failure
