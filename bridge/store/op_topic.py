"""The op topic as owners read and write it: positions, and records that are sealed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog
from msgspec.structs import replace as replace_members

from bridge.clock import Clock
from bridge.core.errors import ConfigError, MalformedRecord, StoreError, StoreTimeout
from bridge.core.keyring import Keyring, OpSeals
from bridge.core.message import Message, MessageQueue, Receipt, StoredMessage
from bridge.core.op_message import POSITION_KEY, LogTopics, Position, decode_position, encode_position
from bridge.core.position import MIGRATE_OWNER
from bridge.core.topics import InternalTopics
from bridge.store.message_store import (
    AtomicBatch,
    BatchKind,
    BatchResult,
    BatchWriter,
    GetResult,
    GetStatus,
    GroupMember,
    MessageStore,
    OwnerStore,
    QueueReader,
)

# --- a queue's position in the op topic: found, and written by whoever owns the queue's transactional ids ---


_READ_COUNT = 2_000
_READ_WAIT_MS = 500
_MOST_WAITS = 60


def make_first_position(log: LogTopics) -> Position:
    """Where a queue of a new installation begins. Nobody but `migrate` may say that this is a beginning."""
    return Position(0, 0, 0, MIGRATE_OWNER, log)


def make_position_message(topics: InternalTopics, queue_id: int, position: Position) -> Message:
    """The record that holds it."""
    return Message(topics.op, POSITION_KEY, encode_position(position), (), queue_id)


async def write_position(
    owners: OwnerStore, topics: InternalTopics, queue_id: int, make: Callable[[], Awaitable[Position | None]]
) -> Position | None:
    """Fences the queue's owner, then writes what `make` says; the owner takes the queue over anew. Raises StoreError.

    `make` is asked after fencing: nobody else can move the position any more. None: nothing is written.
    """
    writer = owners.open_writer((topics.transactional_id(queue_id, 0), topics.transactional_id(queue_id, 1)))
    try:
        await writer.fence()
        position = await make()
        if position is not None:
            message = make_position_message(topics, queue_id, position)
            await writer.put_all(AtomicBatch([], lambda _: [message], kind=BatchKind.POSITION))
    finally:
        await writer.close()
    return position


async def begin_queues(store: MessageStore, owners: OwnerStore, topics: InternalTopics, log: LogTopics) -> list[int]:
    """Writes the first position of each queue that never took anything; which. Raises StoreError.

    Where either topic holds, or has ever held, a record, a missing position is a loss and no beginning.
    """
    begun = []
    for queue_id in range(topics.queues):
        if await _is_new(store, topics, queue_id):
            make = partial(_make_if_new, store, topics, queue_id, log)
            if await write_position(owners, topics, queue_id, make) is not None:
                begun.append(queue_id)
    return begun


async def _make_if_new(store: MessageStore, topics: InternalTopics, queue_id: int, log: LogTopics) -> Position | None:
    return make_first_position(log) if await _is_new(store, topics, queue_id) else None


async def _is_new(store: MessageStore, topics: InternalTopics, queue_id: int) -> bool:
    """What was never more than begun leaves an aborted batch behind."""
    op_queue = MessageQueue(topics.op, queue_id)
    journal, op = await store.get_offsets(MessageQueue(topics.half, queue_id)), await store.get_offsets(op_queue)
    if journal.maximum or op.minimum:
        return False
    return not op.maximum or not (op.stable < op.maximum or (await store.get(op_queue, 0, 1)).messages)


async def find_position(
    store: MessageStore, owners: OwnerStore, topics: InternalTopics, queue_id: int, *, is_last: bool = False
) -> Position | None:
    """The last position in the queue's op topic that `owners` believes, None if there is none. Raises StoreError.

    `is_last`: also of a Kafka transaction whose markers are still to come. Looks back in growing steps.
    """
    queue = MessageQueue(topics.op, queue_id)
    offsets = await store.get_offsets(queue)
    start, back = offsets.maximum if is_last else offsets.stable, 4_000
    while start > offsets.minimum:
        end, start = start, max(offsets.minimum, start - back)
        back *= 2
        found = await _find_last(owners, queue, start, end)
        if found is not None:
            return found
    return None


async def _find_last(owners: OwnerStore, queue: MessageQueue, start: int, end: int) -> Position | None:
    """Through a reader, which passes over what is not the owner's."""
    found = None
    async for message in read_range(owners, queue, start, end):
        if message.key == POSITION_KEY and message.value is not None:
            with suppress(MalformedRecord):
                found = decode_position(message.value)
    return found


async def read_range(owners: OwnerStore, queue: MessageQueue, start: int, end: int) -> AsyncIterator[StoredMessage]:
    """What a queue holds from `start` to `end`. Raises StoreError, also when it does not come."""
    reader, waits = owners.open_reader(queue, start), 0
    try:
        while start < end:
            result = await reader.get(_READ_COUNT, _READ_WAIT_MS)
            for message in result.messages:
                if message.queue_offset < end:
                    yield message
            waits = waits + 1 if result.next_begin_offset <= start else 0
            if waits > _MOST_WAITS:
                raise StoreTimeout(f"{queue.topic}[{queue.queue_id}] is not readable from {start} to {end}")
            start = result.next_begin_offset
    finally:
        await reader.close()


# --- readers that follow a queue for as long as a process lives ---

_QUIET_MS = 60_000  # after which a reader that gives nothing is doubted
_DEAF_MS = 30_000  # after which one that is doubted is replaced


class WatchedReader:
    """QueueReader. Raises StoreTimeout if what is there does not come: a client can stay deaf for ever, with no error.

    Brokers are asked twice whether there is more: they may have been away.
    """

    def __init__(self, owners: OwnerStore, store: MessageStore, clock: Clock, queue: MessageQueue, offset: int) -> None:
        self._inner = owners.open_reader(queue, offset)
        self._store = store
        self._clock = clock
        self._queue = queue
        self._offset, self._since_ms = -1, 0
        self._doubts = 0
        self._asking: asyncio.Task[None] | None = None

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        result = await self._inner.get(max_count, max_wait_ms)
        now_ms = self._clock.monotonic_ms()
        if result.next_begin_offset != self._offset:
            self._offset, self._since_ms, self._doubts = result.next_begin_offset, now_ms, 0
        elif self._doubts > 1:
            raise StoreTimeout(f"{self._queue.topic}[{self._queue.queue_id}]: nothing comes from {self._offset} on")
        elif self._is_due(now_ms - self._since_ms):
            self._asking = asyncio.create_task(self._ask(self._offset))
        return result

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        await self._inner.close()

    def _is_due(self, quiet_ms: int) -> bool:
        is_asking = self._asking is not None and not self._asking.done()
        return not is_asking and quiet_ms >= (_DEAF_MS if self._doubts else _QUIET_MS)

    async def _ask(self, offset: int) -> None:
        try:
            is_more = (await self._store.get_offsets(self._queue)).stable > offset
        except StoreError:
            is_more = False
        if offset == self._offset:
            self._doubts = self._doubts + 1 if is_more else 0
            self._since_ms = self._clock.monotonic_ms()


# --- an OwnerStore whose op records are sealed as they are written ---

_LOG = structlog.get_logger()
_MOST_KNOWN = 10_000


class SealWatch:
    """Opens op records, and keeps in mind those that are not the owner's."""

    def __init__(self, seals: OpSeals | None = None) -> None:
        self.seals = seals or OpSeals(Keyring())
        self._forged: set[tuple[int, int]] = set()
        self.met: set[int] = set()  # queues with such records
        self.settled: set[int] = set()  # queues with a position that was sealed with a key of this database
        self.settled_by_others: set[int] = set()  # queues with a position that was not

    @property
    def forged(self) -> int:
        """How many records that are not the owner's this process has met."""
        return len(self._forged)

    def open(self, queue_id: int, message: StoredMessage) -> bytes | None:
        """The value without its seal; None, and an alert, if it is not the owner's."""
        value = self.seals.open(queue_id, message.queue_offset, message.key, message.value)
        if value is None:
            place = (queue_id, message.queue_offset)
            if place not in self._forged:
                _LOG.error("op_record_not_ours", queue=queue_id, offset=message.queue_offset)
            self.met.add(queue_id)
            if message.key == POSITION_KEY:
                self.settled_by_others.add(queue_id)
            if len(self._forged) < _MOST_KNOWN:
                self._forged.add(place)
        elif message.key == POSITION_KEY and message.queue_offset >= self.seals.believed.get(queue_id, 0):
            self.settled.add(queue_id)
        return value


_PURPOSE = b"database"


