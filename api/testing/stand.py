"""A bridge that a test opens, uses and closes: the whole one, in one process, on the in-memory log."""

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from api.console.site import make_site
from api.migration import migrate
from api.setting_sections import CallbacksSettings, HttpSettings, TopicsSettings
from api.settings import Settings
from api.web.app import create_app
from api.web.request import Services
from api.web.server import ApiServer, ServeConfig
from api.wiring import KafkaParts, parse_roles, run_roles, services_of
from bridge.broker.dev_broker import DevBroker
from bridge.clock import Clock, Timer
from bridge.core.grants import EVERYTHING, Rights
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.record import Source
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionView
from bridge.node import Backing, Node, NodeConfig, Roles
from bridge.projector import ProjectorConfig
from bridge.service.access import AccessConfig
from bridge.service.contract import Accepted, EndCall, RefusalCode, Refused, Wait
from bridge.service.transactions import TransactionService
from bridge.sql.engine import open_new_database
from bridge.store.memory.process import MemoryProcess
from bridge.store.memory.store import MemoryCluster
from bridge.store.message_store import MessageStore, TopicAdmin
from bridge.store.op_topic import begin_queues
from bridge.topology import migrate_topics, start_seals
from checker.call import CheckCaller, EndpointCall, EndpointReply
from checker.endpoint_guard import CallbackPolicy, parse_networks
from checker.http_caller import HttpCaller

# --- the whole bridge in one process on the in-memory log ---
# What it stands on is given to it: tests of ours run it on virtual time, tests of users behind a socket and on a clock
# that they set forward.

# One process writes alone and nothing fails here: what only looks after others need not look often.
_RARELY_MS = 60_000
_PROJECTING = ProjectorConfig(max_wait_ms=10_000, lease_ms=3 * _RARELY_MS, purge_interval_ms=_RARELY_MS)
_LOOK_INTERVAL_MS = 10

OPEN = AccessConfig(refresh_ms=_RARELY_MS)
Face = Callable[[TransactionService], TransactionService]


class MemoryBridge:
    """One bridge, alive from `start` to `stop`. `face`: what stands between the HTTP application and the service.
    `access`: who may call; anybody, if it is not given. `choose`, `adapt`: make other settings, and other
    services of the HTTP application, of the usual ones."""

    def __init__(
        self,
        backing: Backing,
        topics: InternalTopics,
        face: Face = lambda calls: calls,
        access: AccessConfig = OPEN,
        choose: Callable[[NodeConfig], NodeConfig] = lambda usual: usual,
        adapt: Callable[[Services], Services] = lambda usual: usual,
    ) -> None:
        self._backing = backing
        self._topics = topics
        config = NodeConfig(
            "bridge", topics, projector=_PROJECTING, access=access, refresh_ms=_RARELY_MS, look_ms=_RARELY_MS
        )
        self._node = node = Node(backing, choose(config))
        services = replace(services_of(node), transactions=face(node.transactions))
        self.app = create_app(adapt(services), site=make_site())

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


class WatchedCaller(CheckCaller):
    """CheckCaller that can be waited for: its calls take the machine's time, wherever the bridge's is moved."""

    def __init__(self, caller: CheckCaller) -> None:
        self._caller = caller
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def call(self, call: EndpointCall) -> EndpointReply:
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._caller.call(call)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def close(self) -> None:
        await self._caller.close()

    async def wait_answered(self, most_s: float) -> None:
        """Returns when what has been asked is answered, and the answers have gone on to the journal."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), most_s)
        for _ in range(_TURNS):
            await asyncio.sleep(0)


class TrueDate:
    """The same clock with the machine's date: who verifies a signature does not know that time was moved."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic_ms = clock.monotonic_ms
        self.sleep_ms = clock.sleep_ms
        self.call_later = clock.call_later

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


# --- a bridge that a test opens, uses and closes ---

_PAGE = 1_000
_ID_HEADER = "transaction-id"


