"""How far settlers and projection are behind the journal, in time."""

from collections.abc import Mapping
from typing import NamedTuple

from bridge.clock import KafkaTime
from bridge.core.message import MessageQueue
from bridge.core.topics import InternalTopics
from bridge.service.op_follower import OpFollower
from bridge.store.message_store import MessageStore
from bridge.store.results import GetStatus


class Lag(NamedTuple):
    """Ages of the oldest journal record not decided, and of the oldest one not in the projection; 0 if none."""

    settle_ms: int
    projection_ms: int


class Lags:
    """Looks at the journal where settlers and projection stand."""

    def __init__(
        self, store: MessageStore, topics: InternalTopics, follower: OpFollower, kafka_time: KafkaTime
    ) -> None:
        self._store = store
        self._topics = topics
        self._follower = follower
        self._kafka_time = kafka_time

    async def read(self, applied: Mapping[int, int]) -> Lag:
        """`applied`: S of each queue in the projection. Raises StoreError."""
        settle_ms = projection_ms = 0
        decided = self._follower.positions()
        for queue_id in range(self._topics.queues):
            s = applied.get(queue_id, 0)
            projection_ms = max(projection_ms, await self._age_at(queue_id, s))
            settle_ms = max(settle_ms, await self._age_at(queue_id, max(s, decided.get(queue_id, 0))))
        return Lag(settle_ms, projection_ms)

    async def _age_at(self, queue_id: int, offset: int) -> int:
        queue = MessageQueue(self._topics.half, queue_id)
        got = await self._store.get(queue, offset, 1)
        if got.status is GetStatus.OFFSET_ILLEGAL and got.next_begin_offset > offset:
            got = await self._store.get(queue, got.next_begin_offset, 1)
        if not got.messages:
            return 0
        return max(1, self._kafka_time.now_ms() - got.messages[0].stored_ms)
