"""Puts the service of one process together."""

import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bridge.clock import Clock, KafkaTime
from bridge.core.topics import InternalTopics
from bridge.service.claims import ClaimPorts, ClaimService
from bridge.service.contract import Limits
from bridge.service.end import Ender
from bridge.service.groups import GroupService, UrlRule
from bridge.service.journal import EndOffsets, Journal, LogState, SoundLog
from bridge.service.operate import AuditTrail, Operators
from bridge.service.pending import PendingGauge
from bridge.service.ports import Door, GroupRegister, Hearing, Lookups, ServicePorts
from bridge.service.reads import BodyReader, ConsumerLag, CurrentReads, ProjectionPositions
from bridge.service.redrive import ParkedService, RedriveLoop
from bridge.service.repeats import RecentKeys, Repeats
from bridge.service.replies import FollowerPorts, OpFollower, PendingReplies
from bridge.service.search import SearchService
from bridge.service.topics import TopicCache, TopicCacheConfig
from bridge.service.transactions import TransactionService
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.pull_checks import SqlPullCheckStore
from bridge.store.message_store import MessageStore, OwnerStore, TopicAdmin
from bridge.store.sealed import SealWatch


def make_prefix() -> str:
    """The beginning of all REQUESTs of a process: no two processes may share it."""
    return f"{secrets.token_hex(6)}-"


@dataclass(frozen=True, slots=True)
class Stores:
    """The log and the database. `log`: what is known of the internal topics beside their records."""

    store: MessageStore
    owners: OwnerStore
    admin: TopicAdmin
    database: Database
    log: LogState = field(default_factory=SoundLog)


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings of the service. `refuse_url`: which callback URLs may not be registered.

    `seal_watch` opens op records of an owner store that does not.
    """

    refuse_url: UrlRule
    topics: InternalTopics = field(default_factory=InternalTopics)
    limits: Limits = field(default_factory=Limits)
    destinations: TopicCacheConfig = field(default_factory=TopicCacheConfig)
    auto_create_groups: bool = True
    seal_watch: SealWatch = field(default_factory=SealWatch)
    prefix: str = field(default_factory=make_prefix)
    random_bits: Callable[[int], int] = random.SystemRandom().getrandbits


@dataclass(frozen=True, slots=True)
class Service:
    """What the faces call, and the loops that must run beside."""

    ports: ServicePorts
    transactions: TransactionService
    groups: GroupService
    claims: ClaimService
    search: SearchService
    parked: ParkedService
    redrive_loop: RedriveLoop

    @property
    def is_ready(self) -> bool:
        """Whether answers of the settlers are heard."""
        return self.ports.hearing.follower.is_ready

    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Each runs until it is cancelled."""
        door = self.ports.door
        return (
            self.ports.hearing.follower.run_forever,
            door.destinations.run_forever,
            door.pending.run_forever,
            self.redrive_loop.run_forever,
        )


def assemble(stores: Stores, directory: SqlDirectory, clock: Clock, config: ServiceConfig) -> Service:
    """The service of one process. Nothing runs, and nothing is asked, before its loops do."""
    ports = make_ports(stores, directory, clock, config)
    database = stores.database
    trail = AuditTrail(database, clock.now_ms)
    ender = Ender(ports)
    operators = Operators(ports, ender, trail)
    bodies = BodyReader(stores.store, config.topics)
    claims = ClaimPorts(SqlPullCheckStore(database), directory, ports.lookups.reads, bodies, clock)
    lags = ConsumerLag(stores.store, config.topics, ports.hearing.follower, ports.kafka_time)
    return Service(
        ports,
        TransactionService(ports, bodies, ender, operators),
        GroupService(directory, ports.lookups.reads, clock, config.topics.queues, config.refuse_url),
        ClaimService(claims),
        SearchService(database, clock, ports.kafka_time, lags),
        ParkedService(database, clock, lambda: f"{config.random_bits(80):020x}"),
        RedriveLoop(database, clock, operators, ender, config.prefix),
    )


def make_ports(stores: Stores, directory: GroupRegister, clock: Clock, config: ServiceConfig) -> ServicePorts:
    """What the calls work with."""
    topics, limits = config.topics, config.limits
    time, waiters = KafkaTime(clock), PendingReplies(config.prefix)
    follower = OpFollower(
        topics, FollowerPorts(stores.store, stores.owners, clock, time, waiters, config.seal_watch, stores.log)
    )
    ends = EndOffsets(stores.store, topics.half)
    positions = ProjectionPositions(stores.database, clock)
    reads = CurrentReads(stores.database, ends, positions, clock, limits.projection_wait_ms)
    return ServicePorts(
        clock,
        time,
        topics,
        limits,
        Journal(stores.store, time, limits.max_in_flight, stores.log),
        Hearing(follower, waiters),
        Lookups(reads, Repeats(reads, ends, clock, limits.projection_wait_ms), RecentKeys(clock)),
        Door(
            TopicCache(stores.admin, clock, topics, time, config.destinations),
            directory,
            PendingGauge(stores.database, clock, limits.max_pending),
            config.auto_create_groups,
        ),
        config.random_bits,
    )
