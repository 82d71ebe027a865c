"""One process of the bridge: its parts by role, and the order in which their loops start and stop.

Adapters, time and chance come from outside: production's from `api.wiring`, others in simulations.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from bridge.clock import Clock
from bridge.core.check_rules import CheckTimes
from bridge.core.keyring import Keyring
from bridge.log_watch import LogWatch
from bridge.projector import Projector, ProjectorConfig, ProjectorPorts
from bridge.service.assembly import ServiceConfig, Stores, assemble
from bridge.settler.known_topics import KnownTopics
from bridge.settler.ports import SettlerConfig, SettlerPorts
from bridge.settler.settler import Settler
from bridge.sql.directory import SqlDirectory
from bridge.sql.pull_checks import SqlPullCheckStore
from bridge.store.sealed import SealedOwnerStore
from checker.caller import CheckCaller
from checker.config import CheckerConfig
from checker.desk import CheckPorts, random_text
from checker.service import CheckService

_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Roles:
    """What a process does. The checker lives in the settler."""

    api: bool
    settler: bool
    projector: bool


@dataclass(frozen=True, slots=True)
class NodePorts:
    """What a process stands on. `owners` seal op records: the settler's, and `gathering`, the projector's own reading
    of the log; those of `stores` do not, for the follower opens only the few it waits for. `destinations`: the
    settler's.

    `open_caller` is called by a process that checks; `keyring`: what proves its nonces.
    """

    stores: Stores
    owners: SealedOwnerStore
    gathering: SealedOwnerStore
    destinations: KnownTopics
    directory: SqlDirectory
    clock: Clock
    log: LogWatch
    open_caller: Callable[[], CheckCaller]
    random_text: Callable[[], str] = random_text
    jitter: Callable[[], float] = random.random
    keyring: Keyring = field(default_factory=Keyring)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of a process. `owner`: its name, which no other process has."""

    owner: str
    service: ServiceConfig
    settler: SettlerConfig = field(default_factory=SettlerConfig)
    checker: CheckerConfig = field(default_factory=CheckerConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    has_id_header: bool = True


class Node:
    """Loops run in tasks of their own, and end in the reverse order of their start when `stack` is closed."""

    def __init__(self, ports: NodePorts, config: NodeConfig, stack: AsyncExitStack) -> None:
        self._ports = ports
        self._config = config
        self._stack = stack
        self._topics = config.service.topics
        self.service = assemble(replace(ports.stores, log=ports.log), ports.directory, ports.clock, config.service)
        self.settler: Settler | None = None
        self.checks: CheckService | None = None
        self.projector: Projector | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with what ended a loop that should never end."""

    def start(self, roles: Roles) -> None:
        """Starts the loops of these roles, last stopped first. The directory has been read before."""
        self.run("log", self._ports.log.run_forever())
        self.run("directory", self._ports.directory.run_forever())
        if roles.projector:
            self._start_projector()
        if roles.settler:
            self._start_settler()
        for number, loop in enumerate(self.service.loops() if roles.api else ()):
            self.run(f"service-{number}", loop())

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

    def _start_projector(self) -> None:
        stores, ports = self._ports.stores, self._ports
        own = ProjectorPorts(
            ports.gathering, stores.store, stores.admin, stores.database, ports.clock, self._times_of
        )  # fmt: skip
        self.projector = Projector(self._topics, self._config.owner, own, self._config.projector)
        self.run("projector", self.projector.run_forever(), self.projector.stop)

    def _start_settler(self) -> None:
        stores, ports, config = self._ports.stores, self._ports, self._config
        caller = ports.open_caller()
        self._stack.push_async_callback(caller.close)
        board = SqlPullCheckStore(stores.database)
        asking = CheckPorts(
            stores.store, ports.directory, caller, ports.clock, ports.random_text, ports.jitter, board, ports.keyring
        )  # fmt: skip
        self.checks = CheckService(asking, self._topics, config.checker)
        own = SettlerPorts(
            stores.store, ports.owners, ports.destinations, self._times_of, self.checks, ports.clock,
            ports.log,
        )  # fmt: skip
        self.settler = Settler(self._topics, config.owner, own, config.settler, has_id_header=config.has_id_header)
        self.run("settler", self.settler.run_forever(), self.settler.stop)
        self.run("checks", self.checks.run_forever())
        self._stack.push_async_callback(self.checks.close)

    def _times_of(self, group: str) -> CheckTimes:
        return self._ports.directory.settings_of(group).times

    def _note_end(self, task: "asyncio.Future[None]") -> None:
        if not task.cancelled() and task.exception() is not None and not self.failed.done():
            self.failed.set_exception(task.exception() or RuntimeError("a loop ended"))
