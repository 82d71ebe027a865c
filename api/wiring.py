"""Objects of a process, by role. The only place that knows adapters, and the only one nobody imports but the CLI."""

import asyncio
import contextlib
import gc
import os
import resource
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from api.console.site import make_site
from api.kafka_version import VersionWatch
from api.outgoing import OwnAddresses, fetch_document
from api.process import GC_THRESHOLD, HeapLoop, forbid_core_dumps, make_heap_acts
from api.remoting.server import RemotingServer, open_door
from api.setting_sections import TlsSettings, WebhookSettings, read_secrets
from api.settings import Settings, shared_settings, show_settings
from api.web.app import create_app, create_metrics_app
from api.web.health import make_readiness
from api.web.limits import HttpLimits
from api.web.metrics import Exposition, NodeMetrics
from api.web.request import Services
from api.web.server import ApiServer, ServeConfig, finish_unless, fit_connections, stop_at_signals
from api.web.transports import Certificates, TlsFiles
from bridge.clock import SystemClock
from bridge.core.errors import ConfigError, StoreError
from bridge.core.grants import MaskRule, Masks
from bridge.core.position import LowWatermarkConfig
from bridge.core.topics import RIGHTS_REMEDY, InternalTopics, KafkaRight, Role, least_rights, with_prefix
from bridge.fault_points import FaultPoint, reach
from bridge.node import Backing, Node, NodeConfig, Roles
from bridge.projector import RebuildProgress
from bridge.service.access import AccessConfig
from bridge.service.canary import CanaryConfig
from bridge.service.contract import Limits
from bridge.service.issuers import IssuerConfig
from bridge.service.topics import TopicCacheConfig
from bridge.service.transactions import TransactionService
from bridge.settler.bodies import KnownTopics
from bridge.settler.ports import SettlerConfig
from bridge.sql.at_rest import SecretCipher, use_cipher
from bridge.sql.engine import Database, read_revisions
from bridge.sql.identity import ProcessBoard
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig, OptionFiles, check_user_options, find_warning
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore
from checker.call import CheckCaller
from checker.endpoint_guard import CallbackPolicy, check_url, is_loopback, parse_networks, parse_servers
from checker.http_caller import HttpCaller, resolve_name
from checker.service import CallsOfGroup, add_notes
from checker.webhooks import WebhookTarget

if TYPE_CHECKING:
    from api.tracing import Tracing

_LOG = structlog.get_logger()
_ROLES = ("api", "settler", "projector", "remoting")
_READY_POLL_MS = 50
_SCRAPERS = 64  # connections to a port for metrics
# The projector reads everything and nobody waits for a single record: fewer, fuller answers of the broker.
_GATHERING = {"fetch.min.bytes": 64 * 1024, "fetch.wait.max.ms": 50}

Face = Callable[[TransactionService], TransactionService]
"""What stands between the HTTP application and the service."""

_PROJECTOR_ALONE = Roles(api=False, settler=False, projector=True)
_PROJECTOR_NICENESS = 5  # where processors are short, search may lag; orders must not


def parse_roles(text: str) -> Roles:
    """Of `api,settler,projector,remoting` some. Raises ConfigError."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = names.difference(_ROLES)
    if unknown or not names:
        raise ConfigError(f"unknown role {', '.join(sorted(unknown)) or '(none)'}; roles are {', '.join(_ROLES)}")
    return Roles(*[name in names for name in _ROLES])


class KafkaParts:
    """The Kafka adapters of a process. Op records pass through them as they are in the log."""

    def __init__(self, settings: Settings) -> None:
        check_user_options(settings.kafka)
        config = KafkaConfig(dict(settings.kafka), session_timeout_ms=settings.settler.session_ms)
        self.admin = KafkaTopicAdmin(config)
        self._destinations = KnownTopics(self.admin, SystemClock())
        self.owners = KafkaOwnerStore(config, self._destinations.max_message_bytes)
        self.store = KafkaMessageStore(config, self.owners)
        self._gathering = KafkaOwnerStore(replace(config, options={**settings.kafka, **_GATHERING}))
        self.find_warning = partial(find_warning, config.held_back, OptionFiles(settings.kafka))

    def back(self, database: Database, open_caller: Callable[[], CheckCaller]) -> Backing:
        """What a process stands on, with the machine's time and chance."""
        return Backing(
            self.store, self.owners, self.admin, database, SystemClock(), open_caller,
            gathering=self._gathering, destinations=self._destinations,
        )  # fmt: skip

    def last_error(self) -> str | None:
        """What the clients complained of, if nothing has worked since."""
        return self.store.last_error or self.owners.last_error

    async def close(self) -> None:
        """Closes every client."""
        await self._gathering.close()
        await self.owners.close()
        await self.store.close()
        await self.admin.close()


