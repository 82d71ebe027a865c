"""Atomic batches: two transactional producers in strict turns, all calls in one thread, each with a time-out."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, StoreUnavailable
from bridge.fault_points import FaultPoint, reach
from bridge.store.kafka.client_thread import ClientThread
from bridge.store.kafka.options import ClientErrors, KafkaConfig
from bridge.store.kafka.rounds import LimitOf, no_limit
from bridge.store.kafka.transactional_producer import MOST_FLUSHES, TransactionalProducer
from bridge.store.results import AtomicBatch, BatchResult

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
        self.errors.clear()
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
