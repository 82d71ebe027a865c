"""A checker on a virtual clock, with an in-memory journal, directory and endpoints, and a settler's stand-in.

world = make_world()
world.add_group("shop", "https://a.example/")
tx = world.prepare("shop")                # reported as read live now
await world.pass_ms(6_000)                # time passes, everybody gets as far as he can
world.ends()                              # end records in the journal
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from bridge.core.check_rules import CheckCalls, CheckTimes, GroupSettings
from bridge.core.errors import SqlUnavailable, StoreTimeout
from bridge.core.message import Header, Message, StoredMessage
from bridge.core.pending_table import PendingTable
from bridge.core.properties import count_body_bytes
from bridge.core.record import EndRecord, HalfMessage
from bridge.core.record_codec import decode_record
from bridge.core.transaction import Transaction, make_transaction_id, queue_of
from bridge.directory import Endpoint, ProducerGroup, PullCheck, UnansweredRound
from bridge.settler.bodies import Loaded
from bridge.settler.ports import QueueOwner
from bridge.store.memory.store import MemoryStore
from bridge.store.message_store import LoadedHalf, PutResult, PutStatus
from checker.call import CheckerConfig, EndpointCall
from checker.context import CheckContext
from checker.service import CheckService
from tests.support.check_fakes import Handler, MemoryCaller, MemoryDirectory, MemoryPullCheckStore, Response
from tests.support.memory_world import MemoryWorld, make_memory_world
from tests.support.virtual_time import VirtualClock

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
FIRST_MS = 6_000  # append time to first check


class StandInOwner(QueueOwner):
    """A queue whose end is read as soon as it is noted, unless `is_lagging`."""

    def __init__(self, queue_id: int, clock: VirtualClock) -> None:
        self._queue_id = queue_id
        self._clock = clock
        self._read_through_ms = 0
        self.is_lagging = False
        self.is_unreadable = False
        self.notes = 0
        self.bodies: dict[str, LoadedHalf] = {}
        self.parked: dict[str, str] = {}

    @property
    def queue_id(self) -> int:
        return self._queue_id

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def note_end(self) -> None:
        self.notes += 1
        if not self.is_lagging:
            self._read_through_ms = self.now_ms()

    def read_through_ms(self) -> int:
        return self._read_through_ms

    async def get_bodies(self, transactions: Sequence[Transaction], max_bytes: int) -> Loaded:
        if self.is_unreadable:
            raise StoreTimeout("no leader")
        found: dict[str, LoadedHalf] = {}
        size = 0
        for count, t in enumerate(transactions):
            body = self.bodies.get(t.transaction_id)
            size += sum(map(count_body_bytes, body.messages)) if body else 0
            if count and size > max_bytes:
                return Loaded(found, count)
            if body:
                found[t.transaction_id] = body
        return Loaded(found, len(transactions))

    def park(self, reasons: Mapping[str, str]) -> None:
        self.parked |= reasons


class FlakyStore(MemoryStore):
    """The in-memory log, whose next plain puts can be made to fail."""

    fail_with: PutStatus | None = None

    async def put_many(self, messages: Sequence[Message]) -> list[PutResult]:
        if self.fail_with is PutStatus.REFUSED:
            return [PutResult(PutStatus.REFUSED)] * len(messages)
        if self.fail_with is PutStatus.OUTCOME_UNKNOWN:
            raise StoreTimeout("no answer")
        return await super().put_many(messages)


@dataclass
class FlakyDirectory(MemoryDirectory):
    """A directory whose database may be down."""

    is_down: bool = False

    async def record_rounds(self, rounds: Sequence[UnansweredRound]) -> None:
        if self.is_down:
            raise OSError("no database")
        await super().record_rounds(rounds)


@dataclass(slots=True)
class FlakyBoard(MemoryPullCheckStore):
    """A board whose database may be down; `put_slowly`: a put is done, and its answer is held until it is set."""

    is_down: bool = False
    put_slowly: asyncio.Event | None = None
    ticks_written: list[tuple[int, int]] = field(default_factory=list)

    async def put(
        self, queue_id: int, owner: str, tick_ms: int, checks: Sequence[PullCheck]
    ) -> Mapping[str, int] | None:
        self._reach()
        done = await super(FlakyBoard, self).put(queue_id, owner, tick_ms, checks)
        if self.put_slowly is not None:
            await self.put_slowly.wait()
        return done

    async def tick(self, queue_id: int, owner: str, tick_ms: int) -> bool:
        self._reach()
        self.ticks_written.append((queue_id, tick_ms))
        return await super(FlakyBoard, self).tick(queue_id, owner, tick_ms)

    async def remove(self, checks: Collection[PullCheck]) -> None:
        self._reach()
        await super(FlakyBoard, self).remove(checks)

    def _reach(self) -> None:
        if self.is_down:
            raise SqlUnavailable("down")


@dataclass
class Seen:
    """One call as an endpoint saw it."""

    url: str
    at_ms: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def checks(self) -> list[dict[str, object]]:
        checks = json.loads(self.body)["checks"]
        assert isinstance(checks, list)
        return checks

    @property
    def ids(self) -> list[object]:
        return [check["transaction_id"] for check in self.checks]


@dataclass
class World:
    """`calls`: what the endpoints saw, in order; `most_at_once`: calls."""

    clock: VirtualClock
    memory: MemoryWorld
    store: FlakyStore
    directory: FlakyDirectory
    caller: MemoryCaller
    service: CheckService
    board: FlakyBoard
    owners: dict[int, StandInOwner] = field(default_factory=dict)
    calls: list[Seen] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    jitter: float = 0.0
    _count: int = 0

    def add_group(
        self, name: str, *urls: str, times: CheckTimes | None = None, calls: CheckCalls | None = None
    ) -> None:
        """A group whose endpoints commit everything."""
        settings = GroupSettings(times or CheckTimes(), calls or CheckCalls())
        endpoints = tuple(Endpoint(url) for url in urls)
        self.directory.groups[name] = ProducerGroup(name, settings, endpoints, (SECRET,))
        for url in urls:
            self.serve(url, saying("COMMIT"))

    def pause(self, name: str, *, is_paused: bool = True) -> None:
        """As an operator does, or undoes it."""
        known = self.directory.groups[name]
        settings = replace(known.settings, pauses_checks=is_paused)
        self.directory.groups[name] = replace(known, settings=settings)

    def remove_endpoints(self, name: str) -> None:
        self.directory.groups[name] = replace(self.directory.groups[name], endpoints=())

    def serve(self, url: str, answer: Callable[[EndpointCall], Awaitable[Response]]) -> None:
        """What an endpoint does from now on."""

        async def noted(call: EndpointCall) -> Response:
            self.calls.append(Seen(url, self.clock.now_ms(), dict(call.headers), call.body))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                return await answer(call)
            finally:
                self.at_once -= 1

        self.caller.endpoints[url] = noted

    def take_queue(self, queue_id: int, prepared: Sequence[Transaction] = ()) -> StandInOwner:
        owner = self.owners[queue_id] = StandInOwner(queue_id, self.clock)
        for transaction in prepared:
            owner.bodies[transaction.transaction_id] = make_body(transaction)
        self.service.queue_taken(owner, prepared, PendingTable())
        return owner

    def make(self, group: str, queue_id: int = 0, delay_ms: int = FIRST_MS) -> Transaction:
        """A transaction appended now, first due after `delay_ms`."""
        self._count += 1
        now_ms = self.clock.now_ms()
        id_ = make_transaction_id(queue_id, self._count << 64)
        half = self._count
        return Transaction(id_, group, half, now_ms, 0, at=half, since_ms=now_ms, next_due_ms=now_ms + delay_ms)

    def prepare(
        self,
        group: str,
        queue_id: int = 0,
        delay_ms: int = FIRST_MS,
        value: bytes = b'{"n":1}',
        headers: Sequence[Header] = (),
    ) -> Transaction:
        """Makes one and reports it, as just read."""
        transaction = self.make(group, queue_id, delay_ms)
        self.owners[queue_id].bodies[transaction.transaction_id] = make_body(transaction, value, headers)
        self.service.prepared(queue_id, [transaction], self.clock.monotonic_ms())
        return transaction

    def count(self, transaction: Transaction) -> Transaction:
        """Reports an answer UNKNOWN as counted now, as the settler does."""
        counted = structs.replace(
            transaction, check_times=transaction.check_times + 1, at=999, next_due_ms=self.clock.now_ms() + 30_000
        )
        self.service.prepared(queue_of(transaction.transaction_id), [counted], self.clock.monotonic_ms())
        return counted

    def end(self, *transactions: Transaction) -> None:
        for transaction in transactions:
            self.service.ended(queue_of(transaction.transaction_id), [transaction.transaction_id])

    async def pass_ms(self, duration_ms: int) -> None:
        await self.clock.advance(duration_ms)

    def ends(self) -> list[EndRecord]:
        """End records in the journal."""
        records = [decode_record(stored) for stored in self.memory.read_visible(self.memory.topics.half)]
        return [record for record in records if isinstance(record, EndRecord)]

    def failures(self) -> list[str]:
        """Failure words of the rounds that were written down."""
        return [unanswered.failure for unanswered in self.directory.rounds]


def make_world(config: CheckerConfig | None = None) -> World:
    """With queue 0 held and no group."""
    clock = VirtualClock()
    memory = make_memory_world(clock=clock)
    store = FlakyStore(memory.cluster, memory.cluster.connect("checker"))
    directory, caller, board = FlakyDirectory(), MemoryCaller(clock), FlakyBoard()
    worlds: list[World] = []
    context = CheckContext(
        store, memory.topics, directory, caller, clock, Texts(), lambda: worlds[0].jitter, board,
        config=config or CheckerConfig(),
    )  # fmt: skip
    service = CheckService(context)
    world = World(clock, memory, store, directory, caller, service, board)
    worlds.append(world)
    world.take_queue(0)
    return world


class Texts:
    """Random texts that can be foreseen."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        return f"{self._count:022d}"


def make_body(transaction: Transaction, value: bytes = b'{"n":1}', headers: Sequence[Header] = ()) -> LoadedHalf:
    half = HalfMessage(transaction.transaction_id, transaction.group, 1, transaction.appended_ms, "orders")
    return LoadedHalf.decode(half, StoredMessage(0, b"42", value, (*headers, ("properties", b"")), 0))


def saying(word: object, *, only: int | None = None) -> Handler:
    """An endpoint that answers `word` to every check, or to the first `only`."""

    async def answer(call: EndpointCall) -> Response:
        checks = json.loads(call.body)["checks"][:only]
        said = [{"transaction_id": c["transaction_id"], "nonce": c["nonce"], "resolution": word} for c in checks]
        return Response(200, json.dumps({"resolutions": said}).encode())

    return answer


def sending(status: int, body: bytes = b"", retry_after: str | None = None) -> Handler:
    """An endpoint that sends always the same."""

    async def answer(call: EndpointCall) -> Response:
        return Response(status, body, retry_after)

    return answer


async def hanging(call: EndpointCall) -> Response:
    """An endpoint that never answers."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError
