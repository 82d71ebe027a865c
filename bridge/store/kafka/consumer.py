"""Reading from Kafka: following one queue, and looking up at any offset. Each has a thread of its own."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from typing import NamedTuple, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka import Message as Record

from bridge.core.errors import BridgeError, QueueHalted, StoreTimeout, StoreUnavailable
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.store.kafka.client import (
    CLIENT_ERRORS,
    GONE,
    OUTSIDE_THE_LOG,
    ClientThread,
    Silence,
    describe,
    error_of,
    let_go,
    make_store_error,
)
from bridge.store.kafka.options import POLL_S, ClientErrors, KafkaConfig, look_up_options, reader_options
from bridge.store.message_store import GetResult, GetStatus

# --- reads at any offset: a consumer of its own, assigned only while it is read, in a thread of its own ---

T = TypeVar("T")
_LOG = structlog.get_logger()

NEARBY = 300  # reading so many records for nothing costs what another seek would: 0.6 ms
_CONSUME_MANY = 500
_RANGE_BYTES = 16 * 1024 * 1024  # one read of a range holds no more, and one message


class Range(NamedTuple):
    """Committed messages of a range, and where it was read to."""

    messages: list[StoredMessage]
    next_offset: int


# Called as a method in a loop, it would not raise: Python then leaves out to ask whether there was an error, and what
# is returned beside one crashes the process.
_ask_headers = methodcaller("headers")


def make_stored(record: Record) -> StoredMessage:
    """A record of the client as the ports give it; without headers if a name among them is no UTF-8."""
    offset = record.offset()
    assert offset is not None
    try:
        headers = _ask_headers(record) or ()
    except (SystemError, UnicodeDecodeError):
        headers = ()
    return StoredMessage(offset, record.key(), record.value(), headers, record.timestamp()[1])


def split_runs(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    """Ascending offsets in runs that are worth one read each."""
    start = 0
    for place in range(1, len(offsets)):
        if offsets[place] - offsets[place - 1] > NEARBY:
            yield offsets[start:place]
            start = place
    yield offsets[start:]


class LookUpClient:
    """One read at a time. Each has a deadline that counts from when it was asked for."""

    def __init__(self, config: KafkaConfig) -> None:
        self.errors = ClientErrors()
        self._silence = Silence()
        self._config = config
        self._thread = ClientThread("kafka-look-up")
        self._consumer: Consumer | None = None

    async def get_range(self, queue: MessageQueue, start: int, end: int, max_count: int) -> Range:
        """Up to `max_count` committed messages of [start, end), fewer where they are large.

        Raises StoreTimeout, StoreUnavailable.
        """
        give_up_at = self._give_up_at()
        wanted = range(start, end)
        return await self._thread.submit(
            lambda: self._run(queue, lambda: self._read_range(queue, wanted, max_count, give_up_at))
        )

    async def get_each(
        self, queue: MessageQueue, offsets: Sequence[int], max_bytes: int | None = None
    ) -> dict[int, StoredMessage]:
        """The ascending offsets among these that hold a committed message, up to `max_bytes`; see MessageStore.

        Raises StoreTimeout, StoreUnavailable.
        """
        give_up_at = self._give_up_at()
        return await self._thread.submit(
            lambda: self._run(queue, lambda: self._read_each(queue, offsets, max_bytes, give_up_at))
        )

    async def close(self) -> None:
        """Ends the thread."""
        await self._thread.close(self._close)

    def _give_up_at(self) -> float:
        return time.monotonic() + self._config.read_timeout_ms / 1000

    # --- in the client's thread ---

    def _run(self, queue: MessageQueue, read: Callable[[], T]) -> T:
        """After an error of the client the next read gets a new one, and when nobody has answered for too long."""
        began = self._silence.now()
        try:
            result = read()
        except CLIENT_ERRORS as raised:
            self._drop()
            raise make_store_error(error_of(raised)) from raised
        except StoreTimeout:
            if self._silence.go_on(queue, began):
                _LOG.error("kafka_look_up_renewed", topic=queue.topic, queue=queue.queue_id)
                self._drop()
            raise
        self._silence.end(queue)
        self.errors.last_error = None
        return result

    def _drop(self) -> None:
        if self._consumer is not None:
            let_go(self._consumer.close)
        self._consumer = None

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(look_up_options(self._config, self.errors))
        return self._consumer

    def _read_range(self, queue: MessageQueue, wanted: range, max_count: int, give_up_at: float) -> Range:
        cursor = _Cursor(self._open(), queue, give_up_at)
        messages: list[StoredMessage] = []
        size = 0
        try:
            cursor.go_to(wanted.start)
            while cursor.position < wanted.stop and len(messages) < max_count and size < _RANGE_BYTES:
                records = cursor.read(max_count - len(messages))
                read = [make_stored(record) for record in records if (record.offset() or 0) < wanted.stop]
                size += sum(map(count_stored_bytes, read))
                messages += read
        finally:
            cursor.close()
        return Range(messages, min(cursor.position, wanted.stop))

    def _read_each(
        self, queue: MessageQueue, offsets: Sequence[int], max_bytes: int | None, give_up_at: float
    ) -> dict[int, StoredMessage]:
        cursor = _Cursor(self._open(), queue, give_up_at)
        found: dict[int, StoredMessage] = {}
        size = 0
        try:
            for run in split_runs(offsets):
                wanted = set(run)
                cursor.go_to(run[0])
                while cursor.position <= run[-1]:
                    for record in cursor.read(min(run[-1] - cursor.position + 1, _CONSUME_MANY)):
                        if record.offset() in wanted:
                            message = make_stored(record)
                            found[message.queue_offset] = message
                            size += count_stored_bytes(message)
                            if max_bytes is not None and size >= max_bytes:
                                return found
        finally:
            cursor.close()
        return found


class _Cursor:
    """A position in one queue, moved by seeks and reads."""

    def __init__(self, consumer: Consumer, queue: MessageQueue, give_up_at: float) -> None:
        self.position = -1
        self._consumer = consumer
        self._queue = queue
        self._give_up_at = give_up_at

    def go_to(self, offset: int) -> None:
        target = TopicPartition(self._queue.topic, self._queue.queue_id, offset)
        if self.position < 0:
            self._consumer.assign([target])
        else:
            self._consumer.seek(target)
        self.position = offset

    def read(self, max_count: int) -> list[Record]:
        """What comes next; may be nothing but a moved position."""
        first = self._consumer.poll(POLL_S)
        if first is None:
            if time.monotonic() > self._give_up_at:
                raise StoreTimeout(f"{self._queue.topic}[{self._queue.queue_id}]: no answer at {self.position}")
            return []
        rest = self._consumer.consume(max_count - 1, 0) if max_count > 1 else []
        return [record for record in [first, *rest] if self._take(record)]

    def close(self) -> None:
        """Without this the client would fetch on, at the end of a queue a thousand times a second."""
        self._consumer.unassign()

    def _take(self, record: Record) -> bool:
        error, offset = record.error(), record.offset()
        if error is None:
            assert offset is not None
            if offset < self.position:
                return False
            self.position = offset + 1
            return True
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
            self.position = max(self.position, offset or 0)
        elif error.code() in GONE | OUTSIDE_THE_LOG:
            raise StoreUnavailable(f"{self._queue.topic}[{self._queue.queue_id}]: {describe(error)}")
        return False


# --- following one queue: a consumer with an explicit position, in a thread of its own ---


class KafkaQueueReader:
    """QueueReader. Its first error ends it: every later `get` raises the same."""

    def __init__(self, config: KafkaConfig, queue: MessageQueue, offset: int) -> None:
        self.errors = ClientErrors()
        self._queue = queue
        self._thread = ClientThread(f"kafka-reader-{queue.topic}-{queue.queue_id}")
        self._follower = _Follower(config, queue, offset, self.errors)
        self._running: asyncio.Future[GetResult] | None = None
        self._left: GetResult | None = None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._thread.is_closed

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        if self._left is None:
            # a caller that is cancelled loses nothing: the next one gets what its read has found
            if self._running is None:
                self._running = self._thread.submit(lambda: self._follower.read(max_count, max_wait_ms))
            result = await asyncio.shield(self._running)
            self._running = None
            self._left = result
        given, self._left = _split(self._left, max_count)
        return given

    async def close(self) -> None:
        self._follower.is_closing = True
        await self._thread.close(self._follower.close)


def _split(result: GetResult, max_count: int) -> tuple[GetResult, GetResult | None]:
    """At most `max_count` messages, and the rest if there is one."""
    if len(result.messages) <= max_count:
        return result, None
    given, rest = result.messages[:max_count], result.messages[max_count:]
    first = result._replace(messages=given, next_begin_offset=rest[0].queue_offset)
    return first, result._replace(messages=rest)


class _Follower:
    """The consumer and its position; lives in the reader's thread."""

    def __init__(self, config: KafkaConfig, queue: MessageQueue, offset: int, errors: ClientErrors) -> None:
        self.is_closing = False
        self._config = config
        self._queue = queue
        self._errors = errors
        self._position = offset
        self._consumer: Consumer | None = None
        self._failure: BridgeError | None = None

    def read(self, max_count: int, max_wait_ms: int) -> GetResult:
        try:
            return self._read(self._open(), max_count, max_wait_ms)
        except CLIENT_ERRORS as raised:
            self._failure = make_store_error(error_of(raised))
            raise self._failure from raised

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _read(self, consumer: Consumer, max_count: int, max_wait_ms: int) -> GetResult:
        give_up_at, began = time.monotonic() + max_wait_ms / 1000, self._position
        messages: list[StoredMessage] = []
        while not messages and self._position == began:  # who reads to an end that markers hold need not wait there
            if self._failure is not None:
                raise self._failure
            left_s = give_up_at - time.monotonic()
            first = consumer.poll(min(max(left_s, 0), POLL_S))
            self._look_for_loss()
            if first is not None:
                # the rest of what is here: asking for more with a time-out would wait until all have come
                rest = consumer.consume(max_count - 1, 0) if max_count > 1 else []
                messages = self._take([first, *rest])
            elif left_s <= 0 or self.is_closing:
                break
        return self._make_result(consumer, messages)

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(reader_options(self._config, self._errors))
            self._consumer.assign([TopicPartition(self._queue.topic, self._queue.queue_id, self._position)])
        return self._consumer

    def _take(self, records: Sequence[Record]) -> list[StoredMessage]:
        """The messages up to the first error, which is raised by the next read."""
        messages: list[StoredMessage] = []
        for record in records:
            error = record.error()
            if error is None:
                messages.append(make_stored(record))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
                self._position = max(self._position, record.offset() or 0)
            elif (failure := self._find_failure(error)) is not None:
                self._failure = failure
                break
        if messages:
            self._position = max(self._position, messages[-1].queue_offset + 1)
            self._errors.last_error = None
        return messages

    def _find_failure(self, error: KafkaError) -> BridgeError | None:
        """None for what the client gets over by itself."""
        what = f"{self._queue.topic}[{self._queue.queue_id}] at {self._position}: {describe(error)}"
        if error.code() in OUTSIDE_THE_LOG:
            return QueueHalted(what)
        return StoreUnavailable(what) if error.code() in GONE or error.fatal() else None

    def _look_for_loss(self) -> None:
        """A deleted queue is reported to `error_cb`, not as a record."""
        if self._errors.codes & GONE:
            self._failure = StoreUnavailable(f"{self._queue.topic}[{self._queue.queue_id}]: {self._errors.last_error}")

    def _make_result(self, consumer: Consumer, messages: Sequence[StoredMessage]) -> GetResult:
        status = GetStatus.FOUND if messages else GetStatus.NO_NEW_MSG
        target = TopicPartition(self._queue.topic, self._queue.queue_id)
        minimum, maximum = consumer.get_watermark_offsets(target, cached=True)
        return GetResult(status, messages, self._position, max(minimum, 0), max(maximum, self._position))
