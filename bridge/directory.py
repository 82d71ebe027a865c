"""Ports for producer groups: settings, endpoints, secrets; and the due checks of groups that fetch them."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from bridge.core.check_rules import GroupSettings

DEFAULT_SETTINGS = GroupSettings()
HIDDEN_QUERY = "?<hidden>"  # no URL that may be called ends so


class GroupSwitch(StrEnum):
    """What an operator can pause for a group."""

    CHECKS = "checks"
    PREPARES = "prepares"


def place_of(url: str) -> str:
    """For logs and records: without the query, which may hold secrets."""
    return url.partition("?")[0]


def show_url(url: str) -> str:
    """For answers and the audit: that there is a query, not which."""
    place, mark, _ = url.partition("?")
    return f"{place}{HIDDEN_QUERY}" if mark else place


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A callback URL of a producer group. `disabled_reason` is set when it said that it is gone (410).

    `lease_until_ms`: the wall clock of whoever registered it, to be shown; the directory decides when a lease is over.
    """

    url: str
    is_leased: bool = False
    lease_until_ms: int | None = None
    disabled_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    """A producer group. `secrets`: those that sign now, newest first (`whsec_…`)."""

    name: str
    settings: GroupSettings = DEFAULT_SETTINGS
    endpoints: Sequence[Endpoint] = ()
    secrets: Sequence[str] = ()
    created_ms: int = 0
    updated_ms: int = 0


class ProducerDirectory(Protocol):
    """The producer groups. Reads are from memory, refreshed beside; writes are the service's."""

    def get(self, group: str) -> ProducerGroup | None:
        """The group as known now, without endpoints whose lease is over; None if nobody created it. Never blocks."""
        ...

    def settings_of(self, group: str) -> GroupSettings:
        """Settings of the group, defaults if it is not known. Never blocks."""
        ...

    async def disable_endpoint(self, group: str, url: str, reason: str) -> None:
        """Takes an endpoint out of the rounds until the group is put again."""
        ...

    async def record_rounds(self, rounds: Sequence["UnansweredRound"]) -> None:
        """Keeps rounds in which nobody answered, for the timeline and the group's health."""
        ...


@dataclass(frozen=True, slots=True)
class UnansweredRound:
    """A round without an answer. `failure`: such as `refused`, `no-endpoint`, `bad-answer`, `status 404`; `said`: how
    the answer with that status begins."""

    transaction_id: str
    group: str
    at_ms: int
    failure: str
    endpoint: str | None
    said: str = ""


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


LEASE_SLACK_MS = 2_000  # a queue's tick may be so far behind when a check lease begins


class PullCheck(NamedTuple):
    """A due check that its group can claim. `claims`: how often it was claimed, which names a check lease."""

    transaction_id: str
    group: str
    check_number: int
    due_ms: int
    claims: int = 0


class PullCheckStore(Protocol):
    """Due checks, until an instance of their group claims them under a check lease.

    A queue's checks are its owner's, and so is the clock of their check leases: its ticks, written now and then.
    No wall clock decides anything, and leases outlive their queue's owner. All methods raise SqlUnavailable.
    """

    async def take_queue(self, queue_id: int, owner: str) -> int:
        """Makes `owner` the queue's only one; the last tick. Checks there are given out once they are put again."""
        ...

    async def put(
        self, queue_id: int, owner: str, tick_ms: int, checks: Sequence[PullCheck]
    ) -> Mapping[str, int] | None:
        """Lays checks there; how often each was claimed by now. A check with the same number keeps its check lease,
        another number begins anew. None: the queue is another owner's, nothing was done."""
        ...

    async def tick(self, queue_id: int, owner: str, tick_ms: int) -> bool:
        """Moves the queue's clock on, never back; removes what an earlier owner left and nobody holds.

        False: the queue is another owner's, nothing was done.
        """
        ...

    async def leave_queue(self, queue_id: int, owner: str) -> None:
        """Lets the queue go, and removes what nobody holds."""
        ...

    async def remove(self, checks: Collection[PullCheck]) -> None:
        """Takes checks away; those that are there with another number stay."""
        ...

    async def claim(self, group: str, limit: int, lease_ms: int) -> Sequence[PullCheck]:
        """The longest due checks that nobody holds, held by the caller for `lease_ms` from now."""
        ...

    async def release(self, checks: Collection[PullCheck]) -> None:
        """Gives claimed checks back before their check leases are over."""
        ...

    async def count_free(self, groups: Collection[str]) -> Mapping[str, int]:
        """How many checks of these groups nobody holds; groups without any are left out."""
        ...


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