async def read_published(store: MessageStore, admin: TopicAdmin, topic: str) -> list[dict[str, Any]] | None:
    """All that committed readers find now, partition by partition; None if there is no such topic."""
    described = (await admin.describe_topics([topic]))[topic]
    if described is None:
        return None
    found: list[dict[str, Any]] = []
    for number in range(described.queues):
        found += [_encode(number, stored) for stored in await _read_queue(store, MessageQueue(topic, number))]
    return found


async def _read_queue(store: MessageStore, queue: MessageQueue) -> Sequence[StoredMessage]:
    offsets = await store.get_offsets(queue)
    offset, found = offsets.minimum, list[StoredMessage]()
    while offset < offsets.stable:
        result = await store.get(queue, offset, _PAGE)
        found += result.messages
        if result.next_begin_offset <= offset:
            break
        offset = result.next_begin_offset
    return found


def _encode(partition: int, stored: StoredMessage) -> dict[str, Any]:
    own = [value for name, value in stored.headers if name == _ID_HEADER and value is not None]
    return {
        "partition": partition,
        "offset": stored.queue_offset,
        "key": _text(stored.key),
        "value": _text(stored.value),
        "headers": [(name, _text(value)) for name, value in stored.headers if name != _ID_HEADER],
        "transaction_id": own[0].decode() if own else None,
    }


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode()


_LONG_S = 3_600  # nobody waits so long: a living producer gives up at once, and leaves it to the back-check


class CutEnds(TransactionService):
    """The same service; while cut, producers' ends do not get through."""

    def __init__(self, calls: TransactionService) -> None:
        vars(self).update(vars(calls))  # with all that it works with
        self._cuts: list[list[str]] = []
        self._begin_end, self.begin_end = calls.begin_end, self._begin_unless_cut
        self._end, self.end = calls.end, self._end_unless_cut

    @property
    def left(self) -> list[str]:
        """The ids of the transactions whose ends have been cut off since the last `cut`."""
        return self._cuts[-1]

    def cut(self) -> None:
        """From now on no producer's end gets through, until as many `mend` have come."""
        self._cuts.append([])

    def mend(self) -> list[str]:
        """Ends the last cut; the ids that were cut off by it."""
        return self._cuts.pop()

    async def _end_unless_cut(
        self, calls: Sequence[EndCall], wait: Wait = Wait.SETTLED, wait_ms: int = 10_000, rights: Rights = EVERYTHING
    ) -> Sequence[TransactionView | Accepted | Refused]:
        if not self._cuts:
            return await self._end(calls, wait, wait_ms, rights)
        through = [call for call in calls if not _is_producers(call)]
        answers = iter(await self._end(through, wait, wait_ms, rights) if through else ())
        self.left.extend(call.transaction_id for call in calls if _is_producers(call))
        return [_refuse(call) if _is_producers(call) else next(answers) for call in calls]

    def _begin_unless_cut(
        self,
        call: EndCall,
        wait_ms: int,
        answer: Callable[[TransactionView | Refused], None],
        rights: Rights = EVERYTHING,
    ) -> bool:
        return not self._cuts and self._begin_end(call, wait_ms, answer, rights)


def _is_producers(call: EndCall) -> bool:
    """Not the answer to a check."""
    return call.source is Source.PRODUCER and call.check_number == 0


def _refuse(call: EndCall) -> Refused:
    detail = "cut off by kill_before_commit"
    return Refused(RefusalCode.UNAVAILABLE, detail, transaction_id=call.transaction_id, retry_after_s=_LONG_S)


QUEUES = 2
LOOPBACK = ("127.0.0.0/8", "::1/128")