def check_kafka_options(settings: Settings) -> None:
    """Before anything is started. Raises ConfigError."""
    check_user_options(settings.kafka)


async def find_denied(admin: KafkaTopicAdmin, roles: Roles, topics: InternalTopics) -> list[KafkaRight]:
    """What these roles need and Kafka refuses, as far as it tells. Raises StoreError."""
    names = {"api" if name == "remoting" else name: None for name in _ROLES if getattr(roles, name)}
    running = [Role(name) for name in names]
    return await admin.find_denied({right: None for role in running for right in least_rights(role, topics, [])}.keys())


def refuse_denied(denied: Sequence[KafkaRight]) -> None:
    """Raises ConfigError if there is anything."""
    if denied:
        raise ConfigError(f"{'; '.join(map(str, denied))}; {RIGHTS_REMEDY}")


def internal_topics(settings: Settings) -> InternalTopics:
    """Names and queue count of the internal topics."""
    return with_prefix(settings.topics.prefix, settings.topics.queues)


async def run_roles(
    settings: Settings,
    roles: Roles,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    guest: Face | None = None,
) -> None:
    """Runs the parts of the bridge until SIGTERM, SIGINT or `stop`. Raises ConfigError before anything began.

    Stops in this order: intake, checks, settler, projector, clients, SQL. `guest`: in another
    program's process, whose signals are not its own.
    """
    stop = stop or asyncio.Event()
    if guest is None:
        stop_at_signals(stop)
        forbid_core_dumps()
    if roles == _PROJECTOR_ALONE:
        os.nice(_PROJECTOR_NICENESS)
    async with _open_process(settings) as process, AsyncExitStack() as ended:
        ended.callback(stop.set)  # however it comes to that
        if not await finish_unless(stop, process.start(roles)):
            return
        reach(FaultPoint.START_LOOPS)
        servers = await process.make_servers(guest)
        doors = process.make_doors()
        serving = asyncio.create_task(_serve([*servers, *doors], stop))
        telling = asyncio.create_task(_tell_ready(process, servers[0], settings, on_ready))
        failing = asyncio.create_task(process.node.wait_failed())
        try:
            await asyncio.wait([serving, failing], return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await serving
        finally:
            for task in (telling, failing):
                task.cancel()
        if failing.done() and not failing.cancelled():
            failing.result()


async def _serve(servers: Sequence[ApiServer | RemotingServer], stop: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        for server in servers:
            tasks.create_task(server.serve_until(stop))


async def _tell_ready(
    process: "_Process", server: ApiServer, settings: Settings, on_ready: Callable[[str], None] | None
) -> None:
    await server.wait_started()
    await process.wait_ready()
    if on_ready is not None:
        host = f"[{settings.http.host}]" if ":" in settings.http.host else settings.http.host
        on_ready(f"http{'s' if server.is_secured else ''}://{host}:{server.port}")


async def rebuild_projection(settings: Settings, on_progress: Callable[[int, int], None]) -> dict[str, int]:
    """The projection anew from Kafka, while the bridge runs; its counts at the end. Raises StoreError, SqlUnavailable.

    `on_progress` is called with journal offsets applied and wanted, summed over the queues.
    """

    def tell(progress: RebuildProgress) -> None:
        on_progress(sum(progress.applied.values()), sum(progress.wanted.values()))

    async with open_stores(settings) as (kafka, database):
        node = Node(kafka.back(database, open_no_caller), NodeConfig(make_owner(), internal_topics(settings)))
        verdict = await node.rebuild(tell)
    total = verdict.total
    counts = {
        name: getattr(total, name)
        for name in ("prepared", "committed", "rolled_back", "parked", "pending", "blocked", "abandoned")
    }
    return {**counts, "orphans": verdict.orphan_count, "unproven": verdict.unproven}


def _bootstrap_servers(settings: Settings) -> list[tuple[str, int]]:
    named = [settings.kafka.get(name) for name in ("bootstrap.servers", "metadata.broker.list")]
    return parse_servers(",".join(str(text) for text in named if text))


def services_of(node: Node) -> Services:
    """The parts of a node that are called by HTTP."""
    return Services(
        node.access, node.transactions, node.search, node.parked, node.groups, node.claims, node.nonces, node.trials,
        now_ms=node.backing.clock.now_ms, turns=node.turns, sessions=node.sessions, signing=node.signing,
        webhooks=node.webhooks, canary=node.canary, consumers=node.consumers, calls_of=node.calls_of,
    )  # fmt: skip


def make_owner() -> str:
    """The name of a process, which no other one has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def _open_tracing() -> "Tracing":
    try:
        from api.tracing import open_tracing  # noqa: PLC0415 (has an extra)
    except ImportError as error:
        raise ConfigError("traces.export needs an extra: pip install 'outbox-bridge[otel]'") from error
    return open_tracing()


class _Process:
    """The node of a process, what it is served with, and what else runs beside."""

    def __init__(self, settings: Settings, kafka: KafkaParts, database: Database) -> None:
        self._settings = settings
        self._kafka = kafka
        self._clock = SystemClock()
        configured = [*_bootstrap_servers(settings), *database.addresses()]
        self._own = OwnAddresses(kafka.admin, configured, self._clock, resolve_name)
        self._callbacks = CallbackPolicy(parse_networks(settings.callbacks.allow_networks), self._own)
        self._tracing = None if settings.traces.export == "off" else _open_tracing()
        self.node = Node(replace(kafka.back(database, self._open_caller), tracer=self._tracing), self._make_config())
        self._certificates: Certificates | None = None
        self._board = ProcessBoard(database, self._clock, self.node.owner, self._note_calls)
        self._versions = VersionWatch(kafka.admin, settings.kafka, self._clock)
        self._doors: list[RemotingServer] = []

    def _note_calls(self) -> Mapping[str, Sequence[int]]:
        return {} if self.node.checks is None else self.node.checks.note_calls()

    def _calls_of(self, group: str) -> CallsOfGroup | None:
        """Of all processes; None if none of them asks anybody."""
        own, others = self.node.calls_of(group), self._board.calls_of(group)
        return add_notes([*others, own.note()] if own else others) if own or others else None

    def _open_caller(self) -> CheckCaller:
        caller = HttpCaller(self._callbacks, self._clock)
        return caller if self._tracing is None else self._tracing.follow(caller)

    async def stop(self) -> None:
        """Stops the node; spans that are left are given a moment."""
        await self.node.stop()
        if self._tracing is not None:
            await self._tracing.close()

    async def start(self, roles: Roles) -> None:
        """Starts the loops of these roles. Raises ConfigError if a promise could not be kept."""
        revisions = await asyncio.to_thread(read_revisions, self._settings.sql_url())
        if revisions.is_newer:
            _LOG.warning("tables_newer", current=revisions.current, needed=revisions.needed)
        elif not revisions.is_current:
            raise ConfigError(
                f"tables are at {revisions.current}, {revisions.needed} is needed: run outbox-bridge migrate"
            )
        # where Kafka does not tell now, whoever needs a right finds out
        with contextlib.suppress(StoreError):
            refuse_denied(await find_denied(self._kafka.admin, roles, internal_topics(self._settings)))
        await self._own.run_once()
        await self.node.start(roles)
        shared = shared_settings(self._settings, is_called=roles.is_called, is_door=roles.remoting)
        self._board.share(shared, [name for name in _ROLES if getattr(roles, name)])
        settler = self.node.settler
        self._board.watch_queues(internal_topics(self._settings), lambda: settler.status if settler else ())
        if roles.is_called or roles.settler:
            self._kafka.store.open()
        self.node.run("own-addresses", self._own.run_forever())
        self.node.run("processes", self._board.run_forever())
        self.node.run("kafka-version", self._versions.run_forever())
        self.node.run("heap", HeapLoop(self._clock, make_heap_acts()).run_forever())

    async def make_servers(self, face: Face | None) -> Sequence[ApiServer]:
        """The HTTP side: the whole API, or health alone where the process has no api role; metrics, if apart."""
        limits, http, node = self._settings.limits, self._settings.http, self.node
        certificates = self._certificates = self._open_certificates(http.tls)
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        connections = fit_connections(limits.connections, open_files, self._settings.topics.queues)
        _LOG.info("connections_bounded", most=connections, open_files=open_files)
        services = self._make_services(connections, certificates, face)
        config = ServeConfig(
            http.host,
            http.port,
            http.backlog,
            http.keep_alive_seconds,
            http.drain_seconds,
            connections,
            reuse_port=http.reuse_port,
            allowed_hosts=http.allowed_hosts,
            certificates=certificates,
        )
        app = create_app(
            services,
            site=None if http.console == "off" else make_site(),
            is_api=node.roles.api,
            has_metrics=http.metrics_port is None,
        )
        servers = [ApiServer(app, config)]
        if http.metrics_port is not None:
            apart = replace(
                config,
                host=http.metrics_host or http.host,
                port=http.metrics_port,
                connections=_SCRAPERS,
                reuse_port=False,
                certificates=certificates if http.metrics_tls else None,
            )
            servers.append(ApiServer(create_metrics_app(app), apart))
        for server in servers:
            await self._own.add(server.host, server.port)
        return servers

    def _make_services(self, connections: int, certificates: Certificates | None, face: Face | None) -> Services:
        limits, http, node, quotas = self._settings.limits, self._settings.http, self.node, self._settings.quotas
        return replace(
            services_of(node),
            transactions=node.transactions if face is None else face(node.transactions),
            readiness=make_readiness(
                node, self._kafka.last_error, certificates, self._board, self._versions, self._kafka.find_warning
            ),
            limits=HttpLimits(
                body_bytes=limits.body_bytes,
                receive_s=http.receive_seconds,
                in_flight=min(limits.requests_in_flight, max(1, connections // 2)),
                in_flight_bytes=limits.in_flight_bytes,
                headers_per_message=limits.headers_per_message,
                quotas=quotas.of_principal,
            ),
            exposition=Exposition(NodeMetrics(node, certificates, self._doors)),
            is_read_only=http.console == "read-only",
            reports=http.reports,
            calls_of=self._calls_of,
            tracer=self._tracing,
            settings=[(one.name, one.value, one.origin.value) for one in show_settings(self._settings)],
        )

    def make_doors(self) -> Sequence[RemotingServer]:
        """The door for clients of RocketMQ, if the process has it. Raises ConfigError."""
        if self.node.roles.remoting:
            self._doors.append(open_door(self._settings, self.node, self._certificates))
        return self._doors

    def _open_certificates(self, tls: TlsSettings) -> Certificates | None:
        if tls.cert is None or tls.key is None:
            return None
        is_needed = tls.client_auth == "required"
        files = TlsFiles(tls.cert, tls.key, tls.client_ca, is_client_needed=is_needed)
        certificates = Certificates(files, self._settings.auth.certificates)
        self.node.run("certificates", certificates.run_forever(self._clock))
        return certificates

    async def wait_ready(self) -> None:
        """Returns when /readyz would say so."""
        while not await self._is_ready():
            await self._clock.sleep_ms(_READY_POLL_MS)

    async def _is_ready(self) -> bool:
        results = [await check() for check in make_readiness(self.node, self._kafka.last_error).values()]
        return all(result.is_ok or result.is_degraded for result in results)

    def _make_config(self) -> NodeConfig:
        settings, chosen, canary = self._settings, self._settings.settler, self._settings.canary
        return NodeConfig(
            make_owner(),
            internal_topics(settings),
            self._refuse_url,
            Limits(
                max_message_bytes=settings.limits.message_bytes,
                max_pending=settings.limits.pending_transactions,
                max_pending_of_group=settings.quotas.pending_of_group,
                max_parked_of_group=settings.quotas.parked_of_group,
            ),
            TopicCacheConfig(has_id_header=settings.transaction_id_header),
            settler=SettlerConfig(
                max_body_bytes=chosen.held_body_bytes,
                horizon=LowWatermarkConfig(journal_records=chosen.put_back_records),
            ),
            needs_proof=self._needs_proof,
            access=_make_access_config(settings),
            overridden=settings.topics.overridden,
            auto_create_groups=settings.auto_create_groups,
            masks=Masks(MaskRule(one.topic, one.headers, one.paths) for one in settings.http.masks),
            check_after_ms=round(settings.check_after_seconds * 1000),
            webhooks=[self._make_webhook(webhook) for webhook in settings.webhooks],
            audit_topic=settings.audit.topic,
            canary=CanaryConfig(canary.topic, round(canary.interval_seconds * 1000)) if canary.topic else None,
        )

    def _make_webhook(self, webhook: WebhookSettings) -> WebhookTarget:
        url = webhook.url.get_secret_value()
        if isinstance(refusal := check_url(url, self._callbacks), str):
            raise ConfigError(f"webhooks: {webhook.name} may not be called: {refusal}; see callbacks.allow_networks")
        return WebhookTarget(webhook.name, url, read_secrets(webhook.secret), frozenset(webhook.events))

    def _needs_proof(self, url: str) -> bool:
        """An endpoint on this machine, named so, is the operator's."""
        checked, which = check_url(url, self._callbacks), self._settings.callbacks.prove_ownership
        if isinstance(checked, str) or which == "none":
            return False
        return which == "all" or not is_loopback(checked.host)

    def _refuse_url(self, url: str) -> str | None:
        checked = check_url(url, self._callbacks)
        return checked if isinstance(checked, str) else None


def _make_access_config(settings: Settings) -> AccessConfig:
    auth = settings.auth
    key = None if auth.admin_key is None else auth.admin_key.get_secret_value()
    issuers = tuple(
        IssuerConfig(i.issuer, i.audience, i.jwks_url, i.algorithms, i.claim, i.prefix, i.max_life_seconds)
        for i in auth.issuers
    )
    return AccessConfig(settings.insecure_no_auth, key, issuers=issuers, fetch=fetch_document if issuers else None)


def open_no_caller() -> CheckCaller:
    """For a node that never checks."""
    raise ConfigError("this process asks no endpoints")


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """The bridge's own, with the keys of its secrets, until the block ends."""
    database = Database(settings.sql_url(), options=use_cipher(SecretCipher(settings.secret_keys())))
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def open_stores(settings: Settings) -> AsyncIterator[tuple[KafkaParts, Database]]:
    """Log and database of a command, until its block ends."""
    async with open_database(settings) as database:
        kafka = KafkaParts(settings)
        try:
            yield kafka, database
        finally:
            await kafka.close()


@asynccontextmanager
async def _open_process(settings: Settings) -> AsyncIterator[_Process]:
    gc.set_threshold(*GC_THRESHOLD)
    async with open_stores(settings) as (kafka, database):
        process = _Process(settings, kafka, database)
        try:
            yield process
        finally:
            await process.stop()
