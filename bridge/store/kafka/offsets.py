"""Offsets of queues and of groups."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec  # type: ignore[attr-defined]

from bridge.core.errors import StoreTimeout
from bridge.core.message import MessageQueue
from bridge.store.kafka.admin import Asker
from bridge.store.kafka.errors import COORDINATOR_AWAY, SILENCE, error_of, make_store_error
from bridge.store.kafka.options import POLL_S, ClientErrors, KafkaConfig, group_options
from bridge.store.message_store import QueueOffsets
from bridge.turns import take_error

_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_LEADERS_S = 300.0  # the client forgets them after three times that
_COMMITTED, _UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class OffsetClient:
    """Asks Kafka anew each time; half a millisecond when the three requests go out together."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._asker = Asker(config)
        self.errors = self._asker.errors
        self._led: frozenset[MessageQueue] = frozenset()
        self._led_until = 0.0
        self._led_by = 0  # the client that knows these leaders: a new one knows none
        self._look: asyncio.Task[None] | None = None
        self._alone = asyncio.Lock()
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

    async def get_consume_offsets(self, group: str, queues: Sequence[MessageQueue]) -> Mapping[MessageQueue, int]:
        """What the group committed; -1 where nothing. Raises StoreError.

        A consumer asks, 60 ms with its beginning: an admin client that gets NOT_COORDINATOR for this request ends
        the process with a segmentation fault (librdkafka 2.16, `rd_kafka_handle_OffsetFetch` without a group).
        """
        places = await self._asker.run(lambda _, __: self._ask_coordinator(group, queues))
        if (error := next((place.error for place in places if place.error is not None), None)) is not None:
            raise make_store_error(error)
        return {queue: max(place.offset, -1) for queue, place in zip(queues, places, strict=True)}

    async def put_consume_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commits for a group without members; with some, Kafka takes it from them alone. Raises StoreError."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(*queue, offset)])
        give_up_at = self._give_up_at()
        while (error := await self._try_put(wanted)) is not None:
            if not _is_worth_a_retry(error, give_up_at):
                raise make_store_error(error)
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Lets the client go."""
        if self._look is not None:
            await asyncio.wait([self._look])
        await self._asker.close()

    async def _find(self, queue: MessageQueue, spec: OffsetSpec, isolation: IsolationLevel) -> int:
        """The client asks whom it once knew as leader, and would stay with that for minutes: after an error it is
        made to look anew, at once if somebody did answer."""
        answer = await self._ask_leader(queue, spec, isolation)
        if isinstance(answer, KafkaException) and error_of(answer).code() not in SILENCE:
            self._led = frozenset()
            answer = await self._ask_leader(queue, spec, isolation)
        if isinstance(answer, KafkaException):
            self._led = frozenset()
            raise make_store_error(error_of(answer)) from answer
        # A request without an answer in time comes back as a success, with this offset for every queue.
        if answer.offset == OFFSET_INVALID:
            self._led = frozenset()
            raise StoreTimeout(f"{queue.topic}[{queue.queue_id}]: no answer to a question for its offsets")
        return int(answer.offset)

    def _give_up_at(self) -> float:
        return time.monotonic() + self._config.read_timeout_ms / 1000

    async def _try_put(self, wanted: ConsumerGroupTopicPartitions) -> KafkaError | None:
        name = wanted.group_id
        answers: dict[str | None, ConsumerGroupTopicPartitions | KafkaException] = await self._asker.ask_each(
            lambda client, timeout_s: {
                None: client.alter_consumer_group_offsets([wanted], request_timeout=timeout_s)[name]
            }
        )
        answer = answers[None]
        if isinstance(answer, KafkaException):
            return error_of(answer)
        assert answer.topic_partitions is not None
        (place,) = answer.topic_partitions
        return place.error

    def _ask_coordinator(self, group: str, queues: Sequence[MessageQueue]) -> Sequence[TopicPartition]:
        wanted = [TopicPartition(*queue) for queue in queues]
        give_up_at = self._give_up_at()
        consumer = Consumer(group_options(self._config, ClientErrors(), group))
        try:
            while True:
                try:
                    places = consumer.committed(wanted, timeout=give_up_at - time.monotonic())
                except KafkaException as raised:
                    if not _is_worth_a_retry(error_of(raised), give_up_at):
                        raise
                else:
                    return places
                time.sleep(POLL_S)  # meanwhile the client looks for the coordinator
        finally:
            consumer.close()

    async def _ask_leader(
        self, queue: MessageQueue, spec: OffsetSpec, isolation: IsolationLevel
    ) -> ListOffsetsResultInfo | KafkaException:
        """Asks when the client knows the leader, else alone.

        A question for a leader it does not know is followed up by two of its threads at once, and ends the process
        with a segmentation fault if the answer to another such question comes meanwhile (librdkafka 2.16,
        `rd_kafka_topic_partition_list_query_leaders_async`).
        """
        if not self._knows_leader(queue):
            await self._look_for_leaders()
        if self._knows_leader(queue):
            return await self._ask(queue, spec, isolation)
        async with self._alone:
            return await self._ask(queue, spec, isolation)

    def _knows_leader(self, queue: MessageQueue) -> bool:
        is_known = queue in self._led and self._led_by == self._asker.generation
        return is_known and time.monotonic() < self._led_until

    async def _look_for_leaders(self) -> None:
        """All topics, as a request that names one could create it; once for all who wait. Raises StoreError."""
        if self._look is None:
            self._look = asyncio.create_task(self._read_leaders())
            self._look.add_done_callback(take_error)
        await asyncio.shield(self._look)

    async def _read_leaders(self) -> None:
        until, asked = time.monotonic() + _LEADERS_S, self._asker.generation
        try:
            seen = await self._asker.run(lambda client, timeout_s: client.list_topics(timeout=timeout_s))
        finally:
            self._look = None
        self._led = frozenset(
            MessageQueue(name, part.id)
            for name, topic in seen.topics.items()
            for part in topic.partitions.values()
            if part.leader >= 0
        )
        self._led_until, self._led_by = until, asked

    async def _ask(
        self, queue: MessageQueue, spec: OffsetSpec, isolation: IsolationLevel
    ) -> ListOffsetsResultInfo | KafkaException:
        target = TopicPartition(*queue)
        answers = await self._asker.ask_each(
            lambda client, timeout_s: {
                None: client.list_offsets({target: spec}, isolation_level=isolation, request_timeout=timeout_s)[target]
            },
            about=queue,
        )
        return answers[None]


def _is_worth_a_retry(error: KafkaError, give_up_at: float) -> bool:
    """Whether the coordinator is on its way, and there is time for it."""
    return error.code() in COORDINATOR_AWAY and time.monotonic() + POLL_S < give_up_at
