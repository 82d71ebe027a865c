"""One simulated process of the bridge: every role of it, as `serve` puts them together, on the in-memory log.

It can be killed, frozen and given another wall clock from outside. Everything that leaves the process
(requests to the log, SQL, calls of endpoints, answers to callers, its timers) stands still while it is
frozen and comes to nothing once it is dead.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from bridge.clock import Timer
from bridge.core.horizon import HorizonConfig
from bridge.core.topics import InternalTopics
from bridge.projector import Projector, ProjectorConfig, ProjectorPorts
from bridge.service.assembly import Service, ServiceConfig, Stores, assemble
from bridge.settler.destinations import Destinations
from bridge.settler.ports import SettlerConfig, SettlerPorts
from bridge.settler.settler import Settler
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.errors import SqlUnavailable
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.process import MemoryProcess
from checker.caller import Call, CheckCaller, Reply
from checker.check_service import CheckService
from checker.config import CheckerConfig
from checker.desk import CheckPorts
from tests.support.virtual_time import VirtualClock

T = TypeVar("T")
_RUNNING: ContextVar["Node | None"] = ContextVar("running", default=None)

SETTLER = SettlerConfig(
    max_batch_records=20,
    idle_wait_ms=800,
    position_delay_ms=100,
    max_put_backs=3,
    horizon=HorizonConfig(remember_ended_ms=12_000, journal_records=6, journal_ms=4_000, op_messages=12, op_ms=10_000),
)
CHECKER = CheckerConfig(report_wait_ms=5_000, append_retry_ms=1_000, tick_ms=1_000)
PROJECTOR = ProjectorConfig(max_read_records=50, lease_ms=9_000, retry_ms=500, max_wait_ms=1_500, min_interval_ms=150)


class NodeClock:
    """Port Clock: the world's time with this machine's idea of the wall clock. Stands still with the process."""

    def __init__(self, base: VirtualClock, process: MemoryProcess) -> None:
        self._base = base
        self._process = process
        self._late: list[Callable[[], None]] = []
        self.skew_ms = 0

    def now_ms(self) -> int:
        return self._base.now_ms() + self.skew_ms

    def monotonic_ms(self) -> int:
        return self._base.monotonic_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        await self._base.sleep_ms(duration_ms)
        if self._process.is_stopped:
            await self._process.pause()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return self._base.call_later(delay_ms, lambda: self._call(callback))

    def catch_up(self) -> None:
        """Calls what became due while the process was frozen."""
        late, self._late = self._late, []
        for callback in late:
            callback()

    def _call(self, callback: Callable[[], None]) -> None:
        if self._process.is_stopped:
            self._late.append(callback)
        else:
            callback()


class NodeDatabase(Database):
    """SQL of one process, run in the event loop: threads know no virtual time."""

    def __init__(
        self, engine: Engine, process: MemoryProcess, clock: NodeClock, is_down: Callable[[], bool], random: Random
    ) -> None:
        self.engine = engine
        self.is_sqlite = True
        self._process = process
        self._clock = clock
        self._is_down = is_down
        self._random = random

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        await self._clock.sleep_ms(self._random.randrange(5, 80))
        if self._is_down():
            raise SqlUnavailable("down")
        with self.engine.begin() as connection:
            result = work(connection)
        await self._process.pause()
        return result

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self.run(work)


class _GatedCaller:
    """Port CheckCaller: the world's network, seen from a process that may stand still."""

    def __init__(self, process: MemoryProcess, call: Callable[[Call], Awaitable[Reply]]) -> None:
        self._process = process
        self._call = call

    async def call(self, call: Call) -> Reply:
        await self._process.pause()
        reply = await self._call(call)
        await self._process.pause()
        return reply

    async def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all processes share besides the cluster. `call`: the network to the endpoints."""

    topics: InternalTopics
    engine: Engine
    has_sql: bool
    """False: nobody projects, and nobody asks for what only the projection knows."""
    is_sql_down: Callable[[], bool]
    call: Callable[[Call], Awaitable[Reply]]


class Node:
    """A running process. Tasks that its tasks create belong to it too."""

    def __init__(
        self,
        name: str,
        cluster: MemoryCluster,
        clock: VirtualClock,
        surroundings: "Surroundings",
        random: Random,
    ) -> None:
        self.name = name
        self.process = MemoryProcess(cluster, name)
        self.clock = NodeClock(clock, self.process)
        self.is_dead = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self._database = NodeDatabase(surroundings.engine, self.process, self.clock, surroundings.is_sql_down, random)
        self._directory = SqlDirectory(self._database, self.clock, refresh_ms=30_000)
        self._topics = surroundings.topics
        self._has_sql = surroundings.has_sql
        self.service = self._make_service(random)
        self.checks = self._make_checks(_GatedCaller(self.process, surroundings.call), random)
        self.settler = self._make_settler()
        self.projector = self._make_projector()

    def start(self) -> None:
        """Starts every loop of the process."""
        self.spawn(self._run())

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work inside the process: its loops, and requests that reach it."""
        token = _RUNNING.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _RUNNING.reset(token)

    async def ask(self, work: Callable[[Service], Awaitable[T]]) -> T:
        """A request over HTTP, its answer included."""
        await self.process.pause()
        answer = await work(self.service)
        await self.process.pause()
        return answer

    def freeze(self) -> None:
        self.process.freeze()

    def thaw(self) -> None:
        if not self.is_dead:
            self.process.thaw()
            self.clock.catch_up()

    def kill(self) -> None:
        """Nothing of it has any effect any more."""
        self.is_dead = True
        self.process.kill()
        for task in tuple(self.tasks):
            task.cancel()

    async def stop(self) -> None:
        """SIGTERM: as the process ends in good order."""
        ending = self.spawn(self._stop())
        await asyncio.wait([ending])
        self.kill()

    async def _run(self) -> None:
        while True:
            try:
                await self._directory.refresh()
                break
            except SqlUnavailable:
                await self.clock.sleep_ms(200)
        loops = [
            self.settler.run_forever(),
            self.checks.run_forever(),
            *[loop() for loop in self.service.loops()[:2]],  # pending ones are few, and nobody redrives many
        ]
        if self._has_sql:
            loops += [self._directory.run_forever(), self.projector.run_forever()]
        for loop in loops:
            self.spawn(loop)  # type: ignore[arg-type]

    async def _stop(self) -> None:
        await self.checks.close()
        self.settler.stop()
        self.projector.stop()
        await self.clock.sleep_ms(500)

    def _make_service(self, random: Random) -> Service:
        process = self.process
        config = ServiceConfig(lambda url: None, self._topics, prefix=f"r{self.name}-", random_bits=random.getrandbits)
        stores = Stores(process.store, process.owners, process.admin, self._database)
        return assemble(stores, self._directory, self.clock, config)

    def _make_checks(self, caller: CheckCaller, random: Random) -> CheckService:
        ports = CheckPorts(
            self.process.store, self._directory, caller, self.clock,
            lambda: f"{random.getrandbits(64):016x}", random.random,
        )  # fmt: skip
        return CheckService(ports, self._topics, CHECKER)

    def _make_settler(self) -> Settler:
        process = self.process
        ports = SettlerPorts(
            process.store, process.owners, Destinations(process.admin, self.clock),
            lambda group: self._directory.settings_of(group).times, self.checks, self.clock,
        )  # fmt: skip
        return Settler(self._topics, self.name, ports, SETTLER)

    def _make_projector(self) -> Projector:
        process = self.process
        ports = ProjectorPorts(
            process.owners, process.store, process.admin, self._database, self.clock,
            lambda group: self._directory.settings_of(group).times,
        )  # fmt: skip
        return Projector(self._topics, self.name, ports, PROJECTOR)


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Makes each task belong to the process whose task created it."""

    def make(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any) -> "asyncio.Task[T]":
        task = asyncio.Task(work, loop=loop, **options)
        node = _RUNNING.get()
        if node is not None:
            node.tasks.add(task)
            task.add_done_callback(node.tasks.discard)
            if node.is_dead:
                task.cancel()
        return task

    loop.set_task_factory(make)  # type: ignore[arg-type]


def running_name() -> str:
    """Name of the process that runs now."""
    node = _RUNNING.get()
    return node.name if node is not None else "?"
