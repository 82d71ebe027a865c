"""Atomic batches: two transactional producers in strict turns, each call with a time-out."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeVar

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Report

from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, StoreUnavailable
from bridge.core.message import Message, Receipt
from bridge.core.properties import count_record_bytes
from bridge.fault_points import FaultPoint, reach
from bridge.store.kafka.client import CLIENT_ERRORS, FENCED, ClientThread, describe, error_of, is_abortable, make_fatal
from bridge.store.kafka.options import POLL_S, ClientErrors, KafkaConfig, ProducerFactory, transaction_options
from bridge.store.message_store import AtomicBatch, BatchKind, BatchResult


class BatchPoints(NamedTuple):
    """In the order in which they are passed; `sent_real` None: such a batch has no messages before its op messages."""

    sent_real: FaultPoint | None
    sent_all: FaultPoint
    committed: FaultPoint


POINTS_OF: Mapping[BatchKind, BatchPoints] = {
    BatchKind.SETTLE: BatchPoints(FaultPoint.SETTLE_SENT_REAL, FaultPoint.SETTLE_SENT_ALL, FaultPoint.SETTLE_COMMITTED),
    BatchKind.BLOCK: BatchPoints(None, FaultPoint.BLOCK_SENT_ALL, FaultPoint.BLOCK_COMMITTED),
    BatchKind.RETRY: BatchPoints(FaultPoint.RETRY_SENT_REAL, FaultPoint.RETRY_SENT_ALL, FaultPoint.RETRY_COMMITTED),
    BatchKind.PARK: BatchPoints(FaultPoint.PARK_SENT_COPY, FaultPoint.PARK_SENT_ALL, FaultPoint.PARK_COMMITTED),
    BatchKind.CARRY_FORWARD: BatchPoints(None, FaultPoint.CARRY_SENT_ALL, FaultPoint.CARRY_COMMITTED),
    BatchKind.POSITION: BatchPoints(None, FaultPoint.POSITION_SENT_ALL, FaultPoint.POSITION_COMMITTED),
    BatchKind.TAKE_OVER: BatchPoints(None, FaultPoint.TAKE_OVER_SENT_ALL, FaultPoint.TAKE_OVER_COMMITTED),
}


REQUEST_BYTES = 900_000  # of one request to one queue; below Kafka's default `max.message.bytes`
MOST_ROUNDS = 200  # more than the messages of one transaction, and far within the time-out of a Kafka transaction

LimitOf = Callable[[str], int | None]
"""`max.message.bytes` of a topic; None if it is not known."""


def no_limit(_: str) -> int | None:
    """Where nobody knows of a topic with a limit of its own."""
    return None


def split_rounds(messages: Sequence[Message], limit_of: LimitOf) -> list[list[Message]]:
    """Rounds to be sent one after the other; order within each queue is kept.

    The client fills requests up to one size, whatever the topic, and a topic that takes less refuses such a request
    whole. Of each queue of such a topic a round holds no more than one request may; all others go with the first.
    """
    limits = {topic: limit_of(topic) for topic in {message.topic for message in messages}}
    small = {topic: limit for topic, limit in limits.items() if limit is not None and limit < REQUEST_BYTES}
    if not small:
        return [list(messages)]
    rounds: list[list[Message]] = [[]]
    filled: dict[tuple[str, int], tuple[int, int]] = {}
    for message in messages:
        limit = small.get(message.topic)
        number = 0
        if limit is not None:
            place, size = (message.topic, message.queue_id), count_record_bytes(message)
            number, used = filled.get(place, (0, 0))
            if used and used + size > limit:
                number, used = number + 1, 0
            filled[place] = number, used + size
            if number == len(rounds):
                rounds.append([])
        rounds[number].append(message)
    return rounds


DeliveryCallback = Callable[[KafkaError | None, Report], None]

_UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - the client's public name for it
_STATE = KafkaError._STATE  # noqa: SLF001
MOST_FLUSHES = 3  # each as long as any call: with two of them below the time-out of a Kafka transaction
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


class _Purged(Exception):
    """The client itself failed the Kafka transaction, and it was aborted: nobody is to blame."""


class _QueueReports:
    """Delivery reports of one queue: they come in the order in which its messages were produced."""

    __slots__ = ("last", "of", "offsets")

    def __init__(self, of: "_Reports") -> None:
        self.of = of
        self.offsets: list[int | None] = []
        self.last: Report | None = None

    def take(self, error: KafkaError | None, report: Report) -> None:
        """The delivery callback."""
        self.offsets.append(report.offset())
        self.last = report
        if error is not None:
            self.of.note_error(error, report)


class _Reports:
    """Delivery reports of some messages."""

    __slots__ = ("culprit", "error", "queues")

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], _QueueReports] = {}
        self.error: KafkaError | None = None
        self.culprit: str | None = None

    def of_queue(self, topic: str, queue_id: int) -> _QueueReports:
        """Those of one queue, whose messages come in their order."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = self.queues[topic, queue_id] = _QueueReports(self)
        return queue

    def note_error(self, error: KafkaError, report: Report) -> None:
        """The first one counts, but for what the client threw away because of another."""
        if self.error is None or self.error.code() in _PURGED:
            self.error = error
            self.culprit = None if error.code() in _PURGED else report.topic()

    def make_receipts(self, messages: Sequence[Message]) -> list[Receipt]:
        """One for each message. An offset the log does not know any more (a repeat it recognised) is None."""
        turns = {place: iter(queue.offsets) for place, queue in self.queues.items()}
        receipts = []
        for message in messages:
            offset = next(turns[message.topic, message.queue_id])
            known = None if offset is None or offset < 0 else offset
            receipts.append(Receipt(message.topic, message.queue_id, known))
        return receipts

    def find_missing(self, messages: Sequence[Message]) -> str:
        """The topics that have not answered for all their messages."""
        left = Counter(message.topic for message in messages)
        for (topic, _), queue in self.queues.items():
            left[topic] -= len(queue.offsets)
        return ", ".join(sorted(topic for topic, count in left.items() if count > 0)) or "none"


