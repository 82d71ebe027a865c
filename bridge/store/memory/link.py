"""The way from a client to the log: requests and answers are delayed, doubled and lost, and clients frozen.

With the log's answers "no", in Kafka's words, and what they mean to the ports.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from bridge.clock import Clock
from bridge.core.errors import StoreError, StoreTimeout, StoreUnavailable
from bridge.core.message import MessageQueue
from bridge.store.message_store import PutResult, PutStatus, Refusal


class Code(Enum):
    """Kafka's error codes, as far as the log uses them."""

    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    LOCAL_UNKNOWN_PARTITION = "_UNKNOWN_PARTITION"  # the client library's own
    TOPIC_ALREADY_EXISTS = "TOPIC_ALREADY_EXISTS"
    INVALID_TOPIC = "INVALID_TOPIC"
    INVALID_CONFIG = "INVALID_CONFIG"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    LEADER_NOT_AVAILABLE = "LEADER_NOT_AVAILABLE"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    TOPIC_AUTHORIZATION_FAILED = "TOPIC_AUTHORIZATION_FAILED"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    INVALID_RECORD = "INVALID_RECORD"
    OUT_OF_ORDER_SEQUENCE_NUMBER = "OUT_OF_ORDER_SEQUENCE_NUMBER"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    PRODUCER_FENCED = "PRODUCER_FENCED"
    INVALID_PRODUCER_ID_MAPPING = "INVALID_PRODUCER_ID_MAPPING"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    CONCURRENT_TRANSACTIONS = "CONCURRENT_TRANSACTIONS"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"


FENCED = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
ABORTABLE = frozenset(
    {
        Code.LOCAL_UNKNOWN_PARTITION,
        Code.MESSAGE_TOO_LARGE,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.INVALID_TIMESTAMP,
        Code.INVALID_RECORD,
    }
)
REFUSALS = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Refusal.UNKNOWN_TOPIC,
    Code.MESSAGE_TOO_LARGE: Refusal.MESSAGE_TOO_LARGE,
    Code.TOPIC_AUTHORIZATION_FAILED: Refusal.NOT_AUTHORISED,
    Code.INVALID_TIMESTAMP: Refusal.INVALID_TIMESTAMP,
    Code.INVALID_RECORD: Refusal.OTHER,
}


class LogError(Exception):
    """The log answered no. `topic` where it names one."""

    def __init__(self, code: Code, topic: str | None = None) -> None:
        super().__init__(code.value if topic is None else f"{code.value}: {topic}")
        self.code = code
        self.topic = topic


class NoAnswerError(Exception):
    """No answer in time: the request may have been carried out, or may be later."""


def make_store_error(error: LogError | NoAnswerError) -> StoreError:
    """What a read, or a plain commit of an offset, raises."""
    if isinstance(error, NoAnswerError) or error.code is Code.LEADER_NOT_AVAILABLE:
        return StoreTimeout(str(error))
    return StoreUnavailable(str(error))


def make_refused_put(error: LogError | NoAnswerError) -> PutResult:
    """What a put answers. A leaderless queue is a time-out for the client, so the outcome is unknown."""
    refusal = REFUSALS.get(error.code) if isinstance(error, LogError) else None
    status = PutStatus.OUTCOME_UNKNOWN if refusal is None else PutStatus.REFUSED
    return PutResult(status, refusal=refusal, detail=str(error))


NEVER = 1 << 62


