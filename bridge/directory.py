"""Port for producer groups: settings, endpoints, secrets; and an in-memory one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from bridge.core.config import GroupSettings

DEFAULT_SETTINGS = GroupSettings()


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

    @property
    def is_plain(self) -> bool:
        """Whether its settings have always been the defaults, so that nobody can know it with others."""
        return self.updated_ms == self.created_ms and self.settings == DEFAULT_SETTINGS


class ProducerDirectory(Protocol):
    """Who the producer groups are. Reads are from memory, refreshed beside; writes are the service's."""

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
    """A round without an answer. `failure`: a word such as `refused`, `timeout`, `no-endpoint`, `bad-answer`."""

    transaction_id: str
    group: str
    at_ms: int
    failure: str
    endpoint: str | None


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
