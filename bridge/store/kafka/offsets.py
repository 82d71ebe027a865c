"""Offsets of queues and of groups."""

import asyncio

from confluent_kafka import OFFSET_INVALID, ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec  # type: ignore[attr-defined]

from bridge.core.errors import StoreTimeout
from bridge.core.message import MessageQueue
from bridge.futures import take_error
from bridge.store.kafka.asker import Asker
from bridge.store.kafka.errors import SILENCE, error_of, make_store_error
from bridge.store.kafka.options import KafkaConfig
from bridge.store.results import QueueOffsets

_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_COMMITTED, _UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class OffsetClient:
    """Asks Kafka anew each time; half a millisecond when the three requests go out together."""

    def __init__(self, config: KafkaConfig) -> None:
        self._asker = Asker(config)
        self.errors = self._asker.errors
        self._is_stale = False
        self._running: dict[MessageQueue, asyncio.Task[QueueOffsets]] = {}
        self._waiting: dict[MessageQueue, asyncio.Task[QueueOffsets]] = {}

    async def get_offsets(self, queue: MessageQueue) -> QueueOffsets:
        """Minimum, last stable and maximum offset. Raises StoreError.

        While a queue is being asked about, all who come wait for the next asking together: what they get was
        asked for after they came.
        """
        shared = self._waiting.get(queue)
        if shared is None:
            before = self._running.get(queue)
            shared = asyncio.create_task(self._ask_after(before, queue))
            shared.add_done_callback(take_error)
            (self._running if before is None else self._waiting)[queue] = shared
        return await asyncio.shield(shared)

    async def _ask_after(self, before: "asyncio.Task[QueueOffsets] | None", queue: MessageQueue) -> QueueOffsets:
        if before is not None:
            await asyncio.wait([before])
            self._running[queue] = self._waiting.pop(queue)
        try:
            return await self._ask_offsets(queue)
        finally:
            del self._running[queue]

    async def _ask_offsets(self, queue: MessageQueue) -> QueueOffsets:
        minimum, stable, maximum = await asyncio.gather(
            self._find(queue, _EARLIEST, _UNCOMMITTED),
            self._find(queue, _LATEST, _COMMITTED),
            self._find(queue, _LATEST, _UNCOMMITTED),  # the true end, whatever is open
        )
        return QueueOffsets(minimum, max(stable, minimum), max(maximum, stable, minimum))

    async def get_offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First offset whose timestamp is not before; -1 if there is none. Raises StoreError."""
        return await self._find(queue, OffsetSpec.for_timestamp(max(timestamp_ms, 0)), _UNCOMMITTED)

    async def get_consume_offset(self, group: str, queue: MessageQueue) -> int:
        """What the group committed; -1 if nothing. Raises StoreError."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(*queue)])
        found = await self._asker.ask(
            lambda client, timeout_s: client.list_consumer_group_offsets([wanted], request_timeout=timeout_s)[group]
        )
        return max(_only(found), -1)

    async def put_consume_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commits for a group without members; with some, Kafka takes it from them alone. Raises StoreError."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(*queue, offset)])
        put = await self._asker.ask(
            lambda client, timeout_s: client.alter_consumer_group_offsets([wanted], request_timeout=timeout_s)[group]
        )
        _only(put)

    async def close(self) -> None:
        """Lets the client go."""
        await self._asker.close()

    async def _find(self, queue: MessageQueue, spec: OffsetSpec, isolation: IsolationLevel) -> int:
        """The client asks whom it once knew as leader, and would stay with that for minutes: after an error it is
        made to look anew, at once if somebody did answer."""
        if self._is_stale:
            await self._look_for_leaders()
        answer = await self._ask_leader(queue, spec, isolation)
        if isinstance(answer, KafkaException) and error_of(answer).code() not in SILENCE:
            await self._look_for_leaders()
            answer = await self._ask_leader(queue, spec, isolation)
        if isinstance(answer, KafkaException):
            self._is_stale = True
            raise make_store_error(error_of(answer)) from answer
        # A request without an answer in time comes back as a success, with this offset for every queue.
        if answer.offset == OFFSET_INVALID:
            self._is_stale = True
            raise StoreTimeout(f"{queue.topic}[{queue.queue_id}]: no answer to a question for its offsets")
        return int(answer.offset)

    async def _look_for_leaders(self) -> None:
        """All topics: a request that names one could create it."""
        await self._asker.run(lambda client, timeout_s: client.list_topics(timeout=timeout_s))
        self._is_stale = False

    async def _ask_leader(
        self, queue: MessageQueue, spec: OffsetSpec, isolation: IsolationLevel
    ) -> ListOffsetsResultInfo | KafkaException:
        target = TopicPartition(*queue)
        answers = await self._asker.ask_each(
            lambda client, timeout_s: {
                None: client.list_offsets({target: spec}, isolation_level=isolation, request_timeout=timeout_s)[target]
            }
        )
        return answers[None]


def _only(answer: ConsumerGroupTopicPartitions) -> int:
    """The offset of the one queue that was asked for."""
    assert answer.topic_partitions is not None
    place = answer.topic_partitions[0]
    if place.error is not None:
        raise make_store_error(place.error)
    return place.offset
