"""Objects of a process, by role. The only place that knows adapters, and the only one nobody imports but the CLI."""

import asyncio
import gc
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from api.app import create_app
from api.bodies import MessageLimits
from api.gauges import register_gauges
from api.limits import HttpLimits
from api.readiness import Watched, make_readiness
from api.server import ApiServer, ServeConfig, stop_at_signals
from api.services import Services, TransactionCalls
from api.settings import Settings
from bridge.clock import SystemClock
from bridge.core.config import CheckTimes
from bridge.core.errors import ConfigError
from bridge.core.horizon import HorizonConfig
from bridge.core.topics import InternalTopics, with_prefix
from bridge.fault_points import FaultPoint, reach
from bridge.projector import Projector, ProjectorPorts, RebuildProgress, rebuild
from bridge.service.assembly import Service, ServiceConfig, Stores, assemble
from bridge.service.destinations import DestinationsConfig
from bridge.service.limits import Limits
from bridge.settler.destinations import Destinations
from bridge.settler.ports import SettlerConfig, SettlerPorts
from bridge.settler.settler import Settler
from bridge.sql.check_board import SqlCheckBoard
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.migrate import read_revisions, upgrade
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore
from bridge.topology import TopologyConflict, TopologyGuard, migrate_topics
from checker.check_service import CheckService
from checker.desk import CheckPorts
from checker.endpoint_guard import CallbackPolicy, check_url, parse_networks
from checker.http_caller import HttpCaller

_LOG = structlog.get_logger()
_ROLES = ("api", "settler", "projector")
_READY_POLL_MS = 50
# The projector reads everything and nobody waits for a single record: fewer, fuller answers of the broker.
_GATHERING = {"fetch.min.bytes": 64 * 1024, "fetch.wait.max.ms": 50}


@dataclass(frozen=True, slots=True)
class Roles:
    """What a process does. The checker lives in the settler."""

    api: bool
    settler: bool
    projector: bool


Face = Callable[[TransactionCalls], TransactionCalls]


@dataclass(frozen=True, slots=True)
class Guest:
    """For a bridge in another program's process, whose signals are not its own.

    `face`: what stands between the HTTP application and the service.
    """

    face: Face


_PROJECTOR_ALONE = Roles(api=False, settler=False, projector=True)
_PROJECTOR_NICENESS = 10  # where processors are short, search may lag; orders must not


