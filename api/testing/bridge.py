"""The whole bridge in one process on the in-memory log: a node in all its roles, and the HTTP application over it.

What it stands on is given to it: tests of ours run it on virtual time, tests of users behind a socket and on a
clock that they set forward.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from api.console.site import make_site
from api.web.app import create_app
from api.web.services import Services
from bridge.clock import Clock, Timer
from bridge.core.topics import InternalTopics
from bridge.node import Backing, Node, NodeConfig, Roles
from bridge.projector import ProjectorConfig
from bridge.service.access import AccessConfig
from bridge.service.transactions import TransactionService
from bridge.store.positions import begin_queues
from bridge.topology import migrate_topics, start_seals

# One process writes alone and nothing fails here: what only looks after others need not look often.
_RARELY_MS = 60_000
_PROJECTING = ProjectorConfig(max_wait_ms=10_000, lease_ms=3 * _RARELY_MS, purge_interval_ms=_RARELY_MS)
_LOOK_INTERVAL_MS = 10

OPEN = AccessConfig(refresh_ms=_RARELY_MS)
Face = Callable[[TransactionService], TransactionService]


class MemoryBridge:
    """One bridge, alive from `start` to `stop`. `face`: what stands between the HTTP application and the service.
    `access`: who may call; anybody, if it is not given. `choose`: makes other settings of the usual ones."""

    def __init__(
        self,
        backing: Backing,
        topics: InternalTopics,
        face: Face = lambda calls: calls,
        access: AccessConfig = OPEN,
        reports: Path | None = None,
        choose: Callable[[NodeConfig], NodeConfig] = lambda usual: usual,
    ) -> None:
        self._backing = backing
        self._topics = topics
        config = NodeConfig(
            "bridge",
            topics,
            projector=_PROJECTING,
            access=access,
            refresh_ms=_RARELY_MS,
            look_ms=_RARELY_MS,
        )
        self._node = node = Node(backing, choose(config))
        self.app = create_app(
            Services(
                node.access,
                face(node.transactions),
                node.search,
                node.parked,
                node.groups,
                node.claims,
                node.nonces,
                node.trials,
                now_ms=backing.clock.now_ms,
                sessions=node.sessions,
                signing=node.signing,
                consumers=node.consumers,
                reports=reports,
                calls_of=node.calls_of,
                webhooks=node.webhooks,
            ),
            site=make_site(),
        )

    async def start(self) -> None:
        """From `migrate` on; returns when calls are taken."""
        backing, topics, now_ms = self._backing, self._topics, self._backing.clock.now_ms()
        begin = partial(begin_queues, backing.store, backing.owners, topics)
        await migrate_topics(backing.admin, backing.database, topics, now_ms, begin)
        await start_seals(backing.store, backing.database, topics, now_ms)
        await self._node.start(Roles(api=True, settler=True, projector=True))
        while not (self._node.is_ready and self._node.settler and len(self._node.settler.status) == topics.queues):
            await backing.clock.sleep_ms(_LOOK_INTERVAL_MS)

    async def stop(self) -> None:
        """Nothing is left that would complain of being forgotten."""
        await self._node.stop()


_TURNS = 20  # of the event loop: enough for what has woken to go back to sleep


class MovableClock:
    """Port Clock. Used in one event loop."""

    def __init__(self) -> None:
        self._ahead_ms = 0
        self._timers: set[_MovableTimer] = set()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._ahead_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(duration_ms, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        timer = _MovableTimer(self.monotonic_ms() + delay_ms, callback, self._timers)
        timer.start(delay_ms)
        return timer

    async def move(self, duration_ms: int) -> None:
        """Sets it forward; whoever sleeps wakes at his own time on the way, and goes on before the next."""
        until_ms = self.monotonic_ms() + duration_ms
        while (now_ms := self.monotonic_ms()) < until_ms:
            next_ms = min([until_ms, *(timer.due_ms for timer in self._timers)])
            self._ahead_ms += max(next_ms - now_ms, 0)
            for timer in sorted(self._timers, key=lambda timer: timer.due_ms):
                if timer.due_ms <= next_ms:
                    timer.fire()
            for _ in range(_TURNS):
                await asyncio.sleep(0)


class _MovableTimer:
    """A call that comes when the machine's clock says so, or as soon as it is moved past that time."""

    def __init__(self, due_ms: int, callback: Callable[[], None], timers: "set[_MovableTimer]") -> None:
        self.due_ms = due_ms
        self._callback = callback
        self._timers = timers
        self._handle: asyncio.TimerHandle | None = None

    def start(self, delay_ms: int) -> None:
        """In the running event loop."""
        self._timers.add(self)
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self.fire)

    def fire(self) -> None:
        """Now, and not again."""
        self.cancel()
        self._callback()

    def cancel(self) -> None:
        self._timers.discard(self)
        if self._handle is not None:
            self._handle.cancel()


class TrueDate:
    """The same clock with the machine's date: who verifies a signature does not know that time was moved."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic_ms = clock.monotonic_ms
        self.sleep_ms = clock.sleep_ms
        self.call_later = clock.call_later

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
