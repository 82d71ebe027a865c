"""A producer that does what a test says, for errors that a broker cannot be asked for."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_INVALID, TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

TIMED_OUT = KafkaError(KafkaError._TIMED_OUT, retriable=True)
FENCED = KafkaError(KafkaError._FENCED, fatal=True)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
PURGED = KafkaError(KafkaError._PURGE_QUEUE)


class Sent(NamedTuple):
    """A message on its way."""

    on_delivery: Callable[..., None] | None
    topic: str
    queue_id: int
    key: bytes | None
    value: bytes | None
    offset: int


class FakeReport:
    """A delivery report."""

    def __init__(self, sent: "Sent", offset: int | None, error: KafkaError | None = None) -> None:
        self._sent = sent
        self._place = (sent.topic, sent.queue_id, offset)
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | None:
        return self._sent.key

    def value(self) -> bytes | None:
        return self._sent.value

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int | None:
        return self._place[2]

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, 1_000


class ImpliedReport(FakeReport):
    """Of a message whose own answer was lost, while a later one says that it was written: with the client's time."""

    def offset(self) -> int | None:
        return OFFSET_INVALID

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 5_000_000


class StrayReport(FakeReport):
    """Names a queue that nobody wrote to."""

    def partition(self) -> int:
        return 99


class FakeProducer:
    """Reports in order at the next poll or flush. `failures`: what a call of that name raises next."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.options = options or {}
        self.calls: list[str] = []
        self.failures: dict[str, deque[BaseException]] = {}
        self.report_errors: dict[str, deque[KafkaError]] = {}
        self.capacity = 1_000_000
        self.is_silent = False
        self.is_garbling = False  # reports name other keys
        self.make_report = FakeReport
        self.is_reversed = False  # what is reported together is reported backwards
        self.polled = threading.Event()
        self.reports_each = 1_000_000  # at most so many at a poll or flush
        self._queued: deque[Sent] = deque()
        self._offset = 0
        self._has_begun = False

    def fail(self, call: str, *errors: KafkaError | BaseException) -> None:
        """The next calls of this name raise these."""
        raised = [KafkaException(error) if isinstance(error, KafkaError) else error for error in errors]
        self.failures.setdefault(call, deque()).extend(raised)

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, queue_id: int, on_delivery: Any, *_: object
    ) -> None:
        self._do("produce")
        if len(self._queued) >= self.capacity:
            raise BufferError
        self._queued.append(Sent(on_delivery, topic, queue_id, key, value, self._offset))
        self._offset += 1

    def poll(self, _: float = 0) -> int:
        self.polled.set()
        self._raise("poll")
        return self._report()

    def flush(self, _: float = 0) -> int:
        self._do("flush")
        self._report()
        return len(self._queued)

    def purge(self) -> None:
        for sent in self._queued:
            if sent.on_delivery is not None:
                sent.on_delivery(PURGED, FakeReport(sent, None, PURGED))
        self._queued.clear()

    def init_transactions(self, _: float) -> None:
        self._do("init")

    def begin_transaction(self) -> None:
        if self._has_begun:
            self._do("begin again")
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._do("begin")
        self._has_begun = True

    def commit_transaction(self, _: float) -> None:
        self._do("commit")
        self._has_begun = False

    def abort_transaction(self, _: float) -> None:
        self._do("abort")
        self._has_begun = False

    def list_topics(self, _: str, timeout: float) -> None:
        self._do("list")

    def __len__(self) -> int:
        return len(self._queued)

    def _report(self) -> int:
        if self.is_silent:
            return 0
        count = min(len(self._queued), self.reports_each)
        if self.is_reversed:
            self._queued.reverse()
        for _ in range(count):
            sent = self._queued.popleft()
            if self.is_garbling:
                sent = sent._replace(key=b"another")
            errors = self.report_errors.get(sent.topic)
            error = errors.popleft() if errors else None
            if sent.on_delivery is not None:
                sent.on_delivery(error, self.make_report(sent, sent.offset if error is None else None, error))
        return count

    def _do(self, call: str) -> None:
        self.calls.append(call)
        self._raise(call)

    def _raise(self, call: str) -> None:
        if self.failures.get(call):
            raise self.failures[call].popleft()
