"""Ports for producer groups: settings, endpoints, secrets; and the due checks of groups that fetch them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
