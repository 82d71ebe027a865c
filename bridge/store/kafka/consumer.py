"""Following one queue: a consumer with an explicit position, in a thread of its own."""

import asyncio
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka import Message as Record

from bridge.core.errors import BridgeError, QueueHalted, StoreUnavailable
from bridge.core.message import MessageQueue, StoredMessage
from bridge.store.kafka.client_thread import ClientThread
from bridge.store.kafka.errors import CLIENT_ERRORS, GONE, OUTSIDE_THE_LOG, describe, error_of, make_store_error
from bridge.store.kafka.look_up import make_stored
from bridge.store.kafka.options import POLL_S, ClientErrors, KafkaConfig, reader_options
from bridge.store.message_store import GetResult, GetStatus


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
            self._left = await self._get_more(max_count, max_wait_ms)
        given, self._left = _split(self._left, max_count)
        return given

    async def close(self) -> None:
        self._follower.is_closing = True
        await self._thread.close(self._follower.close)

    async def _get_more(self, max_count: int, max_wait_ms: int) -> GetResult:
        """A caller that is cancelled loses nothing: the next one gets what its read has found."""
        if self._running is None:
            self._running = self._thread.submit(lambda: self._follower.read(max_count, max_wait_ms))
        result = await asyncio.shield(self._running)
        self._running = None
        return result


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
        """See QueueReader.get."""
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
        give_up_at = time.monotonic() + max_wait_ms / 1000
        messages: list[StoredMessage] = []
        while not messages:
            self._raise_failure()
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
            self._errors.clear()
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

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _make_result(self, consumer: Consumer, messages: Sequence[StoredMessage]) -> GetResult:
        status = GetStatus.FOUND if messages else GetStatus.NO_NEW_MSG
        target = TopicPartition(self._queue.topic, self._queue.queue_id)
        minimum, maximum = consumer.get_watermark_offsets(target, cached=True)
        return GetResult(status, messages, self._position, max(minimum, 0), max(maximum, self._position))