class TransactionalProducer:
    """Writes batches. Raises BatchAborted after a clean abort; after anything else it must be closed.

    `limit_of`: bytes that a request to a topic may have.
    """

    def __init__(
        self,
        config: KafkaConfig,
        transactional_id: str,
        limit_of: LimitOf,
        errors: ClientErrors,
        make_producer: ProducerFactory = Producer,
    ) -> None:
        self._make_producer = make_producer
        self._config = config
        self._id = transactional_id
        self._limit_of = limit_of
        self._errors = errors
        self._call_s = config.call_timeout_ms / 1000
        self._producer: Producer | None = None

    def init(self, timeout_s: float) -> None:
        """Ends or fences whatever an earlier producer of this id left. Raises StoreFenced, BatchOutcomeUnknown."""
        options = transaction_options(self._config, self._errors, self._id, REQUEST_BYTES)
        self._producer = self._make_producer(options)
        try:
            self._producer.init_transactions(timeout_s)
        except CLIENT_ERRORS as raised:
            raise make_fatal(error_of(raised)) from raised

    def write(self, batch: AtomicBatch) -> BatchResult:
        """The batch, committed.

        Once more if the client fails it for a reason of its own: after a refused message it has lost count of
        the sequence numbers of that queue, notices that with the next batch, and asks for an abort and a new epoch.
        """
        try:
            return self._write(batch)
        except _Purged:
            try:
                return self._write(batch)
            except _Purged as purged:
                raise BatchAborted(str(purged)) from purged

    def close(self) -> None:
        """Lets the client go. An open Kafka transaction is left to the successor's `init`, or its time-out."""
        if self._producer is not None:
            self._producer.purge()
        self._producer = None

    def _write(self, batch: AtomicBatch) -> BatchResult:
        """Messages, the records that close the batch, consume offsets, commit."""
        producer = self._producer
        assert producer is not None
        points = POINTS_OF[batch.kind]
        rounds = split_rounds(batch.messages, self._limit_of)
        if len(rounds) > MOST_ROUNDS:
            raise BatchAborted(f"not begun: {len(rounds)} requests one after the other", rounds[-1][-1].topic)
        try:
            producer.begin_transaction()
            receipts = self._put(producer, rounds, batch.opening).make_receipts(batch.messages)
            if batch.messages and points.sent_real is not None:
                reach(points.sent_real)
            closing = batch.finish(receipts)
            last = self._put_closing(producer, closing)
            reach(points.sent_all)
            try:
                batch.check_last(_offset_of(last))
            except BatchAborted:
                producer.abort_transaction(self._call_s)
                raise
            producer.commit_transaction(self._call_s)
            reach(points.committed)
        except CLIENT_ERRORS as raised:
            self._give_up(producer, error_of(raised), None)
        return _make_result(receipts, last)

    def _put(self, producer: Producer, rounds: Sequence[Sequence[Message]], opening: Message | None) -> _Reports:
        reports = _Reports()
        sent: list[Message] = [] if opening is None else [opening]
        is_taken = self._produce_all(producer, sent, reports)
        for messages in rounds:
            is_taken = is_taken and self._produce_all(producer, messages, reports)
            sent += messages
            self._flush(producer, reports, sent, is_taken=is_taken)
        return reports

    def _put_closing(self, producer: Producer, messages: Sequence[Message]) -> Report | None:
        """The report of the last one, the only one asked for; should another fail, the commit is refused."""
        reports = _Reports()
        last = messages[-1]
        is_taken = self._produce_all(producer, messages[:-1], None) and self._produce_all(producer, [last], reports)
        self._flush(producer, reports, [last], is_taken=is_taken)
        return reports.queues[last.topic, last.queue_id].last

    def _produce_all(self, producer: Producer, messages: Iterable[Message], reports: _Reports | None) -> bool:
        """False when an earlier message has failed the Kafka transaction meanwhile. `reports`: who is told of each."""
        produce, on_delivery = producer.produce, None
        for message in messages:
            topic, queue_id, headers = message.topic, message.queue_id, message.headers
            listed = headers if type(headers) is list else list(headers)  # the client takes no other sequence
            at_ms = message.timestamp_ms or 0
            if reports is not None:
                on_delivery = reports.of_queue(topic, queue_id).take
            try:
                produce(topic, message.value, message.key, queue_id, on_delivery, None, at_ms, listed)
            except (BufferError, *CLIENT_ERRORS) as raised:
                if not self._produce_after(raised, producer, message, on_delivery):
                    return False
        return True

    def _produce_after(
        self, raised: Exception, producer: Producer, message: Message, on_delivery: DeliveryCallback | None
    ) -> bool:
        """Produces a message that the client has not taken at once; False as above."""
        try:
            if not isinstance(raised, BufferError):
                raise raised
            self._hand_over(producer, message, on_delivery)
        except CLIENT_ERRORS as refused:
            error = error_of(refused)
            if error.code() == _STATE:
                return False
            if error.code() != _UNKNOWN_PARTITION:
                self._give_up(producer, error, message.topic)
            self._hand_over_anew(producer, message, on_delivery)
        return True

    def _hand_over_anew(self, producer: Producer, message: Message, on_delivery: DeliveryCallback | None) -> None:
        """The topic may have got more partitions than this client knows."""
        try:
            producer.list_topics(message.topic, timeout=self._call_s)
            self._hand_over(producer, message, on_delivery)
        except CLIENT_ERRORS as raised:
            self._give_up(producer, error_of(raised), message.topic)

    def _hand_over(self, producer: Producer, message: Message, on_delivery: DeliveryCallback | None) -> None:
        give_up_at = time.monotonic() + self._call_s
        while True:
            try:
                producer.produce(
                    message.topic, message.value, message.key, message.queue_id,
                    on_delivery, None, message.timestamp_ms or 0, list(message.headers),
                )  # fmt: skip
            except BufferError:
                if time.monotonic() > give_up_at:
                    raise BatchOutcomeUnknown("no place in the client's queue") from None
                producer.poll(POLL_S)
            else:
                return

    def _flush(self, producer: Producer, reports: _Reports, messages: Sequence[Message], *, is_taken: bool) -> None:
        """Waits for all reports; ends the client's wait for fuller requests."""
        left = self._flush_while_moving(producer, reports)
        if reports.error is not None:
            self._give_up(producer, reports.error, reports.culprit)
        if not is_taken:
            producer.commit_transaction(self._call_s)  # cannot succeed any more, but says why
        if left or not is_taken:
            raise BatchOutcomeUnknown(f"not written in time; without an answer: {reports.find_missing(messages)}")

    def _flush_while_moving(self, producer: Producer, reports: _Reports) -> int:
        """How many messages are left. A broker that takes some of a hundred queues one by one is busy, not away."""
        left = len(producer)
        for _ in range(MOST_FLUSHES):
            before, left = left, producer.flush(self._call_s)
            if left in (0, before) or reports.error is not None:
                break
        return left

    def _give_up(self, producer: Producer, error: KafkaError, topic: str | None) -> NoReturn:
        """Aborts if that is clean, else dies. Raises BatchAborted, _Purged, StoreFenced, BatchOutcomeUnknown."""
        found = _find_reason(producer, error)
        if not is_abortable(found):
            raise make_fatal(found)
        try:
            producer.abort_transaction(self._call_s)
        except CLIENT_ERRORS as raised:
            reason = describe(error) if topic is None else f"{topic}: {describe(error)}"
            raise make_fatal(error_of(raised), reason) from raised
        if error.code() in _PURGED:
            raise _Purged(describe(error))
        raise BatchAborted(describe(error), topic)