def parse_roles(text: str) -> Roles:
    """`api,settler,projector` or a part of it. Raises ConfigError."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = names.difference(_ROLES)
    if unknown or not names:
        raise ConfigError(f"unknown role {', '.join(sorted(unknown)) or '(none)'}; roles are {', '.join(_ROLES)}")
    return Roles(*[name in names for name in _ROLES])


class KafkaParts:
    """The Kafka adapters of a process."""

    def __init__(self, settings: Settings) -> None:
        config = KafkaConfig(dict(settings.kafka), session_timeout_ms=settings.settler.session_ms)
        self.admin = KafkaTopicAdmin(config)
        self.destinations = Destinations(self.admin, SystemClock())
        self.owners = KafkaOwnerStore(config, self.destinations.max_message_bytes)
        self.store = KafkaMessageStore(config, self.owners)
        self.gathering = KafkaOwnerStore(KafkaConfig({**settings.kafka, **_GATHERING}))

    def last_error(self) -> str | None:
        """What the clients complained of, if nothing has worked since."""
        return self.store.last_error or self.owners.last_error

    async def close(self) -> None:
        """Closes every client."""
        await self.gathering.close()
        await self.owners.close()
        await self.store.close()
        await self.admin.close()


def kafka_parts(settings: Settings) -> KafkaParts:
    """Adapters for commands that need Kafka but no bridge."""
    return KafkaParts(settings)


def internal_topics(settings: Settings) -> InternalTopics:
    """Names and queue count of the internal topics."""
    return with_prefix(settings.topics.prefix, settings.topics.queues)


async def run_roles(
    settings: Settings,
    roles: Roles,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    guest: Guest | None = None,
) -> None:
    """Runs the parts of the bridge until SIGTERM, SIGINT or `stop`. Raises ConfigError before anything began.

    Stops in this order: intake, checks, settler, projector, clients, SQL. `guest`: in a process that is not its own.
    """
    stop = stop or asyncio.Event()
    if guest is None:
        stop_at_signals(stop)
    if roles == _PROJECTOR_ALONE:
        os.nice(_PROJECTOR_NICENESS)
    async with _open_process(settings) as process:
        await process.start(roles)
        reach(FaultPoint.START_LOOPS)
        server = process.make_server(roles, guest.face if guest is not None else None)
        serving = asyncio.create_task(server.serve_until(stop), name="http")
        telling = asyncio.create_task(_tell_ready(process, server, settings, on_ready))
        failing = asyncio.create_task(process.wait_failed())
        try:
            await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await serving
        finally:
            for task in (telling, failing):
                task.cancel()
        if failing.done() and not failing.cancelled():
            failing.result()


async def _tell_ready(
    process: "_Process", server: ApiServer, settings: Settings, on_ready: Callable[[str], None] | None
) -> None:
    await server.wait_started()
    await process.wait_ready()
    if on_ready is not None:
        host = f"[{settings.http.host}]" if ":" in settings.http.host else settings.http.host
        on_ready(f"http://{host}:{server.port}")


async def migrate(settings: Settings, *, accept_identity: bool = False) -> list[str]:
    """Tables to their newest form, internal topics where this bridge never ran; what was done, line by line.

    Raises ConfigError, StoreError, SqlUnavailable.
    """
    before = await asyncio.to_thread(upgrade, settings.sql_url())
    topics = internal_topics(settings)
    async with _open_stores(settings) as (kafka, database):
        now_ms = SystemClock().now_ms()
        created = await migrate_topics(kafka.admin, database, topics, now_ms, accept=accept_identity)
        faults = await TopologyGuard(kafka.admin, database, topics, SystemClock()).run_once()
    if faults:
        raise TopologyConflict(faults)
    tables = "are up to date" if before.is_current else f"were brought to revision {before.needed}"
    return [f"tables {tables}", *[f"topic {name} created" for name in created], "internal topics are as they must be"]


async def rebuild_projection(settings: Settings, on_progress: Callable[[int, int], None]) -> dict[str, int]:
    """The projection anew from Kafka, while the bridge runs; its counts at the end. Raises StoreError, SqlUnavailable.

    `on_progress` hears journal offsets applied and wanted, summed over the queues.
    """
    topics, clock = internal_topics(settings), SystemClock()
    async with _open_stores(settings) as (kafka, database):
        directory = SqlDirectory(database, clock)
        await directory.refresh()
        ports = _projector_ports(kafka, database, directory)
        projector = Projector(topics, _make_owner(), ports)

        def tell(progress: RebuildProgress) -> None:
            on_progress(sum(progress.applied.values()), sum(progress.wanted.values()))

        try:
            verdict = await rebuild(projector, ports, topics, tell)
        finally:
            await projector.close()
    total = verdict.total
    counts = {
        name: getattr(total, name) for name in ("prepared", "committed", "rolled_back", "parked", "pending", "blocked")
    }
    return {**counts, "orphans": verdict.orphan_count}


def _projector_ports(kafka: KafkaParts, database: Database, directory: SqlDirectory) -> ProjectorPorts:
    return ProjectorPorts(
        kafka.gathering,
        kafka.store,
        kafka.admin,
        database,
        SystemClock(),
        lambda group: directory.settings_of(group).times,
    )


def _make_owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class _Process:
    """The parts of one process. Loops run in tasks that are ended in the reverse order of their start."""

    def __init__(self, settings: Settings, kafka: KafkaParts, database: Database, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._kafka = kafka
        self._database = database
        self._stack = stack
        self._clock = SystemClock()
        self._topics = internal_topics(settings)
        self._owner = _make_owner()
        self._callbacks = CallbackPolicy(parse_networks(settings.callbacks.allow_networks))
        self._directory = SqlDirectory(database, self._clock)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._guard = TopologyGuard(
            kafka.admin, database, self._topics, self._clock, longest_life_of=self._find_longest_life
        )
        self._watched = Watched(kafka.admin, database, self._guard, kafka.last_error)
        self._service = self._make_service()

    async def start(self, roles: Roles) -> None:
        """Starts the loops of these roles, last stopped first. Raises ConfigError if a promise could not be kept."""
        revisions = await asyncio.to_thread(read_revisions, self._settings.sql_url())
        if revisions.current != revisions.needed:
            raise ConfigError(
                f"tables are at {revisions.current}, {revisions.needed} is needed: run outbox-bridge migrate"
            )
        if await self._guard.run_once():
            raise ConfigError("; ".join(map(str, self._guard.faults or ())))
        reach(FaultPoint.START_CHECKED)
        await self._directory.refresh()
        self._run("guard", self._guard.run_forever())
        self._run("directory", self._directory.run_forever())
        if roles.projector:
            await self._start_projector()
        if roles.settler:
            await self._start_settler()
        for number, loop in enumerate(self._service.loops() if roles.api else ()):
            self._run(f"service-{number}", loop())
        if roles.api:
            self._watched.service = self._service

    def make_server(self, roles: Roles, face: Face | None = None) -> ApiServer:
        """The HTTP side: the whole API, or health alone where the process has no api role."""
        limits, http = self._settings.limits, self._settings.http
        transactions: TransactionCalls = self._service.transactions
        services = Services(
            transactions=transactions if face is None else face(transactions),
            groups=self._service.groups,
            claims=self._service.claims,
            search=self._service.search,
            parked=self._service.parked,
            readiness=make_readiness(self._watched),
            limits=HttpLimits(
                body_bytes=limits.body_bytes, receive_s=http.receive_seconds, in_flight=limits.requests_in_flight
            ),
            message_limits=MessageLimits(limits.message_bytes, limits.headers_per_message),
        )
        register_gauges(services.registry, self._watched)
        config = ServeConfig(
            http.host,
            http.port,
            http.backlog,
            http.keep_alive_seconds,
            http.drain_seconds,
            limits.connections,
            reuse_port=http.reuse_port,
            allowed_hosts=http.allowed_hosts,
        )
        return ApiServer(create_app(services, is_api=roles.api), config)

    async def wait_ready(self) -> None:
        """Returns when /readyz would say so."""
        while not await self._is_ready():
            await self._clock.sleep_ms(_READY_POLL_MS)

    async def _is_ready(self) -> bool:
        results = [await check() for check in make_readiness(self._watched).values()]
        return all(result.is_ok or result.is_degraded for result in results)

    async def wait_failed(self) -> None:
        """Raises what ended a loop that should never end."""
        await self._failed

    def _make_service(self) -> Service:
        settings = self._settings
        stores = Stores(self._kafka.store, self._kafka.owners, self._kafka.admin, self._database)
        limits = Limits(
            max_message_bytes=settings.limits.message_bytes, max_pending=settings.limits.pending_transactions
        )
        config = ServiceConfig(
            refuse_url=self._refuse_url,
            topics=self._topics,
            limits=limits,
            destinations=DestinationsConfig(has_id_header=settings.transaction_id_header),
            auto_create_groups=settings.auto_create_groups,
        )
        return assemble(stores, self._directory, self._clock, config)

    def _find_longest_life(self) -> int:
        lives = [group.settings.times.max_lifetime_ms for group in self._directory.groups.values()]
        return max([CheckTimes().max_lifetime_ms, *lives])

    def _refuse_url(self, url: str) -> str | None:
        checked = check_url(url, self._callbacks)
        return checked if isinstance(checked, str) else None

    async def _start_projector(self) -> None:
        ports = _projector_ports(self._kafka, self._database, self._directory)
        projector = Projector(self._topics, self._owner, ports)
        self._watched.projector = projector
        self._run("projector", projector.run_forever(), projector.stop)

    async def _start_settler(self) -> None:
        kafka, clock = self._kafka, self._clock
        caller = HttpCaller(self._callbacks, clock)
        self._stack.push_async_callback(caller.close)
        board = SqlCheckBoard(self._database)
        checks = CheckService(CheckPorts(kafka.store, self._directory, caller, clock, board=board), self._topics)
        ports = SettlerPorts(
            kafka.store, kafka.owners, kafka.destinations,
            lambda group: self._directory.settings_of(group).times, checks, clock,
        )  # fmt: skip
        chosen = self._settings.settler
        horizon = HorizonConfig(journal_records=chosen.put_back_records)
        config = SettlerConfig(max_body_bytes=chosen.held_body_bytes, horizon=horizon)
        settler = Settler(self._topics, self._owner, ports, config, has_id_header=self._settings.transaction_id_header)
        self._watched.settler, self._watched.checks = settler, checks
        self._run("settler", settler.run_forever(), settler.stop)
        self._run("checks", checks.run_forever())
        self._stack.push_async_callback(checks.close)

    def _run(
        self, name: str, loop: Coroutine[Any, Any, None] | Awaitable[None], stop: Callable[[], None] | None = None
    ) -> None:
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

    def _note_end(self, task: "asyncio.Future[None]") -> None:
        if not task.cancelled() and task.exception() is not None and not self._failed.done():
            self._failed.set_exception(task.exception() or RuntimeError("a loop ended"))


@asynccontextmanager
async def _open_stores(settings: Settings) -> AsyncIterator[tuple[KafkaParts, Database]]:
    async with AsyncExitStack() as stack:
        database = Database(settings.sql_url())
        stack.push_async_callback(database.close)
        kafka = KafkaParts(settings)
        stack.push_async_callback(kafka.close)
        yield kafka, database


@asynccontextmanager
async def _open_process(settings: Settings) -> AsyncIterator[_Process]:
    gc.set_threshold(100_000, 50, 1_000)  # pending transactions are many and acyclic: full passes cost and find nothing
    async with _open_stores(settings) as (kafka, database), AsyncExitStack() as stack:
        yield _Process(settings, kafka, database, stack)
