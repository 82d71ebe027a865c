"""What a successor reads before it decides anything. Source: design section 5, take over a queue."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from bridge.clock import Clock
from bridge.core.errors import MalformedRecord, QueueHalted, StoreTimeout
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, Position, decode_op, decode_position
from bridge.core.queue_state import Restored, RestoredOp, effective_okey
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_record
from bridge.core.topics import InternalTopics
from bridge.core.transition import Place
from bridge.fault_points import FaultPoint, reach
from bridge.settler.batch import Held
from bridge.store.message_store import MessageStore, OwnerStore
from bridge.store.results import QueueOffsets

_LOG = structlog.get_logger()
_READ_COUNT = 5_000
_READ_WAIT_MS = 500
_STALL_LIMIT_MS = 30_000
_TAIL = 200  # records looked at first for the last position


class TakeOver(NamedTuple):
    """What was read: for the state machine, and the bodies met on the way."""

    restored: Restored
    held: Sequence[Held]


@dataclass(slots=True)
class _OpTail:
    last: dict[str, RestoredOp] = field(default_factory=dict)
    positions: list[tuple[int, int]] = field(default_factory=list)  # op offset, s


async def read_back(
    store: MessageStore, owners: OwnerStore, topics: InternalTopics, queue_id: int, clock: Clock
) -> TakeOver:
    """Reads position, op messages from O and half messages from L to S, after the writer has fenced.

    Raises StoreError, and QueueHalted when the log does not hold what is needed.
    """
    reader = _LogReader(owners, clock)
    op_queue, half_queue = MessageQueue(topics.op, queue_id), MessageQueue(topics.half, queue_id)
    op, journal = await store.get_offsets(op_queue), await store.get_offsets(half_queue)
    position = await _find_position(reader, op_queue, op)
    reach(FaultPoint.TAKE_OVER_READ_POSITION)
    if position is None:
        position = _first_position(op, journal)
    _check_ranges(position, op, journal)
    tail = _fold_op(await reader.read(op_queue, position.o, op.maximum))
    reach(FaultPoint.TAKE_OVER_READ_OP)
    journal_records = await reader.read(half_queue, position.l, position.s)
    halves, held = _fold_journal(journal_records)
    return TakeOver(
        Restored(
            position,
            list(tail.last.values()),
            halves,
            _op_floor(tail.positions, position),
            op.maximum,
            await _journal_ms(store, half_queue, journal_records, position),
        ),
        held,
    )


class _LogReader:
    """Reads a range of a queue that is known to be complete."""

    def __init__(self, owners: OwnerStore, clock: Clock) -> None:
        self._owners = owners
        self._clock = clock

    async def read(self, queue: MessageQueue, start: int, end: int) -> list[StoredMessage]:
        """All committed messages from `start` to before `end`. Raises StoreTimeout when they do not come."""
        messages: list[StoredMessage] = []
        if start >= end:
            return messages
        reader = self._owners.open_reader(queue, start)
        try:
            offset, moved_ms = start, self._clock.monotonic_ms()
            while offset < end:
                result = await reader.get(_READ_COUNT, _READ_WAIT_MS)
                messages += [m for m in result.messages if m.queue_offset < end]
                if result.next_begin_offset > offset:
                    offset, moved_ms = result.next_begin_offset, self._clock.monotonic_ms()
                elif self._clock.monotonic_ms() - moved_ms > _STALL_LIMIT_MS:
                    raise StoreTimeout(f"{queue.topic}[{queue.queue_id}] is not readable from {offset} to {end}")
        finally:
            await reader.close()
        return messages


async def _find_position(reader: _LogReader, queue: MessageQueue, offsets: QueueOffsets) -> Position | None:
    count = _TAIL
    while True:
        start = max(offsets.minimum, offsets.maximum - count)
        for message in reversed(await reader.read(queue, start, offsets.maximum)):
            if message.key == POSITION_KEY and message.value is not None:
                with suppress(MalformedRecord):
                    return decode_position(message.value)
        if start == offsets.minimum:
            return None
        count *= 8


def _first_position(op: QueueOffsets, journal: QueueOffsets) -> Position:
    if op.minimum or journal.minimum:
        raise QueueHalted("the op topic holds no position, but records have been removed already")
    return Position(0, 0, 0, "")


def _check_ranges(position: Position, op: QueueOffsets, journal: QueueOffsets) -> None:
    if not journal.minimum <= position.l <= position.s <= journal.maximum:
        raise QueueHalted(
            f"position needs journal {position.l}..{position.s}, which holds {journal.minimum}..{journal.maximum}"
        )
    if position.o < op.minimum:
        raise QueueHalted(f"position needs op offset {position.o}, the topic begins at {op.minimum}")


def _fold_op(messages: Sequence[StoredMessage]) -> _OpTail:
    """The last op message of each id. A foreign record in the topic is quarantined, as in the journal."""
    tail = _OpTail()
    for message in messages:
        if message.key is None or message.value is None or message.key == ANSWERS_KEY:
            continue
        try:
            if message.key == POSITION_KEY:
                tail.positions.append((message.queue_offset, decode_position(message.value).s))
                continue
            op = decode_op(message.key.decode(), message.value)
            tail.last[op.transaction.transaction_id] = RestoredOp(
                message.queue_offset, op.transaction, message.value, message.stored_ms
            )
        except (MalformedRecord, UnicodeDecodeError) as error:
            _LOG.error("op_message_quarantined", offset=message.queue_offset, reason=str(error))
    return tail


def _op_floor(positions: Sequence[tuple[int, int]], position: Position) -> int:
    before = [offset for offset, s in positions if s <= position.l]
    return before[-1] + 1 if before else position.o


def _fold_journal(messages: Sequence[StoredMessage]) -> tuple[list[tuple[Place, HalfMessage, int]], list[Held]]:
    halves: list[tuple[Place, HalfMessage, int]] = []
    held: list[Held] = []
    for message in messages:
        try:
            record = decode_record(message)
            if not isinstance(record, HalfMessage):
                continue
            body = Held.decode(record, message)
        except MalformedRecord:
            continue  # was quarantined by whoever decided it
        halves.append(
            (Place(message.queue_offset, message.stored_ms), record, effective_okey(record, body.messages[0].key))
        )
        held.append(body)
    return halves, held


async def _journal_ms(
    store: MessageStore, queue: MessageQueue, messages: Sequence[StoredMessage], position: Position
) -> int:
    """Append time of the last record decided; 0 where the journal holds none."""
    if messages:
        return messages[-1].stored_ms
    if position.s == 0:
        return 0
    last = await store.get_each(queue, [position.s - 1])
    return max((message.stored_ms for message in last.values()), default=0)
