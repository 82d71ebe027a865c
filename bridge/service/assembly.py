"""Puts the service of one process together."""

import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bridge.clock import Clock, KafkaTime
from bridge.core.topics import InternalTopics
from bridge.service.bodies import BodyReader
from bridge.service.claims import ClaimPorts, ClaimService
from bridge.service.current_reads import CurrentReads, ProjectionPositions
from bridge.service.destinations import Destinations, DestinationsConfig
from bridge.service.ending import Ender
from bridge.service.groups import GroupService, UrlRule
from bridge.service.journal import Journal, LogState, SoundLog
from bridge.service.lags import Lags
from bridge.service.limits import Limits
from bridge.service.op_follower import FollowerPorts, OpFollower
from bridge.service.operators import AuditTrail, Operators
from bridge.service.parked import ParkedService
from bridge.service.pending import PendingGauge
from bridge.service.ports import Door, GroupRegister, Hearing, Lookups, ServicePorts
from bridge.service.queue_ends import QueueEnds
from bridge.service.redrive_loop import RedriveLoop
from bridge.service.repeats import KeyMemory, Repeats
from bridge.service.search import SearchService
from bridge.service.transactions import TransactionService
from bridge.service.waiters import Waiters
from bridge.sql.check_board import SqlCheckBoard
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
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
    destinations: DestinationsConfig = field(default_factory=DestinationsConfig)
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
    claims = ClaimPorts(SqlCheckBoard(database), directory, ports.lookups.reads, bodies, clock)
    lags = Lags(stores.store, config.topics, ports.hearing.follower, ports.kafka_time)
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
    time, waiters = KafkaTime(clock), Waiters(config.prefix)
    follower = OpFollower(
        topics, FollowerPorts(stores.store, stores.owners, clock, time, waiters, config.seal_watch, stores.log)
    )
    ends = QueueEnds(stores.store, topics.half)
    positions = ProjectionPositions(stores.database, clock)
    reads = CurrentReads(stores.database, ends, positions, clock, limits.projection_wait_ms)
    return ServicePorts(
        clock,
        time,
        topics,
        limits,
        Journal(stores.store, time, limits.max_in_flight, stores.log),
        Hearing(follower, waiters),
        Lookups(reads, Repeats(reads, ends, clock, limits.projection_wait_ms), KeyMemory(clock)),
        Door(
            Destinations(stores.admin, clock, topics, time, config.destinations),
            directory,
            PendingGauge(stores.database, clock, limits.max_pending),
            config.auto_create_groups,
        ),
        config.random_bits,
    )