def _find_reason(producer: Producer, error: KafkaError) -> KafkaError:
    """What is behind a bare "fatal": the client reports it at the next poll. And whether what it threw away was that
    of an owner: it says so to whoever begins within a Kafka transaction that has failed."""
    try:
        if error.code() == KafkaError._FATAL:  # noqa: SLF001
            producer.poll(0)
        elif error.code() in _PURGED:
            producer.begin_transaction()
    except CLIENT_ERRORS as raised:
        found = error_of(raised)
        if error.code() not in _PURGED or found.code() in FENCED:
            return found
    return error


def _offset_of(last: Report | None) -> int | None:
    offset = None if last is None else last.offset()
    return None if offset is None or offset < 0 else offset


def _make_result(receipts: Sequence[Receipt], last: Report | None) -> BatchResult:
    offset = _offset_of(last)
    if last is None or offset is None:  # its own answer was lost: then the time is this machine's
        return BatchResult(receipts, None, -1)
    return BatchResult(receipts, offset, last.timestamp()[1])


T = TypeVar("T")

_CALLS_OF_A_BATCH = 2 * (1 + MOST_FLUSHES) + 4  # twice produce and flushes, offsets, commit, abort; one for luck
FENCE_TIMEOUT_S = 10.0  # the broker may first have to end what it finds open


