"""The in-memory log for processes that are moved by hand: each request is a turn, and the log can be gone back to."""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from bridge.core.errors import QueueHalted
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.op_message import POSITION_KEY, Position, encode_position
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_end, encode_half
from bridge.core.topics import InternalTopics
from bridge.core.transaction import make_transaction_id
from bridge.store.memory.coordinators import Phase, ProducerRegistration
from bridge.store.memory.link import Link, LogError, Step, StepKind
from bridge.store.memory.partition import Partition, ProducerState
from bridge.store.memory.process import MemoryOwnerStore
from bridge.store.memory.store import MemoryCluster
from bridge.store.message_store import GetResult, GetStatus
from tests.simulation.schedule import TOPICS
from tests.support.memory_world import create_internal_topics
from tests.support.settler_world import GROUP
from tests.support.virtual_time import VirtualClock

T = TypeVar("T")

INTERNAL = InternalTopics(queues=1)
JOURNAL, OP = MessageQueue(INTERNAL.half, 0), MessageQueue(INTERNAL.op, 0)
_UNKNOWN = -1


class Deal(Struct, frozen=True):
    """One transaction: what it would publish, and how it ends."""

    messages: tuple[Message, ...]
    resolution: Resolution


class Setting(Struct, frozen=True):
    """What the instances find. `take_overs_of_a`: A, which does not hear that the queue is B's, begins so many."""

    name: str
    deals: tuple[Deal, ...]
    max_batch_records: int
    take_overs_of_a: int = 1
    can_crash: bool = True


class Turn:
    """A request about to be sent. `ask` sends it to the log as it is then; a LogError is an answer too."""

    def __init__(self, step: Step, ask: Callable[[], Any], is_ready: Callable[[], bool]) -> None:
        self.step = step
        self.ask = ask
        self.is_ready = is_ready

    def __await__(self) -> Generator["Turn", Any, Any]:
        answer = yield self
        if isinstance(answer, LogError):
            raise answer
        return answer


class SteppedLink(Link):
    """What can neither change the log nor be answered otherwise at another time is no turn: it is answered at once."""

    calls = 0

    async def call(self, step: Step, request: Callable[[], T], timeout_ms: int, lane: Hashable = None) -> T:
        self.calls += 1
        if step.kind is StepKind.DESCRIBE or step.queue == JOURNAL:
            return request()
        answer: T = await Turn(step, request, _always)
        return answer


class _Reader:
    """Follows a queue. A look at the op queue is a turn, and waits until it would find something."""

    def __init__(self, link: SteppedLink, partition: Partition, offset: int) -> None:
        self._link = link
        self._partition = partition
        self._offset = offset
        self._calls = -1
        self._step = Step(StepKind.GET, link.client, partition.queue.topic, partition.queue)

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        offset, partition = self._offset, self._partition
        if not partition.minimum <= offset <= partition.maximum:
            raise QueueHalted(f"offset {offset} is outside of the queue")
        turn = Turn(self._step, lambda: partition.read(offset, max_count), lambda: partition.stable > offset)
        messages: Sequence[StoredMessage]
        messages, self._offset = turn.ask() if self._looks_at_once() else await turn
        self._calls = self._link.calls
        status = GetStatus.FOUND if messages else GetStatus.NO_NEW_MSG
        return GetResult(status, messages, self._offset, -1, -1)

    async def close(self) -> None:
        return None

    def _looks_at_once(self) -> bool:
        """The journal stands still: into its end an owner looks in vain once after each time it has done something."""
        partition = self._partition
        return partition.queue == JOURNAL and (partition.stable > self._offset or self._calls != self._link.calls)


class SteppedOwners(MemoryOwnerStore):
    def open_reader(self, queue: MessageQueue, offset: int) -> Any:
        assert isinstance(self._link, SteppedLink)
        return _Reader(self._link, self._cluster.log.find(queue), offset)


class _Cluster(MemoryCluster):
    def connect(self, client: str) -> Link:
        return SteppedLink(client, self.agenda)