class DatabaseMark:
    """Which database the settlers of a bridge have, noted in Kafka with each queue's consume offset.

    What a settler with another database has written looks like a forger's, and would be decided and published again.
    A forger cannot write this note: that takes the right to the group. Where it is lost, as after a week without a
    member, positions say who has settled: a database that has none of its own beside those of others is another one.
    """

    def __init__(self, store: MessageStore, topics: InternalTopics, watch: SealWatch) -> None:
        self._store = store
        self._topics = topics
        self._watch = watch

    @property
    def is_on(self) -> bool:
        """Whether this database has a key."""
        return not self._watch.seals.is_off

    async def note(self, queue_id: int, s: int) -> None:
        """Before anything is decided, and now and then. Raises StoreError."""
        queue, texts = MessageQueue(self._topics.half, queue_id), self._own_texts()
        await self._store.put_consume_offset(self._topics.group, queue, s, texts[0] if texts else "")

    async def check(self, queue_ids: Collection[int]) -> None:
        """Raises ConfigError where records that are not ours are those of another database, and StoreError."""
        met = [queue_id for queue_id in queue_ids if queue_id in self._watch.met]
        if met and (others := await self.find_others(met)):
            raise ConfigError(
                f"{self._topics.op}, queue {', '.join(map(str, others))}: settled with another database than this one, "
                "and what that has published would be published again; give all processes of a bridge one "
                "`database_url`, and every bridge a `topics.prefix` of its own; if the other database is lost, stop "
                "all settlers, then run `outbox-bridge migrate` with an empty one"
            )

    async def find_others(self, queue_ids: Collection[int]) -> list[int]:
        """Queues that a settler with another database has had last, or may have had. Raises StoreError."""
        if not (own := self._own_texts()):
            return []
        queues = [MessageQueue(self._topics.half, queue_id) for queue_id in queue_ids]
        found = await self._store.get_consume_offsets(self._topics.group, queues)
        unsaid = self._watch.settled_by_others - self._watch.settled
        return sorted(
            queue.queue_id
            for queue, consumed in found.items()
            if consumed.note not in own and (consumed.note or queue.queue_id in unsaid)
        )

    def _own_texts(self) -> list[str]:
        keyring = self._watch.seals.keyring
        return [f"database {keyring.begin(key_id, _PURPOSE).hexdigest()}" for key_id in keyring.key_ids]


async def refuse_other_database(
    store: MessageStore, owners: OwnerStore, topics: InternalTopics, mark: DatabaseMark
) -> None:
    """Before a settler joins the group: it would take queues from those that have the right database.

    Raises ConfigError. Where Kafka does not tell now, whoever takes a queue over finds out.
    """
    with suppress(StoreError):
        for queue_id in await mark.find_others(range(topics.queues)):
            await find_position(store, owners, topics, queue_id)  # past what is not ours
        await mark.check(range(topics.queues))


class SealedOwnerStore:
    """OwnerStore. A reader of the op topic through it never sees a record that is not the owner's."""

    def __init__(self, inner: OwnerStore, op_topic: str, watch: SealWatch) -> None:
        self._inner = inner
        self._op_topic = op_topic
        self._watch = watch

    def open_reader(self, queue: MessageQueue, offset: int) -> QueueReader:
        reader = self._inner.open_reader(queue, offset)
        return _OpReader(reader, queue.queue_id, self._watch) if queue.topic == self._op_topic else reader

    def open_writer(self, transactional_ids: tuple[str, str]) -> BatchWriter:
        return _SealingWriter(self._inner.open_writer(transactional_ids), self._op_topic, self._watch.seals)

    def join_group(self, group: str, topic: str) -> GroupMember:
        return self._inner.join_group(group, topic)


class _OpReader:
    """QueueReader of the op topic."""

    def __init__(self, inner: QueueReader, queue_id: int, watch: SealWatch) -> None:
        self._inner = inner
        self._queue_id = queue_id
        self._watch = watch

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        result = await self._inner.get(max_count, max_wait_ms)
        messages = []
        for message in result.messages:
            value = self._watch.open(self._queue_id, message)
            if value is not None:
                messages.append(replace_members(message, value=value))
        is_empty = result.status is GetStatus.FOUND and not messages
        return result._replace(messages=messages, status=GetStatus.NO_MATCHED_MSG if is_empty else result.status)

    async def close(self) -> None:
        await self._inner.close()


class _SealingWriter:
    """BatchWriter. Values are as long again by at most 60 bytes."""

    def __init__(self, inner: BatchWriter, op_topic: str, seals: OpSeals) -> None:
        self._inner = inner
        self._op_topic = op_topic
        self._seals = seals

    async def fence(self) -> None:
        await self._inner.fence()

    async def put_all(self, batch: AtomicBatch) -> BatchResult:
        def finish(receipts: Sequence[Receipt]) -> list[Message]:
            return [self._seal(message) for message in batch.finish(receipts)]

        opening = None if batch.opening is None else self._seal(batch.opening)
        return await self._inner.put_all(replace(batch, finish=finish, opening=opening))

    def _seal(self, message: Message) -> Message:
        topic, key, value, headers, queue_id = (
            message.topic, message.key, message.value, message.headers, message.queue_id
        )  # fmt: skip
        if topic != self._op_topic or key is None or value is None:
            return message
        return Message(topic, key, self._seals.seal(queue_id, key, value), headers, queue_id)

    async def close(self) -> None:
        await self._inner.close()