class KafkaBatchWriter:
    """BatchWriter. `limit_of`: `max.message.bytes` of a topic, as far as known."""

    def __init__(self, config: KafkaConfig, transactional_ids: tuple[str, str], limit_of: LimitOf = no_limit) -> None:
        self.errors = ClientErrors()
        first, second = transactional_ids
        self._producers = (
            TransactionalProducer(config, first, limit_of, self.errors),
            TransactionalProducer(config, second, limit_of, self.errors),
        )
        self._watch_s = _CALLS_OF_A_BATCH * config.call_timeout_ms / 1000
        self._turn = 0
        self._is_usable = False
        self._thread = ClientThread(f"kafka-writer-{first}")

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._thread.is_closed

    async def fence(self) -> None:
        self._is_usable = False
        await self._watch(self._fence, 2 * FENCE_TIMEOUT_S)
        self._turn = 0
        self._is_usable = True

    async def put_all(self, batch: AtomicBatch) -> BatchResult:
        if not self._is_usable:
            raise StoreUnavailable("the writer is not fenced, at work, or dead")
        self._is_usable = False  # for good, if this task is cancelled below
        producer = self._producers[self._turn]
        try:
            result = await self._watch(lambda: producer.write(batch), self._watch_s)
        except BatchAborted:
            self._is_usable = True
            raise
        self._turn = 1 - self._turn
        self._is_usable = True
        self.errors.last_error = None
        return result

    async def close(self) -> None:
        self._is_usable = False
        await self._thread.close(self._close)

    async def _watch(self, call: Callable[[], T], limit_s: float) -> T:
        """A call that hangs in spite of its time-outs kills the writer, not the loop."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._thread.submit(call)
        except TimeoutError:
            raise BatchOutcomeUnknown(f"no answer from the client within {limit_s:.0f} s") from None

    def _fence(self) -> None:
        first, second = self._producers
        first.init(FENCE_TIMEOUT_S)
        reach(FaultPoint.TAKE_OVER_HALF_FENCED)
        second.init(FENCE_TIMEOUT_S)

    def _close(self) -> None:
        for producer in self._producers:
            producer.close()
