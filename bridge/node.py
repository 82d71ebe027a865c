"""One process of the bridge, put together here and nowhere else, and the order in which its loops start and stop.

Log, database, network, time and chance come from outside: production's from `api.wiring`, others in simulations.
"""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

import structlog

from bridge.clock import Clock, KafkaTime
from bridge.core.check_rules import CheckTimes
from bridge.core.errors import ConfigError
from bridge.core.grants import Masks
from bridge.core.topics import InternalTopics
from bridge.directory import ProducerGroup
from bridge.fault_points import FaultPoint, reach
from bridge.log_watch import BodyWatch, LogWatch, StableOffsetWatch
from bridge.projector import Projector, ProjectorConfig, ProjectorPorts, RebuildProgress, RebuildVerdict, rebuild
from bridge.service.access import AccessConfig, AccessService, Sessions, SigningSecrets
from bridge.service.admission import Admission, PendingGauge, Repeats
from bridge.service.audit import AuditHeads, AuditTopic, HeadTopic
from bridge.service.canary import Canary, CanaryConfig
from bridge.service.claims import ClaimService
from bridge.service.contract import Limits
from bridge.service.end import Ender
from bridge.service.groups import GroupService, UrlRule
from bridge.service.journal import EndOffsets, Journal
from bridge.service.operate import AuditTrail, Operators
from bridge.service.prepare import Preparer
from bridge.service.reads import BodyReader, ConsumerLag, CurrentReads, ProjectionPositions, SearchService
from bridge.service.redrive import ParkedService, RedriveConfig, RedriveLoop
from bridge.service.replies import FollowerPorts, OpFollower, PendingReplies
from bridge.service.topics import ConsumerWatch, TopicCache, TopicCacheConfig
from bridge.service.transactions import TransactionService
from bridge.settler.bodies import KnownTopics
from bridge.settler.ports import SettlerConfig, SettlerObserver, SettlerPorts, SettleTracer
from bridge.settler.settler import Settler
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.leases import LeaseHolder, SqlPullCheckStore
from bridge.sql.rows import read_positions
from bridge.store.message_store import MessageStore, OwnerStore, TopicAdmin
from bridge.store.op_topic import DatabaseMark, SealedOwnerStore, SealWatch, refuse_other_database
from bridge.topology import TopologyGuard, load_seals
from bridge.turns import Turns
from checker.call import CheckCaller, CheckerConfig, LateCaller, Nonces
from checker.context import CheckContext
from checker.endpoint_trial import EndpointTrials, OwnershipProof
from checker.service import CallsOfGroup, CheckService
from checker.webhooks import WebhookPorts, Webhooks, WebhookTarget

_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Roles:
    """What a process does. The checker lives in the settler. `remoting`: the door for clients of RocketMQ."""

    api: bool = False
    settler: bool = False
    projector: bool = False
    remoting: bool = False

    @property
    def is_called(self) -> bool:
        """Whether anybody prepares and ends by this process."""
        return self.api or self.remoting


@dataclass(frozen=True, slots=True)
class Backing:
    """What a process stands on.

    `owners` and `gathering`, the projector's if it has its own, carry op records as they are in the log: the node
    seals and opens them. `destinations`: what the owners know topics from, if they do. `open_caller`: called by a
    process that checks. `check_clock`: the checker's if it has its own, whose wall clock dates signatures.
    `tracer`: who is told what is published, if anybody is.
    `seal_watch`: filled from the database when the node starts.
    """

    store: MessageStore
    owners: OwnerStore
    admin: TopicAdmin
    database: Database
    clock: Clock
    open_caller: Callable[[], CheckCaller]
    random: Random = field(default_factory=SystemRandom)
    gathering: OwnerStore | None = None
    destinations: KnownTopics | None = None
    check_clock: Clock | None = None
    seal_watch: SealWatch = field(default_factory=SealWatch)
    tracer: SettleTracer | None = None


def refuse_no_url(url: str) -> None:
    """A UrlRule where whoever calls the endpoints judges them."""


