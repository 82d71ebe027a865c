"""What a successor reads before it decides anything. Source: design section 5, take over a queue."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog

from bridge.clock import Clock
from bridge.core.errors import MalformedRecord, StoreTimeout
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, LogTopics, Position, decode_position
from bridge.core.position import LogFacts, Span, Witness, check_position
from bridge.core.queue_state import RecoveredOps, RecoveredState
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_record
from bridge.core.topics import InternalTopics
from bridge.core.transition import LogPosition
from bridge.fault_points import FaultPoint, reach
from bridge.log_watch import LogWatch
from bridge.settler.ports import SettlerPorts
from bridge.settler.writer import QueueMemory
from bridge.store.message_store import LoadedHalf, MessageStore, OwnerStore, QueueOffsets

_LOG = structlog.get_logger()
_READ_COUNT = 5_000
_READ_WAIT_MS = 500
_STALL_LIMIT_MS = 30_000
_TAIL = 200  # records looked at first for the last position


class Seen(NamedTuple):
    """What is known from elsewhere: the topics there are now, and who has seen which S committed."""

    log: LogTopics
    witnesses: Sequence[Witness] = ()


@dataclass(slots=True)
class _OpTail:
    """The last op message of each id, and the positions: op offset, s."""

    ops: RecoveredOps
    positions: list[tuple[int, int]] = field(default_factory=list)

    def add(self, message: StoredMessage) -> None:
        """A foreign record in the topic is quarantined, as in the journal."""
        if message.key is None or message.value is None or message.key == ANSWERS_KEY:
            return
        try:
            if message.key == POSITION_KEY:
                self.positions.append((message.queue_offset, decode_position(message.value).s))
                return
            self.ops.add(message.queue_offset, message.key, message.value, message.stored_ms)
        except MalformedRecord as error:
            _LOG.error("op_message_quarantined", offset=message.queue_offset, reason=str(error))


@dataclass(slots=True)
class Recovery:
    """What was read for the state machine; the half messages follow. `missing`: offsets among them without a record."""

    restored: RecoveredState
    _reader: "_LogReader"
    _journal: MessageQueue
    missing: int = 0

    async def read_halves(self, take: Callable[[LogPosition, LoadedHalf], None]) -> int:
        """Gives those from L to S; append time of the last record, 0 if there is none. Raises StoreError."""
        last_ms, position = 0, self.restored.position
        self.missing = position.s - position.l

        def add(message: StoredMessage) -> None:
            """Records that cannot be read were quarantined when they were decided."""
            nonlocal last_ms
            last_ms = message.stored_ms
            self.missing -= 1
            with suppress(MalformedRecord):
                record = decode_record(message)
                if isinstance(record, HalfMessage):
                    loaded = LoadedHalf.decode(record, message)
                    take(LogPosition(message.queue_offset, message.stored_ms), loaded)

        await self._reader.read(self._journal, position.l, position.s, add)
        return last_ms


async def look_around(log: LogWatch, memory: QueueMemory, queue_id: int) -> Seen:
    """Asks for the topics there are now, and for who else knows how far the queue was decided. Raises StoreError."""
    witnesses = [memory.confirmed, await log.find_witness(queue_id)]
    return Seen(await log.identify(), [witness for witness in witnesses if witness is not None])


async def read_back(
    ports: SettlerPorts, topics: InternalTopics, queue_id: int, seen: Seen, op: QueueOffsets
) -> Recovery:
    """Reads position and op messages from O. `op`: as it ended after the writer had fenced.

    Raises StoreError, and QueueHalted when the log is not what was left, or is another one by now: no position is
    never a beginning.
    """
    store, reader = ports.store, _LogReader(ports.owners, ports.clock, partial(ports.log.check, queue_id, seen.log))
    op_queue, half_queue = MessageQueue(topics.op, queue_id), MessageQueue(topics.half, queue_id)
    journal = await store.get_offsets(half_queue)
    found = await _find_position(reader, op_queue, op)
    reach(FaultPoint.TAKE_OVER_READ_POSITION)
    last_ms = await _find_last_ms(store, half_queue, found, journal)
    journal_span, op_span = Span(journal.minimum, journal.maximum), Span(op.minimum, op.maximum)
    position = check_position(found, LogFacts(seen.log, journal_span, op_span, last_ms, seen.witnesses))
    position = position._replace(s_ms=last_ms if position.s_ms is None else position.s_ms)
    ops = RecoveredOps()
    op_tail = _OpTail(ops)
    await reader.read(op_queue, position.o, op.maximum, op_tail.add)
    reach(FaultPoint.TAKE_OVER_READ_OP)
    op_floor = _op_floor(op_tail.positions, position)
    return Recovery(RecoveredState(position, ops, op_floor, op.maximum, last_ms or 0), reader, half_queue)


class _LogReader:
    """Reads a range of a queue that is known to be complete."""

    def __init__(self, owners: OwnerStore, clock: Clock, check: Callable[[], None]) -> None:
        self._owners = owners
        self._clock = clock
        self._check = check

    async def read(self, queue: MessageQueue, start: int, end: int, take: Callable[[StoredMessage], None]) -> None:
        """Gives all committed messages from `start` to before `end`, never holding more than a portion of them.

        Raises StoreTimeout when they do not come.
        """
        if start >= end:
            return
        reader = self._owners.open_reader(queue, start)
        try:
            offset, moved_ms = start, self._clock.monotonic_ms()
            while offset < end:
                result = await reader.get(_READ_COUNT, _READ_WAIT_MS)
                for message in result.messages:
                    if message.queue_offset < end:
                        take(message)
                if result.next_begin_offset > offset:
                    offset, moved_ms = result.next_begin_offset, self._clock.monotonic_ms()
                    continue
                self._check()
                if self._clock.monotonic_ms() - moved_ms > _STALL_LIMIT_MS:
                    what = f"{queue.topic}[{queue.queue_id}] is not readable from {offset} to {end}"
                    raise StoreTimeout(f"{what}; a Kafka transaction there may hang")
        finally:
            await reader.close()


async def _find_position(reader: _LogReader, queue: MessageQueue, offsets: QueueOffsets) -> Position | None:
    count = _TAIL
    while True:
        start = max(offsets.minimum, offsets.maximum - count)
        found: list[Position] = []

        def take(message: StoredMessage, found: list[Position] = found) -> None:
            if message.key == POSITION_KEY and message.value is not None:
                with suppress(MalformedRecord):
                    found[:] = [decode_position(message.value)]

        await reader.read(queue, start, offsets.maximum, take)
        if found:
            return found[0]
        if start == offsets.minimum:
            return None
        count *= 8


def _op_floor(positions: Sequence[tuple[int, int]], position: Position) -> int:
    before = [offset for offset, s in positions if s <= position.l]
    return before[-1] + 1 if before else position.o


async def _find_last_ms(
    store: MessageStore, queue: MessageQueue, position: Position | None, journal: QueueOffsets
) -> int | None:
    """Append time of the record at S-1; None if the journal has none there any more."""
    if position is None or not journal.minimum < position.s <= journal.maximum:
        return None
    last = await store.get_each(queue, [position.s - 1])
    return next((message.stored_ms for message in last.values()), None)