class Stand(ABC):
    """`open` starts a bridge and serves it on a port of its own, `close` ends it."""

    def __init__(self) -> None:
        self.ends: CutEnds | None = None
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def store(self) -> MessageStore: ...

    @property
    @abstractmethod
    def admin(self) -> TopicAdmin: ...

    async def open(self) -> str:
        """Its address when it takes calls. Raises what kept it from starting."""
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_end(serving: asyncio.Task[None]) -> None:
            if not started.done() and (error := serving.exception()) is not None:
                self._serving = None
                started.set_exception(error)

        self._serving = asyncio.create_task(self._serve(started.set_result))
        self._serving.add_done_callback(on_end)
        return await started

    async def close(self) -> None:
        """Returns when nothing of it is left."""
        if self._serving is not None:
            serving, self._serving = self._serving, None
            self._stop.set()
            await serving

    @abstractmethod
    async def _serve(self, on_started: Callable[[str], None]) -> None:
        """A bridge from its start, when its address is printed, until `_stop`."""

    def _put_between(self, calls: TransactionService) -> TransactionService:
        self.ends = CutEnds(calls)
        return self.ends


class KafkaStand(Stand):
    """With a broker of its own on free ports, whose data are in `folder`; `open` raises BrokerError without one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._parts: KafkaParts | None = None

    @property
    def store(self) -> MessageStore:
        assert self._parts is not None
        return self._parts.store

    @property
    def admin(self) -> TopicAdmin:
        assert self._parts is not None
        return self._parts.admin

    async def _serve(self, on_started: Callable[[str], None]) -> None:
        broker = DevBroker(self._folder / "kafka", port=None)
        try:
            await asyncio.to_thread(broker.start)
            settings = Settings(
                kafka={"bootstrap.servers": broker.bootstrap},
                data_dir=self._folder,
                topics=TopicsSettings(queues=QUEUES),
                http=HttpSettings(port=0),
                insecure_no_auth=True,
                callbacks=CallbacksSettings(allow_networks=LOOPBACK),
            )
            await migrate(settings)
            self._parts = KafkaParts(settings)
            try:
                roles = parse_roles("api,settler,projector")
                await run_roles(settings, roles, on_ready=on_started, stop=self._stop, guest=self._put_between)
            finally:
                await self._parts.close()
        finally:
            await asyncio.to_thread(broker.kill)


_HURRY_MS = 50
_ANSWERS_S = 2.0  # longer, and it may be the caller himself who cannot answer before this returns


class MemoryStand(Stand):
    """Empty each time it is opened. `folder`: for the bridge's SQLite file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._make_log()

    @property
    def store(self) -> MessageStore:
        return self._reader.store

    @property
    def admin(self) -> TopicAdmin:
        return self._reader.admin

    async def move(self, for_ms: int) -> None:
        """What is due in so much time is done; of checks that nobody answers, under way."""
        await self._clock.move(for_ms)
        await self._caller.wait_answered(_ANSWERS_S)

    async def move_to(self, until_ms: int) -> None:
        """The same, up to a time of the bridge's clock."""
        await self._clock.move(until_ms - self._clock.now_ms())

    def _make_log(self) -> None:
        self._clock = MovableClock()
        self._cluster = MemoryCluster(self._clock)
        self._reader = MemoryProcess(self._cluster, "test")

    async def _serve(self, on_started: Callable[[str], None]) -> None:
        self._make_log()
        database = open_new_database(self._folder)
        networks = CallbackPolicy(parse_networks(LOOPBACK))
        # an empty context: certificates take long to load, and nothing but loopback is called
        http = HttpCaller(networks, self._clock, ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self._caller = caller = WatchedCaller(http)
        process = MemoryProcess(self._cluster, "bridge")
        backing = Backing(
            process.store, process.owners, process.admin, database, self._clock, lambda: caller,
            check_clock=TrueDate(self._clock),
        )  # fmt: skip
        try:
            bridge = MemoryBridge(backing, InternalTopics(queues=QUEUES), self._put_between)
            server = ApiServer(bridge.app, ServeConfig(port=0))
            await self._hurry(bridge.start())
            try:
                serving = asyncio.create_task(server.serve_until(self._stop))
                await server.wait_started()
                on_started(f"http://127.0.0.1:{server.port}")
                await serving
            finally:
                await self._hurry(bridge.stop())
        finally:
            database.dispose()

    async def _hurry(self, work: Coroutine[Any, Any, object]) -> None:
        """Waits for time end at once."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self._clock.move(_HURRY_MS)
        task.result()
