"""The whole bridge in one process on the in-memory log: HTTP application, service, settler, checker, projector.

Time, chance, SQL and calls to endpoints are given to it: tests of ours run it on virtual time, tests of users behind
a socket.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from api.web.app import create_app
from api.web.services import Services, TransactionCalls
from bridge.clock import Clock
from bridge.core.check_rules import CheckTimes
from bridge.core.keyring import SECRET_BYTES, BridgeKey, Keyring, OpSeals
from bridge.core.topics import InternalTopics
from bridge.log_watch import LogWatch
from bridge.projector import Projector, ProjectorConfig, ProjectorPorts
from bridge.service.assembly import Service, ServiceConfig, Stores, assemble
from bridge.service.groups import UrlRule
from bridge.settler.known_topics import KnownTopics
from bridge.settler.ports import SettlerConfig, SettlerPorts
from bridge.settler.settler import Settler
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.pull_checks import SqlPullCheckStore
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.process import MemoryProcess
from bridge.store.sealed import SealedOwnerStore, SealWatch
from checker.call import Nonces
from checker.caller import CheckCaller
from checker.desk import CheckPorts
from checker.service import CheckService

# One process writes alone and nothing fails here: what only looks after others need not look often.
_RARELY_MS = 60_000
_PROJECTING = ProjectorConfig(max_wait_ms=10_000, lease_ms=3 * _RARELY_MS, purge_interval_ms=_RARELY_MS)
_LOOK_INTERVAL_MS = 10


def _refuse_no_url(url: str) -> None:
    """Whoever calls the endpoints judges them."""


def _unchanged(calls: TransactionCalls) -> TransactionCalls:
    return calls


@dataclass(frozen=True, slots=True)
class MemoryPorts:
    """What the bridge stands on. `check_clock`: the checker's, whose wall clock dates signatures.

    `face`: what stands between the HTTP application and the service.
    """

    cluster: MemoryCluster
    topics: InternalTopics
    clock: Clock
    check_clock: Clock
    database: Database
    caller: CheckCaller
    random: Random
    refuse_url: UrlRule = _refuse_no_url
    face: Callable[[TransactionCalls], TransactionCalls] = field(default=_unchanged)


class MemoryBridge:
    """One bridge, alive from `start` to `stop`. The internal topics exist before."""

    def __init__(self, ports: MemoryPorts) -> None:
        self._ports = ports
        self._directory = SqlDirectory(ports.database, ports.clock, _RARELY_MS, ports.random.randbytes)
        self._keyring = Keyring([BridgeKey("1", ports.random.randbytes(SECRET_BYTES))])
        op_queues = ports.cluster.log.topics[ports.topics.op].partitions
        believed = {queue.queue.queue_id: queue.maximum for queue in op_queues}  # what was there before the key
        self._seal_watch = SealWatch(OpSeals(self._keyring, believed))
        self.service = self._make_service()
        self._projector = self._make_projector()
        self._checks = self._make_checks()
        self._settler = self._make_settler()
        self.app = create_app(
            Services(
                ports.face(self.service.transactions),
                self.service.search,
                self.service.parked,
                self.service.groups,
                self.service.claims,
                Nonces(self._keyring, self._random_text),
                now_ms=ports.clock.now_ms,
            )
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when calls are taken."""
        await self._directory.refresh()
        service = self.service.loops()
        loops = (self._directory.run_forever, *service, self._projector.run_forever, self._checks.run_forever)
        self._tasks = [asyncio.ensure_future(loop()) for loop in (*loops, self._settler.run_forever)]
        while not (self.service.is_ready and len(self._settler.status) == self._ports.topics.queues):
            await self._ports.clock.sleep_ms(_LOOK_INTERVAL_MS)

    async def stop(self) -> None:
        """Nothing is left that would complain of being forgotten."""
        await self._checks.close()
        self._settler.stop()
        self._projector.stop()
        *cancelled, _, _ = self._tasks
        for task in cancelled:
            task.cancel()
        await asyncio.wait(self._tasks)

    def _start_process(self, client: str) -> MemoryProcess:
        return MemoryProcess(self._ports.cluster, client)

    def _make_service(self) -> Service:
        process, ports = self._start_process("api"), self._ports
        stores = Stores(process.store, process.owners, process.admin, ports.database)
        config = ServiceConfig(ports.refuse_url, ports.topics, prefix="api-", random_bits=ports.random.getrandbits)
        config = replace(config, seal_watch=self._seal_watch)
        return assemble(stores, self._directory, ports.clock, config)

    def _make_projector(self) -> Projector:
        process, clock = self._start_process("projector"), self._ports.clock
        database = self._ports.database
        ports = ProjectorPorts(self._seal(process), process.store, process.admin, database, clock, self._times_of)
        return Projector(self._ports.topics, "projector", ports, _PROJECTING)

    def _make_checks(self) -> CheckService:
        ports = self._ports
        store = self._start_process("checker").store
        board = SqlPullCheckStore(ports.database)
        own = CheckPorts(
            store,
            self._directory,
            ports.caller,
            ports.check_clock,
            self._random_text,
            ports.random.random,
            board,
            self._keyring,
        )
        return CheckService(own, ports.topics)

    def _make_settler(self) -> Settler:
        process, clock = self._start_process("settler"), self._ports.clock
        destinations = KnownTopics(process.admin, clock)
        log = LogWatch(process.admin, self._ports.topics, clock, self._ports.database)
        owners = self._seal(process)
        ports = SettlerPorts(process.store, owners, destinations, self._times_of, self._checks, clock, log)
        return Settler(self._ports.topics, "settler", ports, SettlerConfig())

    def _seal(self, process: MemoryProcess) -> SealedOwnerStore:
        return SealedOwnerStore(process.owners, self._ports.topics.op, self._seal_watch)

    def _times_of(self, group: str) -> CheckTimes:
        return self._directory.settings_of(group).times

    def _random_text(self) -> str:
        return f"{self._ports.random.getrandbits(72):022d}"