class Waiters:
    """Waiters for one event; all are woken at once."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}

    def add(self, future: asyncio.Future[None]) -> None:
        self._futures[future] = None

    def discard(self, future: asyncio.Future[None]) -> None:
        self._futures.pop(future, None)

    def wake(self) -> None:
        """Everybody who waits now goes on."""
        for future in self._futures:
            resolve(future)


class Agenda:
    """Due actions in order of time, run by whoever touches the log next: no task of its own, so no leak and no race.

    A late action sees the time at which it was due, as if somebody had been there.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._acting_at: int | None = None
        self._sleepers: dict[asyncio.Future[None], int] = {}

    def monotonic_ms(self) -> int:
        """Now, or the time at which the action that runs was due."""
        return self.clock.monotonic_ms() if self._acting_at is None else self._acting_at

    def now_ms(self) -> int:
        """The brokers' wall clock at that time."""
        if self._acting_at is None:
            return self.clock.now_ms()
        return self.clock.now_ms() - self.clock.monotonic_ms() + self._acting_at

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Runs `action` when the time has come; the same time in the order of calls."""
        due = self.monotonic_ms() + delay_ms
        self._count += 1
        heapq.heappush(self._due, (due, self._count, action))
        for future, wake_ms in self._sleepers.items():
            if due < wake_ms:
                resolve(future)

    def run_due(self) -> None:
        """Runs everything whose time has come."""
        while self._due and self._acting_at is None and self._due[0][0] <= self.clock.monotonic_ms():
            due, _, action = heapq.heappop(self._due)
            self._acting_at = due
            try:
                action()
            finally:
                self._acting_at = None

    def next_due_ms(self) -> int:
        """When the next action is due, by the monotonic clock; NEVER if none is."""
        return self._due[0][0] if self._due else NEVER

    async def wait(self, waiters: Waiters, until_ms: int) -> None:
        """Returns when `waiters` are woken, an action has become due, or it is `until_ms`; perhaps earlier."""
        wake_ms = min(until_ms, self.next_due_ms())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = None
        if wake_ms < NEVER:
            sleeper = self.clock.call_later(max(0, wake_ms - self.clock.monotonic_ms()), lambda: resolve(future))
        waiters.add(future)
        self._sleepers[future] = wake_ms
        try:
            await future
        finally:
            waiters.discard(future)
            del self._sleepers[future]
            if sleeper is not None:
                sleeper.cancel()


def resolve(future: asyncio.Future[None]) -> None:
    """Wakes the one who awaits the future, once."""
    if not future.done():
        future.set_result(None)


T = TypeVar("T")


class StepKind(Enum):
    """The requests a client sends. An atomic batch is ADD_QUEUES, APPEND, ADD_QUEUES, APPEND, END."""

    PUT = "PUT"
    GET = "GET"
    INIT = "INIT"
    ADD_QUEUES = "ADD_QUEUES"
    APPEND = "APPEND"
    END = "END"
    CONSUME_OFFSET = "CONSUME_OFFSET"
    DESCRIBE = "DESCRIBE"


class Step(NamedTuple):
    """A request about to be sent, or answered. `subject`: the transactional id, group or topic it is about."""

    kind: StepKind
    client: str
    subject: str
    queue: MessageQueue | None = None
    is_commit: bool = False


class Fate(NamedTuple):
    """What becomes of a request: milliseconds until it arrives and until its answer is back; None: never.

    `again_ms`: the same request arrives once more so much later, and nobody gets the answer: the
    retry hidden in a client, or the delayed original whose retry was the one that was answered.
    """

    request_ms: int | None = 0
    answer_ms: int | None = 0
    again_ms: int | None = None


PASSES = Fate()


class Faults(Protocol):
    """Asked at each step, from outside. May freeze a client by waiting and kill it by raising or cancelling."""

    async def before(self, step: Step) -> Fate:
        """The client is about to send the request."""
        ...

    async def after(self, step: Step) -> None:
        """The request has been answered; the client has not looked at the answer yet. Not asked after a time-out."""
        ...

    def marker_delay_ms(self, transactional_id: str, queue: MessageQueue) -> int:
        """How long after the end of a Kafka transaction its marker is written there."""
        ...


class NoFaults:
    """Everything passes."""

    async def before(self, step: Step) -> Fate:
        return PASSES

    async def after(self, step: Step) -> None:
        return None

    def marker_delay_ms(self, transactional_id: str, queue: MessageQueue) -> int:
        return 0


class _Delivery(Generic[T]):
    """One request on its way; keeps the first answer."""

    def __init__(self, request: Callable[[], T]) -> None:
        self._request = request
        self._answers: list[T | LogError] = []

    def arrive(self) -> None:
        try:
            self._answers.append(self._request())
        except LogError as error:
            self._answers.append(error)

    def take(self) -> T:
        answer = self._answers[0]
        if isinstance(answer, LogError):
            raise answer
        return answer


class Link:
    """One client process's connection to the log."""

    def __init__(self, client: str, agenda: Agenda, faults: Faults | None = None) -> None:
        self.client = client
        self.agenda = agenda
        self._faults = faults
        self._is_frozen = False
        self.is_dead = False  # the process has been killed
        self._thawed = Waiters()
        self._lanes: dict[Hashable, int] = {}  # lane -> when its last request arrives

    @property
    def is_stopped(self) -> bool:
        """Whether the process stands still, or is dead."""
        return self._is_frozen or self.is_dead

    def freeze(self) -> None:
        """The process stops (SIGSTOP) before its next request or at its next answer; what was sent goes on."""
        self._is_frozen = True

    def thaw(self) -> None:
        """The process goes on (SIGCONT)."""
        self._is_frozen = False
        self._thawed.wake()

    def kill(self) -> None:
        """SIGKILL: whatever its tasks still try, `finally` blocks included, is cancelled at its first await."""
        self.is_dead = True
        self._thawed.wake()

    async def pause(self) -> None:
        """Lets others run, and waits while the process is frozen; a dead one goes no further."""
        await asyncio.sleep(0)
        while self.is_stopped:
            if self.is_dead:
                raise asyncio.CancelledError
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._thawed.add(future)
            try:
                await future
            finally:
                self._thawed.discard(future)

    async def call(self, step: Step, request: Callable[[], T], timeout_ms: int, lane: Hashable = None) -> T:
        """Sends a request and gives its answer. Requests of one lane arrive in order.

        Raises LogError as answered, NoAnswerError when nothing came in time.
        """
        await self.pause()
        fate = PASSES if self._faults is None else await self._faults.before(step)
        self.agenda.run_due()
        if lane is not None:
            fate = self._keep_order(fate, lane)
        if fate == PASSES:
            answer = request()
        else:
            answer = await self._travel(fate, request, timeout_ms)
        if self._faults is not None:
            await self._faults.after(step)
        if self.is_stopped:
            await self.pause()
        return answer

    def _keep_order(self, fate: Fate, lane: Hashable) -> Fate:
        now = self.agenda.monotonic_ms()
        if fate.request_ms is None:
            return fate
        arrives = max(now + fate.request_ms, self._lanes.get(lane, 0))
        if arrives <= now:
            self._lanes.pop(lane, None)
            return fate
        self._lanes[lane] = arrives
        return fate._replace(request_ms=arrives - now)

    async def _travel(self, fate: Fate, request: Callable[[], T], timeout_ms: int) -> T:
        delivery = _Delivery(request)
        if fate.request_ms == 0:
            delivery.arrive()
        elif fate.request_ms is not None:
            self.agenda.later(fate.request_ms, delivery.arrive)
        if fate.again_ms is not None:
            self.agenda.later(fate.again_ms, delivery.arrive)
        whole_ms = NEVER if fate.request_ms is None or fate.answer_ms is None else fate.request_ms + fate.answer_ms
        await self.agenda.clock.sleep_ms(min(whole_ms, timeout_ms))
        self.agenda.run_due()
        if whole_ms > timeout_ms:
            raise NoAnswerError(f"no answer within {timeout_ms} ms")
        return delivery.take()
