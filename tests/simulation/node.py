"""One simulated process of the bridge: production's `Node` in all its roles, on the in-memory log.

It can be killed, frozen and given another wall clock from outside. Everything that leaves the process
(requests to the log, SQL, calls of endpoints, answers to callers, its timers) stands still while it is
frozen and comes to nothing once it is dead.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import count
from random import Random
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from bridge.clock import Timer
from bridge.core.errors import ConfigError, SqlUnavailable, StoreError
from bridge.core.keyring import SECRET_BYTES, BridgeKey, Keyring
from bridge.core.position import LowWatermarkConfig
from bridge.core.topics import InternalTopics
from bridge.node import Backing, NodeConfig, Roles
from bridge.node import Node as BridgeNode
from bridge.projector import ProjectorConfig
from bridge.service.redrive import RedriveConfig
from bridge.settler.ports import SettlerConfig
from bridge.sql.engine import Database
from bridge.store.memory.process import MemoryProcess
from bridge.store.memory.store import MemoryCluster
from checker.call import CheckerConfig, EndpointCall, EndpointReply
from tests.support.virtual_time import VirtualClock

_DRAIN_MS, _DRAIN_STEP_MS = 2_000, 50
_RESTART_MS = 200
EVER_MS = 1 << 40  # longer than any run
T = TypeVar("T")
_RUNNING: ContextVar["Node | None"] = ContextVar("running", default=None)

SETTLER = SettlerConfig(
    max_batch_records=20,
    max_batch_bytes=6_000,
    idle_wait_ms=800,
    position_delay_ms=100,
    max_carried=3,
    horizon=LowWatermarkConfig(
        remember_ended_ms=12_000, journal_records=6, journal_ms=4_000, op_messages=12, op_ms=10_000, max_objects=2
    ),
)
CHECKER = CheckerConfig(total_calls=4, report_wait_ms=5_000, append_retry_ms=1_000, tick_ms=1_000, max_objects=1)
CALM_SETTLER, CALM_CHECKER = replace(SETTLER, idle_wait_ms=100), replace(CHECKER, tick_ms=100)  # to measure lateness
REDRIVE = RedriveConfig(idle_ms=1_000, lease_ms=6_000, step_wait_ms=2_000, max_step=3)
OVERRIDDEN = ("compaction-lag",)  # a cleaner as greedy as can be
KEY = BridgeKey("1", b"k" * SECRET_BYTES)
KEYRING = Keyring([KEY])
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


class SqlFate(Enum):
    """What becomes of one SQL transaction. Of the last two its process only hears that the connection broke."""

    WORKS = "works"
    DOWN = "SQL down"
    APPLIED_UNKNOWN = "SQL commit applied, outcome unknown"
    NOT_APPLIED_UNKNOWN = "SQL commit not applied, outcome unknown"


class NodeDatabase(Database):
    """SQL of one process, run in the event loop: threads know no virtual time."""

    def __init__(
        self, engine: Engine, process: MemoryProcess, clock: NodeClock, fate: Callable[..., SqlFate], random: Random
    ) -> None:
        self.engine = engine
        self.is_sqlite = True
        self.list_turns = asyncio.Semaphore(2)
        self._process = process
        self._clock = clock
        self._fate = fate
        self._random = random
        self.is_away = False
        """It does not answer any more, to the end of the run."""

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        return await self._call(work, is_write=True)

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._call(work, is_write=False)

    async def _call(self, work: Callable[[Connection], T], *, is_write: bool) -> T:
        await self._clock.sleep_ms(self._random.randrange(5, 80))
        fate = SqlFate.DOWN if self.is_away else self._fate(is_write=is_write)
        if fate is SqlFate.DOWN:
            raise SqlUnavailable("down")
        connection = _lasting_connection(self.engine)
        with connection.begin() as transaction:
            result = work(connection)
            if fate is SqlFate.NOT_APPLIED_UNKNOWN:
                transaction.rollback()
        await self._process.pause()
        if fate is not SqlFate.WORKS:
            raise SqlUnavailable("the connection broke in COMMIT", is_outcome_unknown=True)
        return result


@cache
def _lasting_connection(engine: Engine) -> Connection:
    """One that is never given back: each piece of work holds it in one step of the loop."""
    return engine.connect()


class _GatedCaller:
    """Port CheckCaller: the world's network, seen from a process that may stand still."""

    def __init__(
        self, process: MemoryProcess, call: Callable[[EndpointCall, str], Awaitable[EndpointReply]], name: str
    ) -> None:
        self._process = process
        self._call = call
        self._name = name

    async def call(self, call: EndpointCall) -> EndpointReply:
        await self._process.pause()
        reply = await self._call(call, self._name)
        await self._process.pause()
        return reply

    async def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all processes share besides the cluster. `call`: the network to the endpoints; it hears who asks."""

    topics: InternalTopics
    engine: Engine
    has_sql: bool
    """False: it goes away once a process has begun: nobody projects, pulls checks or redrives."""
    sql_fate: Callable[..., SqlFate]
    call: Callable[[EndpointCall, str], Awaitable[EndpointReply]]
    is_calm: bool = False
    """Whether what is due is looked at often."""


class Node:
    """A running process. Tasks that its tasks create belong to it too."""

    def __init__(
        self, name: str, cluster: MemoryCluster, clock: VirtualClock, surroundings: "Surroundings", random: Random
    ) -> None:
        self.name = name
        self.process = MemoryProcess(cluster, name)
        self.clock = NodeClock(clock, self.process)
        self.is_dead = False
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they began
        self._has_sql = surroundings.has_sql
        self._database = NodeDatabase(surroundings.engine, self.process, self.clock, surroundings.sql_fate, random)
        self._requests = 0
        self.is_closed = True
        """Whether it takes no requests: it has not begun yet, or is about to end."""
        self.began_ms = clock.monotonic_ms()
        self.ready_ms = 0
        self.ended_ms = EVER_MS
        self.stood: list[tuple[int, int]] = []
        """From when until when it was frozen; the last one may go on for ever."""
        self._is_ending = False
        self.bridge = put_together(name, self.process, self._database, self.clock, surroundings, random)

    def start(self) -> "asyncio.Task[None]":
        """Starts every loop of the process; ends with an error if one of them does."""
        return self.spawn(self._run())

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work inside the process: its loops, and requests that reach it."""
        token = _RUNNING.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _RUNNING.reset(token)

    async def ask(self, work: Callable[[BridgeNode], Awaitable[T]]) -> T:
        """A request over HTTP, its answer included."""
        self._requests += 1
        try:
            await self.process.pause()
            answer = await work(self.bridge)
            await self.process.pause()
        finally:
            self._requests -= 1
        return answer

    def freeze(self) -> None:
        if not self.process.is_stopped:
            self.stood.append((self.clock.monotonic_ms(), EVER_MS))
        self.process.freeze()

    def thaw(self) -> None:
        if not self.is_dead:
            if self.stood:
                self.stood[-1] = (self.stood[-1][0], self.clock.monotonic_ms())
            self.process.thaw()
            self.clock.catch_up()

    def kill(self) -> None:
        """Nothing of it has any effect any more."""
        self.is_dead, self.ended_ms = True, min(self.ended_ms, self.clock.monotonic_ms())
        self.process.kill()
        for task in tuple(self.tasks):
            task.cancel()

    async def stop(self) -> None:
        """SIGTERM: as the process ends in good order."""
        ending = self.spawn(self._stop())
        await asyncio.wait([ending])
        self.kill()

    async def _run(self) -> None:
        roles = Roles(api=True, settler=True, projector=self._has_sql)
        while True:
            try:
                await self.bridge.start(roles)
                break
            except (ConfigError, StoreError, SqlUnavailable):  # the supervisor starts it again
                await self.clock.sleep_ms(_RESTART_MS)
        self.ready_ms = self.clock.monotonic_ms()
        self._database.is_away = not self._has_sql
        self.is_closed = self._is_ending
        await self.bridge.wait_failed()

    async def _stop(self) -> None:
        """Intake, then everything else in production's order."""
        self.is_closed = self._is_ending = True
        for _ in range(_DRAIN_MS // _DRAIN_STEP_MS):
            if not self._requests:
                break
            await self.clock.sleep_ms(_DRAIN_STEP_MS)
        await self.bridge.stop()


def put_together(
    name: str,
    process: MemoryProcess,
    database: NodeDatabase,
    clock: NodeClock,
    surroundings: Surroundings,
    random: Random,
) -> BridgeNode:
    """The node of one simulated process, with bounds and times as small as its runs."""
    backing = Backing(
        process.store, process.owners, process.admin, database, clock,
        lambda: _GatedCaller(process, surroundings.call, name), random,
    )  # fmt: skip
    settler, checker = (CALM_SETTLER, CALM_CHECKER) if surroundings.is_calm else (SETTLER, CHECKER)
    config = NodeConfig(
        name, surroundings.topics, redrive=REDRIVE, settler=settler, checker=checker, projector=PROJECTOR,
        overridden=OVERRIDDEN,
    )  # fmt: skip
    return BridgeNode(backing, config)


class _NumberedTask(asyncio.Task[T]):
    """Sets of tasks, as a task group has one, are walked in an order that no address in memory decides."""

    def __init__(self, number: int, work: Coroutine[Any, Any, T], **options: Any) -> None:
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Makes each task belong to the process whose task created it."""
    numbers = count()

    def make(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any) -> "asyncio.Task[T]":
        task = _NumberedTask(next(numbers), work, loop=loop, **options)
        node = _RUNNING.get()
        if node is not None:
            node.tasks[task] = None
            task.add_done_callback(node.tasks.pop)
            if node.is_dead:
                task.cancel()
        return task

    loop.set_task_factory(make)  # type: ignore[arg-type]


def running_name() -> str:
    """Name of the process that runs now."""
    node = _RUNNING.get()
    return node.name if node is not None else "?"