def never(url: str) -> bool:
    """Of no endpoint a proof is wanted."""
    return False


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of a process. `owner`: its name, which no other process has.

    `refuse_url`: which callback URLs may not be registered; `needs_proof`: which must prove whose they are.
    `overridden`: kinds of faults of topics that are taken.
    `access`: who may call; None where nobody calls but the process itself.
    """

    owner: str
    topics: InternalTopics = field(default_factory=InternalTopics)
    refuse_url: UrlRule = refuse_no_url
    limits: Limits = field(default_factory=Limits)
    destinations: TopicCacheConfig = field(default_factory=TopicCacheConfig)
    redrive: RedriveConfig = field(default_factory=RedriveConfig)
    settler: SettlerConfig = field(default_factory=SettlerConfig)
    checker: CheckerConfig = field(default_factory=CheckerConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    needs_proof: Callable[[str], bool] = never
    access: AccessConfig | None = None
    overridden: Collection[str] = ()
    auto_create_groups: bool = True
    webhooks: Sequence[WebhookTarget] = ()
    canary: CanaryConfig | None = None
    audit_topic: str = ""  # where acts are told as events; nowhere without one
    refresh_ms: int = 1_000  # what other processes change of producer groups is seen after this
    check_after_ms: int = CheckTimes().transaction_timeout_ms  # of groups that have the usual transaction timeout
    masks: Masks = field(default_factory=Masks)
    look_ms: int = 1_500  # what happens to the internal topics is seen after this


def make_random_text(random: Random) -> str:
    """22 characters that nobody can guess if `random` is the system's."""
    return urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=")


