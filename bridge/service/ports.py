"""What the calls of the service work with: built once by wiring, shared by all calls of a process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bridge.clock import Clock, KafkaTime
from bridge.core.topics import InternalTopics
from bridge.directory import ProducerDirectory, ProducerGroup
from bridge.service.contract import Limits
from bridge.service.journal import Journal
from bridge.service.pending import PendingGauge
from bridge.service.reads import CurrentReads
from bridge.service.repeats import RecentKeys, Repeats
from bridge.service.replies import OpFollower, PendingReplies
from bridge.service.topics import TopicCache
from bridge.turns import Turns


class GroupRegister(ProducerDirectory, Protocol):
    """A directory to which a first prepare can add its group."""

    async def ensure_group(self, group: str) -> ProducerGroup:
        """The group, created with default settings if nobody did. Raises SqlUnavailable."""
        ...

    async def refresh(self) -> None:
        """Learns what other processes have changed. Raises SqlUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Door:
    """What decides whether a prepare may come in."""

    destinations: TopicCache
    directory: GroupRegister
    pending: PendingGauge
    auto_create_groups: bool = True


@dataclass(frozen=True, slots=True)
class Hearing:
    """Who is told what the settlers decided."""

    follower: OpFollower
    waiters: PendingReplies


@dataclass(frozen=True, slots=True)
class Lookups:
    """The projection, for what the settlers have forgotten."""

    reads: CurrentReads
    repeats: Repeats
    keys: RecentKeys


@dataclass(frozen=True, slots=True)
class ServicePorts:
    """Everything a call needs. `random_bits(n)`: n random bits."""

    clock: Clock
    kafka_time: KafkaTime
    topics: InternalTopics
    limits: Limits
    journal: Journal
    hearing: Hearing
    lookups: Lookups
    door: Door
    random_bits: Callable[[int], int]
    turns: Turns = field(default_factory=Turns)
