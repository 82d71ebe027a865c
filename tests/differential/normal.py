"""What two runs may differ in, and how it is taken out: the one place.

* Names: a topic becomes its kind, a queue the program's own number of it.
* Time: a timestamp that nobody asked for is the moment of the put or append; within ten minutes of the start it
  becomes `now`, others their distance from the start. Programs ask for none so near.
* Texts of errors are the client's: only their kind, the refusal and the culprit's topic count.
* A reader's own `min_offset` and `max_offset` are what its client last heard: not looked at. How its messages are
  shared out among its answers depends on what has been fetched: only all of them up to the stable offset count.
* Member ids and who has which queue are chosen by the assignor: only how many each has, and that none is left out.
* Markers are written after the commit has been answered: the executor waits for them.
* What follows a choice of the client's own is not generated: see `generator`.
"""

from collections.abc import Sequence
from typing import Any

from bridge.core.message import MessageQueue, Receipt, StoredMessage
from bridge.store.message_store import BatchResult, GetResult, PutResult
from tests.differential.program import QUEUES

NOTHING = "done"
_NEAR_MS = 600_000
_SHOWN_BYTES = 24


class Normal:
    """Results of one run as values that can be compared with another's."""

    def __init__(self, queues: Sequence[MessageQueue], kinds: Sequence[str], start_ms: int) -> None:
        self._kinds = {queue.topic: kind for queue, kind in zip(queues, kinds, strict=True)}
        self._queues = queues
        self._start_ms = start_ms

    def topic(self, name: str) -> str:
        """Its kind."""
        return self._kinds[name]

    def time(self, stored_ms: int) -> Any:
        """`now`, or the age at the start; times of the first years are as they are."""
        age_ms = self._start_ms - stored_ms
        if stored_ms < self._start_ms // 2:
            return ("at", stored_ms)
        return "now" if abs(age_ms) < _NEAR_MS else ("age", age_ms)

    def put(self, result: PutResult) -> Any:
        """Offset and time, or status and refusal."""
        if result.refusal is None and result.queue_offset >= 0:
            return (result.status.value, result.queue_offset, self.time(result.stored_ms))
        return (result.status.value, result.refusal and result.refusal.value, result.queue_offset, result.stored_ms)

    def receipt(self, receipt: Receipt) -> Any:
        """Topic, queue and offset."""
        for number, (topic, first) in enumerate(self._queues):
            if topic == receipt.topic and receipt.queue_id - first in range(QUEUES):
                return (number, receipt.queue_id - first, receipt.queue_offset)
        return receipt

    def batch(self, result: BatchResult) -> Any:
        """Receipts, and where its last record lies."""
        receipts = [self.receipt(receipt) for receipt in result.receipts]
        return (receipts, result.last_offset, self.time(result.last_stored_ms))

    def message(self, message: StoredMessage) -> Any:
        """Everything of it; long values by their beginning and length."""
        value = message.value
        if value is not None and len(value) > _SHOWN_BYTES:
            value = value[:_SHOWN_BYTES] + b"...%d" % len(value)
        headers = [tuple(header) for header in message.headers]
        return (message.queue_offset, message.key, value, headers, self.time(message.stored_ms))

    def get(self, result: GetResult) -> Any:
        """Everything of it."""
        messages = [self.message(message) for message in result.messages]
        return (result.status.value, messages, result.next_begin_offset, result.min_offset, result.max_offset)