class Node:
    """Everything a process may have; `start` starts what its roles need. Nothing is asked before."""

    def __init__(self, backing: Backing, config: NodeConfig) -> None:
        self.backing = backing
        self._config = config
        clock, database, topics = backing.clock, backing.database, config.topics
        self.owner = config.owner
        self.seal_watch = backing.seal_watch
        self.directory = SqlDirectory(
            database, clock, config.refresh_ms, backing.random.randbytes, config.check_after_ms
        )
        self.access = AccessService(database, clock, config.access or AccessConfig(), backing.random.randbytes)
        self.guard = TopologyGuard(
            backing.admin,
            database,
            topics,
            clock,
            overridden=config.overridden,
            longest_life_of=self._find_longest_life,
        )
        self.bodies = BodyWatch(backing.store, database, topics, clock)
        self.stable_offsets = StableOffsetWatch(backing.store, clock)
        self.log = LogWatch(
            backing.admin, topics, clock, database, seals=self.seal_watch.seals, guard=self.guard
        )  # fmt: skip
        self._mark = DatabaseMark(backing.store, topics, self.seal_watch)
        self.kafka_time = KafkaTime(clock)
        self.turns = Turns()
        self._make_service()
        self.roles = Roles()
        self.settler: Settler | None = None
        self.checks: CheckService | None = None
        self.projector: Projector | None = None
        self._stack = AsyncExitStack()
        self._is_failed = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def nonces(self) -> Nonces:
        """What names the checks of this bridge."""
        return Nonces(self.seal_watch.seals.keyring, self.make_text)

    @property
    def sessions(self) -> Sessions:
        """Those of people at this bridge's pages."""
        return Sessions(self.access, self.seal_watch.seals.keyring, self.backing.clock.now_ms)

    @property
    def signing(self) -> SigningSecrets:
        """What clients of RocketMQ sign with."""
        return SigningSecrets(self.access, self.seal_watch.seals.keyring)

    @property
    def is_ready(self) -> bool:
        """Whether answers of the settlers arrive."""
        return self.follower.is_ready

    async def start(self, roles: Roles) -> None:
        """Starts the loops of these roles, last stopped first; may be called again after an error.

        Raises ConfigError if a promise could not be kept, StoreError and SqlUnavailable.
        """
        await load_seals(self.backing.database, self.seal_watch.seals)
        if faults := await self.guard.run_once():
            raise ConfigError("; ".join(map(str, faults)))
        reach(FaultPoint.START_CHECKED)
        await self.directory.refresh()
        await self.log.run_once()
        self.roles = roles
        self.run("log", self.log.run_forever(self._config.look_ms))
        self.run("bodies", self.bodies.run_forever())
        self.run("directory", self.directory.run_forever())
        if self._config.access is not None:
            await self.access.refresh()
            self.run("access", self.access.run_forever())
        if self.access.issuers is not None:
            self.run("issuers", self.access.issuers.run_forever())
        if roles.projector:
            self.projector = self.make_projector()
            self.run("projector", self.projector.run_forever(), self.projector.stop)
        if roles.settler:
            owners = self._seal(self.backing.owners)
            await refuse_other_database(self.backing.store, owners, self._config.topics, self._mark)
            self._start_settler()
        if roles.is_called:
            self._start_called(roles)

    def _start_called(self, roles: Roles) -> None:
        """The loops of a process by which others prepare and end."""
        self._stack.push_async_callback(self._caller.close)
        self.run("answers", self.follower.run_forever())
        self.run("destinations", self.destinations.run_forever())
        self.run("pending", self.pending.run_forever())
        if roles.api:  # who began a job is known there, by the first key in the settings too
            self.run("redrive", self.redrive.run_forever())
        self.run("audit", self.audit_heads.run_forever())
        if self.audit_topic is not None:
            self.run("audit-topic", self._lease("audit-topic").work_forever(self.audit_topic.work))
        if self.canary is not None and roles.api:
            self.run("canary", self.canary.run_forever())
        if self.webhooks.targets:
            self.run("webhooks", self._lease("webhooks").work_forever(self.webhooks.work))

    async def stop(self) -> None:
        """Ends the loops in the reverse order of their start: intake, checks, settler, projector."""
        await self._stack.aclose()

    async def rebuild(self, on_progress: Callable[[RebuildProgress], None]) -> RebuildVerdict:
        """The projection anew from Kafka, by a node that has not started. Raises what `projector.rebuild` does."""
        await load_seals(self.backing.database, self.seal_watch.seals)
        await self.directory.refresh()
        projector = self.make_projector()
        try:
            return await rebuild(projector, on_progress)
        finally:
            await projector.close()

    async def wait_failed(self) -> None:
        """Raises what ended a loop that should never end."""
        await self._is_failed.wait()
        raise self._failure or RuntimeError("a loop ended")

    def run(
        self, name: str, loop: Coroutine[Any, Any, None] | Awaitable[None], stop: Callable[[], None] | None = None
    ) -> None:
        """Runs a loop until the process ends; without `stop` it is cancelled then."""
        task = asyncio.ensure_future(loop)
        task.add_done_callback(self._note_end)

        async def end() -> None:
            if stop is None:
                task.cancel()
            else:
                stop()
            await asyncio.gather(task, return_exceptions=True)
            _LOG.debug("loop_ended", loop=name)

        self._stack.push_async_callback(end)

    def make_projector(self) -> Projector:
        """The projector of this process, or one more."""
        backing, config = self.backing, self._config
        owners = self._seal(backing.gathering or backing.owners)
        ports = ProjectorPorts(
            owners, backing.store, backing.admin, backing.database, backing.clock, self.directory.times_of
        )  # fmt: skip
        return Projector(config.topics, config.owner, ports, config.projector)

    def make_settler(self, observer: SettlerObserver) -> Settler:
        """The settler of this process; `observer` gets its decisions."""
        backing, config = self.backing, self._config
        destinations = backing.destinations or KnownTopics(backing.admin, backing.clock)
        ports = SettlerPorts(
            backing.store, self._seal(backing.owners), destinations, self.directory.times_of, observer, backing.clock,
            self.log, self.stable_offsets, self._mark, tracer=backing.tracer,
        )  # fmt: skip
        has_id_header = config.destinations.has_id_header
        return Settler(config.topics, config.owner, ports, config.settler, has_id_header=has_id_header)

    def make_checks(self, caller: CheckCaller) -> CheckService:
        """The checker of this process."""
        backing, config = self.backing, self._config
        context = CheckContext(
            backing.store,
            config.topics,
            self.directory,
            caller,
            backing.check_clock or backing.clock,
            self.make_text,
            backing.random.random,
            SqlPullCheckStore(backing.database),
            self.seal_watch.seals.keyring,
            config.checker,
        )
        return CheckService(context)

    def make_text(self) -> str:
        """A text nobody can guess."""
        return make_random_text(self.backing.random)

    def _start_settler(self) -> None:
        caller = self.backing.open_caller()
        self._stack.push_async_callback(caller.close)
        self.checks = self.make_checks(caller)
        self.settler = self.make_settler(self.checks)
        self.run("stable-offsets", self.stable_offsets.run_forever())
        self.run("settler", self.settler.run_forever(), self.settler.stop)
        self.run("checks", self.checks.run_forever())
        self._stack.push_async_callback(self.checks.close)

    def _make_service(self) -> None:
        """What the HTTP interface calls, and the loops beside it."""
        backing, config = self.backing, self._config
        store, clock, database, topics = backing.store, backing.clock, backing.database, config.topics
        limits, prefix = config.limits, f"{backing.random.getrandbits(48):012x}-"  # no two processes may share it
        self.waiters = PendingReplies(prefix)
        self.follower = OpFollower(
            topics,
            FollowerPorts(store, backing.owners, clock, self.kafka_time, self.waiters, self.seal_watch, self.log),
        )
        ends = EndOffsets(store, topics, self.follower.find_s)
        positions = ProjectionPositions(database, clock)
        self.reads = CurrentReads(database, ends, positions, clock, limits.projection_wait_ms)
        self.destinations = TopicCache(backing.admin, clock, topics, self.kafka_time, config.destinations)
        self.pending = PendingGauge(database, clock, limits)
        admission = Admission(
            self.destinations,
            self.directory,
            self.pending,
            limits,
            self.turns,
            auto_create_groups=config.auto_create_groups,
        )
        journal = self.journal = Journal(store, topics, self.kafka_time, limits.max_in_flight, self.log)
        repeats = Repeats(self.reads, ends, clock, limits.projection_wait_ms)
        random_bits = backing.random.getrandbits
        preparer = Preparer(admission, journal, self.follower, repeats, self.kafka_time, random_bits)
        ender = Ender(journal, self.follower, self.reads, limits, clock, self.turns)
        trail = AuditTrail(database, clock.now_ms)
        keyring = self.seal_watch.seals.keyring
        self.audit_heads = AuditHeads(database, HeadTopic(store, topics, keyring), keyring, clock, config.owner)
        operators = Operators(ender, self.reads, trail, topics, limits, self.kafka_time)
        bodies = BodyReader(store, topics, self.bodies.is_lost, config.masks)
        shown = CurrentReads(database, ends, positions, clock, limits.projection_wait_ms, is_aside=True)
        self.transactions = TransactionService(preparer, ender, operators, shown, bodies, clock)
        self._caller = LateCaller(backing.open_caller)  # for calls that are no checks
        self._proof = OwnershipProof(self._caller, clock, self.make_text)
        self.trials = EndpointTrials(self._caller)
        self.groups = GroupService(self.directory, self.reads, clock, topics.queues, config.refuse_url, self._prove)
        self.claims = ClaimService(SqlPullCheckStore(database), self.directory, self.reads, bodies, clock)
        self._lags = ConsumerLag(store, topics, self.follower, self.kafka_time)
        self.search = SearchService(database, clock, self.kafka_time, self._lags)
        self._make_tellers()
        self.consumers = ConsumerWatch(store, backing.admin, clock)
        self.parked = ParkedService(database, clock, lambda: f"{random_bits(80):020x}")
        self.redrive = RedriveLoop(database, clock, operators, self.access.rights_of, prefix, config.redrive)

    def _make_tellers(self) -> None:
        """What tells others of the bridge, and what shows that it works."""
        backing, config = self.backing, self._config
        store, clock, database, topics = backing.store, backing.clock, backing.database, config.topics
        telling = WebhookPorts(
            store, topics, database, backing.check_clock or clock, self._caller, self._read_settling,
            self.make_text, backing.random.random,
        )  # fmt: skip
        self.webhooks = Webhooks(config.webhooks, telling)
        self.audit_topic: AuditTopic | None = None
        if config.audit_topic:
            self.audit_topic = AuditTopic(config.audit_topic, topics.half, database, store, clock)
        self.canary: Canary | None = None
        if config.canary is not None:
            self.canary = Canary(config.canary, self.transactions, self.directory, store, clock, self.make_text)

    async def _prove(self, group: ProducerGroup, url: str) -> str | None:
        return await self._proof.find_flaw(group, url) if self._config.needs_proof(url) else None

    def calls_of(self, group: str) -> CallsOfGroup | None:
        """Calls of this process to the endpoints of a group; None if it asks nobody."""
        return None if self.checks is None else self.checks.calls_of(group)

    async def _read_settling(self) -> Mapping[int, int]:
        positions = await self.backing.database.read(read_positions)
        return await self._lags.read_settling({queue_id: position.s for queue_id, position in positions.items()})

    def _lease(self, name: str) -> LeaseHolder:
        return LeaseHolder(self.backing.database, self.backing.clock, name, self._config.owner)

    def _seal(self, owners: OwnerStore) -> SealedOwnerStore:
        return SealedOwnerStore(owners, self._config.topics.op, self.seal_watch)

    def _find_longest_life(self) -> int:
        lives = [group.settings.times.max_lifetime_ms for group in self.directory.groups.values()]
        return max([CheckTimes().max_lifetime_ms, *lives])

    def _note_end(self, task: "asyncio.Future[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = error
            self._is_failed.set()