class World:
    """The log, and how it is noted and gone back to. Equal things noted have one number."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.clock = VirtualClock()
        self.cluster = _Cluster(self.clock)
        _fill(self.cluster, setting.deals)
        real = [partition for name in TOPICS for partition in self.cluster.log.topics[name].partitions]
        self._partitions = [self.cluster.log.find(OP), *real]
        self._numbers: dict[Hashable, int] = {}
        self._noted: list[Any] = []
        self._now = [_UNKNOWN for _ in [*self._partitions, "producers"]]

    def note(self) -> int:
        """The number of the log as it is."""
        for place, number in enumerate(self._now):
            if number == _UNKNOWN:
                is_partition = place < len(self._partitions)
                noted = _note_partition(self._partitions[place]) if is_partition else self._note_producers()
                self._now[place] = self._number(noted)
        return self._number(tuple(self._now))

    def go_back(self, number: int) -> None:
        """Makes the log what it was."""
        for place, wanted in enumerate(self._noted[number]):
            if self._now[place] == wanted:
                continue
            if place < len(self._partitions):
                _restore_partition(self._partitions[place], self._noted[wanted])
            else:
                self._restore_producers(self._noted[wanted])
            self._now[place] = wanted
        self.cluster.agenda._due.clear()

    def ask(self, turn: Turn) -> Any:
        """Sends a request. Appends touch a queue; what begins and ends Kafka transactions may touch all of them."""
        step = turn.step
        if step.kind is StepKind.APPEND:
            places = [place for place, p in enumerate(self._partitions) if p.queue == step.queue]
        elif step.kind is StepKind.ADD_QUEUES:
            places = [-1]
        else:
            places = [] if step.kind is StepKind.GET else range(len(self._now))
        for place in places:
            self._now[place] = _UNKNOWN
        try:
            return turn.ask()
        except LogError as error:
            return error

    def is_stale(self, transactional_id: str, epoch: int) -> bool:
        """Whether somebody has fenced whoever holds this epoch: it will be refused for ever."""
        return self.cluster.producers._by_id[transactional_id].epoch != epoch

    def time_out(self, transactional_id: str) -> None:
        """The coordinator ends a Kafka transaction that has been open for too long."""
        known = self.cluster.producers._by_id[transactional_id]
        self.cluster.producers._time_out(known, known.transactions)
        self.forget()

    def describe(self, number: int) -> Hashable:
        """A log that was noted, equal for equal ones in any world of one setting."""
        return tuple([self._noted[part] for part in self._noted[number]])

    def open_transactions(self) -> list[str]:
        """Transactional ids whose Kafka transaction is open."""
        return [name for name, r in self.cluster.producers._by_id.items() if r.phase is Phase.ONGOING]

    def forget(self) -> None:
        """Anything may have changed."""
        self._now = [_UNKNOWN for _ in self._now]

    def _number(self, noted: Hashable) -> int:
        number = self._numbers.setdefault(noted, len(self._noted))
        if number == len(self._noted):
            self._noted.append(noted)
        return number

    def _note_producers(self) -> Hashable:
        known = self.cluster.producers._by_id.values()
        return tuple(
            [
                (r.transactional_id, r.producer_id, r.timeout_ms, r.epoch, r.phase, r.is_commit, tuple(r.queues))
                for r in known
            ]
        )

    def _restore_producers(self, noted: Any) -> None:
        self.cluster.producers._by_id = {
            r[0]: ProducerRegistration(*r[:-1], queues=dict.fromkeys(r[-1])) for r in noted
        }


def _fill(cluster: MemoryCluster, deals: Sequence[Deal]) -> None:
    """Topics; a journal with every half message and then every end; a position between them."""
    log, now_ms = cluster.log, cluster.agenda.now_ms()
    create_internal_topics(cluster, INTERNAL)
    for name, queues in TOPICS.items():
        log.create_topic(name, queues)
    halves: list[Message] = []
    ends: list[Message] = []
    for number, deal in enumerate(deals):
        transaction_id = make_transaction_id(0, number + 1)
        single = {"real_topic": deal.messages[0].topic} if len(deal.messages) == 1 else {}
        half = HalfMessage(transaction_id, GROUP, len(deal.messages), now_ms, **single)
        halves.append(encode_half(half, deal.messages, INTERNAL.half, 0))
        end = EndRecord(transaction_id, deal.resolution, Source.PRODUCER, now_ms)
        ends.append(encode_end(end, INTERNAL.half, 0))
    log.find(JOURNAL).append([*halves, *ends], None, now_ms)
    position = encode_position(Position(len(halves), 0, 0, "before"))
    log.find(OP).append([Message(INTERNAL.op, POSITION_KEY, position, (), 0)], None, now_ms)


def _note_partition(p: Partition) -> Hashable:
    opened = [(i, tuple(offsets)) for i, offsets in p._open.items()]
    producers = [
        (i, s.epoch, s.next_sequence, tuple([(n, tuple(a)) for n, a in s.recent])) for i, s in p._producers.items()
    ]
    return tuple(p.records), frozenset(p.aborted), tuple(opened), tuple(producers)


def _restore_partition(p: Partition, noted: Any) -> None:
    records, aborted, opened, producers = noted
    p.records, p.aborted, p.segments, p.maximum = list(records), set(aborted), [], len(records)
    p._open = {i: list(offsets) for i, offsets in opened}
    p._producers = {
        i: ProducerState(epoch, following, deque([(n, list(a)) for n, a in recent], maxlen=5))
        for i, epoch, following, recent in producers
    }


def _always() -> bool:
    return True
